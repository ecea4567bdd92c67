#include "server/calibrate/probe.h"

#include "core/histogram.h"
#include "core/lane.h"
#include "core/protocol.h"
#include "server/calibrate/calibrate.h"
#include "server/net/io_thread.h"
#include "server/server.h"
#include "server/server_internal.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define VERSION 3 /* of the protocol */
/* Packets in a round, one of each stream: about as many as a busy thread finds when it reads a socket. */
#define STREAMS         128
#define LARGE_STREAMS   32
#define STREAMS_MAX     (STREAMS + 2 * LARGE_STREAMS)
#define LANE_BYTES      (UINT32_C(1) << 20) /* of a ring: more than a round */
#define BYTE_FS_MIN     100000 /* 10 GB/s: nothing is copied or hashed faster, a smaller figure is noise */
#define PACKET_NS_MIN   300    /* the like */
#define SLICES          9
#define GPU_PATIENCE_NS (10 * CORE_NS_PER_S) /* with the processor that plays a card */
#define SMALL_BYTES     64u
#define LARGE_BYTES     4096u
#define LATENCY_BYTES   1024u
#define LATENCY_GAP_NS  (200 * CORE_NS_PER_US)
#define ANSWER_MS       2000
#define RESULT_OVERHEAD (PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES + CORE_MAC_BYTES)
#define BUFFER_BYTES    (LARGE_STREAMS * (LARGE_BYTES + RESULT_OVERHEAD) + 4096)

/* Streams of one kind, of which each round sends one packet each. */
struct group {
    struct core_stream_spec spec;
    uint32_t count, streams[STREAMS];
    uint32_t sequence; /* the same for all that have sent */
};

/* The private server and our end of a connection to it. */
struct bench {
    struct config_server config;
    struct config_profile profile;
    struct server *server;
    int descriptor;
    struct core_lane lane;
    bool shares; /* the lane is in the place of the descriptor */
    struct group plain, pattern, mac;
    uint8_t *out, *in;
};

static core_status connect_bench(struct bench *bench, struct core_error *error)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return core_error_errno(error, "calibration: no socket pair");
    bench->descriptor = pair[0];
    return server_adopt(bench->server, pair[1], error);
}

static void disconnect_bench(struct bench *bench)
{
    if (bench->descriptor >= 0)
        close(bench->descriptor);
    core_lane_free(&bench->lane);
    bench->descriptor = -1;
    bench->shares = false;
}

static core_status await(struct bench *bench, struct core_error *error)
{
    struct pollfd ready = {.fd = bench->descriptor, .events = POLLIN};
    if (poll(&ready, 1, ANSWER_MS) > 0)
        return CORE_OK;
    return core_error_set(error, CORE_TIMEOUT, "calibration: the private server does not answer");
}

/* The lane is full, or empty: waits for the server. */
static core_status lane_status(struct bench *bench, core_status status, struct core_error *error)
{
    if (status == CORE_AGAIN)
        return await(bench, error);
    return status == CORE_OK ? status
                             : core_error_set(error, CORE_CLOSED, "calibration: the private server hung up");
}

static core_status write_some(struct bench *bench, const uint8_t *bytes, size_t count, size_t *written,
                              struct core_error *error)
{
    const struct iovec part = {.iov_base = (void *)bytes, .iov_len = count};
    if (bench->shares) {
        const core_status status = core_lane_write(&bench->lane, &part, 1, written);
        return lane_status(bench, status, error);
    }
    const ssize_t sent = send(bench->descriptor, bytes, count, MSG_NOSIGNAL);
    *written = sent < 0 ? 0 : (size_t)sent;
    return sent < 0 ? core_error_errno(error, "calibration: can not send to the private server") : CORE_OK;
}

static core_status write_all(struct bench *bench, const uint8_t *bytes, size_t count,
                             struct core_error *error)
{
    core_status status = CORE_OK;
    while (count > 0 && status == CORE_OK) {
        size_t written = 0;
        status = write_some(bench, bytes, count, &written, error);
        bytes += written;
        count -= written;
    }
    return status;
}

static core_status read_some(struct bench *bench, uint8_t *bytes, size_t count, size_t *read,
                             struct core_error *error)
{
    if (bench->shares) {
        const core_status status = core_lane_read(&bench->lane, bytes, count, read);
        if (status == CORE_OK)
            core_lane_release(&bench->lane);
        return lane_status(bench, status, error);
    }
    core_status status = await(bench, error);
    if (status)
        return status;
    const ssize_t got = recv(bench->descriptor, bytes, count, 0);
    if (got <= 0)
        return core_error_set(error, CORE_CLOSED, "calibration: the private server hung up");
    *read = (size_t)got;
    return CORE_OK;
}

