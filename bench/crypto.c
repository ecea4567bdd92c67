/* millrace-bench crypto: what the scheduler costs on top of the cipher.
 *
 * Three contenders encrypt the same packets of the same streams in place, one packet a stream and round,
 * round by round in turn, on one pinned core.
 *
 * worker: the packets are pushed into cpu_scheduler, which runs bursts until it is empty. Everything a worker
 * does is in it, deadline queue, hand-back and time stamps included.
 *
 * bare: IPsec-MB's cipher burst called in a loop over the very same keys, chaining values and buffers, in
 * bursts of the size that is fastest here.
 *
 * evp: one OpenSSL context per stream.
 *
 * Deadlines are 20 to 100 ms, all different. In order "memory" they rise with the address, so that the worker
 * takes the packets in the order that suits the caches best, and so do the others; in order "random" all
 * three take the packets in one and the same random order. Results are ratios inside a round: median and
 * quartiles. */
#include "bench/bench.h"
#include "bench/options.h"
#include "bench/samples.h"
#include "cpu/scheduler.h"

#include <assert.h>
#include <intel-ipsec-mb.h>
#include <jansson.h>
#include <math.h>
#include <openssl/evp.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define STREAMS_MAX        100000
#define ROUNDS_MAX         4000
#define ROUNDS_MIN         5
#define BURST_TRIALS       3
#define DEADLINE_FIRST_NS  (20 * CORE_NS_PER_MS)
#define DEADLINE_LAST_NS   (100 * CORE_NS_PER_MS)
#define STAGGER_BYTES      64 /* between buffers: at one stride the lanes would share their cache sets */
#define WORKER_PIECE_BYTES 16384
#define WORKER_BURST       128

static const uint32_t packet_sizes[] = {64, 256, 1400, 16384};
enum { SIZE_COUNT = sizeof packet_sizes / sizeof packet_sizes[0] };

enum order { ORDER_MEMORY, ORDER_RANDOM, ORDER_COUNT };
static const char *const order_names[] = {"memory", "random"};
enum { RESULT_COUNT = (int)SIZE_COUNT * (int)ORDER_COUNT };

enum contender { WORKER, BARE, EVP, DECRYPTION, CONTENDER_COUNT };

/* The streams of a worker: some that encrypt, or as many that decrypt. */
struct crowd {
    uint8_t *streams; /* options->streams blocks of stream_bytes */
    struct cpu_packet *packets;
    struct cpu_packet **pushed; /* in the order in which all contenders take them */
};

struct options {
    const struct cpu_engine_ops *ops; /* of the worker */
    uint32_t streams;
    uint32_t backlog; /* packets that wait in the worker at once */
    double seconds;
    bool json;
};

struct bench {
    const struct options *options;
    uint32_t bytes;  /* of a packet, padded */
    uint32_t *order; /* the order in which all contenders take the streams */
    uint8_t *data;
    size_t stride_bytes;
    size_t stream_bytes;
    struct crowd crowds[2]; /* by direction */
    struct cpu_scheduler *scheduler;
    struct cpu_engine *engine; /* expands keys */
    IMB_MGR *manager;
    IMB_JOB *jobs;
    uint32_t bare_burst;
    EVP_CIPHER *cipher;
    EVP_CIPHER_CTX **contexts;
};

/* The figures of one size and order. */
struct result {
    uint32_t packet_bytes, bare_burst, rounds;
    enum order order;
    double gb_per_s[CONTENDER_COUNT];
    double worker_to_bare[3], worker_to_evp[3]; /* lower quartile, median, upper quartile */
    double decryption_to_worker[3];
};

static struct cpu_stream *stream_in(const struct bench *bench, const struct crowd *crowd, uint32_t i)
{
    return (struct cpu_stream *)(crowd->streams + i * bench->stream_bytes);
}

