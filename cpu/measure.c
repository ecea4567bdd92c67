#include "cpu/measure.h"

#include "cpu/scheduler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BYTE_FS_MIN       10000 /* 100 GB/s: no core encrypts faster, a smaller slope is noise */
#define STREAMS           3000  /* of each direction, a third for each cipher */
#define SLOTS             3900  /* buffers, 64 MB in all: more than the caches hold */
#define PIECE_BYTES_MAX   (16 * 1024)
#define SLOT_BYTES        (PIECE_BYTES_MAX + 192) /* staggered, or all lanes would share their cache sets */
#define SHORT_BYTES       192
#define LONG_PACKET_BYTES (16 * 1024)
#define USUAL_BYTES       1408
#define SAMPLES_MAX       63
#define CHECKS_MAX        50000
#define GOOD_ENOUGH       0.95 /* of the best throughput */
#define OVER_PERCENT      1.0  /* of random bursts, left to the system */
#define DECRYPT_SHARE     8    /* one part in so many of the time is for bursts that decrypt */
#define FS_PER_NS         1e6
#define BUDGET_NS_MIN     (100 * CORE_NS_PER_MS)

static const uint32_t piece_candidates[] = {1024, 2048, 4096, 8192, 16384};
static const uint32_t burst_factors[] = {1, 2, 4, 8};
#define PIECE_CANDIDATES (sizeof piece_candidates / sizeof piece_candidates[0])
#define BURST_CANDIDATES (sizeof burst_factors / sizeof burst_factors[0])

/* The pieces of one burst to be timed. */
struct burst {
    enum core_direction direction;
    uint32_t count;
    enum core_cipher ciphers[CPU_BURST_MAX];
    uint32_t bytes[CPU_BURST_MAX];
};

/* Fitted figures before they are rounded into a cpu_cost; nanoseconds and nanoseconds per byte. */
struct fit {
    double per_piece, per_byte[CORE_CIPHER_COUNT], lane[CORE_CIPHER_COUNT];
};

struct rig {
    const struct cpu_measure_options *options;
    struct cpu_scheduler *scheduler;
    uint32_t lanes;
    uint32_t streams_open;
    size_t stream_bytes;
    uint8_t *streams; /* secret memory would be right for keys; these are zeros and counters */
    uint8_t *data;
    struct cpu_packet *packets;
    uint32_t next_stream, next_slot;
    uint64_t random;
    core_status status; /* first failure of a burst; later samples are void */
};

static uint64_t draw(struct rig *rig)
{
    rig->random = rig->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return rig->random >> 33;
}

static core_ns clock_monotonic(void *argument)
{
    (void)argument;
    return core_time_now_ns();
}

static core_ns now(const struct rig *rig)
{
    return rig->options->clock(rig->options->clock_argument);
}

static struct cpu_stream *stream_at(const struct rig *rig, uint32_t i)
{
    return (struct cpu_stream *)(rig->streams + i * rig->stream_bytes);
}

/* Steps that have no factor in common with the counts visit everything once, far apart. */
static struct cpu_stream *stream_next(struct rig *rig, enum core_cipher cipher, enum core_direction direction)
{
    rig->next_stream = (rig->next_stream + 619) % (STREAMS / CORE_CIPHER_COUNT);
    return stream_at(rig, (uint32_t)direction * STREAMS + rig->next_stream * CORE_CIPHER_COUNT +
                              (uint32_t)cipher - 1);
}

static uint8_t *slot_next(struct rig *rig)
{
    rig->next_slot = (rig->next_slot + 1409) % SLOTS;
    return rig->data + (size_t)rig->next_slot * SLOT_BYTES;
}

/* Runs one burst of cold streams and buffers; returns its time. */
static core_ns burst_time_ns(struct rig *rig, const struct burst *burst)
{
    struct cpu_packet *pushed[CPU_BURST_MAX], *finished[CPU_BURST_MAX];
    core_ns release_ns = now(rig);
    for (uint32_t i = 0; i < burst->count; i++) {
        struct cpu_packet *packet = &rig->packets[i];
        *packet = (struct cpu_packet){.stream = stream_next(rig, burst->ciphers[i], burst->direction),
                                      .data = slot_next(rig),
                                      .bytes = burst->bytes[i],
                                      .release_ns = release_ns + (core_ns)draw(rig) % (50 * CORE_NS_PER_MS)};
        pushed[i] = packet;
    }
    core_ns start_ns = now(rig);
    cpu_scheduler_push(rig->scheduler, pushed, burst->count, start_ns);
    uint32_t count = cpu_scheduler_burst(rig->scheduler, finished, NULL, rig->options->clock,
                                         rig->options->clock_argument);
    core_ns end_ns = now(rig);
    for (uint32_t i = 0; i < count; i++)
        rig->status = rig->status == CORE_OK ? finished[i]->status : rig->status;
    return end_ns - start_ns;
}

