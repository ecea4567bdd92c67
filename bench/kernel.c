/* millrace-bench kernel: one GPU by itself. First whether it encrypts as OpenSSL does: random jobs with keys
 * of all sizes, each stream's chain going on from batch to batch. Then how fast its kernel is beside its
 * copies: batches of equal jobs, one at a time, for each key size. And what copies reach at best, by the kind of
 * the host's pages (gpu/copy_limits.h). */
#include "bench/bench.h"
#include "bench/document.h"
#include "bench/gpu/card.h"
#include "bench/machine.h"
#include "bench/options.h"
#include "bench/samples.h"
#include "core/stream.h"
#include "gpu/copy_limits.h"

#include <limits.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARENAS         3
#define CHECK_STREAMS  1000
#define CHECK_BYTES    (UINT64_C(64) << 20)
#define SEGMENTS_MAX   3 /* of a job */
#define JOB_BLOCKS_MAX 4000
#define CHAIN_BATCHES  100 /* small ones, behind the large */
#define CHAIN_BLOCKS   8
#define PERIOD_NS      CORE_NS_PER_S
#define PATIENCE_NS    (60 * CORE_NS_PER_S)

enum { KEY_PROGRAM = 256, KEY_BYTES, KEY_CHECK, KEY_BATCHES, KEY_COPIES, KEY_KERNEL };

struct options {
    struct bench_gpu_program program;
    const char *profile;
    uint32_t device, jobs, bytes, checked_jobs, batches;
    uint64_t copied_bytes;
    bool json;
};

static const struct argp_option option_table[] = {
    {"backend", 'b', "NAME", 0, "cuda or emulated (default cuda)", 0},
    {"device", 'd', "INDEX", 0, "Which card (default 0)", 0},
    {"profile", 'P', "PROFILE", 0, "Of the emulated card (default emulated-small)", 0},
    {"jobs", 'n', "N", 0, "Jobs in a batch that is timed (default 12000)", 0},
    {"bytes", KEY_BYTES, "N", 0, "Bytes of each job that is timed (default 16384)", 0},
    {"batches", KEY_BATCHES, "N", 0, "Batches that are timed for each key size (default 21)", 0},
    {"check", KEY_CHECK, "N", 0, "Random jobs that are compared with OpenSSL (default 10000)", 0},
    {"copies", KEY_COPIES, "BYTES", 0, "Of a copy whose limit is measured; 0: none is (default 256M)", 0},
    {"kernel", KEY_KERNEL, "FORM", 0, "whole or quad (default: the one that is faster at the start)", 0},
    {"gpu-program", KEY_PROGRAM, "PATH", 0, "millrace-gpu (default: the one of this build)", 0},
    {"json", 'j', NULL, 0, "One JSON document", 0},
    {0},
};

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;
    switch (key) {
    case 'b':
        options->program.backend = argument;
        if (strcmp(argument, "cuda") != 0 && strcmp(argument, "emulated") != 0)
            argp_error(state, "--backend %s: cuda or emulated", argument);
        return 0;
    case 'd':
        options->device = (uint32_t)core_options_count(state, "device", argument, 0, 1023);
        return 0;
    case 'P':
        options->profile = argument;
        return 0;
    case 'n':
        options->jobs = (uint32_t)core_options_count(state, "jobs", argument, 1, 1000000);
        return 0;
    case KEY_BYTES:
        options->bytes = (uint32_t)core_options_bytes(state, "bytes", argument, 16, 1 << 24) / 16 * 16;
        return 0;
    case KEY_BATCHES:
        options->batches = (uint32_t)core_options_count(state, "batches", argument, 1, 100000);
        return 0;
    case KEY_CHECK:
        options->checked_jobs = (uint32_t)core_options_count(state, "check", argument, 0, 10000000);
        return 0;
    case KEY_COPIES:
        options->copied_bytes =
            (uint64_t)core_options_bytes(state, "copies", argument, 0, GPU_COPY_BYTES_MOST);
        if (options->copied_bytes > 0 && options->copied_bytes < GPU_COPY_BYTES_LEAST)
            argp_error(state, "--copies: 0, or 4M to 1G");
        return 0;
    case KEY_KERNEL:
        options->program.kernel_forms = bench_gpu_kernel_forms(argument);
        if (options->program.kernel_forms == 0)
            argp_error(state, "--kernel %s: whole or quad", argument);
        return 0;
    case KEY_PROGRAM:
        options->program.path = argument;
        return 0;
    case 'j':
        options->json = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {option_table,
                                 parse_option,
                                 NULL,
                                 "Check one GPU against OpenSSL, and time its kernel and its copies.\v"
                                 "Exit status: 0 every byte was right, else 1.",
                                 NULL,
                                 NULL,
                                 NULL};

/* ---- a card with its region ---- */

struct rig {
    struct gpu_region region;
    struct bench_gpu_card card;
    uint64_t random, batches;
};

static uint64_t draw(struct rig *rig, uint64_t below) /* splitmix64 */
{
    uint64_t z = rig->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % below;
}

static void draw_bytes(struct rig *rig, uint8_t *to, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        const uint64_t value = draw(rig, UINT64_MAX);
        memcpy(to + i, &value, bytes - i < sizeof value ? bytes - i : sizeof value);
    }
}

