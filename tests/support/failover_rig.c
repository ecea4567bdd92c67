#include "tests/support/failover_rig.h"
#include "tests/support/require.h"
#include "tests/support/shift.h"

#include "core/histogram.h"
#include "gpu/engine.h"
#include "server/gpu/internal.h"

#include <string.h>

#define MODIFY     1000000 /* number of that request */
#define PATIENT_NS (60 * CORE_NS_PER_S)

core_status __real_gpu_engine_open(struct gpu_engine **engine, const struct gpu_engine_options *options,
                                   struct core_error *error);
core_status __wrap_gpu_engine_open(struct gpu_engine **engine, const struct gpu_engine_options *options,
                                   struct core_error *error);

/* What a card does not do for seconds because others keep the cores is no loss. */
core_status __wrap_gpu_engine_open(struct gpu_engine **engine, const struct gpu_engine_options *options,
                                   struct core_error *error)
{
    struct gpu_engine_options patient = *options;
    patient.hang_least_ns = patient.silence_ns = PATIENT_NS;
    return __real_gpu_engine_open(engine, &patient, error);
}

bool __real_server_gpu_event_at(const struct server_gpu *gpu, uint32_t io, uint32_t skipped,
                                struct server_gpu_event *event);
bool __wrap_server_gpu_event_at(const struct server_gpu *gpu, uint32_t io, uint32_t skipped,
                                struct server_gpu_event *event);
void __real_server_gpu_event_done(struct server_gpu *gpu, uint32_t io);
void __wrap_server_gpu_event_done(struct server_gpu *gpu, uint32_t io);

static bool one_told; /* a lost batch in this turn; the I/O thread's */

/* A slow batcher: the I/O thread learns of one lost batch in a turn. */
bool __wrap_server_gpu_event_at(const struct server_gpu *gpu, uint32_t io, uint32_t skipped,
                                struct server_gpu_event *event)
{
    if (one_told) {
        one_told = skipped > 0;
        return false;
    }
    for (uint32_t before = 0; before < skipped; before++)
        if (!__real_server_gpu_event_at(gpu, io, before, event) || event->kind == SERVER_GPU_LOST)
            return false;
    return __real_server_gpu_event_at(gpu, io, skipped, event);
}

void __wrap_server_gpu_event_done(struct server_gpu *gpu, uint32_t io)
{
    struct server_gpu_event event;
    TEST_REQUIRE(__real_server_gpu_event_at(gpu, io, 0, &event));
    __real_server_gpu_event_done(gpu, io);
    one_told = event.kind == SERVER_GPU_LOST;
    if (one_told)
        server_io_notify(gpu->server->ios[io]);
}

void failover_rig_start(struct failover_rig *rig, uint32_t cards, int64_t cost, const char *gpus,
                        const char *yaml)
{
    char text[512];

    memset(rig, 0, sizeof *rig);
    rig->random.state = 5;
    rig->profile = test_gpu_profile(cost);
    rig->profile->gpus[0].count = cards;
    snprintf(text, sizeof text, "threads: {cores: 8, io: 1, workers: %d, realtime: off, pin: false}\n%s",
             FAILOVER_RIG_WORKERS, yaml);
    test_gpu_server_start(&rig->server, gpus, text, rig->profile);
    test_client_dial(&rig->client, test_server_unix(&rig->server));
    test_client_hello_version(&rig->client, 2, NULL);
}

struct test_stream *failover_rig_open(struct failover_rig *rig, const struct core_stream_spec *spec)
{
    TEST_REQUIRE(rig->count < FAILOVER_RIG_STREAMS);
    struct test_stream *stream = test_stream_open(&rig->client, spec, rig->count);
    TEST_REQUIRE(stream->id == rig->count + 1);
    return rig->stream[rig->count++] = stream;
}

bool failover_rig_on_card(const struct test_stream *stream, uint32_t card)
{
    return stream->opened.unit == PROTOCOL_UNIT_GPU && stream->opened.unit_index == card;
}

