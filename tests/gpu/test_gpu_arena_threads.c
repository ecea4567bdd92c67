/* Batches under threads: four writers append, stop in the middle of appends, deliver and release, while the
 * batcher opens and closes. Every packet is in exactly one batch, whole, in its stream's order, never in an
 * older batch than its own. Run under ThreadSanitizer too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/time.h"
#include "gpu/arena.h"
#include "tests/support/random.h"
#include "tests/support/require.h"

#define WRITERS     4
#define STREAMS     16 /* of each writer */
#define SLOTS       (WRITERS * STREAMS)
#define PACKETS     12000 /* of each writer */
#define PERIOD_NS   1000  /* of the test's own clock */
#define INTERVAL_NS 300   /* of a stream's packets */
#define ARENAS      5
#define BATCHES     1000000 /* more than there can be */

/* Set by the writer before it is appended, then constant. */
struct packet {
    core_ns eligible_ns;
    uint32_t slot, number, bytes;
    uint64_t batch; /* the writer's: where it went */
};

struct stream {
    uint64_t batch;
    core_ns eligible_ns;
    uint32_t number;
};

struct bench;

struct writer {
    struct bench *bench;
    uint32_t index;
    struct test_random random;
    struct packet *packets;
    struct stream streams[STREAMS];
    uint32_t delivered;
    uint64_t delivered_batch;
};

struct bench {
    struct gpu_arenas *arenas;
    _Atomic core_ns now_ns;    /* atomic: batcher writes, writers read */
    _Atomic uint64_t done;     /* atomic: newest batch that may be delivered; batcher writes */
    uint64_t *writers;         /* who is in each batch; batcher writes before `done` */
    _Atomic uint32_t finished; /* atomic: writers that have delivered everything */
    struct writer writer[WRITERS];
    uint32_t next_number[SLOTS]; /* batcher's: what must come next */
    uint64_t packets;            /* batcher's: seen in all */
};

/* What every byte of a packet is. */
static uint8_t byte_of(const struct packet *packet)
{
    return (uint8_t)(packet->slot * 31 + packet->number * 7 + 1);
}

/* ---- Writers ---- */

/* Goes through its part of every batch that is done. */
static void deliver(struct writer *writer)
{
    struct bench *bench = writer->bench;
    uint64_t done = atomic_load_explicit(&bench->done, memory_order_acquire); /* with `writers` and output */
    while (writer->delivered_batch < done) {
        uint64_t batch = ++writer->delivered_batch;
        if ((bench->writers[batch] >> writer->index & 1) == 0)
            continue;
        struct gpu_record_list records = gpu_arena_records(bench->arenas, writer->index, batch);
        TEST_REQUIRE(records.left > 0);
        writer->delivered += records.left;
        for (const struct gpu_record *record; (record = gpu_record_next(&records)) != NULL;) {
            const struct packet *packet = &writer->packets[record->cookie];
            const uint8_t *output = gpu_arena_output(bench->arenas, batch) + record->offset_bytes;
            TEST_REQUIRE(packet->batch == batch);
            TEST_REQUIRE(output[0] == (byte_of(packet) ^ 0xa5));
            TEST_REQUIRE(output[packet->bytes - 1] == (byte_of(packet) ^ 0xa5));
        }
        TEST_REQUIRE(gpu_arena_release(bench->arenas, writer->index, batch) == CORE_OK);
    }
}

/* Stops in the middle of the append until the batch is closed. */
static core_status append_slowly(struct writer *writer, const struct gpu_packet *packet,
                                 struct gpu_place *place)
{
    struct gpu_arenas *arenas = writer->bench->arenas;
    core_status status = gpu_arena_reserve(arenas, writer->index, packet, place);
    if (status != CORE_OK)
        return status;
    memset(place->input, 0xee, packet->bytes);
    while (gpu_arenas_closed(arenas) < place->batch)
        sched_yield();
    memcpy(place->input, packet->payload, packet->bytes);
    TEST_REQUIRE(gpu_arena_commit(arenas, writer->index, packet, place) == CORE_CLOSED);
    return gpu_arena_append(arenas, writer->index, packet, place);
}