static core_status rig_open(struct rig *rig, const struct options *options,
                            const struct config_profile *profile, const struct gpu_region_shape *shape,
                            struct core_error *error)
{
    struct gpu_listed which;
    *rig = (struct rig){.random = 1};
    core_status status = bench_gpu_card_find(&options->program, options->device, &which, error);
    if (status == CORE_OK)
        bench_gpu_card_near(&which);
    if (status == CORE_OK)
        status = gpu_region_create(&rig->region, shape, NULL, error);
    if (status == CORE_OK)
        status = bench_gpu_card_start(&rig->card, &options->program, &which, &rig->region, &profile->gpus[0],
                                      false, error);
    return status;
}

static void rig_close(struct rig *rig)
{
    bench_gpu_card_stop(&rig->card);
    gpu_region_close(&rig->region);
}

/* Runs one batch; the order's number and arena are set here. */
static core_status batch_run(struct rig *rig, struct gpu_order *order, struct gpu_stage_time *times,
                             struct core_error *error)
{
    struct gpu_event event;
    core_ns seen_ns;
    order->number = ++rig->batches;
    core_status status = bench_gpu_card_submit(&rig->card, order, PERIOD_NS, NULL, error);
    if (status == CORE_OK)
        status = bench_gpu_card_next(&rig->card, core_time_now_ns() + PATIENCE_NS, &event, &seen_ns, error);
    if (status == CORE_AGAIN)
        return core_error_set(error, CORE_TIMEOUT, "the card does not answer");
    if (status == CORE_OK)
        memcpy(times, event.batch.times, sizeof event.batch.times);
    return status;
}

/* ---- check ---- */

static const EVP_CIPHER *(*const evp_ciphers[])(void) = {EVP_aes_128_cbc, EVP_aes_192_cbc, EVP_aes_256_cbc};

struct stream {
    EVP_CIPHER_CTX *reference;
    uint32_t chain_from;
};

struct check {
    struct rig rig;
    struct stream streams[CHECK_STREAMS];
    uint8_t *expected;
    uint64_t jobs, bytes, wrong_batches;
};

static core_status stream_open(struct check *check, uint32_t slot, struct core_error *error)
{
    struct stream *stream = &check->streams[slot];
    const uint64_t size = draw(&check->rig, 3);
    uint8_t key[GPU_KEY_BYTES_MAX], iv[GPU_BLOCK_BYTES];
    draw_bytes(&check->rig, key, sizeof key);
    draw_bytes(&check->rig, iv, sizeof iv);
    stream->reference = EVP_CIPHER_CTX_new();
    if (stream->reference == NULL ||
        EVP_EncryptInit_ex(stream->reference, evp_ciphers[size](), NULL, key, iv) != 1 ||
        EVP_CIPHER_CTX_set_padding(stream->reference, 0) != 1)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for OpenSSL's contexts");
    return bench_gpu_card_key(&check->rig.card, slot, key, 16 + 8 * (uint32_t)size, iv, error);
}