static void note(struct failover_told *told, const struct test_frame *frame)
{
    TEST_REQUIRE(protocol_notice_read(frame->body, frame->header.body_bytes, &told->last, NULL) == CORE_OK);
    told->notices[told->last.kind]++;
}

void failover_rig_take(struct failover_rig *rig)
{
    struct test_frame frame;

    TEST_REQUIRE(test_client_next(&rig->client, &frame, TEST_PATIENCE_MS) == TEST_FRAME);
    TEST_REQUIRE(frame.header.id >= 1 && frame.header.id <= FAILOVER_RIG_STREAMS);
    struct failover_told *told = &rig->told[frame.header.id - 1];
    if (frame.header.type == PROTOCOL_NOTICE) {
        note(told, &frame);
        return;
    }
    TEST_REQUIRE(frame.header.type == PROTOCOL_RESULT);
    struct protocol_result result = test_stream_check(rig->stream[frame.header.id - 1], &frame);
    told->faults += (result.flags & PROTOCOL_RESULT_FAULT) != 0;
    rig->waiting--;
}

void failover_rig_exchange(struct failover_rig *rig, uint32_t first, uint32_t packets)
{
    for (uint32_t i = 0; i < packets; i++) {
        struct test_stream *stream = rig->stream[test_random_in(&rig->random, first, rig->count - 1)];
        TEST_REQUIRE(test_stream_send(
            stream, (uint32_t)test_random_in(&rig->random, 1, stream->spec.packet_bytes / 16) * 16));
        for (rig->waiting++; rig->waiting > FAILOVER_RIG_INSIDE;)
            failover_rig_take(rig);
    }
}

const struct server_stats *failover_rig_stats(const struct failover_rig *rig)
{
    return &rig->server.server->ios[0]->stats;
}

static uint64_t sent(const struct failover_rig *rig)
{
    uint64_t sum = rig->closed;
    for (uint32_t i = 0; i < rig->count; i++)
        sum += rig->stream[i]->sent;
    return sum;
}

uint64_t failover_rig_of_unit(const struct failover_rig *rig, uint32_t unit)
{
    return core_histogram_total(&failover_rig_stats(rig)->units[unit].slack);
}

uint64_t failover_rig_of_fallback(const struct failover_rig *rig)
{
    return failover_rig_of_unit(rig, server_unit_of_worker(rig->server.server, FAILOVER_RIG_WORKERS));
}

/* Results that the accounts of the units have. */
static uint64_t counted(const struct failover_rig *rig)
{
    uint64_t sum = server_stats_get(&failover_rig_stats(rig)->reader_late);
    for (uint32_t unit = 0; unit < failover_rig_stats(rig)->unit_count; unit++)
        sum += failover_rig_of_unit(rig, unit);
    return sum;
}

/* The server counts a result once it is written. */
void failover_rig_settle(struct failover_rig *rig)
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    while (rig->waiting > 0)
        failover_rig_take(rig);
    while (counted(rig) < sent(rig)) {
        TEST_REQUIRE(core_time_now_ns() < until_ns);
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    }
}

uint64_t failover_rig_of_workers(const struct failover_rig *rig)
{
    uint64_t sum = 0;
    for (uint32_t worker = 0; worker < FAILOVER_RIG_WORKERS; worker++)
        sum += failover_rig_of_unit(rig, worker);
    return sum;
}

/* The next frame that is no NOTICE. */
static struct test_frame next_answer(struct failover_rig *rig)
{
    struct test_frame frame;
    for (;;) {
        TEST_REQUIRE(test_client_next(&rig->client, &frame, TEST_PATIENCE_MS) == TEST_FRAME);
        if (frame.header.type != PROTOCOL_NOTICE)
            return frame;
        note(&rig->told[frame.header.id - 1], &frame);
    }
}

