#include "bench/crowd.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IN_FLIGHT 512 /* the server allows 1,024 unanswered requests */
#define ANSWER_MS 5000

core_status bench_crowd_init(struct bench_crowd *crowd, struct millrace *connection, uint32_t capacity,
                             struct core_error *error)
{
    *crowd = (struct bench_crowd){.connection = connection, .capacity = capacity};
    crowd->streams = malloc(capacity * sizeof *crowd->streams);
    return crowd->streams == NULL
               ? core_error_set(error, CORE_NO_MEMORY, "no memory for %u streams", capacity)
               : CORE_OK;
}

void bench_crowd_free(struct bench_crowd *crowd)
{
    free(crowd->streams);
}

struct core_stream_spec bench_crowd_spec(uint32_t index)
{
    uint32_t spread = index * UINT32_C(2654435761); /* Knuth's multiplicative hash */
    return (struct core_stream_spec){.packet_bytes = 256,
                                     .burst_packets = 2,
                                     .interval_ns = 500 * CORE_NS_PER_MS + (core_ns)(spread >> 16) * 22889,
                                     .latency_ns = 20 * CORE_NS_PER_MS + (core_ns)(spread & 0xffff) * 1220,
                                     .cipher = (enum core_cipher)(1 + index % CORE_CIPHER_COUNT),
                                     .padding = CORE_PADDING_PKCS7};
}

static void on_opened(void *argument, uint32_t request, const struct millrace_opened *opened)
{
    struct bench_crowd *crowd = argument;
    (void)request;
    crowd->answered++;
    if (crowd->count < crowd->capacity)
        crowd->streams[crowd->count++] = opened->stream;
}

static void on_refused(void *argument, uint32_t request, const struct millrace_refused *refused)
{
    struct bench_crowd *crowd = argument;
    (void)request;
    crowd->answered++;
    crowd->refused++;
    snprintf(crowd->reason, sizeof crowd->reason, "%s", refused->text);
}

static void on_closed(void *argument, uint32_t stream, const struct millrace_closed *closed)
{
    struct bench_crowd *crowd = argument;
    (void)stream, (void)closed;
    crowd->answered++;
}

/* Lets the connection work until `answered` reaches `goal`. */
static core_status await(struct bench_crowd *crowd, uint32_t goal, struct core_error *error)
{
    while (crowd->answered < goal) {
        struct pollfd ready = {.fd = millrace_descriptor(crowd->connection),
                               .events = millrace_events(crowd->connection)};
        if (poll(&ready, 1, ANSWER_MS) <= 0)
            return core_error_set(error, CORE_TIMEOUT, "the server does not answer");
        core_status status = (core_status)millrace_process(crowd->connection, 0, error->text);
        if (status != CORE_OK)
            return status;
    }
    return CORE_OK;
}

static core_status listen_to(struct bench_crowd *crowd, struct core_error *error)
{
    struct millrace_callbacks callbacks = {.size = sizeof callbacks,
                                           .on_opened = on_opened,
                                           .on_refused = on_refused,
                                           .on_closed = on_closed,
                                           .argument = crowd};
    crowd->answered = crowd->refused = 0;
    return (core_status)millrace_set_callbacks(crowd->connection, &callbacks, error->text);
}

core_status bench_crowd_open(struct bench_crowd *crowd, uint32_t first, uint32_t count,
                             struct core_error *error)
{
    uint8_t key[32];
    core_status status = listen_to(crowd, error);

    for (uint32_t i = 0; status == CORE_OK && i < count; i++) {
        const struct core_stream_spec spec = bench_crowd_spec(first + i);
        struct millrace_open open = client_contract_open(&spec);
        memset(key, (int)(first + i), sizeof key);
        open.key_kind = MILLRACE_KEY_INLINE;
        open.key = key;
        open.key_bytes = core_cipher_key_bytes(spec.cipher);
        status = (core_status)millrace_send_open(crowd->connection, &open, NULL, error->text);
        if (status == CORE_OK && i + 1 - crowd->answered >= IN_FLIGHT)
            status = await(crowd, i + 1 - IN_FLIGHT / 2, error);
    }
    if (status == CORE_OK)
        status = await(crowd, count, error);
    if (status == CORE_OK && crowd->refused > 0)
        status = core_error_set(error, CORE_REFUSED, "%u of %u streams were refused: %s", crowd->refused,
                                count, crowd->reason);
    return status;
}

core_status bench_crowd_close(struct bench_crowd *crowd, struct core_error *error)
{
    core_status status = listen_to(crowd, error);
    for (uint32_t i = 0; status == CORE_OK && i < crowd->count; i++) {
        status = (core_status)millrace_send_close(crowd->connection, crowd->streams[i], error->text);
        if (status == CORE_OK && i + 1 - crowd->answered >= IN_FLIGHT)
            status = await(crowd, i + 1 - IN_FLIGHT / 2, error);
    }
    if (status == CORE_OK)
        status = await(crowd, crowd->count, error);
    if (status == CORE_OK)
        crowd->count = 0;
    return status;
}