/* A segment at the end of what is used, and its ciphertext by OpenSSL. */
static void segment_add(struct check *check, struct gpu_order *order, struct stream *stream, uint32_t blocks)
{
    const uint64_t at = order->used_bytes;
    const uint32_t bytes = blocks * GPU_BLOCK_BYTES;
    int written = 0;
    gpu_region_segments(&check->rig.region, order->arena)[order->segment_count++] =
        (struct gpu_segment){.offset_bytes = (uint32_t)at, .length_bytes = bytes, .next = GPU_SEGMENT_NONE};
    (void)EVP_EncryptUpdate(stream->reference, check->expected + at, &written,
                            gpu_region_input(&check->rig.region, order->arena) + at, (int)bytes);
    order->used_bytes += bytes;
}

static void job_add(struct check *check, struct gpu_order *order, uint32_t slot, uint32_t blocks)
{
    struct stream *stream = &check->streams[slot];
    struct gpu_job *job = &gpu_region_jobs(&check->rig.region, order->arena)[order->job_count++];
    struct gpu_segment *segments = gpu_region_segments(&check->rig.region, order->arena);
    *job = (struct gpu_job){.key_slot = gpu_key_slot(slot, 0),
                            .chain_slot = slot,
                            .first_segment = order->segment_count,
                            .blocks = blocks,
                            .chain_from = stream->chain_from};
    stream->chain_from ^= 1;
    while (blocks > 0) {
        const bool last = order->segment_count - job->first_segment + 1 == SEGMENTS_MAX;
        const uint32_t part = last ? blocks : 1 + (uint32_t)draw(&check->rig, blocks);
        if (order->segment_count > job->first_segment)
            segments[order->segment_count - 1].next = order->segment_count;
        segment_add(check, order, stream, part);
        blocks -= part;
    }
}

static int by_falling_blocks(const void *a, const void *b)
{
    const struct gpu_job *left = a, *right = b;
    return (left->blocks < right->blocks) - (left->blocks > right->blocks);
}

/* 1 .. most, small ones as often as large ones. */
static uint32_t draw_blocks(struct check *check, uint32_t most)
{
    const uint64_t limit = 1 + draw(&check->rig, most);
    return 1 + (uint32_t)draw(&check->rig, limit);
}

/* A job of about every stream, until `jobs` are there or the arena is full. */
static core_status check_batch(struct check *check, uint64_t jobs, uint32_t blocks_max,
                               struct core_error *error)
{
    const struct gpu_region *region = &check->rig.region;
    struct gpu_order order = {.arena = (uint32_t)(check->rig.batches % ARENAS)};
    struct gpu_stage_time times[GPU_STAGE_COUNT];
    const uint64_t most = (uint64_t)blocks_max * GPU_BLOCK_BYTES;
    for (uint32_t slot = 0; slot < CHECK_STREAMS && order.job_count < jobs; slot++)
        if (draw(&check->rig, 8) > 0 && order.used_bytes + most <= region->shape.arena_bytes)
            job_add(check, &order, slot, draw_blocks(check, blocks_max));
    qsort(gpu_region_jobs(region, order.arena), order.job_count, sizeof(struct gpu_job), by_falling_blocks);
    memset(gpu_region_output(region, order.arena), 0, order.used_bytes);
    const core_status status = batch_run(&check->rig, &order, times, error);
    if (status != CORE_OK)
        return status;
    check->jobs += order.job_count;
    check->bytes += order.used_bytes;
    check->wrong_batches +=
        memcmp(gpu_region_output(region, order.arena), check->expected, order.used_bytes) != 0;
    return CORE_OK;
}

static core_status check_run(struct check *check, uint64_t jobs, struct core_error *error)
{
    core_status status = CORE_OK;
    for (uint32_t arena = 0; arena < ARENAS; arena++)
        draw_bytes(&check->rig, gpu_region_input(&check->rig.region, arena), CHECK_BYTES);
    for (uint32_t slot = 0; slot < CHECK_STREAMS && status == CORE_OK; slot++)
        status = stream_open(check, slot, error);
    while (status == CORE_OK && check->jobs < jobs)
        status = check_batch(check, jobs - check->jobs, JOB_BLOCKS_MAX, error);
    for (int i = 0; i < CHAIN_BATCHES && jobs > 0 && status == CORE_OK; i++)
        status = check_batch(check, CHECK_STREAMS, CHAIN_BLOCKS, error);
    return status;
}

