/* An allocator that can be made to fail: of a test that is linked with TEST_ALLOCATOR_WRAPS (tests/CMakeLists.txt) each
 * malloc, calloc and realloc asks first, on any thread. */
#ifndef TESTS_SUPPORT_ALLOCATOR_H
#define TESTS_SUPPORT_ALLOCATOR_H

#include <stdbool.h>

/* Must there be no memory this time? The test's own, and safe for every thread that allocates. NULL: there is memory. */
extern bool (*test_allocator_fails)(void);

#endif