static struct cpu_stream *stream_at(const struct bench *bench, uint32_t i)
{
    return stream_in(bench, &bench->crowds[CORE_DIRECTION_ENCRYPT], i);
}

static core_ns clock_now(void *argument)
{
    (void)argument;
    return core_time_now_ns();
}

/* The contenders: each runs one round and returns false on failure. */

/* What a submitter does; the worker's time begins when it is handed the packets. */
static void packets_prepare(struct bench *bench)
{
    core_ns now_ns = core_time_now_ns();
    for (uint32_t i = 0; i < 2 * bench->options->streams; i++) {
        struct cpu_packet *packet = &bench->crowds[i % 2].packets[i / 2];
        packet->bytes = bench->bytes;
        packet->done_bytes = 0;
        packet->release_ns = now_ns;
    }
}

/* Runs bursts until nothing is pending; returns how many packets were finished well. */
static uint32_t worker_empty(struct bench *bench)
{
    struct cpu_packet *finished[CPU_BURST_MAX];
    uint32_t done = 0;
    uint32_t pieces;
    do {
        uint32_t count = cpu_scheduler_burst(bench->scheduler, finished, &pieces, clock_now, NULL);
        for (uint32_t i = 0; i < count; i++)
            done += finished[i]->status == CORE_OK;
    } while (pieces > 0);
    return done;
}

static bool crowd_round(struct bench *bench, const struct crowd *crowd)
{
    uint32_t streams = bench->options->streams;
    uint32_t backlog = bench->options->backlog;
    uint32_t done = 0;
    for (uint32_t start = 0; start < streams; start += backlog) {
        uint32_t count = streams - start < backlog ? streams - start : backlog;
        cpu_scheduler_push(bench->scheduler, crowd->pushed + start, count, core_time_now_ns());
        done += worker_empty(bench);
    }
    return done == streams;
}

static bool worker_round(struct bench *bench)
{
    return crowd_round(bench, &bench->crowds[CORE_DIRECTION_ENCRYPT]);
}

static bool decryption_round(struct bench *bench)
{
    return crowd_round(bench, &bench->crowds[CORE_DIRECTION_DECRYPT]);
}

static bool bare_burst(struct bench *bench, const uint32_t *order, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        IMB_JOB *job = &bench->jobs[i];
        struct cpu_stream *stream = stream_at(bench, order[i]);
        job->src = bench->data + order[i] * bench->stride_bytes;
        job->dst = bench->data + order[i] * bench->stride_bytes;
        job->msg_len_to_cipher_in_bytes = bench->bytes;
        job->iv = stream->chain;
        job->enc_keys = cpu_stream_key(stream, 0);
    }
    uint32_t done = IMB_SUBMIT_CIPHER_BURST_NOCHECK(bench->manager, bench->jobs, count, IMB_CIPHER_CBC,
                                                    IMB_DIR_ENCRYPT, IMB_KEY_128_BYTES);
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *end = bench->data + order[i] * bench->stride_bytes + bench->bytes;
        memcpy(stream_at(bench, order[i])->chain, end - CORE_BLOCK_BYTES, CORE_BLOCK_BYTES);
    }
    return done == count;
}

static bool bare_round(struct bench *bench)
{
    bool good = true;
    for (uint32_t start = 0; start < bench->options->streams; start += bench->bare_burst) {
        uint32_t left = bench->options->streams - start;
        good &= bare_burst(bench, bench->order + start, left < bench->bare_burst ? left : bench->bare_burst);
    }
    return good;
}

static bool evp_round(struct bench *bench)
{
    bool good = true;
    for (uint32_t i = 0; i < bench->options->streams; i++) {
        uint8_t *data = bench->data + bench->order[i] * bench->stride_bytes;
        int written;
        good &=
            EVP_EncryptUpdate(bench->contexts[bench->order[i]], data, &written, data, (int)bench->bytes) == 1;
    }
    return good;
}

