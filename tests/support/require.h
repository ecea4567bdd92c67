/* A requirement that any thread, and a forked child, may state: cmocka's assertions belong to the thread that
 * runs the test. */
#ifndef MILLRACE_TESTS_REQUIRE_H
#define MILLRACE_TESTS_REQUIRE_H

#include <stdio.h>
#include <stdlib.h>

#define TEST_REQUIRE(condition) ((condition) ? (void)0 : test_require_failed(__FILE__, __LINE__, #condition))

__attribute__((noreturn)) static inline void test_require_failed(const char *file, int line,
                                                                 const char *condition)
{
    fprintf(stderr, "%s:%d: required, but not so: %s\n", file, line, condition);
    abort();
}

#endif
