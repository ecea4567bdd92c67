/* How many random sets a test draws. A sanitizer is after memory and races, which few sets show as well as many,
 * and makes each several times as slow: it gets a quarter of them. */
#ifndef MILLRACE_TESTS_SHARE_H
#define MILLRACE_TESTS_SHARE_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_SHARE(sets) (((sets) + 3) / 4)
#else
#define TEST_SHARE(sets) (sets)
#endif

#endif