static bool (*const rounds[CONTENDER_COUNT])(struct bench *) = {worker_round, bare_round, evp_round,
                                                                decryption_round};

/* Nanoseconds of one round on this thread's CPU clock, which leaves out what other programs took of the core;
 * NaN on failure. */
static double round_time_ns(struct bench *bench, enum contender contender)
{
    core_ns start_ns = core_time_thread_cpu_ns();
    bool good = rounds[contender](bench);
    return good ? (double)(core_time_thread_cpu_ns() - start_ns) : NAN;
}

/* Set-up. */

static uint64_t draw(uint64_t *random)
{
    *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *random >> 32;
}

static void key_of(uint32_t stream, uint8_t key[16])
{
    memset(key, 0, 16);
    memcpy(key, &stream, sizeof stream);
}

static bool streams_open(struct bench *bench)
{
    static const uint8_t iv[CORE_BLOCK_BYTES];
    struct cpu_stream_options options = {.cipher = CORE_CIPHER_AES_128_CBC,
                                         .piece_bytes = WORKER_PIECE_BYTES,
                                         .piece_deadline_ns = DEADLINE_FIRST_NS};
    for (uint32_t i = 0; i < bench->options->streams; i++) {
        uint8_t key[16];
        key_of(i, key);
        for (int direction = 0; direction < 2; direction++) {
            struct cpu_stream *stream = stream_in(bench, &bench->crowds[direction], i);
            options.direction = (enum core_direction)direction;
            if (cpu_stream_init(stream, bench->options->ops, bench->engine, &options, key, iv) != CORE_OK)
                return false;
        }
        bench->contexts[i] = EVP_CIPHER_CTX_new();
        if (bench->contexts[i] == NULL ||
            EVP_EncryptInit_ex2(bench->contexts[i], bench->cipher, key, iv, NULL) != 1)
            return false;
    }
    return true;
}

static bool bench_open(struct bench *bench, const struct options *options, struct core_error *error)
{
    uint32_t count = options->streams;
    uint32_t longest = packet_sizes[SIZE_COUNT - 1];
    *bench = (struct bench){.options = options, .stream_bytes = cpu_stream_bytes(options->ops, 1)};
    bench->order = calloc(count, sizeof *bench->order);
    bench->data = aligned_alloc(64, (size_t)count * (longest + STAGGER_BYTES));
    bool crowds = true;
    for (int direction = 0; direction < 2; direction++) {
        struct crowd *crowd = &bench->crowds[direction];
        *crowd = (struct crowd){.streams = aligned_alloc(64, count * bench->stream_bytes),
                                .packets = calloc(count, sizeof *crowd->packets),
                                .pushed = calloc(count, sizeof(struct cpu_packet *))};
        crowds &= crowd->streams != NULL && crowd->packets != NULL && crowd->pushed != NULL;
    }
    bench->jobs = calloc(CPU_BURST_MAX, sizeof *bench->jobs);
    bench->contexts = calloc(count, sizeof(EVP_CIPHER_CTX *));
    bench->cipher = EVP_CIPHER_fetch(NULL, "AES-128-CBC", NULL);
    bench->manager = alloc_mb_mgr(0);
    struct cpu_scheduler_options scheduler = {
        .ops = options->ops, .burst_pieces = WORKER_BURST, .far_capacity = count};
    if (!crowds || bench->order == NULL || bench->data == NULL || bench->jobs == NULL ||
        bench->contexts == NULL || bench->manager == NULL) {
        (void)core_error_set(error, CORE_NO_MEMORY, "no memory for %u streams: try fewer", count);
        return false;
    }
    memset(bench->data, 0x5a, (size_t)count * (longest + STAGGER_BYTES));
    init_mb_mgr_auto(bench->manager, NULL);
    if (cpu_scheduler_create(&bench->scheduler, &scheduler, error) != CORE_OK ||
        options->ops->open(&bench->engine, error) != CORE_OK)
        return false;
    if (bench->cipher == NULL || !streams_open(bench)) {
        (void)core_error_set(error, CORE_SYSTEM, "can not set %u keys", count);
        return false;
    }
    return true;
}