static core_status check_open_and_run(struct check *check, const struct options *options,
                                      const struct config_profile *profile, struct core_error *error)
{
    const struct gpu_region_shape shape = {.arenas = ARENAS,
                                           .slots = CHECK_STREAMS,
                                           .segments = CHECK_STREAMS * SEGMENTS_MAX,
                                           .arena_bytes = CHECK_BYTES};
    check->expected = malloc(CHECK_BYTES);
    if (check->expected == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for OpenSSL's results");
    core_status status = rig_open(&check->rig, options, profile, &shape, error);
    if (status == CORE_OK)
        status = check_run(check, options->checked_jobs, error);
    rig_close(&check->rig);
    for (uint32_t slot = 0; slot < CHECK_STREAMS; slot++)
        EVP_CIPHER_CTX_free(check->streams[slot].reference);
    free(check->expected);
    return status;
}

/* ---- speed ---- */

struct speed {
    enum core_cipher cipher;
    double stage_ns[GPU_STAGE_COUNT];                    /* medians */
    uint8_t key[GPU_KEY_BYTES_MAX], iv[GPU_BLOCK_BYTES]; /* of the last job */
};

static void tables_fill(const struct gpu_region *region, uint32_t arena, const struct options *options)
{
    for (uint32_t i = 0; i < options->jobs; i++) {
        gpu_region_segments(region, arena)[i] = (struct gpu_segment){
            .offset_bytes = i * options->bytes, .length_bytes = options->bytes, .next = GPU_SEGMENT_NONE};
        gpu_region_jobs(region, arena)[i] = (struct gpu_job){.key_slot = gpu_key_slot(i, 0),
                                                             .chain_slot = i,
                                                             .first_segment = i,
                                                             .blocks = options->bytes / GPU_BLOCK_BYTES};
    }
}

static core_status speed_keys(struct rig *rig, const struct options *options, struct speed *speed,
                              struct core_error *error)
{
    core_status status = CORE_OK;
    for (uint32_t slot = 0; slot < options->jobs && status == CORE_OK; slot++) {
        draw_bytes(rig, speed->key, sizeof speed->key);
        draw_bytes(rig, speed->iv, sizeof speed->iv);
        status = bench_gpu_card_key(&rig->card, slot, speed->key, core_cipher_key_bytes(speed->cipher),
                                    speed->iv, error);
    }
    return status;
}

/* The last job of the last batch, which has the largest offsets. All batches here begin with their keys' IVs. */
static core_status speed_check(const struct rig *rig, const struct options *options,
                               const struct speed *speed, struct check *check, struct core_error *error)
{
    const uint32_t arena = (uint32_t)((rig->batches - 1) % ARENAS);
    const uint64_t at = (uint64_t)(options->jobs - 1) * options->bytes;
    EVP_CIPHER_CTX *reference = EVP_CIPHER_CTX_new();
    uint8_t *expected = malloc(options->bytes);
    int written = 0;
    const bool made =
        reference != NULL && expected != NULL &&
        EVP_EncryptInit_ex(reference, evp_ciphers[speed->cipher - 1](), NULL, speed->key, speed->iv) == 1 &&
        EVP_CIPHER_CTX_set_padding(reference, 0) == 1 &&
        EVP_EncryptUpdate(reference, expected, &written, gpu_region_input(&rig->region, arena) + at,
                          (int)options->bytes) == 1;
    if (made) {
        check->jobs++;
        check->bytes += options->bytes;
        check->wrong_batches +=
            memcmp(gpu_region_output(&rig->region, arena) + at, expected, options->bytes) != 0;
    }
    EVP_CIPHER_CTX_free(reference);
    free(expected);
    return made ? CORE_OK : core_error_set(error, CORE_NO_MEMORY, "no memory for OpenSSL's result");
}

static core_status speed_measure(struct rig *rig, const struct options *options, struct speed *speed,
                                 struct core_error *error)
{
    struct bench_samples samples[GPU_STAGE_COUNT] = {0};
    core_status status = speed_keys(rig, options, speed, error);
    for (int stage = 0; stage < GPU_STAGE_COUNT && status == CORE_OK; stage++)
        status = bench_samples_init(&samples[stage], options->batches);
    for (uint32_t i = 0; i <= options->batches && status == CORE_OK; i++) { /* the first one warms up */
        struct gpu_order order = {.arena = (uint32_t)(rig->batches % ARENAS),
                                  .job_count = options->jobs,
                                  .segment_count = options->jobs,
                                  .used_bytes = (uint64_t)options->jobs * options->bytes};
        struct gpu_stage_time times[GPU_STAGE_COUNT];
        status = batch_run(rig, &order, times, error);
        for (int stage = 0; stage < GPU_STAGE_COUNT && status == CORE_OK && i > 0; stage++)
            bench_samples_add(&samples[stage], (double)(times[stage].end_ns - times[stage].start_ns));
    }
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
        if (status == CORE_OK)
            speed->stage_ns[stage] = bench_samples_percentile(&samples[stage], 50);
        bench_samples_free(&samples[stage]);
    }
    return status;
}

