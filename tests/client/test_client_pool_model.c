/* Random sequences of operations on a pool and in its world, against a model (support/pool/pool_model.h): the fixed
 * seeds, and some random ones that differ from run to run. MILLRACE_SEQUENCES: how many instead; MILLRACE_SEED: the
 * first seed; sequence i has seed + i, so that a deviation is repeated by its seed and one sequence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/pool/pool_model.h"
#include "tests/support/random.h"
#include "tests/support/share.h"

#define SEQUENCES  TEST_SHARE(40000)
#define FIXED_SEED 1
#define BYTES_MAX  400

static unsigned long long number(const char *variable, unsigned long long otherwise)
{
    const char *text = getenv(variable);
    return text == NULL ? otherwise : strtoull(text, NULL, 10);
}

static char name[96]; /* of the sequence at hand */

/* What fails beneath the model says where, not in which sequence. */
static void tell_name(int number)
{
    (void)number;
    (void)!write(STDERR_FILENO, "in ", 3);
    (void)!write(STDERR_FILENO, name, strlen(name));
    (void)!write(STDERR_FILENO, "\n", 1);
}

static void run(unsigned long long seed, unsigned long long count)
{
    (void)signal(SIGABRT, tell_name);
    for (unsigned long long i = 0; i < count; i++) {
        uint8_t bytes[BYTES_MAX];
        struct test_random random = {seed + i};
        const size_t length = (size_t)test_random_log(&random, 4, BYTES_MAX);
        for (size_t at = 0; at < length; at++)
            bytes[at] = (uint8_t)test_random_next(&random);
        snprintf(name, sizeof name, "MILLRACE_SEED=%llu MILLRACE_SEQUENCES=1", seed + i);
        test_pool_model_name(name);
        test_pool_model_run(bytes, length);
    }
}

static void a_pool_tells_what_its_header_says(void **state)
{
    const unsigned long long sequences = number("MILLRACE_SEQUENCES", SEQUENCES);
    (void)state;
    if (getenv("MILLRACE_SEED") == NULL)
        run(FIXED_SEED, sequences);
    run(number("MILLRACE_SEED", (unsigned long long)time(NULL) << 20), sequences);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_pool_tells_what_its_header_says)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
