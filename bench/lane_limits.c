#include "bench/lane_limits.h"

#include "core/lane.h"
#include "cpu/engine.h"

#include <errno.h>
#include <openssl/evp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define RING_BYTES   (UINT32_C(1) << 18) /* as libmillrace asks for */
#define BUFFER_BYTES (UINT32_C(1) << 16) /* as an I/O thread reads at once */
#define BUFFERS      64u                 /* of packets, where OpenSSL reads and writes */
#define WAIT_MS      100

struct ring {
    const struct bench_lane_limits_options *options;
    const struct cpu_engine_ops *ops; /* NULL: nothing is encrypted */
    struct cpu_engine *engine;
    uint8_t *keys, *chains;    /* by stream */
    struct core_lane lanes[2]; /* the client's, the server's */
    int sockets[2];
    uint64_t echoed;       /* packets; the server's */
    core_ns server_cpu_ns; /* the server's, read after its end */
    core_status encrypted; /* the server's, read after its end */
    _Atomic bool ended;    /* set by the client, read by the server */
};

static void wait_for(int socket)
{
    struct pollfd ready = {.fd = socket, .events = POLLIN};
    (void)poll(&ready, 1, WAIT_MS);
}

/* Encrypts packets that lie one behind another, each of the next stream, in bursts of different streams. */
static void encrypt(struct ring *ring, uint8_t *bytes, uint32_t packets)
{
    const uint32_t streams = ring->options->streams;
    const uint32_t most = streams < CPU_BURST_MAX ? streams : CPU_BURST_MAX;
    struct cpu_piece pieces[CPU_BURST_MAX];

    while (packets > 0) {
        const uint32_t count = packets < most ? packets : most;
        for (uint32_t at = 0; at < count; at++) {
            const size_t stream = (ring->echoed + at) % streams;
            pieces[at] = (struct cpu_piece){.source = bytes,
                                            .target = bytes,
                                            .bytes = ring->options->packet_bytes,
                                            .chain = ring->chains + stream * CORE_BLOCK_BYTES,
                                            .key = ring->keys + stream * ring->ops->key_state_bytes};
            bytes += ring->options->packet_bytes;
        }
        if (ring->ops->encrypt(ring->engine, CORE_CIPHER_AES_128_CBC, pieces, count) != CORE_OK)
            ring->encrypted = CORE_SYSTEM;
        ring->echoed += count;
        packets -= count;
    }
}

static void write_all(struct ring *ring, struct core_lane *lane, uint8_t *bytes, size_t count)
{
    while (count > 0 && !atomic_load(&ring->ended)) {
        const struct iovec vector = {.iov_base = bytes, .iov_len = count};
        size_t taken;
        const core_status status = core_lane_write(lane, &vector, 1, &taken);
        bytes += taken;
        count -= taken;
        if (count > 0 && status == CORE_AGAIN) {
            wait_for(lane->socket);
            core_lane_hush(lane);
        }
    }
}

/* The server's thread. Packets that a read has cut wait for their rest. */
static void *serve(void *argument)
{
    struct ring *ring = argument;
    struct core_lane *lane = &ring->lanes[1];
    const uint32_t packet_bytes = ring->options->packet_bytes;
    static uint8_t buffer[2 * BUFFER_BYTES];
    size_t there = 0;

    while (!atomic_load(&ring->ended)) {
        size_t got;
        if (core_lane_read(lane, buffer + there, BUFFER_BYTES, &got) != CORE_OK) {
            wait_for(lane->socket);
            continue;
        }
        core_lane_release(lane);
        there += got;
        const uint32_t packets = (uint32_t)(there / packet_bytes);
        const size_t whole = (size_t)packets * packet_bytes;
        if (ring->ops != NULL)
            encrypt(ring, buffer, packets);
        write_all(ring, lane, buffer, whole);
        there -= whole;
        memmove(buffer, buffer + whole, there);
    }
    ring->server_cpu_ns = core_time_thread_cpu_ns();
    return NULL;
}

/* The client: keeps the ring full and takes what comes back. Returns how many packets did. */
static uint64_t produce(struct ring *ring, core_ns until_ns)
{
    struct core_lane *lane = &ring->lanes[0];
    static uint8_t source[BUFFER_BYTES], sink[BUFFER_BYTES];
    uint64_t back = 0;

    while (core_time_now_ns() < until_ns) {
        const struct iovec vector = {.iov_base = source, .iov_len = sizeof source};
        size_t taken = 0, got = 0;
        (void)!core_lane_write(lane, &vector, 1, &taken);
        if (core_lane_read(lane, sink, sizeof sink, &got) == CORE_OK) {
            core_lane_release(lane);
            back += got;
        }
        if (taken == 0 && got == 0)
            wait_for(lane->socket);
    }
    return back / ring->options->packet_bytes;
}