static core_status speeds_measure(const struct options *options, const struct config_profile *profile,
                                  struct check *check, struct speed *speeds, struct gpu_device_facts *facts,
                                  struct core_error *error)
{
    const struct gpu_region_shape shape = {.arenas = ARENAS,
                                           .slots = options->jobs,
                                           .segments = options->jobs,
                                           .arena_bytes = (uint64_t)options->jobs * options->bytes};
    struct rig rig = {0};
    core_status status = gpu_region_shape_check(&shape, error);
    if (status == CORE_OK)
        status = rig_open(&rig, options, profile, &shape, error);
    for (uint32_t arena = 0; arena < ARENAS && status == CORE_OK; arena++) {
        draw_bytes(&rig, gpu_region_input(&rig.region, arena), shape.arena_bytes);
        tables_fill(&rig.region, arena, options);
    }
    for (int i = 0; i < CORE_CIPHER_COUNT && status == CORE_OK; i++) {
        speeds[i].cipher = (enum core_cipher)(i + 1);
        status = speed_measure(&rig, options, &speeds[i], error);
        if (status == CORE_OK)
            status = speed_check(&rig, options, &speeds[i], check, error);
    }
    *facts = rig.card.facts;
    rig_close(&rig);
    return status;
}

/* ---- limits of copies ---- */

struct copies {
    struct gpu_copy_limits limits[GPU_COPY_PAGES];
    uint32_t count;
};

static core_status copies_measure(const struct options *options, struct copies *copies,
                                  struct core_error *error)
{
    if (options->copied_bytes == 0)
        return CORE_OK;
    return gpu_copy_limits_run(options->program.path, options->program.backend, options->device,
                               options->copied_bytes, copies->limits, &copies->count, error);
}

static void copies_print(const struct copies *copies)
{
    if (copies->count > 0)
        printf("\ncopies alone, GB/s at best   %10s %10s %10s %10s %15s\n", "up", "down", "both: up",
               "both: down", "pinning, us/MiB");
    for (uint32_t i = 0; i < copies->count; i++) {
        const struct gpu_copy_limits *limits = &copies->limits[i];
        printf("pages: %-21s %10.2f %10.2f %10.2f %10.2f %15.2f\n", gpu_copy_pages_name(limits->pages),
               (double)limits->up / 1e9, (double)limits->down / 1e9, (double)limits->up_beside / 1e9,
               (double)limits->down_beside / 1e9, (double)limits->pin_ns / 1e3);
    }
}

static json_t *copies_json(const struct copies *copies)
{
    json_t *kinds = json_object();
    for (uint32_t i = 0; i < copies->count; i++) {
        const struct gpu_copy_limits *limits = &copies->limits[i];
        json_object_set_new(kinds, gpu_copy_pages_name(limits->pages),
                            json_pack("{s:f, s:f, s:f, s:f, s:f}", "up_gb_per_s", (double)limits->up / 1e9,
                                      "down_gb_per_s", (double)limits->down / 1e9, "up_beside_gb_per_s",
                                      (double)limits->up_beside / 1e9, "down_beside_gb_per_s",
                                      (double)limits->down_beside / 1e9, "pinning_us_per_mib",
                                      (double)limits->pin_ns / 1e3));
    }
    return kinds;
}

/* ---- report ---- */

static double gb_per_s(const struct options *options, double ns)
{
    return (double)options->jobs * options->bytes / ns;
}