static void bench_close(struct bench *bench)
{
    for (uint32_t i = 0; bench->contexts != NULL && i < bench->options->streams; i++)
        EVP_CIPHER_CTX_free(bench->contexts[i]);
    if (bench->engine != NULL)
        bench->options->ops->close(bench->engine);
    cpu_scheduler_destroy(bench->scheduler);
    EVP_CIPHER_free(bench->cipher);
    free_mb_mgr(bench->manager);
    free(bench->contexts);
    free(bench->jobs);
    for (int direction = 0; direction < 2; direction++) {
        free(bench->crowds[direction].pushed);
        free(bench->crowds[direction].packets);
        free(bench->crowds[direction].streams);
    }
    free(bench->data);
    free(bench->order);
}

/* Lays the packets out for one size and order; deadlines follow the order. */
static void bench_arrange(struct bench *bench, uint32_t packet_bytes, enum order order)
{
    uint32_t count = bench->options->streams;
    uint64_t random = 1;
    assert(count > 0);
    bench->bytes = core_stream_padded_bytes(CORE_PADDING_NONE, packet_bytes);
    bench->stride_bytes = bench->bytes > 64 ? bench->bytes + STAGGER_BYTES : bench->bytes;
    for (uint32_t i = 0; i < count; i++)
        bench->order[i] = i;
    for (uint32_t i = count - 1; order == ORDER_RANDOM && i > 0; i--) {
        uint32_t other = (uint32_t)(draw(&random) % (i + 1));
        uint32_t swapped = bench->order[i];
        bench->order[i] = bench->order[other];
        bench->order[other] = swapped;
    }
    core_ns step_ns = (DEADLINE_LAST_NS - DEADLINE_FIRST_NS) / count;
    for (uint32_t i = 0; i < 2 * count; i++) {
        const struct crowd *crowd = &bench->crowds[i % 2];
        const uint32_t at = i / 2;
        stream_in(bench, crowd, bench->order[at])->piece_deadline_ns = DEADLINE_FIRST_NS + at * step_ns;
        crowd->packets[at] = (struct cpu_packet){.stream = stream_in(bench, crowd, at),
                                                 .data = bench->data + at * bench->stride_bytes};
        crowd->pushed[at] = &crowd->packets[bench->order[at]];
    }
}

/* The bare loop runs at whatever burst size is fastest here. */
static bool bare_tune(struct bench *bench)
{
    static const uint32_t sizes[] = {16, 32, 64, 128};
    double best_ns = INFINITY;
    uint32_t best = 0;
    for (uint32_t trial = 0; trial < BURST_TRIALS * 4; trial++) {
        bench->bare_burst = sizes[trial % 4];
        double ns = round_time_ns(bench, BARE);
        if (ns < best_ns) {
            best_ns = ns;
            best = bench->bare_burst;
        }
    }
    bench->bare_burst = best;
    return best != 0;
}

static void quartiles(struct bench_samples *samples, double result[3])
{
    for (int i = 0; i < 3; i++)
        result[i] = bench_samples_percentile(samples, 25 * (i + 1));
}