static core_status read_all(struct bench *bench, uint8_t *bytes, size_t count, struct core_error *error)
{
    core_status status = CORE_OK;
    while (count > 0 && status == CORE_OK) {
        size_t got = 0;
        status = read_some(bench, bytes, count, &got, error);
        bytes += got;
        count -= got;
    }
    return status;
}

/* Another frame than the one that must come. */
static core_status unexpected(struct bench *bench, const struct protocol_header *header,
                              struct core_error *error)
{
    struct protocol_refused refused;

    if (header->type == PROTOCOL_REFUSED && header->body_bytes <= BUFFER_BYTES &&
        read_all(bench, bench->in, header->body_bytes, error) == CORE_OK &&
        protocol_refused_read(VERSION, bench->in, header->body_bytes, &refused, error) == CORE_OK)
        return core_error_set(error, CORE_MISMATCH,
                              "calibration: the private server refuses its stream: %.400s", refused.text);
    return core_error_set(error, CORE_MISMATCH,
                          "calibration: the private server answered with frame type %u, %u bytes",
                          header->type, header->body_bytes);
}

/* Reads one frame that must be of `type`, its body into bench->in. */
static core_status expect(struct bench *bench, enum protocol_type type, struct protocol_header *header,
                          struct core_error *error)
{
    uint8_t raw[PROTOCOL_HEADER_BYTES];
    core_status status = read_all(bench, raw, sizeof raw, error);
    if (status == CORE_OK)
        status = protocol_header_read(VERSION, raw, header);
    if (status != CORE_OK)
        return status;
    if (header->type != type || header->body_bytes > BUFFER_BYTES)
        return unexpected(bench, header, error);
    return read_all(bench, bench->in, header->body_bytes, error);
}

/* Wide enough never to hold a packet back. On a card batches are to come back soon, and to be small. */
static struct core_stream_spec contract_of(const struct bench *bench)
{
    const bool on_gpu = bench->profile.gpu_count > 0;
    return (struct core_stream_spec){.packet_bytes = LARGE_BYTES,
                                     .burst_packets = on_gpu ? 4 : 16,
                                     .interval_ns = on_gpu ? CORE_NS_PER_MS : 20 * CORE_NS_PER_US,
                                     .latency_ns = on_gpu ? 20 * CORE_NS_PER_MS : 10 * CORE_NS_PER_S,
                                     .cipher = CORE_CIPHER_AES_128_CBC,
                                     .padding = CORE_PADDING_NONE};
}

static core_status open_streams(struct bench *bench, struct group *group, const struct core_stream_spec *spec,
                                uint32_t count, struct core_error *error)
{
    static const uint8_t key[16];
    struct protocol_open open = {
        .spec = *spec, .key_kind = PROTOCOL_KEY_INLINE, .key = key, .key_bytes = sizeof key};
    struct protocol_header header;
    struct protocol_opened opened;
    core_status status = CORE_OK;

    *group = (struct group){.spec = *spec};
    while (status == CORE_OK && group->count < count) {
        const uint32_t bytes = protocol_open_write(VERSION, bench->out, PROTOCOL_OPEN, group->count, &open);
        status = write_all(bench, bench->out, bytes, error);
        if (status == CORE_OK)
            status = expect(bench, PROTOCOL_OPENED, &header, error);
        if (status == CORE_OK)
            status = protocol_opened_read(VERSION, bench->in, header.body_bytes, &opened, error);
        if (status == CORE_OK)
            group->streams[group->count++] = opened.stream;
    }
    return status;
}

static core_status greet(struct bench *bench, struct core_error *error)
{
    struct protocol_header header;
    const uint32_t bytes = protocol_hello_write(bench->out, VERSION, VERSION);
    const core_status status = write_all(bench, bench->out, bytes, error);
    return status == CORE_OK ? expect(bench, PROTOCOL_WELCOME, &header, error) : status;
}