static void print(const struct options *options, const struct check *check, const struct speed *speeds,
                  const struct copies *copies, const struct gpu_device_facts *facts)
{
    printf("%s%s%s, driver %s, kernel %s, %u SMs\n", facts->name, facts->uuid[0] != '\0' ? ", " : "",
           facts->uuid, facts->driver, facts->kernel, facts->sms);
    printf("against OpenSSL: %llu jobs, %llu bytes: %s\n", (unsigned long long)check->jobs,
           (unsigned long long)check->bytes, check->wrong_batches == 0 ? "every byte right" : "WRONG");
    printf("%u jobs of %u bytes, GB/s   %10s %10s %10s\n", options->jobs, options->bytes, "kernel", "copy up",
           "copy down");
    for (int i = 0; i < CORE_CIPHER_COUNT; i++)
        printf("%-28s %10.2f %10.2f %10.2f\n", core_cipher_name(speeds[i].cipher),
               gb_per_s(options, speeds[i].stage_ns[GPU_STAGE_KERNEL]),
               gb_per_s(options, speeds[i].stage_ns[GPU_STAGE_UP]),
               gb_per_s(options, speeds[i].stage_ns[GPU_STAGE_DOWN]));
    copies_print(copies);
}

static core_status print_json(const struct options *options, const struct check *check,
                              const struct speed *speeds, const struct copies *copies,
                              const struct gpu_device_facts *facts, struct core_error *error)
{
    json_t *ciphers = json_object();
    for (int i = 0; i < CORE_CIPHER_COUNT; i++)
        json_object_set_new(ciphers, core_cipher_name(speeds[i].cipher),
                            json_pack("{s:f, s:f, s:f}", "kernel_gb_per_s",
                                      gb_per_s(options, speeds[i].stage_ns[GPU_STAGE_KERNEL]), "up_gb_per_s",
                                      gb_per_s(options, speeds[i].stage_ns[GPU_STAGE_UP]), "down_gb_per_s",
                                      gb_per_s(options, speeds[i].stage_ns[GPU_STAGE_DOWN])));
    return bench_document_print(
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:I, s:I, s:I, s:i, s:i, s:o, s:o}", "name", facts->name,
                  "uuid", facts->uuid, "pci", facts->pci, "driver", facts->driver, "kernel", facts->kernel,
                  "sms", (int)facts->sms, "checked_jobs", (json_int_t)check->jobs, "checked_bytes",
                  (json_int_t)check->bytes, "wrong_batches", (json_int_t)check->wrong_batches, "jobs",
                  (int)options->jobs, "bytes", (int)options->bytes, "ciphers", ciphers, "copies",
                  copies_json(copies)),
        error);
}

static core_status run(const struct options *options, bool *right, struct core_error *error)
{
    struct bench_machine machine;
    struct check *check = calloc(1, sizeof *check);
    struct speed speeds[CORE_CIPHER_COUNT] = {0};
    struct copies copies = {0};
    struct gpu_device_facts facts;
    core_status status = bench_machine_open(&machine, options->profile, error);

    if (check == NULL)
        status = core_error_set(error, CORE_NO_MEMORY, "no memory for a check");
    if (status == CORE_OK && machine.file->gpu_count == 0)
        status = core_error_set(error, CORE_INVALID, "profile %s has no card to play", options->profile);
    if (status == CORE_OK)
        status = check_open_and_run(check, options, machine.file, error);
    if (status == CORE_OK)
        status = speeds_measure(options, machine.file, check, speeds, &facts, error);
    if (status == CORE_OK) {
        const core_status copied = copies_measure(options, &copies, error); /* told last: the rest is known */
        *right = check->wrong_batches == 0;
        if (options->json)
            status = print_json(options, check, speeds, &copies, &facts, error);
        else
            print(options, check, speeds, &copies, &facts);
        status = status == CORE_OK ? copied : status;
    }
    free(check);
    bench_machine_close(&machine);
    return status;
}

int bench_kernel(int argc, char **argv)
{
    char program[PATH_MAX];
    struct options options = {
        .program = {.path = bench_gpu_program_find(program, sizeof program), .backend = "cuda"},
        .profile = "emulated-small",
        .jobs = 12000,
        .bytes = 16384,
        .checked_jobs = 10000,
        .copied_bytes = UINT64_C(256) << 20,
        .batches = 21};
    struct core_error error = {""};
    bool right = false;

    if (core_options_parse(&argp, argc, argv, &options) != 0)
        return 2;
    if (run(&options, &right, &error) == CORE_OK)
        return right ? 0 : 1;
    fprintf(stderr, "millrace-bench kernel: %s\n", error.text);
    return 1;
}