static bool bench_measure(struct bench *bench, uint32_t packet_bytes, enum order order, double seconds,
                          struct result *result)
{
    struct bench_samples times[CONTENDER_COUNT] = {0}, to_bare = {0}, to_evp = {0}, back = {0};
    bool good = bench_samples_init(&to_bare, ROUNDS_MAX) == CORE_OK &&
                bench_samples_init(&to_evp, ROUNDS_MAX) == CORE_OK &&
                bench_samples_init(&back, ROUNDS_MAX) == CORE_OK;
    for (int i = 0; i < CONTENDER_COUNT; i++)
        good &= bench_samples_init(&times[i], ROUNDS_MAX) == CORE_OK;
    bench_arrange(bench, packet_bytes, order);
    good = good && bare_tune(bench);
    core_ns end_ns = core_time_now_ns() + (core_ns)(seconds * 1e9);
    uint32_t round = 0;
    for (; good && (round < ROUNDS_MIN || (round < ROUNDS_MAX && core_time_now_ns() < end_ns)); round++) {
        double ns[CONTENDER_COUNT];
        packets_prepare(bench);
        for (uint32_t turn = 0; turn < CONTENDER_COUNT; turn++) {
            enum contender contender = (enum contender)((turn + round) % CONTENDER_COUNT);
            ns[contender] = round_time_ns(bench, contender);
            good &= !isnan(ns[contender]);
            bench_samples_add(&times[contender], ns[contender]);
        }
        if (!good)
            break;
        bench_samples_add(&to_bare, ns[BARE] / ns[WORKER]);
        bench_samples_add(&to_evp, ns[EVP] / ns[WORKER]);
        bench_samples_add(&back, ns[WORKER] / ns[DECRYPTION]);
    }
    *result = (struct result){
        .packet_bytes = packet_bytes, .bare_burst = bench->bare_burst, .rounds = round, .order = order};
    quartiles(&to_bare, result->worker_to_bare);
    quartiles(&to_evp, result->worker_to_evp);
    quartiles(&back, result->decryption_to_worker);
    for (int i = 0; i < CONTENDER_COUNT; i++) {
        double total_bytes = (double)bench->bytes * bench->options->streams;
        result->gb_per_s[i] = total_bytes / bench_samples_percentile(&times[i], 50);
        bench_samples_free(&times[i]);
    }
    bench_samples_free(&back);
    bench_samples_free(&to_evp);
    bench_samples_free(&to_bare);
    return good;
}

/* Reports. */

static void print_header(const struct options *options)
{
    printf("AES-128-CBC, %u streams with their own keys, one packet each in turn, one core. GB/s (10^9); "
           "ratios\n"
           "inside a round: median, and the quartiles in brackets. Worker: engine %s, bursts of %d.\n\n",
           options->streams, options->ops->name, WORKER_BURST);
    printf("%7s %-7s %7s %7s %7s   %-19s %-19s %-19s %s\n", "packet", "order", "worker", "bare", "evp",
           "worker/bare", "worker/evp", "decryption/worker", "rounds, bare burst");
}

static void print_result(const struct result *result)
{
    printf(
        "%7u %-7s %7.2f %7.2f %7.2f   %5.2f (%.2f-%.2f)   %5.2f (%.2f-%.2f)   %5.2f (%.2f-%.2f)   %u, %u\n",
        result->packet_bytes, order_names[result->order], result->gb_per_s[WORKER], result->gb_per_s[BARE],
        result->gb_per_s[EVP], result->worker_to_bare[1], result->worker_to_bare[0],
        result->worker_to_bare[2], result->worker_to_evp[1], result->worker_to_evp[0],
        result->worker_to_evp[2], result->decryption_to_worker[1], result->decryption_to_worker[0],
        result->decryption_to_worker[2], result->rounds, result->bare_burst);
    fflush(stdout);
}

static json_t *ratio_json(const double quartile[3])
{
    return json_pack("{s:f,s:f,s:f}", "median", quartile[1], "lower_quartile", quartile[0], "upper_quartile",
                     quartile[2]);
}

static json_t *result_json(const struct result *result)
{
    return json_pack("{s:I,s:s,s:f,s:f,s:f,s:o,s:o,s:o,s:I,s:I}", "packet_bytes",
                     (json_int_t)result->packet_bytes, "order", order_names[result->order], "worker_gb_per_s",
                     result->gb_per_s[WORKER], "bare_gb_per_s", result->gb_per_s[BARE], "evp_gb_per_s",
                     result->gb_per_s[EVP], "worker_to_bare", ratio_json(result->worker_to_bare),
                     "worker_to_evp", ratio_json(result->worker_to_evp), "decryption_to_worker",
                     ratio_json(result->decryption_to_worker), "rounds", (json_int_t)result->rounds,
                     "bare_burst_pieces", (json_int_t)result->bare_burst);
}