/* Those with a pattern have the one that is cut the most. */
static core_status open_all(struct bench *bench, struct core_error *error)
{
    const struct core_stream_spec plain = contract_of(bench);
    struct core_stream_spec pattern = plain, mac = plain;
    core_status status = greet(bench, error);

    pattern.unit = mac.unit = CORE_UNIT_MESSAGE;
    pattern.iv = mac.iv = CORE_IV_COUNTER;
    pattern.crypt_blocks = pattern.skip_blocks = 1;
    mac.mac = CORE_MAC_HMAC_SHA_256_128;
    if (status == CORE_OK)
        status = open_streams(bench, &bench->plain, &plain, STREAMS, error);
    if (status == CORE_OK && bench->profile.gpu_count == 0)
        status = open_streams(bench, &bench->pattern, &pattern, LARGE_STREAMS, error);
    if (status == CORE_OK && bench->profile.gpu_count == 0)
        status = open_streams(bench, &bench->mac, &mac, LARGE_STREAMS, error);
    return status;
}

/* One packet of `count` streams in one write; waits for the results. latency (may be NULL) takes the server's
 * word. */
static core_status round_trip(struct bench *bench, struct group *group, uint32_t count, uint32_t packet_bytes,
                              struct core_histogram *latency, struct core_error *error)
{
    const bool messages = group->spec.unit == CORE_UNIT_MESSAGE;
    const uint32_t cipher_bytes = packet_bytes + core_stream_tag_bytes(&group->spec);
    size_t out_bytes = 0,
           in_bytes = count * (size_t)(PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES + cipher_bytes);
    for (uint32_t i = 0; i < count; i++) {
        struct protocol_header header = {.body_bytes = packet_bytes,
                                         .type = PROTOCOL_DATA,
                                         .flags = messages ? PROTOCOL_DATA_FIRST | PROTOCOL_DATA_LAST : 0,
                                         .id = group->streams[i],
                                         .sequence = group->sequence};
        protocol_header_write(bench->out + out_bytes, &header);
        out_bytes += PROTOCOL_HEADER_BYTES + packet_bytes;
    }
    group->sequence++;
    core_status status = write_all(bench, bench->out, out_bytes, error);
    if (status == CORE_OK)
        status = read_all(bench, bench->in, in_bytes, error);
    if (status == CORE_OK && latency != NULL) {
        struct protocol_result result;
        status = protocol_result_read(VERSION, bench->in + PROTOCOL_HEADER_BYTES,
                                      PROTOCOL_RESULT_BYTES + cipher_bytes, &result, error);
        core_histogram_record(latency, result.latency_ns);
    }
    return status;
}

static int compare_int64(const void *a, const void *b)
{
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

static core_ns clock_read_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * CORE_NS_PER_S + now.tv_nsec;
}

/* CPU time of the I/O thread for one packet of this size, picoseconds: the median of several slices. */
static core_status packet_cost_ps(struct bench *bench, struct group *group, uint32_t streams,
                                  uint32_t packet_bytes, core_ns time_ns, int64_t *cost_ps,
                                  struct core_error *error)
{
    int64_t slices_ps[SLICES];
    clockid_t clock;

    if (server_io_cpu_clock(bench->server->ios[0], &clock) != CORE_OK)
        return core_error_set(error, CORE_UNSUPPORTED, "calibration: no CPU clock of the I/O thread");
    for (int slice = 0; slice < SLICES; slice++) {
        core_ns before_ns = clock_read_ns(clock), end_ns = core_time_now_ns() + time_ns / SLICES;
        int64_t packets = 0;
        do {
            core_status status = round_trip(bench, group, streams, packet_bytes, NULL, error);
            if (status != CORE_OK)
                return status;
            packets += streams;
        } while (core_time_now_ns() < end_ns);
        slices_ps[slice] = (clock_read_ns(clock) - before_ns) * 1000 / packets;
    }
    qsort(slices_ps, SLICES, sizeof slices_ps[0], compare_int64);
    *cost_ps = slices_ps[SLICES / 2];
    return CORE_OK;
}

static core_status lone_packets(struct bench *bench, core_ns time_ns, core_ns *p999_ns,
                                struct core_error *error)
{
    struct core_histogram *latency = malloc(sizeof *latency);
    core_status status = CORE_OK;
    core_ns start_ns = core_time_now_ns();

    if (latency == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "calibration: no memory");
    core_histogram_init(latency);
    for (core_ns next_ns = start_ns; status == CORE_OK && next_ns < start_ns + time_ns;
         next_ns += LATENCY_GAP_NS) {
        core_time_sleep_until(next_ns);
        status = round_trip(bench, &bench->plain, 1, LATENCY_BYTES, latency, error);
    }
    *p999_ns = core_histogram_percentile_ns(latency, 99.9);
    free(latency);
    return status;
}