static int compare_double(const void *left, const void *right)
{
    const double *a = left, *b = right;
    return (*a > *b) - (*a < *b);
}

static double percentile(double *values, uint32_t count, double percent)
{
    qsort(values, count, sizeof *values, compare_double);
    return values[(uint32_t)(percent / 100 * (count - 1))];
}

/* Median time of a burst of equal pieces. */
static double median_ns(struct rig *rig, enum core_cipher cipher, uint32_t count, uint32_t bytes,
                        uint32_t samples)
{
    struct burst burst = {.count = count};
    double times[SAMPLES_MAX];
    for (uint32_t i = 0; i < count; i++) {
        burst.ciphers[i] = cipher;
        burst.bytes[i] = bytes;
    }
    for (uint32_t i = 0; i < samples; i++)
        times[i] = (double)burst_time_ns(rig, &burst);
    return percentile(times, samples, 50);
}

/* Fits the figures of one cipher for B and Q; c0 is shared, so it can only grow. */
static void fit_cipher(struct rig *rig, struct fit *fit, enum core_cipher cipher, uint32_t burst_pieces,
                       uint32_t piece_bytes, uint32_t samples)
{
    double full_long = median_ns(rig, cipher, burst_pieces, piece_bytes, samples);
    double full_short = median_ns(rig, cipher, burst_pieces, SHORT_BYTES, samples);
    double per_byte = (full_long - full_short) / burst_pieces / (piece_bytes - SHORT_BYTES);
    if (per_byte <= 0) /* a disturbed measurement: then all the time is the bytes' */
        per_byte = full_long / burst_pieces / piece_bytes;
    fit->per_byte[cipher - 1] = per_byte;
    double per_piece = full_short / burst_pieces - per_byte * SHORT_BYTES;
    fit->per_piece = fmax(fmax(fit->per_piece, per_piece), 1);
}

static void fit_lane(struct rig *rig, struct fit *fit, enum core_cipher cipher, uint32_t piece_bytes,
                     uint32_t samples)
{
    double alone = median_ns(rig, cipher, 1, piece_bytes, samples);
    fit->lane[cipher - 1] = fmax(0, alone - fit->per_piece - fit->per_byte[cipher - 1] * piece_bytes);
}

static void fit_all(struct rig *rig, struct fit *fit, uint32_t burst_pieces, uint32_t piece_bytes,
                    uint32_t samples)
{
    *fit = (struct fit){0};
    for (int cipher = 1; cipher <= CORE_CIPHER_COUNT; cipher++)
        fit_cipher(rig, fit, (enum core_cipher)cipher, burst_pieces, piece_bytes, samples);
    for (int cipher = 1; cipher <= CORE_CIPHER_COUNT; cipher++)
        fit_lane(rig, fit, (enum core_cipher)cipher, piece_bytes, samples);
}

/* What the figures mean to admission. */

static double lanes_sum(const struct fit *fit)
{
    double sum = 0;
    for (int i = 0; i < CORE_CIPHER_COUNT; i++)
        sum += fit->lane[i];
    return sum;
}

static double longest_burst(const struct fit *fit, uint32_t burst_pieces, uint32_t piece_bytes)
{
    double per_byte = 0;
    for (int i = 0; i < CORE_CIPHER_COUNT; i++)
        per_byte = fmax(per_byte, fit->per_byte[i]);
    return burst_pieces * (fit->per_piece + per_byte * piece_bytes) + lanes_sum(fit);
}

/* Charge of a packet by the byte, AES-128. */
static double charge_per_byte(const struct fit *fit, uint32_t burst_pieces, uint32_t piece_bytes,
                              uint32_t packet_bytes)
{
    uint32_t pieces = (packet_bytes + piece_bytes - 1) / piece_bytes;
    double fixed = fit->per_piece + lanes_sum(fit) / burst_pieces;
    return (pieces * fixed + fit->per_byte[0] * packet_bytes) / packet_bytes;
}

