#include "tests/support/gpu.h"

#include "tests/support/require.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SHARE_UNITS 1290240

struct test_csv test_csv_open(const char *name)
{
    struct test_csv csv = {0};
    char path[512];
    snprintf(path, sizeof path, MILLRACE_SOURCE_DIR "/tests/data/%s", name);
    csv.file = fopen(path, "r");
    TEST_REQUIRE(csv.file != NULL);
    TEST_REQUIRE(fgets(csv.line, sizeof csv.line, csv.file) != NULL);
    return csv;
}

bool test_csv_next(struct test_csv *csv)
{
    if (fgets(csv->line, sizeof csv->line, csv->file) == NULL) {
        fclose(csv->file);
        return false;
    }
    char *rest = csv->line;
    for (int i = 0; i < TEST_CSV_COLUMNS; i++) {
        csv->cell[i] = rest != NULL ? strsep(&rest, ",") : NULL;
        csv->number[i] = csv->cell[i] != NULL ? strtod(csv->cell[i], NULL) : 0;
    }
    return true;
}

/* Fine ns for so many bytes, rounded up. */
static core_ns fine_ns(double bytes, double bytes_per_ns)
{
    return (core_ns)ceill((long double)bytes * TEST_GPU_FINE / bytes_per_ns);
}

static void read_copies(struct test_gpu *card)
{
    struct test_csv csv = test_csv_open("verner_xfer.csv");
    while (test_csv_next(&csv)) {
        struct config_profile_copy *row = &card->copies[card->gpu.copy_count++];
        row->bytes = (uint64_t)csv.number[0] * TEST_GPU_FINE;
        row->up_ns = row->up_busy_ns = fine_ns(csv.number[0], csv.number[1]);
        row->down_ns = row->down_busy_ns = fine_ns(csv.number[0], csv.number[2]);
    }
}

static void read_utilisation(struct test_gpu *card)
{
    struct test_csv csv = test_csv_open("verner_util.csv");
    while (test_csv_next(&csv)) {
        TEST_REQUIRE(card->gpu.utilisation_count < TEST_GPU_ROWS);
        struct config_profile_utilisation *row = &card->utilisation[card->gpu.utilisation_count++];
        double units = csv.number[1] * SHARE_UNITS;
        row->jobs = (uint32_t)csv.number[0];
        row->share_ppm = (uint32_t)llround(units);
        TEST_REQUIRE(fabs(units - row->share_ppm) < 1e-6);
    }
}

void test_gpu_reference(struct test_gpu *card, uint32_t sms, double sm_bytes_per_ns)
{
    *card = (struct test_gpu){.gpu = {.name = (char *)"reference", .count = 1, .copy_engines = 2}};
    card->gpu.sms = sms;
    card->gpu.memory_bytes = CONFIG_PROFILE_MEMORY_BYTES_MAX;
    /* the share's unit is not ppm, so the peak makes up for it */
    card->gpu.sm_bytes_per_s = llround(sm_bytes_per_ns * 1e9 * CONFIG_PROFILE_SHARE_PPM / SHARE_UNITS);
    card->gpu.copies = card->copies;
    card->gpu.utilisation = card->utilisation;
    read_copies(card);
    read_utilisation(card);
}

static core_ns at_most(core_ns value, core_ns limit)
{
    return value < limit ? value : limit;
}

static void random_copies(struct test_gpu *card, struct test_random *random)
{
    struct config_profile_copy row = {.bytes = (uint64_t)test_random_log(random, 1, 65536)};
    row.up_ns = test_random_log(random, 1, 100000);
    row.down_ns = test_random_log(random, 1, 100000);
    row.up_busy_ns = row.up_ns + test_random_in(random, 0, 100000);
    row.down_busy_ns = row.down_ns + test_random_in(random, 0, 100000);
    card->gpu.copy_count = (uint32_t)test_random_in(random, 1, 8);
    for (uint32_t i = 0; i < card->gpu.copy_count; i++) {
        card->copies[i] = row;
        row.bytes += (uint64_t)test_random_log(random, 1, 1 << 26);
        row.up_ns += test_random_in(random, 0, 10000000);
        row.down_ns += test_random_in(random, 0, 10000000);
        core_ns extra_ns = test_random_in(random, 0, 10000000);
        row.up_busy_ns = core_time_max(row.up_busy_ns, row.up_ns) + extra_ns;
        row.down_busy_ns = core_time_max(row.down_busy_ns, row.down_ns) + extra_ns;
    }
}

/* Rising on the whole, with noise that makes it fall at times. */
static void random_utilisation(struct test_gpu *card, struct test_random *random)
{
    uint32_t jobs = 1;
    core_ns share_ppm = test_random_log(random, 1, 100000);
    card->gpu.utilisation_count = (uint32_t)test_random_in(random, 1, 40);
    for (uint32_t i = 0; i < card->gpu.utilisation_count; i++) {
        card->utilisation[i] = (struct config_profile_utilisation){jobs, (uint32_t)share_ppm};
        jobs += test_random_chance(random, 50) ? 1 : (uint32_t)test_random_log(random, 1, 64);
        core_ns shift_ppm = test_random_in(random, -share_ppm / 3, share_ppm);
        share_ppm = at_most(share_ppm + shift_ppm, CONFIG_PROFILE_SHARE_PPM);
    }
}

/* Some cards have a batcher that takes time; which, the numbers drawn so far tell. */
static void random_host(struct test_gpu *card)
{
    struct test_random random = {(uint64_t)card->gpu.sm_bytes_per_s};
    if (test_random_chance(&random, 50))
        return;
    card->gpu.host_batch_ns = test_random_in(&random, 0, 50000);
    card->gpu.host_packet_ns = test_random_in(&random, 0, 30);
}

void test_gpu_random(struct test_gpu *card, struct test_random *random)
{
    *card = (struct test_gpu){.gpu = {.name = (char *)"random", .count = 1}};
    card->gpu.sms = (uint32_t)test_random_log(random, 1, 64);
    card->gpu.copy_engines = (uint32_t)test_random_in(random, 1, 2);
    card->gpu.memory_bytes = (uint64_t)test_random_log(random, 1 << 20, INT64_C(1) << 40);
    card->gpu.sm_bytes_per_s = test_random_log(random, 1000000, CONFIG_PROFILE_SM_RATE_MAX);
    card->gpu.launch_ns = test_random_in(random, 0, 50000);
    card->gpu.job_bytes = (uint32_t)test_random_in(random, 0, 256);
    card->gpu.copies = card->copies;
    card->gpu.utilisation = card->utilisation;
    random_copies(card, random);
    random_utilisation(card, random);
    random_host(card);
}

void test_gpu_margins_random(struct config_profile_margins *margins, struct test_random *random)
{
    const uint32_t percent_ppm = CONFIG_PROFILE_MARGIN_PPM / 100;
    margins->percent = (uint32_t)test_random_in(random, 0, 20);
    margins->copies_ppm = margins->percent * percent_ppm;
    margins->kernels_ppm = (20 - margins->percent) * percent_ppm;
}
