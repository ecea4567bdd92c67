#include "bench/lane_producer.h"

#include "client/millrace.h"
#include "core/stream.h"
#include "inputgen/replay_process.h"

#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define TURN_NS    (500 * CORE_NS_PER_US)
#define DRAIN_NS   (2 * CORE_NS_PER_S)
#define TIMEOUT_MS 60000
#define LATENCY_NS (50 * CORE_NS_PER_MS)
#define REQUESTS   512u /* unanswered ones */
#define BUFFERS    64u  /* of packets, that the producer has at hand */

struct producer {
    const struct bench_lane_producer_options *options;
    struct millrace *connection;
    uint32_t *ids; /* of streams, in the order of their answers */
    uint32_t asked, opened;
    uint32_t result_bytes; /* of each packet that comes back */
    uint64_t sent, answered, back, missed;
    uint64_t sum; /* of what came back: it is looked at */
    char refusal[MILLRACE_TEXT_BYTES];
};

static void on_opened(void *argument, uint32_t request, const struct millrace_opened *opened)
{
    struct producer *producer = argument;
    (void)request;
    producer->ids[producer->opened++] = opened->stream;
}

static void on_refused(void *argument, uint32_t request, const struct millrace_refused *refused)
{
    struct producer *producer = argument;
    (void)request;
    memcpy(producer->refusal, refused->text, sizeof producer->refusal);
}

static void on_result(void *argument, const struct millrace_result *result)
{
    struct producer *producer = argument;
    uint64_t word;

    producer->answered++;
    if (result->status != MILLRACE_RESULT_OK || result->bytes != producer->result_bytes)
        return;
    memcpy(&word, result->ciphertext, sizeof word);
    producer->sum += word;
    producer->back++;
    producer->missed += (result->flags & MILLRACE_RESULT_MET) == 0;
}

static core_status failed(struct core_error *error, const char *text)
{
    return core_error_set(error, CORE_SYSTEM, "%s", text);
}

static core_status ask(struct producer *producer, struct core_error *error)
{
    const struct bench_lane_producer_options *options = producer->options;
    const double interval_ns = 1e9 * options->streams * options->packet_bytes / options->bytes_per_s;
    const uint8_t key[16] = {(uint8_t)producer->asked, (uint8_t)(producer->asked >> 8)};
    const struct millrace_open open = {.size = sizeof open,
                                       .packet_bytes = options->packet_bytes,
                                       .burst_packets = 2,
                                       .interval_ns = (int64_t)interval_ns,
                                       .latency_ns = LATENCY_NS,
                                       .cipher = MILLRACE_CIPHER_AES_128_CBC,
                                       .padding = MILLRACE_PADDING_PKCS7,
                                       .key_kind = MILLRACE_KEY_INLINE,
                                       .key = key,
                                       .key_bytes = sizeof key};
    char text[MILLRACE_TEXT_BYTES];

    if (millrace_send_open(producer->connection, &open, NULL, text) != MILLRACE_OK)
        return failed(error, text);
    producer->asked++;
    return CORE_OK;
}

static core_status open_streams(struct producer *producer, struct core_error *error)
{
    const core_ns until_ns = core_time_now_ns() + TIMEOUT_MS * CORE_NS_PER_MS;
    char text[MILLRACE_TEXT_BYTES];

    while (producer->opened < producer->options->streams) {
        while (producer->asked < producer->options->streams &&
               producer->asked - producer->opened < REQUESTS) {
            const core_status status = ask(producer, error);
            if (status != CORE_OK)
                return status;
        }
        struct pollfd ready = {.fd = millrace_descriptor(producer->connection),
                               .events = millrace_events(producer->connection)};
        (void)poll(&ready, 1, 100);
        if (millrace_process(producer->connection, 1, text) != MILLRACE_OK)
            return failed(error, text);
        if (producer->refusal[0] != '\0')
            return failed(error, producer->refusal);
        if (core_time_now_ns() > until_ns)
            return failed(error, "the server does not answer all OPEN");
    }
    return CORE_OK;
}

/* Those that are due by now; what has no room waits for the next turn. */
static core_status send_due(struct producer *producer, uint64_t due, const uint8_t *packets,
                            struct core_error *error)
{
    const uint32_t bytes = producer->options->packet_bytes;
    char text[MILLRACE_TEXT_BYTES];