static core_status make_keys(struct ring *ring, struct core_error *error)
{
    const uint32_t streams = ring->options->streams;
    ring->ops = cpu_engine_find("auto", error);
    if (ring->ops == NULL)
        return CORE_UNSUPPORTED;
    core_status status = ring->ops->open(&ring->engine, error);
    if (status != CORE_OK)
        return status;
    ring->keys = aligned_alloc(64, (ring->ops->key_state_bytes * streams + 63) / 64 * 64);
    ring->chains = calloc(streams, CORE_BLOCK_BYTES);
    if (ring->keys == NULL || ring->chains == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the keys of %u streams", streams);
    for (uint32_t at = 0; at < streams && status == CORE_OK; at++) {
        const uint8_t key[16] = {(uint8_t)at, (uint8_t)(at >> 8)};
        status = ring->ops->key_set(ring->engine, ring->keys + at * ring->ops->key_state_bytes,
                                    CORE_CIPHER_AES_128_CBC, CORE_DIRECTION_ENCRYPT, key);
    }
    return status == CORE_OK ? status : core_error_set(error, status, "can not expand a key");
}

static core_status make_lanes(struct ring *ring, struct core_error *error)
{
    int descriptor;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ring->sockets) != 0)
        return core_error_errno(error, "can not make a pair of sockets");
    core_status status = core_lane_create(&ring->lanes[0], RING_BYTES, ring->sockets[0], &descriptor, error);
    if (status != CORE_OK)
        return status;
    status = core_lane_attach(&ring->lanes[1], descriptor, RING_BYTES, error);
    ring->lanes[1].socket = ring->sockets[1];
    close(descriptor);
    return status;
}

static void free_ring(struct ring *ring)
{
    for (int side = 0; side < 2; side++) {
        core_lane_free(&ring->lanes[side]);
        if (ring->sockets[side] >= 0)
            close(ring->sockets[side]);
    }
    if (ring->engine != NULL)
        ring->ops->close(ring->engine);
    free(ring->keys);
    free(ring->chains);
}

static core_status run(struct ring *ring, struct bench_lane_limits_result *result, struct core_error *error)
{
    const core_ns cpu_ns = core_time_thread_cpu_ns(), from_ns = core_time_now_ns();
    pthread_t thread;

    errno = pthread_create(&thread, NULL, serve, ring);
    if (errno != 0)
        return core_error_errno(error, "can not start a thread");
    const uint64_t packets = produce(ring, from_ns + ring->options->duration_ns);
    const core_ns took_ns = core_time_now_ns() - from_ns;
    const core_ns client_cpu_ns = core_time_thread_cpu_ns() - cpu_ns;
    atomic_store(&ring->ended, true);
    (void)pthread_join(thread, NULL);
    if (packets == 0 || ring->encrypted != CORE_OK)
        return core_error_set(error, CORE_SYSTEM, "the ring has brought nothing back");
    *result = (struct bench_lane_limits_result){.server_ns = (double)ring->server_cpu_ns / (double)packets,
                                                .client_ns = (double)client_cpu_ns / (double)packets,
                                                .packets_per_s = (double)packets * 1e9 / (double)took_ns};
    return CORE_OK;
}

core_status bench_lane_ring(const struct bench_lane_limits_options *options, bool encrypts,
                            struct bench_lane_limits_result *result, struct core_error *error)
{
    struct ring ring = {.options = options, .sockets = {-1, -1}};
    core_status status = encrypts ? make_keys(&ring, error) : CORE_OK;
    if (status == CORE_OK)
        status = make_lanes(&ring, error);
    if (status == CORE_OK)
        status = run(&ring, result, error);
    free_ring(&ring);
    return status;
}

/* ---- OpenSSL ---- */

static core_status make_contexts(EVP_CIPHER_CTX **contexts, uint32_t streams)
{
    for (uint32_t at = 0; at < streams; at++) {
        const uint8_t key[16] = {(uint8_t)at, (uint8_t)(at >> 8)}, iv[16] = {0};
        contexts[at] = EVP_CIPHER_CTX_new();
        if (contexts[at] == NULL || EVP_EncryptInit_ex(contexts[at], EVP_aes_128_cbc(), NULL, key, iv) != 1 ||
            EVP_CIPHER_CTX_set_padding(contexts[at], 0) != 1)
            return CORE_NO_MEMORY;
    }
    return CORE_OK;
}

static bool encrypt_for(EVP_CIPHER_CTX **contexts, const struct bench_lane_limits_options *options,
                        uint8_t *buffers, struct bench_lane_limits_result *result)
{
    const core_ns cpu_ns = core_time_thread_cpu_ns(), from_ns = core_time_now_ns();
    const core_ns until_ns = from_ns + options->duration_ns;
    uint64_t packets = 0;
    bool good = true;

    while (good && core_time_now_ns() < until_ns)
        for (uint32_t at = 0; good && at < BUFFERS; at++, packets++) {
            uint8_t *bytes = buffers + (size_t)at * options->packet_bytes;
            int count = 0;
            good = EVP_EncryptUpdate(contexts[packets % options->streams], bytes, &count, bytes,
                                     (int)options->packet_bytes) == 1;
        }
    *result = (struct bench_lane_limits_result){
        .client_ns = (double)(core_time_thread_cpu_ns() - cpu_ns) / (double)packets,
        .packets_per_s = (double)packets * 1e9 / (double)(core_time_now_ns() - from_ns)};
    return good;
}

core_status bench_lane_openssl(const struct bench_lane_limits_options *options,
                               struct bench_lane_limits_result *result, struct core_error *error)
{
    EVP_CIPHER_CTX **contexts = calloc(options->streams, sizeof *contexts);
    uint8_t *buffers = calloc(BUFFERS, options->packet_bytes);
    core_status status =
        contexts != NULL && buffers != NULL ? make_contexts(contexts, options->streams) : CORE_NO_MEMORY;
    if (status != CORE_OK)
        (void)core_error_set(error, status, "no memory for the contexts of %u streams", options->streams);
    else if (!encrypt_for(contexts, options, buffers, result))
        status = core_error_set(error, CORE_SYSTEM, "OpenSSL could not encrypt");
    for (uint32_t at = 0; contexts != NULL && at < options->streams; at++)
        EVP_CIPHER_CTX_free(contexts[at]);
    free(contexts);
    free(buffers);
    return status;
}
