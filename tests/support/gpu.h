/* Cards for tests of the GPU model, and the reference values' CSV files. */
#ifndef MILLRACE_TESTS_GPU_H
#define MILLRACE_TESTS_GPU_H

#include "config/profile.h"
#include "tests/support/random.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define TEST_GPU_ROWS 160

/* A card whose tables live beside it. It points into itself: not to be copied. */
struct test_gpu {
    struct config_profile_gpu gpu;
    struct config_profile_copy copies[TEST_GPU_ROWS];
    struct config_profile_utilisation utilisation[TEST_GPU_ROWS];
};

/* The card of tests/data/verner_xfer.csv and verner_util.csv with two copy engines, in finer units, so that
 * the rounding to integers stays below 1e-8 of any value: a "byte" is a millionth of one, a "ns" is
 * a millionth of one, and shares are multiples of 1 / 1,290,240, which makes every one in the file whole.
 * Bytes per ns are the same in both units. */
#define TEST_GPU_FINE 1000000 /* of them are one */
void test_gpu_reference(struct test_gpu *card, uint32_t sms, double sm_bytes_per_ns);

/* Any card that config_profile_check takes: one or two copy engines, noisy tables. */
void test_gpu_random(struct test_gpu *card, struct test_random *random);

/* Up to 20 % on the processor's times; more on a GPU's copies where there is less on its kernels. */
void test_gpu_margins_random(struct config_profile_margins *margins, struct test_random *random);

/* A CSV file of tests/data, read line by line; a cell that is no number reads as 0. */
#define TEST_CSV_COLUMNS 12
struct test_csv {
    FILE *file;
    char line[4096];
    char *cell[TEST_CSV_COLUMNS];
    double number[TEST_CSV_COLUMNS];
};
struct test_csv test_csv_open(const char *name); /* skips the names of the columns */
bool test_csv_next(struct test_csv *csv);        /* false: at the end, and closed */

#endif