    for (; producer->sent < due; producer->sent++) {
        uint8_t *room;
        const millrace_status status = millrace_data_reserve(
            producer->connection, producer->ids[producer->sent % producer->options->streams], bytes, &room,
            NULL, text);
        if (status == MILLRACE_FULL)
            return CORE_OK;
        if (status != MILLRACE_OK)
            return failed(error, text);
        memcpy(room, packets + producer->sent % BUFFERS * bytes, bytes);
    }
    return CORE_OK;
}

static core_status run(struct producer *producer, const uint8_t *packets, struct core_error *error)
{
    const struct bench_lane_producer_options *options = producer->options;
    const double packets_per_ns = options->bytes_per_s / options->packet_bytes / 1e9;
    const core_ns from_ns = core_time_now_ns(), until_ns = from_ns + options->duration_ns;
    core_status status = CORE_OK;
    char text[MILLRACE_TEXT_BYTES];

    for (core_ns now_ns = from_ns; status == CORE_OK; now_ns = core_time_now_ns()) {
        const core_ns due_ns = core_time_min(now_ns, until_ns) - from_ns;
        status = send_due(producer, (uint64_t)((double)due_ns * packets_per_ns), packets, error);
        if (status == CORE_OK && millrace_process(producer->connection, 1, text) != MILLRACE_OK)
            status = failed(error, text);
        const bool is_over = now_ns >= until_ns && producer->answered == producer->sent;
        if (is_over || now_ns > until_ns + DRAIN_NS)
            break;
        core_time_sleep_until(from_ns + ((now_ns - from_ns) / TURN_NS + 1) * TURN_NS);
    }
    return status;
}

static core_status measure(struct producer *producer, const uint8_t *packets,
                           struct bench_lane_producer_result *result, struct core_error *error)
{
    const core_ns from_ns = core_time_now_ns(), own_ns = core_time_thread_cpu_ns();
    const core_ns server_ns = inputgen_process_cpu_ns(producer->options->server);
    const core_status status = run(producer, packets, error);
    const core_ns server_to_ns = inputgen_process_cpu_ns(producer->options->server);

    if (status != CORE_OK)
        return status;
    if (producer->back == 0 || server_ns < 0 || server_to_ns < 0)
        return failed(error, "the server has brought nothing back");
    const double back = (double)producer->back;
    *result = (struct bench_lane_producer_result){
        .server_ns = (double)(server_to_ns - server_ns) / back,
        .client_ns = (double)(core_time_thread_cpu_ns() - own_ns) / back,
        .bytes_per_s = back * producer->options->packet_bytes * 1e9 / (double)(core_time_now_ns() - from_ns),
        .sent = producer->sent,
        .back = producer->back,
        .missed = producer->missed};
    return CORE_OK;
}

core_status bench_lane_producer(const struct bench_lane_producer_options *options,
                                struct bench_lane_producer_result *result, struct core_error *error)
{
    struct producer producer = {.options = options,
                                .ids = calloc(options->streams, sizeof *producer.ids),
                                .result_bytes = options->packet_bytes / CORE_BLOCK_BYTES * CORE_BLOCK_BYTES +
                                                CORE_BLOCK_BYTES};
    const struct millrace_callbacks callbacks = {.size = sizeof callbacks,
                                                 .argument = &producer,
                                                 .on_opened = on_opened,
                                                 .on_refused = on_refused,
                                                 .on_result = on_result};
    uint8_t *packets = calloc(BUFFERS, options->packet_bytes);
    char text[MILLRACE_TEXT_BYTES];
    core_status status = CORE_OK;

    if (producer.ids == NULL || packets == NULL)
        status = core_error_set(error, CORE_NO_MEMORY, "no memory for %u streams", options->streams);
    if (status == CORE_OK &&
        (millrace_connect(options->address, NULL, TIMEOUT_MS, &producer.connection, text) != MILLRACE_OK ||
         millrace_set_callbacks(producer.connection, &callbacks, text) != MILLRACE_OK))
        status = failed(error, text);
    if (status == CORE_OK)
        status = open_streams(&producer, error);
    if (status == CORE_OK)
        status = measure(&producer, packets, result, error);
    millrace_disconnect(producer.connection);
    free(producer.ids);
    free(packets);
    return status;
}