static bool print_json(const struct options *options, const struct result *results, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, result_json(&results[i]));
    json_t *report = json_pack("{s:s,s:s,s:I,s:I,s:o}", "cipher", "aes-128-cbc", "worker_engine",
                               options->ops->name, "streams", (json_int_t)options->streams,
                               "worker_burst_pieces", (json_int_t)WORKER_BURST, "results", list);
    bool good = report != NULL && json_dumpf(report, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(5)) == 0;
    putchar('\n');
    json_decref(report);
    return good;
}

/* The command. */

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;
    switch (key) {
    case 'j':
        options->json = true;
        return 0;
    case 'b':
        options->backlog =
            (uint32_t)core_options_count(state, "backlog", argument, CPU_BURST_MAX, STREAMS_MAX);
        return 0;
    case 'n':
        options->streams =
            (uint32_t)core_options_count(state, "streams", argument, CPU_BURST_MAX, STREAMS_MAX);
        return 0;
    case 'e': {
        struct core_error error;
        options->ops = cpu_engine_find(argument, &error);
        if (options->ops == NULL)
            argp_error(state, "--engine: %s", error.text);
        return 0;
    }
    case 's':
        options->seconds = bench_option_seconds(state, "seconds", argument, 1e-3, 3600);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option argp_options[] = {
    {"engine", 'e', "NAME", 0, "The worker's engine (default auto, the fastest)", 0},
    {"backlog", 'b', "N", 0, "Packets that wait in the worker at once (default 1024)", 0},
    {"json", 'j', NULL, 0, "Report as JSON", 0},
    {"streams", 'n', "N", 0, "Streams, each with its own key (default 10000)", 0},
    {"seconds", 's', "TIME", 0, "Time to measure in all (default 16)", 0},
    {0},
};
static const struct argp argp = {.options = argp_options,
                                 .parser = parse_option,
                                 .doc = "Throughput of a CPU worker against IPsec-MB called bare and against "
                                        "one OpenSSL context per stream."};

/* Stays on the core where it runs now. */
static void pin(void)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0)
        fprintf(stderr, "millrace-bench crypto: not pinned to a core, figures may vary more\n");
}

static bool run(struct bench *bench, const struct options *options)
{
    struct result results[RESULT_COUNT];
    double seconds = options->seconds / RESULT_COUNT;
    if (!options->json)
        print_header(options);
    for (size_t i = 0; i < RESULT_COUNT; i++) {
        if (!bench_measure(bench, packet_sizes[i % SIZE_COUNT], (enum order)(i / SIZE_COUNT), seconds,
                           &results[i])) {
            fprintf(stderr, "millrace-bench crypto: an engine failed\n");
            return false;
        }
        if (!options->json)
            print_result(&results[i]);
    }
    return !options->json || print_json(options, results, RESULT_COUNT);
}

int bench_crypto(int argc, char **argv)
{
    struct options options = {.streams = 10000, .backlog = 1024, .seconds = 16};
    if (core_options_parse(&argp, argc, argv, &options) != 0)
        return 2;
    struct bench bench = {.options = &options};
    struct core_error error = {.text = ""};
    pin();
    options.ops = options.ops != NULL ? options.ops : cpu_engine_find("auto", &error);
    bool good = options.ops != NULL && bench_open(&bench, &options, &error);
    if (!good)
        fprintf(stderr, "millrace-bench crypto: %s\n", error.text);
    good = good && run(&bench, &options);
    bench_close(&bench);
    return good ? 0 : 1;
}