static void append(struct writer *writer, uint32_t cookie)
{
    struct packet *packet = &writer->packets[cookie];
    struct stream *stream = &writer->streams[packet->slot / WRITERS];
    uint8_t payload[256];
    struct gpu_packet whole = {.eligible_ns = packet->eligible_ns,
                               .after_batch = stream->batch,
                               .payload = payload,
                               .bytes = packet->bytes,
                               .slot = packet->slot,
                               .cookie = cookie};
    struct gpu_place place;
    core_status status;
    memset(payload, byte_of(packet), packet->bytes);
    while ((status = test_random_chance(&writer->random, 1)
                         ? append_slowly(writer, &whole, &place)
                         : gpu_arena_append(writer->bench->arenas, writer->index, &whole, &place)) !=
           CORE_OK) {
        TEST_REQUIRE(status == CORE_AGAIN || status == CORE_FULL);
        deliver(writer);
        sched_yield();
    }
    TEST_REQUIRE(place.batch >= stream->batch);
    packet->batch = stream->batch = place.batch;
}

static void *write_packets(void *argument)
{
    struct writer *writer = argument;
    struct bench *bench = writer->bench;
    for (uint32_t i = 0; i < PACKETS; i++) {
        uint32_t index = (uint32_t)test_random_in(&writer->random, 0, STREAMS - 1);
        struct stream *stream = &writer->streams[index];
        core_ns now_ns = atomic_load(&bench->now_ns) - test_random_in(&writer->random, 0, PERIOD_NS);
        stream->eligible_ns += test_random_in(&writer->random, 0, 2 * INTERVAL_NS);
        stream->eligible_ns = core_time_max(now_ns, stream->eligible_ns);
        writer->packets[i] = (struct packet){.eligible_ns = stream->eligible_ns,
                                             .slot = index * WRITERS + writer->index,
                                             .number = stream->number++,
                                             .bytes = 16 * (uint32_t)test_random_in(&writer->random, 1, 16)};
        append(writer, i);
        deliver(writer);
    }
    while (writer->delivered < PACKETS) {
        deliver(writer);
        sched_yield();
    }
    atomic_fetch_add(&bench->finished, 1);
    return NULL;
}

/* ---- The batcher and the device in one ---- */

static void check_segment(struct bench *bench, const struct gpu_arena_batch *batch, uint32_t slot,
                          const struct gpu_segment *segment, const struct gpu_record *record)
{
    const struct packet *packet = &bench->writer[slot % WRITERS].packets[record->cookie];
    const uint8_t *input =
        gpu_region_input(gpu_arenas_region(bench->arenas), batch->arena) + segment->offset_bytes;
    uint8_t *output =
        gpu_region_output(gpu_arenas_region(bench->arenas), batch->arena) + segment->offset_bytes;
    TEST_REQUIRE(record->slot == slot && packet->slot == slot);
    TEST_REQUIRE(segment->offset_bytes == record->offset_bytes);
    TEST_REQUIRE(segment->length_bytes == packet->bytes);
    TEST_REQUIRE(packet->number == bench->next_number[slot]++);
    TEST_REQUIRE(packet->eligible_ns <= batch->close_ns); /* never in an older one */
    for (uint32_t i = 0; i < segment->length_bytes; i++) {
        TEST_REQUIRE(input[i] == byte_of(packet));
        output[i] = input[i] ^ 0xa5;
    }
    bench->packets++;
}

static void check_batch(struct bench *bench, const struct gpu_arena_batch *batch)
{
    const struct gpu_region *region = gpu_arenas_region(bench->arenas);
    const struct gpu_job *jobs = gpu_region_jobs(region, batch->arena);
    const struct gpu_segment *segments = gpu_region_segments(region, batch->arena);
    TEST_REQUIRE(batch->segment_count <= region->shape.segments);
    TEST_REQUIRE(batch->used_bytes <= region->shape.arena_bytes);
    for (uint32_t i = 0; i < batch->job_count; i++) {
        uint32_t slot = jobs[i].chain_slot, segment = jobs[i].first_segment;
        struct gpu_record_list records = gpu_arena_records(bench->arenas, slot % WRITERS, batch->number);
        for (const struct gpu_record *record; (record = gpu_record_next(&records)) != NULL;) {
            if (record->slot != slot)
                continue;
            TEST_REQUIRE(segment != GPU_SEGMENT_NONE);
            check_segment(bench, batch, slot, &segments[segment], record);
            segment = segments[segment].next;
        }
        TEST_REQUIRE(segment == GPU_SEGMENT_NONE);
    }
}

