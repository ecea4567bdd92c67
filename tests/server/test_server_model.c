/* Random sequences of operations against a model of what the server must answer (support/server_model.h):
 * the fixed seeds, and some random ones that differ from run to run. MILLRACE_SEQUENCES: how many instead;
 * MILLRACE_SEED: the first seed; sequence i has seed + i, so that a deviation is repeated by its seed and
 * one sequence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/support/random.h"
#include "tests/support/server_model.h"

#define SEQUENCES 4000
#define BYTES_MAX 400

static unsigned long long number(const char *variable, unsigned long long otherwise)
{
    const char *text = getenv(variable);
    return text == NULL ? otherwise : strtoull(text, NULL, 10);
}

static void run(unsigned long long seed, unsigned long long count)
{
    uint8_t bytes[BYTES_MAX];
    char name[128];
    for (unsigned long long i = 0; i < count; i++) {
        struct test_random random = {seed + i};
        const size_t length = (size_t)test_random_log(&random, 4, BYTES_MAX);
        for (size_t at = 0; at < length; at++)
            bytes[at] = (uint8_t)test_random_next(&random);
        snprintf(name, sizeof name, "sequence %llu (MILLRACE_SEED=%llu MILLRACE_SEQUENCES=1)", i, seed + i);
        test_model_name(name);
        test_model_run(bytes, length);
    }
}

static void the_server_does_what_the_document_says(void **state)
{
    const unsigned long long sequences = number("MILLRACE_SEQUENCES", SEQUENCES);
    (void)state;
    if (getenv("MILLRACE_SEED") == NULL)
        run(1, sequences);
    const unsigned long long seed = number("MILLRACE_SEED", (unsigned long long)time(NULL) << 24);
    print_message("%llu sequences from MILLRACE_SEED=%llu\n", sequences, seed);
    run(seed, sequences);
}

static int start(void **state)
{
    (void)state;
    test_model_start();
    return 0;
}

static int stop(void **state)
{
    (void)state;
    test_model_stop();
    return 0;
}

int main(void)
{
#ifdef __SANITIZE_THREAD__
    return 77; /* skipped: there is one thread, on many stacks, which this sanitizer does not know */
#endif
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_server_does_what_the_document_says)};
    return cmocka_run_group_tests(tests, start, stop);
}