enum protocol_refusal failover_rig_modify(struct failover_rig *rig, struct test_stream *stream,
                                          uint32_t burst, core_ns interval_ns, core_ns latency_ns,
                                          struct protocol_modified *modified)
{
    const struct protocol_modify ask = {stream->id, burst, interval_ns, latency_ns};
    uint8_t bytes[TEST_FRAME_BYTES];
    struct protocol_refused refused;
    struct test_frame frame;

    failover_rig_settle(rig);
    TEST_REQUIRE(test_client_send(&rig->client, bytes, protocol_modify_write(bytes, MODIFY, &ask)));
    frame = next_answer(rig);
    TEST_REQUIRE(frame.header.id == MODIFY);
    if (frame.header.type == PROTOCOL_MODIFIED) {
        TEST_REQUIRE(protocol_modified_read(frame.body, frame.header.body_bytes, modified, NULL) == CORE_OK);
        return 0;
    }
    TEST_REQUIRE(protocol_refused_read(2, frame.body, frame.header.body_bytes, &refused, NULL) == CORE_OK);
    printf("%s\n", refused.text);
    return refused.code;
}

void failover_rig_expect_told(struct failover_rig *rig, uint32_t i, uint32_t failures)
{
    struct failover_told *told = &rig->told[i];
    const struct protocol_opened *opened = &rig->stream[i]->opened;

    TEST_REQUIRE(told->notices[PROTOCOL_NOTICE_DEGRADED] == 0);
    TEST_REQUIRE(told->notices[PROTOCOL_NOTICE_RESTORED] == 0);
    TEST_REQUIRE(told->notices[PROTOCOL_NOTICE_MOVED] == 2 * failures);
    TEST_REQUIRE(failures > 0 || told->faults == 0);
    told->faults = 0;
    if (failures == 0)
        return;
    TEST_REQUIRE(told->last.unit == opened->unit && told->last.unit_index == opened->unit_index);
    TEST_REQUIRE(told->last.bound_ns == opened->bound_ns);
}

size_t failover_rig_shift(struct failover_rig *rig, uint32_t from, uint32_t to, size_t streams)
{
    struct test_shift shift;

    test_shift_begin(&shift, rig->server.server->planner, from, to, streams,
                     TEST_PATIENCE_MS * CORE_NS_PER_MS / 4);
    test_shift_await(&shift);
    return shift.moved;
}

static void close_one(struct failover_rig *rig, const struct test_stream *stream)
{
    uint8_t bytes[TEST_FRAME_BYTES];
    struct protocol_closed closed;

    TEST_REQUIRE(test_client_send(&rig->client, bytes, protocol_close_write(bytes, stream->id)));
    struct test_frame frame = next_answer(rig);
    TEST_REQUIRE(frame.header.type == PROTOCOL_CLOSED && frame.header.id == stream->id);
    TEST_REQUIRE(protocol_closed_read(frame.body, frame.header.body_bytes, &closed, NULL) == CORE_OK);
    TEST_REQUIRE(closed.packets == stream->sent);
}

void failover_rig_close(struct failover_rig *rig, uint32_t first)
{
    failover_rig_settle(rig);
    for (uint32_t i = first; i < rig->count; i++) {
        close_one(rig, rig->stream[i]);
        rig->closed += rig->stream[i]->sent;
        test_stream_free(rig->stream[i]);
        memset(&rig->told[i], 0, sizeof rig->told[i]);
    }
    rig->count = first;
}

void failover_rig_stop(struct failover_rig *rig)
{
    const struct server_stats *stats = failover_rig_stats(rig);
    failover_rig_close(rig, 0);
    TEST_REQUIRE(rig->broken || server_stats_get(&stats->packets) == rig->closed);
    TEST_REQUIRE(server_stats_get(&stats->met) + server_stats_get(&stats->missed) ==
                 server_stats_get(&stats->packets));
    TEST_REQUIRE(rig->broken == (server_stats_get(&stats->lost) > 0));
    test_client_close(&rig->client);
    TEST_REQUIRE(test_server_stop(&rig->server) == 0);
    config_profile_free(rig->profile);
}
