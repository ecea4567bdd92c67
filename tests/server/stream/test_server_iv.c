/* No vector comes twice, of one source or of two. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "server/stream/iv.h"

#define SOURCES 4
#define EACH    10000

static int compare(const void *a, const void *b)
{
    return memcmp(a, b, CORE_BLOCK_BYTES);
}

static void ivs_are_distinct(void **state)
{
    static uint8_t made[SOURCES * EACH][CORE_BLOCK_BYTES];
    uint64_t ones = 0;
    (void)state;
    for (size_t source = 0; source < SOURCES; source++) {
        struct server_ivs ivs;
        assert_int_equal(server_ivs_init(&ivs, NULL), CORE_OK);
        for (size_t i = 0; i < EACH; i++)
            server_ivs_next(&ivs, made[source * EACH + i]);
        server_ivs_free(&ivs);
    }
    for (size_t i = 0; i < SOURCES * EACH * CORE_BLOCK_BYTES; i++)
        ones += (uint64_t)__builtin_popcount(((const uint8_t *)made)[i]);
    qsort(made, SOURCES * EACH, CORE_BLOCK_BYTES, compare);
    for (size_t i = 1; i < SOURCES * EACH; i++)
        assert_memory_not_equal(made[i - 1], made[i], CORE_BLOCK_BYTES);
    /* half of the 5.12 million bits, by more than twenty times the standard deviation of fair coins */
    const uint64_t half = SOURCES * EACH * CORE_BLOCK_BYTES * 4;
    assert_in_range(ones, half - 25000, half + 25000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ivs_are_distinct),
    };
    return cmocka_run_group_tests_name("server/iv", tests, NULL, NULL);
}