/* Bytes per nanosecond of traffic half of whose bytes come in short packets. */
static double throughput(const struct fit *fit, uint32_t burst_pieces, uint32_t piece_bytes)
{
    return 2 / (charge_per_byte(fit, burst_pieces, piece_bytes, USUAL_BYTES) +
                charge_per_byte(fit, burst_pieces, piece_bytes, LONG_PACKET_BYTES));
}

static bool allowed(uint32_t wanted, uint32_t candidate)
{
    return wanted == 0 || wanted == candidate;
}

/* The pair of smallest q among those good enough. */
static void choose(struct rig *rig, uint32_t *burst_pieces, uint32_t *piece_bytes)
{
    enum { SAMPLES = 9 };
    const struct cpu_measure_options *options = rig->options;
    double speed[BURST_CANDIDATES][PIECE_CANDIDATES] = {{0}}, q_ns[BURST_CANDIDATES][PIECE_CANDIDATES];
    double best = 0;
    for (size_t b = 0; b < BURST_CANDIDATES; b++) {
        uint32_t pieces = rig->lanes * burst_factors[b];
        for (size_t p = 0; p < PIECE_CANDIDATES; p++) {
            if (pieces <= CPU_BURST_MAX && allowed(options->burst_pieces, pieces) &&
                allowed(options->piece_bytes, piece_candidates[p])) {
                struct fit fit;
                fit_all(rig, &fit, pieces, piece_candidates[p], SAMPLES);
                speed[b][p] = throughput(&fit, pieces, piece_candidates[p]);
                q_ns[b][p] = longest_burst(&fit, pieces, piece_candidates[p]);
                best = fmax(best, speed[b][p]);
            }
        }
    }
    double smallest_ns = INFINITY;
    for (size_t b = 0; b < BURST_CANDIDATES; b++) {
        for (size_t p = 0; p < PIECE_CANDIDATES; p++) {
            if (speed[b][p] > 0 && speed[b][p] >= GOOD_ENOUGH * best && q_ns[b][p] < smallest_ns) {
                smallest_ns = q_ns[b][p];
                *burst_pieces = rig->lanes * burst_factors[b];
                *piece_bytes = piece_candidates[p];
            }
        }
    }
}

/* The check. */

/* Any count up to B, lengths mostly mixed, often a single cipher; sometimes one piece more than the lanes,
 * which is where a second pass begins. */
static void draw_burst(struct rig *rig, const struct cpu_cost *cost, struct burst *burst)
{
    uint32_t kind = (uint32_t)draw(rig) % 4;
    uint32_t equal_bytes =
        CORE_BLOCK_BYTES * (1 + (uint32_t)draw(rig) % (cost->piece_bytes / CORE_BLOCK_BYTES));
    uint32_t one_cipher = (uint32_t)draw(rig) % (CORE_CIPHER_COUNT + 1); /* 0: mixed */
    burst->count = 1 + (uint32_t)draw(rig) % cost->burst_pieces;
    if (kind == 0 && cost->lanes < cost->burst_pieces)
        burst->count = cost->lanes + 1;
    for (uint32_t i = 0; i < burst->count; i++) {
        uint32_t blocks = 1 + (uint32_t)draw(rig) % (cost->piece_bytes / CORE_BLOCK_BYTES);
        burst->bytes[i] = kind < 2 ? equal_bytes : CORE_BLOCK_BYTES * blocks;
        if (kind == 3 && draw(rig) % 4 != 0)
            burst->bytes[i] = 64;
        burst->ciphers[i] =
            (enum core_cipher)(one_cipher != 0 ? one_cipher : 1 + draw(rig) % CORE_CIPHER_COUNT);
    }
}

static void cost_from_fit(struct cpu_cost *cost, const struct fit *fit, double factor)
{
    cost->per_piece_ns = (core_ns)ceil(fit->per_piece * factor);
    for (int i = 0; i < CORE_CIPHER_COUNT; i++) {
        double byte_fs = ceil(fit->per_byte[i] * factor * FS_PER_NS);
        cost->per_byte_fs[i] = byte_fs > BYTE_FS_MIN ? (int64_t)byte_fs : BYTE_FS_MIN;
        cost->lane_ns[i] = (core_ns)ceil(fit->lane[i] * factor);
    }
}

