/* Attacks by requests of clients that are let in. */
#include "bench/siege/siege.h"

#include "client/millrace.h"
#include "inputgen/replay_process.h"

#include <stdio.h>
#include <stdlib.h>

#define ANSWER_MS    20000
#define TRIES        100
#define HUGE_GOAL_NS CORE_NS_PER_MS
#define GROWTH_BYTES (4 << 20)
#define UNDER_WAY    64
#define CROWD        10
#define QUERIES      1000 /* of each connection; 1,024 may be unanswered */

struct millrace_open siege_open(void)
{
    static const uint8_t key[16];
    return (struct millrace_open){.size = sizeof(struct millrace_open),
                                  .packet_bytes = 256,
                                  .burst_packets = 2,
                                  .interval_ns = CORE_NS_PER_S,
                                  .latency_ns = 100 * CORE_NS_PER_MS,
                                  .cipher = MILLRACE_CIPHER_AES_128_CBC,
                                  .padding = MILLRACE_PADDING_PKCS7,
                                  .key_kind = MILLRACE_KEY_INLINE,
                                  .key = key,
                                  .key_bytes = sizeof key};
}

static core_status join(const struct siege *siege, struct millrace **connection, uint32_t *stream,
                        struct core_error *error)
{
    const struct millrace_open open = siege_open();
    struct millrace_opened opened = {.size = sizeof opened};
    core_status status =
        (core_status)millrace_connect(siege->daemon->address, NULL, ANSWER_MS, connection, error->text);
    if (status == CORE_OK)
        status = (core_status)millrace_open_stream(*connection, &open, ANSWER_MS, &opened, NULL, error->text);
    *stream = opened.stream;
    return status;
}

static int ascending(const void *a, const void *b)
{
    const core_ns left = *(const core_ns *)a, right = *(const core_ns *)b;
    return (left > right) - (left < right);
}

/* The median there and back: what the server takes, and not what the machine takes of it now and then. */
core_status siege_modify_huge(struct siege *siege, struct core_error *error)
{
    struct millrace *connection = NULL;
    struct millrace_modify modify = {.size = sizeof modify,
                                     .burst_packets = 1,
                                     .interval_ns = CORE_NS_PER_US,
                                     .latency_ns = 100 * CORE_NS_PER_S};
    core_ns took_ns[TRIES];
    core_status status = join(siege, &connection, &modify.stream, error);
    const int64_t before = inputgen_process_resident_bytes(siege->daemon->process);
    for (unsigned at = 0; status == CORE_OK && at < TRIES; at++, siege->done++) {
        struct millrace_modified modified = {.size = sizeof modified};
        const core_ns start_ns = core_time_now_ns();
        status =
            (core_status)millrace_modify_stream(connection, &modify, ANSWER_MS, &modified, NULL, error->text);
        took_ns[at] = core_time_now_ns() - start_ns;
        if (status == CORE_OK)
            status = core_error_set(error, CORE_MISMATCH, "10^8 packets in a bound were granted");
        else if (status == CORE_REFUSED)
            status = CORE_OK;
    }
    const int64_t growth = inputgen_process_resident_bytes(siege->daemon->process) - before;
    millrace_disconnect(connection);
    if (status != CORE_OK)
        return status;
    qsort(took_ns, TRIES, sizeof *took_ns, ascending);
    const core_ns half_ns = took_ns[TRIES / 2], worst_ns = took_ns[TRIES - 1];
    siege->failed = half_ns >= HUGE_GOAL_NS || growth > GROWTH_BYTES;
    (void)snprintf(siege->note, sizeof siege->note,
                   "refused in %.3f ms (half), %.3f ms (worst), goal 1 ms; memory +%.1f MiB",
                   (double)half_ns / 1e6, (double)worst_ns / 1e6, (double)growth / (1 << 20));
    return CORE_OK;
}

/* ---- storms ---- */

struct storm {
    uint64_t sent, answered, granted;
};

static void on_modified(void *argument, uint32_t request, const struct millrace_modified *modified)
{
    struct storm *storm = argument;
    (void)request, (void)modified;
    storm->answered++;
    storm->granted++;
}

static void on_refused(void *argument, uint32_t request, const struct millrace_refused *refused)
{
    struct storm *storm = argument;
    (void)request, (void)refused;
    storm->answered++;
}

/* The next contract, a third of them refused for its size. */
static struct millrace_modify stormy(uint32_t stream, uint64_t at)
{
    return (struct millrace_modify){.size = sizeof(struct millrace_modify),
                                    .stream = stream,
                                    .burst_packets = 1 + (uint32_t)(at % 8),
                                    .interval_ns = at % 3 == 0 ? CORE_NS_PER_US : 500 * CORE_NS_PER_MS,
                                    .latency_ns = (20 + (core_ns)(at % 100)) * CORE_NS_PER_MS};
}

core_status siege_modify_storm(struct siege *siege, struct core_error *error)
{
    struct millrace *connection = NULL;
    struct storm storm = {0};
    uint32_t stream;
    core_status status = join(siege, &connection, &stream, error);
    if (status == CORE_OK)
        status = (core_status)millrace_set_callbacks(
            connection,
            &(struct millrace_callbacks){.size = sizeof(struct millrace_callbacks),
                                         .on_modified = on_modified,
                                         .on_refused = on_refused,
                                         .argument = &storm},
            error->text);
    for (; status == CORE_OK && siege_goes_on(siege); siege->done = storm.answered) {
        for (; status == CORE_OK && storm.sent - storm.answered < UNDER_WAY; storm.sent++) {
            const struct millrace_modify modify = stormy(stream, storm.sent);
            status = (core_status)millrace_send_modify(connection, &modify, NULL, error->text);
        }
        if (status == CORE_OK)
            status = (core_status)millrace_process(connection, 0, error->text);
        if (status == CORE_OK)
            (void)siege_await(millrace_descriptor(connection), millrace_events(connection), 10);
    }
    millrace_disconnect(connection);
    (void)snprintf(siege->note, sizeof siege->note, "%llu granted", (unsigned long long)storm.granted);
    return status;
}

/* QUERYs that are refused, with all the offers that such an answer asks for; nobody waits for it. */
static core_status ask_and_leave(struct siege *siege, struct core_error *error)
{
    struct millrace *connections[CROWD] = {NULL};
    struct millrace_open open = siege_open();
    core_status status = CORE_OK;
    open.key_kind = MILLRACE_KEY_NONE;
    open.key_bytes = 0;
    open.packet_bytes = 60000;
    open.interval_ns = 20 * CORE_NS_PER_US;
    for (unsigned at = 0; status == CORE_OK && at < CROWD; at++)
        status = (core_status)millrace_connect(siege->daemon->address, NULL, ANSWER_MS, &connections[at],
                                               error->text);
    for (unsigned at = 0; status == CORE_OK && at < CROWD * QUERIES; at++, siege->done++) {
        open.interval_ns++;
        status = (core_status)millrace_send_query(connections[at % CROWD], &open, NULL, error->text);
    }
    for (unsigned at = 0; at < CROWD; at++) {
        if (status == CORE_OK)
            status = (core_status)millrace_flush(connections[at], error->text);
        millrace_disconnect(connections[at]);
    }
    return status;
}

core_status siege_queries(struct siege *siege, struct core_error *error)
{
    core_status status = CORE_OK;
    do {
        status = ask_and_leave(siege, error);
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_S);
    } while (status == CORE_OK && siege_goes_on(siege));
    return status;
}