static int64_t per_byte_fs(int64_t more_ps, int64_t bytes)
{
    const int64_t byte_fs = more_ps * 1000 / bytes;
    return byte_fs > BYTE_FS_MIN ? byte_fs : BYTE_FS_MIN;
}

/* What streams of other kinds cost more. */
static core_status measure_kinds(struct bench *bench, int64_t large_ps, core_ns time_ns,
                                 struct server_probe *probe, struct core_error *error)
{
    int64_t pattern_ps = 0, mac_ps = 0;
    core_status status =
        packet_cost_ps(bench, &bench->pattern, LARGE_STREAMS, LARGE_BYTES, time_ns / 2, &pattern_ps, error);
    if (status == CORE_OK)
        status = packet_cost_ps(bench, &bench->mac, LARGE_STREAMS, LARGE_BYTES, time_ns / 2, &mac_ps, error);
    probe->pattern_per_byte_fs = per_byte_fs(pattern_ps - large_ps, LARGE_BYTES);
    probe->mac_per_byte_fs = per_byte_fs(mac_ps - large_ps, LARGE_BYTES);
    return status;
}

/* Of packets without a pattern and a MAC, by two sizes. *large_ps: the larger one's. */
static core_status measure_plain(struct bench *bench, core_ns time_ns, core_ns *packet_ns, int64_t *byte_fs,
                                 int64_t *large_ps, struct core_error *error)
{
    int64_t small_ps;
    core_status status =
        packet_cost_ps(bench, &bench->plain, STREAMS, SMALL_BYTES, time_ns / 2, &small_ps, error);
    if (status == CORE_OK)
        status =
            packet_cost_ps(bench, &bench->plain, LARGE_STREAMS, LARGE_BYTES, time_ns / 2, large_ps, error);
    if (status != CORE_OK)
        return status;
    *byte_fs = per_byte_fs(*large_ps - small_ps, LARGE_BYTES - SMALL_BYTES);
    *packet_ns = core_time_max((small_ps * 1000 - *byte_fs * SMALL_BYTES) / 1000000 + 1, PACKET_NS_MIN);
    return CORE_OK;
}

static core_status measure_socket(struct bench *bench, core_ns time_ns, struct server_probe *probe,
                                  struct core_error *error)
{
    const bool on_gpu = bench->profile.gpu_count > 0;
    int64_t large_ps;
    core_status status = connect_bench(bench, error);
    if (status == CORE_OK)
        status = open_all(bench, error);
    if (status == CORE_OK)
        status =
            measure_plain(bench, time_ns / 2, &probe->per_packet_ns, &probe->per_byte_fs, &large_ps, error);
    if (status == CORE_OK && !on_gpu)
        status = measure_kinds(bench, large_ps, time_ns / 4, probe, error);
    if (status == CORE_OK && !on_gpu)
        status = lone_packets(bench, time_ns / 4, &probe->latency_p999_ns, error);
    disconnect_bench(bench);
    return status;
}

/* The same packets without a socket on their way. */
static core_status measure_lane(struct bench *bench, core_ns time_ns, struct server_probe *probe,
                                struct core_error *error)
{
    struct protocol_header header;
    const struct core_stream_spec plain = contract_of(bench);
    char reason[PROTOCOL_CONTROL_BYTES_MAX];
    uint32_t ring_bytes;
    int64_t large_ps;
    core_status status = connect_bench(bench, error);
    if (status == CORE_OK)
        status = greet(bench, error);
    if (status == CORE_OK)
        status = core_lane_ask(&bench->lane, LANE_BYTES, bench->descriptor, error);
    if (status == CORE_OK)
        status = expect(bench, PROTOCOL_LANED, &header, error);
    if (status == CORE_OK)
        status = protocol_laned_read(bench->in, header.body_bytes, &ring_bytes, reason, sizeof reason, error);
    if (status == CORE_OK && ring_bytes == 0)
        status = core_error_set(error, CORE_NO_MEMORY, "calibration: no lane: %s", reason);
    bench->shares = status == CORE_OK;
    if (status == CORE_OK)
        status = open_streams(bench, &bench->plain, &plain, STREAMS, error);
    if (status == CORE_OK)
        status = measure_plain(bench, time_ns, &probe->by_lane_per_packet_ns, &probe->by_lane_per_byte_fs,
                               &large_ps, error);
    disconnect_bench(bench);
    return status;
}

