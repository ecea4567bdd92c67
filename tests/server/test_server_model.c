/* Random sequences of operations against a model of what the server must answer (support/server_model.h):
 * the fixed seeds, and some random ones that differ from run to run. MILLRACE_SEQUENCES: how many instead;
 * MILLRACE_SEED: the first seed; sequence i has seed + i, so that a deviation is repeated by its seed and
 * one sequence. MILLRACE_JOBS: processes, each with a server of its own, that share the sequences. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/random.h"
#include "tests/support/require.h"
#include "tests/support/server_model.h"
#include "tests/support/virtual_gpu.h"

#define SEQUENCES  2000
#define FIXED_SEED 1500 /* from here on so many sequences tell the faults of tools/mutants.table */
#define BYTES_MAX  400

/* Sequences that told a defect. */
static const struct {
    unsigned long long seed, count;
} told[] = {
    {11001075, 1},   /* a plan with more in a batch, while batches were open that had no room for it */
    {600093595, 1},  /* a refused OPEN that asked again for its backup's GPU, which had no memory for it */
    {600479473, 21}, /* what a stream without its GPU had kept from being read came to another GPU at once */
    {13350, 32},     /* REKEY while a GPU that has come back was being given the present key */
    {804439696, 1},  /* MODIFY right behind a migration that was given up */
    {807927683, 1},  /* the same */
    {10275, 1},      /* REKEY of a chain from an inline key to one for which clients may choose no IV */
    {40161680, 1},   /* an OPEN that waited for a GPU, which was lost meanwhile */
};

static unsigned long long number(const char *variable, unsigned long long otherwise)
{
    const char *text = getenv(variable);
    return text == NULL ? otherwise : strtoull(text, NULL, 10);
}

struct sequences {
    unsigned long long seed, count;
    unsigned long long first, step; /* which of them: first, first + step, ... */
};

static char name[128]; /* of the sequence at hand */

/* What fails beneath the model says where, not in which sequence. */
static void tell_name(int number)
{
    (void)number;
    (void)!write(STDERR_FILENO, "in ", 3);
    (void)!write(STDERR_FILENO, name, strlen(name));
    (void)!write(STDERR_FILENO, "\n", 1);
}

static void run(const struct sequences *sequences)
{
    uint8_t bytes[BYTES_MAX];
    (void)signal(SIGABRT, tell_name);
    for (unsigned long long i = sequences->first; i < sequences->count; i += sequences->step) {
        struct test_random random = {sequences->seed + i};
        const size_t length = (size_t)test_random_log(&random, 4, BYTES_MAX);
        for (size_t at = 0; at < length; at++)
            bytes[at] = (uint8_t)test_random_next(&random);
        snprintf(name, sizeof name, "sequence %llu (MILLRACE_SEED=%llu MILLRACE_SEQUENCES=1)", i,
                 sequences->seed + i);
        test_model_name(name);
        test_model_run(bytes, length);
    }
}

/* In a process of its own, so that each has a server. */
static pid_t start(struct sequences sequences)
{
    fflush(NULL); /* or both would print it */
    const pid_t process = fork();
    assert_true(process >= 0);
    if (process > 0)
        return process;
    test_model_start();
    run(&sequences);
    test_model_stop();
    TEST_REQUIRE(sequences.count < SEQUENCES || test_virtual_gpu_rooms() > sequences.count / 100);
    exit(0);
}

static void run_all(unsigned long long seed, unsigned long long count)
{
    const unsigned long long jobs = number("MILLRACE_JOBS", 1);
    struct timespec began, ended;
    bool good = jobs > 0;

    (void)clock_gettime(CLOCK_MONOTONIC, &began);
    for (unsigned long long job = 0; job < jobs; job++)
        (void)start((struct sequences){seed, count, job, jobs});
    for (unsigned long long job = 0; job < jobs; job++) {
        int status = 0;
        good = wait(&status) > 0 && status == 0 && good;
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &ended);
    assert_true(good);
    print_message("%llu sequences from MILLRACE_SEED=%llu: %.0f a second\n", count, seed,
                  (double)count / ((double)(ended.tv_sec - began.tv_sec) +
                                   (double)(ended.tv_nsec - began.tv_nsec) / 1e9));
}

static void the_server_does_what_the_document_says(void **state)
{
    const unsigned long long sequences = number("MILLRACE_SEQUENCES", SEQUENCES);
    (void)state;
    if (getenv("MILLRACE_SEED") == NULL) {
        for (size_t i = 0; i < sizeof told / sizeof *told; i++)
            run_all(told[i].seed, told[i].count);
        run_all(FIXED_SEED, sequences);
    }
    run_all(number("MILLRACE_SEED", (unsigned long long)time(NULL) << 24), sequences);
}

int main(void)
{
#ifdef __SANITIZE_THREAD__
    return 77; /* skipped: there is one thread, on many stacks, which this sanitizer does not know */
#endif
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_server_does_what_the_document_says)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