/* Closes one batch, runs it, hands it to the writers. */
static void turn(struct bench *bench)
{
    struct gpu_arena_batch batch;
    uint64_t before = bench->packets;
    core_ns next_ns = (core_ns)(gpu_arenas_opened(bench->arenas) + 1) * PERIOD_NS;
    while (gpu_arenas_opened(bench->arenas) < gpu_arenas_closed(bench->arenas) + 3 &&
           gpu_arena_open(bench->arenas, next_ns) == CORE_OK)
        next_ns += PERIOD_NS;
    atomic_fetch_add(&bench->now_ns, PERIOD_NS / 2);
    if (atomic_load(&bench->now_ns) < (core_ns)(gpu_arenas_closed(bench->arenas) + 1) * PERIOD_NS)
        return;
    if (gpu_arena_close(bench->arenas, &batch) != CORE_OK)
        return;
    check_batch(bench, &batch);
    TEST_REQUIRE(bench->packets - before == batch.segment_count);
    TEST_REQUIRE(batch.number < BATCHES);
    bench->writers[batch.number] = batch.writers;
    TEST_REQUIRE(gpu_arena_release(bench->arenas, GPU_ARENA_BATCHER, batch.number) == CORE_OK);
    atomic_store_explicit(&bench->done, batch.number, memory_order_release);
}

static struct gpu_arena_counters run(uint32_t segments, uint64_t arena_bytes)
{
    struct gpu_arena_options options = {
        .shape = {.arenas = ARENAS, .slots = SLOTS, .segments = segments, .arena_bytes = arena_bytes},
        .writers = WRITERS};
    struct bench *bench = calloc(1, sizeof *bench);
    pthread_t threads[WRITERS];
    assert_non_null(bench);
    bench->writers = calloc(BATCHES, sizeof *bench->writers);
    assert_non_null(bench->writers);
    assert_int_equal(gpu_arenas_create(&bench->arenas, &options, NULL), CORE_OK);
    for (uint32_t i = 0; i < WRITERS; i++) {
        struct writer *writer = &bench->writer[i];
        *writer = (struct writer){.bench = bench, .index = i, .random = {i + 1}};
        writer->packets = calloc(PACKETS, sizeof *writer->packets);
        assert_non_null(writer->packets);
        assert_int_equal(pthread_create(&threads[i], NULL, write_packets, writer), 0);
    }
    while (atomic_load(&bench->finished) < WRITERS) {
        turn(bench);
        core_time_sleep_until(core_time_now_ns() + 100 * CORE_NS_PER_US);
    }
    for (uint32_t i = 0; i < WRITERS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);

    struct gpu_arena_counters counters = gpu_arenas_counters(bench->arenas);
    assert_int_equal(bench->packets, WRITERS * PACKETS);
    assert_int_equal(counters.packets, WRITERS * PACKETS);
    gpu_arenas_destroy(bench->arenas);
    for (uint32_t i = 0; i < WRITERS; i++)
        free(bench->writer[i].packets);
    free(bench->writers);
    free(bench);
    return counters;
}

/* Room for what the streams' intervals let come, most of the time. */
static void every_packet_is_in_one_batch(void **state)
{
    struct gpu_arena_counters counters = run(240, 32768);
    (void)state;
    assert_true(counters.repeated > 0 && counters.late > 0); /* it did happen */
}

/* Never room enough: all race for the last bytes, or for the last segments. */
static void every_packet_is_in_one_batch_however_full(void **state)
{
    (void)state;
    assert_true(run(240, 8192).full_bytes > 0);
    assert_true(run(60, 32768).full_segments > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_packet_is_in_one_batch),
        cmocka_unit_test(every_packet_is_in_one_batch_however_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