static core_status measure(struct bench *bench, core_ns time_ns, struct server_probe *probe,
                           struct core_error *error)
{
    const core_status status = measure_socket(bench, time_ns * 2 / 3, probe, error);
    return status == CORE_OK ? measure_lane(bench, time_ns / 3, probe, error) : status;
}

/* A card that is as fast as it can be: what it takes is not what is measured. */
static struct config_profile_copy gpu_copies[] = {{1 << 20, 1000, 1000, 1000, 1000}};
static struct config_profile_utilisation gpu_utilisation[] = {{1, CONFIG_PROFILE_SHARE_PPM}};
static char gpu_name[] = "probe";
static struct config_profile_gpu gpu_kind = {.name = gpu_name,
                                             .count = 1,
                                             .sms = STREAMS,
                                             .copy_engines = 2,
                                             .memory_bytes = UINT64_C(1) << 36,
                                             .sm_bytes_per_s = CONFIG_PROFILE_SM_RATE_MAX,
                                             .copies = gpu_copies,
                                             .copy_count = 1,
                                             .utilisation = gpu_utilisation,
                                             .utilisation_count = 1};

/* Burst and piece as they will be, but next to no cost, so that admission lets the probe run at full speed; or
 * far too much, so that it goes to the card. */
static void make_profile(struct bench *bench, bool on_gpu)
{
    const core_ns cost_ns = on_gpu ? CORE_NS_PER_S : 1;
    bench->profile.cpu.per_piece_ns = cost_ns;
    for (int i = 0; i < CORE_CIPHER_COUNT; i++)
        bench->profile.cpu.per_byte_fs[i] = bench->profile.cpu.lane_ns[i] = 1;
    if (on_gpu) {
        bench->profile.gpus = &gpu_kind;
        bench->profile.gpu_count = 1;
        bench->profile.pinned_bytes = UINT64_C(1) << 30;
    }
}

core_status server_probe_run(const struct server_probe_options *options, struct server_probe *probe,
                             struct core_error *error)
{
    char auto_name[] = "auto", probe_name[] = "probe", machine[256];
    struct bench bench = {
        .config = {.threads = {.io = 1,
                               .workers = 1,
                               .realtime = options->realtime,
                               .worker_priority = 20,
                               .io_priority = 10},
                   .limits = {.connections = 2,
                              .streams = STREAMS_MAX + STREAMS,
                              .lane_bytes = 1 << 23,
                              .streams_per_connection = STREAMS_MAX,
                              .packet_bytes = LARGE_BYTES,
                              .burst_packets = 16,
                              .stream_buffer_bytes = 1 << 20,
                              .buffer_bytes = 1 << 26,
                              .bytes_per_key = INT64_MAX},
                   .timeouts = {.hello_ns = CORE_NS_PER_S,
                                .frame_ns = 10 * CORE_NS_PER_S,
                                .idle_ns = 10 * CORE_NS_PER_S,
                                .stall_ns = 10 * CORE_NS_PER_S,
                                .drain_ns = CORE_NS_PER_S},
                   .gpus = {.use = options->gpu_program != NULL ? CONFIG_GPUS_EMULATED : CONFIG_GPUS_NONE,
                            .program = (char *)options->gpu_program,
                            .hang_ns = GPU_PATIENCE_NS},
                   .client_iv = true,
                   .engine = auto_name},
        .profile = {.name = probe_name,
                    .machine = machine,
                    .measured = probe_name,
                    .cpu = *options->cpu,
                    .io = {.per_packet_ns = 1, .per_byte_fs = 0, .limit_percent = 100}},
        .descriptor = -1,
        .out = malloc(BUFFER_BYTES),
        .in = malloc(BUFFER_BYTES),
    };
    server_calibrate_machine(machine, sizeof machine);
    make_profile(&bench, options->gpu_program != NULL);
    core_status status = bench.out == NULL || bench.in == NULL
                             ? core_error_set(error, CORE_NO_MEMORY, "calibration: no memory")
                             : server_start(&bench.server, &bench.config, &bench.profile, error);
    if (status == CORE_OK) {
        memset(bench.out, 0, BUFFER_BYTES);
        status = measure(&bench, options->time_ns, probe, error);
    }
    if (bench.server != NULL)
        (void)server_stop(bench.server); /* nothing is waiting for its results any more */
    free(bench.out);
    free(bench.in);
    return status;
}