core_ns cpu_cost_bound_ns(const struct cpu_cost *cost, const enum core_cipher *ciphers, const uint32_t *bytes,
                          uint32_t count)
{
    int64_t fs = 0;
    core_ns ns = count * cost->per_piece_ns;
    bool present[CORE_CIPHER_COUNT] = {false};
    for (uint32_t i = 0; i < count; i++) {
        fs += cost->per_byte_fs[ciphers[i] - 1] * bytes[i];
        present[ciphers[i] - 1] = true;
    }
    for (int i = 0; i < CORE_CIPHER_COUNT; i++)
        ns += present[i] ? cost->lane_ns[i] : 0;
    return ns + (fs + (int64_t)FS_PER_NS - 1) / (int64_t)FS_PER_NS;
}

/* Random bursts until the time is used up; what each took of its bound. Returns how many. */
static uint32_t draw_ratios(struct rig *rig, const struct cpu_cost *cost, enum core_direction direction,
                            core_ns until_ns, double *ratios)
{
    struct burst burst = {.direction = direction};
    uint32_t count = 0;
    while (count < 100 || (count < CHECKS_MAX && now(rig) < until_ns)) {
        draw_burst(rig, cost, &burst);
        double bound = (double)cpu_cost_bound_ns(cost, burst.ciphers, burst.bytes, burst.count);
        ratios[count++] = (double)burst_time_ns(rig, &burst) / bound;
    }
    return count;
}

/* Raises the figures until all but OVER_PERCENT hold; then sees what decryption takes of them. */
static core_status check(struct rig *rig, const struct fit *fit, core_ns until_ns,
                         struct cpu_measure_result *result)
{
    double *ratios = calloc(CHECKS_MAX, sizeof *ratios);
    if (ratios == NULL)
        return CORE_NO_MEMORY;
    cost_from_fit(&result->cost, fit, 1);
    const core_ns decrypt_ns = rig->options->budget_ns / DECRYPT_SHARE;
    uint32_t count = draw_ratios(rig, &result->cost, CORE_DIRECTION_ENCRYPT, until_ns - decrypt_ns, ratios);
    result->raised = fmax(1, percentile(ratios, count, 100 - OVER_PERCENT));
    result->worst_ratio = ratios[count - 1] / result->raised;
    result->bursts = count;
    result->over = 0;
    for (uint32_t i = 0; i < count; i++)
        result->over += ratios[i] > result->raised;
    cost_from_fit(&result->cost, fit, result->raised);
    count = draw_ratios(rig, &result->cost, CORE_DIRECTION_DECRYPT, until_ns, ratios);
    result->cost.decrypt_more_percent =
        (uint32_t)ceil(100 * fmax(0, percentile(ratios, count, 100 - OVER_PERCENT) - 1));
    free(ratios);
    return CORE_OK;
}

/* Set-up. */

static void rig_close(struct rig *rig)
{
    while (rig->streams_open > 0)
        cpu_stream_wipe(stream_at(rig, --rig->streams_open), rig->options->ops);
    cpu_scheduler_destroy(rig->scheduler);
    free(rig->packets);
    free(rig->data);
    free(rig->streams);
}

static core_status rig_streams_open(struct rig *rig)
{
    static const uint8_t iv[CORE_BLOCK_BYTES];
    struct cpu_engine *engine;
    core_status status = rig->options->ops->open(&engine, NULL);
    if (status != CORE_OK)
        return status;
    rig->lanes = rig->options->ops->lanes(engine);
    while (status == CORE_OK && rig->streams_open < 2 * STREAMS) {
        uint8_t key[32] = {0};
        memcpy(key, &rig->streams_open, sizeof rig->streams_open);
        const struct cpu_stream_options options = {
            .cipher = (enum core_cipher)(1 + rig->streams_open % CORE_CIPHER_COUNT),
            .direction = rig->streams_open < STREAMS ? CORE_DIRECTION_ENCRYPT : CORE_DIRECTION_DECRYPT,
            .piece_bytes = PIECE_BYTES_MAX,
            .piece_deadline_ns = 10 * CORE_NS_PER_MS};
        status =
            cpu_stream_init(stream_at(rig, rig->streams_open), rig->options->ops, engine, &options, key, iv);
        rig->streams_open += status == CORE_OK;
    }
    rig->options->ops->close(engine);
    return status;
}

static core_status rig_open(struct rig *rig, const struct cpu_measure_options *options,
                            struct core_error *error)
{
    *rig = (struct rig){.options = options, .random = 1, .stream_bytes = cpu_stream_bytes(options->ops, 1)};
    rig->streams = aligned_alloc(64, (size_t)2 * STREAMS * rig->stream_bytes);
    rig->data = malloc((size_t)SLOTS * SLOT_BYTES);
    rig->packets = calloc(CPU_BURST_MAX, sizeof *rig->packets);
    if (rig->streams == NULL || rig->data == NULL || rig->packets == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory to measure with (70 MiB)");
    memset(rig->data, 0x5a, (size_t)SLOTS * SLOT_BYTES); /* page faults now, not in a burst */
    struct cpu_scheduler_options scheduler = {
        .ops = options->ops, .burst_pieces = CPU_BURST_MAX, .far_capacity = STREAMS};
    core_status status = cpu_scheduler_create(&rig->scheduler, &scheduler, error);
    if (status != CORE_OK)
        return status;
    status = rig_streams_open(rig);
    if (status != CORE_OK)
        return core_error_set(error, status, "engine %s can not set keys", options->ops->name);
    return CORE_OK;
}

static core_status options_check(const struct cpu_measure_options *options, struct core_error *error)
{
    if (options->piece_bytes % CORE_BLOCK_BYTES != 0 || options->piece_bytes > PIECE_BYTES_MAX ||
        (options->piece_bytes != 0 && options->piece_bytes <= SHORT_BYTES)) {
        return core_error_set(error, CORE_INVALID,
                              "pieces of %u bytes: a multiple of 16 from %d to %d is possible",
                              options->piece_bytes, SHORT_BYTES + CORE_BLOCK_BYTES, PIECE_BYTES_MAX);
    }
    if (options->burst_pieces > CPU_BURST_MAX) {
        return core_error_set(error, CORE_INVALID, "bursts of %u pieces: at most %d are possible",
                              options->burst_pieces, CPU_BURST_MAX);
    }
    if (options->budget_ns < BUDGET_NS_MIN) {
        return core_error_set(error, CORE_INVALID, "%.0f ms are too short to measure: 100 at least",
                              (double)options->budget_ns / CORE_NS_PER_MS);
    }
    return CORE_OK;
}

static core_status rig_measure(struct rig *rig, struct cpu_measure_result *result, struct core_error *error)
{
    const struct cpu_measure_options *options = rig->options;
    core_ns until_ns = now(rig) + options->budget_ns;
    uint32_t burst_pieces = options->burst_pieces;
    uint32_t piece_bytes = options->piece_bytes;
    if (burst_pieces % rig->lanes != 0) {
        return core_error_set(error, CORE_INVALID,
                              "bursts of %u pieces: no multiple of the engine's %u lanes", burst_pieces,
                              rig->lanes);
    }
    if (burst_pieces == 0 || piece_bytes == 0)
        choose(rig, &burst_pieces, &piece_bytes);
    struct fit fit;
    fit_all(rig, &fit, burst_pieces, piece_bytes, SAMPLES_MAX);
    *result = (struct cpu_measure_result){
        .cost = {.lanes = rig->lanes, .burst_pieces = burst_pieces, .piece_bytes = piece_bytes}};
    if (check(rig, &fit, until_ns, result) != CORE_OK)
        return core_error_set(error, CORE_NO_MEMORY, "no memory to measure with");
    if (rig->status != CORE_OK) {
        return core_error_set(error, rig->status, "engine %s failed while it was measured",
                              options->ops->name);
    }
    result->burst_ns = (core_ns)ceil(longest_burst(&fit, burst_pieces, piece_bytes) * result->raised);
    result->bytes_per_s = (int64_t)(throughput(&fit, burst_pieces, piece_bytes) / result->raised * 1e9);
    return CORE_OK;
}

core_status cpu_measure(const struct cpu_measure_options *options, struct cpu_measure_result *result,
                        struct core_error *error)
{
    struct cpu_measure_options with_clock = *options;
    if (with_clock.clock == NULL)
        with_clock.clock = clock_monotonic;
    core_status status = options_check(options, error);
    if (status != CORE_OK)
        return status;
    struct rig rig;
    status = rig_open(&rig, &with_clock, error);
    if (status == CORE_OK)
        status = rig_measure(&rig, result, error);
    rig_close(&rig);
    return status;
}
