/* Batches on the server's side, one thread: where packets go, when a batch is closed under a writer, when an
 * arena is used again, limits, and what a child gone wild can do. The threads are in
 * test_gpu_arena_threads.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/arena.h"
#include "gpu/schedule.h"
#include "tests/support/require.h"

#define WRITERS     3
#define ARENA_BYTES 256u

static const struct gpu_arena_options three_arenas = {
    .shape = {.arenas = 3, .slots = 8, .segments = 6, .arena_bytes = ARENA_BYTES}, .writers = WRITERS};

static struct gpu_arenas *create(const struct gpu_arena_options *options)
{
    struct gpu_arenas *arenas = NULL;
    struct core_error error = {""};
    assert_int_equal(gpu_arenas_create(&arenas, options, &error), CORE_OK);
    return arenas;
}

/* The payload says whose it is: slot and number. */
static core_status append(struct gpu_arenas *arenas, uint32_t writer, const struct gpu_packet *packet,
                          struct gpu_place *place)
{
    uint8_t payload[2 * ARENA_BYTES];
    struct gpu_packet whole = *packet;
    memset(payload, (int)(packet->slot << 4 | packet->cookie), sizeof payload);
    whole.payload = payload;
    return gpu_arena_append(arenas, writer, &whole, place);
}

/* Lets go of a batch for the batcher and for all writers in it. */
static void release_all(struct gpu_arenas *arenas, const struct gpu_arena_batch *batch)
{
    assert_int_equal(gpu_arena_release(arenas, GPU_ARENA_BATCHER, batch->number), CORE_OK);
    for (uint32_t writer = 0; writer < WRITERS; writer++)
        if ((batch->writers >> writer & 1) != 0)
            assert_int_equal(gpu_arena_release(arenas, writer, batch->number), CORE_OK);
}

static struct gpu_arena_batch close_batch(struct gpu_arenas *arenas)
{
    struct gpu_arena_batch batch;
    assert_int_equal(gpu_arena_close(arenas, &batch), CORE_OK);
    return batch;
}

/* Scripts: what is called, and what must come of it. */
struct step {
    enum { OPEN = 1, CLOSE, RELEASE, APPEND } call;
    core_ns time_ns; /* OPEN: close_ns; APPEND: eligible_ns */
    uint32_t writer;
    uint64_t after;
    uint32_t bytes;
    core_status status;
    uint64_t batch; /* where it went; CLOSE: packets in it; RELEASE: which */
    bool late;
};

static void run_step(struct gpu_arenas *arenas, const struct step *step, struct gpu_arena_batch *closed)
{
    struct gpu_place place = {0};
    struct gpu_arena_batch batch = {0};
    struct gpu_packet packet = {
        .eligible_ns = step->time_ns, .after_batch = step->after, .bytes = step->bytes, .slot = step->writer};
    switch (step->call) {
    case OPEN:
        assert_int_equal(gpu_arena_open(arenas, step->time_ns), step->status);
        break;
    case CLOSE:
        assert_int_equal(gpu_arena_close(arenas, &batch), step->status);
        assert_int_equal(batch.segment_count, step->batch);
        if (step->status == CORE_OK)
            closed[batch.number] = batch;
        break;
    case RELEASE:
        release_all(arenas, &closed[step->batch]);
        break;
    case APPEND:
        assert_int_equal(append(arenas, step->writer, &packet, &place), step->status);
        if (step->status == CORE_OK) {
            assert_int_equal(place.batch, step->batch);
            assert_int_equal(place.late, step->late);
        }
        break;
    }
}

static const struct step by_eligible_time[] = {
    {APPEND, .time_ns = 5, .bytes = 16, .status = CORE_AGAIN}, /* none is open */
    {CLOSE, .status = CORE_AGAIN},
    {OPEN, .time_ns = 100},
    {OPEN, .time_ns = 100, .status = CORE_INVALID},
    {APPEND, .time_ns = -7, .bytes = 16, .batch = 1},
    {APPEND, .time_ns = 100, .bytes = 16, .batch = 1},
    {APPEND, .time_ns = 101, .bytes = 16, .status = CORE_AGAIN}, /* not open yet */
    {OPEN, .time_ns = 200},
    {APPEND, .time_ns = 101, .bytes = 16, .batch = 2},
    {APPEND, .time_ns = 100, .writer = 1, .bytes = 16, .batch = 1},
    {APPEND, .time_ns = 200, .writer = 1, .bytes = 16, .batch = 2},
    {APPEND, .time_ns = 201, .writer = 1, .bytes = 16, .status = CORE_AGAIN},
    {CLOSE, .batch = 3},
    {APPEND, .time_ns = 99, .writer = 1, .bytes = 16, .batch = 2, .late = true}, /* 1 is closed */
    {CLOSE, .batch = 3},
    {APPEND, .time_ns = 99, .writer = 1, .bytes = 16, .status = CORE_AGAIN},
    {0},
};

/* A stream's packet was late; the next one, in time for the older batch, must not overtake it. */
static const struct step not_before_the_one_before[] = {
    {OPEN, .time_ns = 100},
    {OPEN, .time_ns = 200},
    {APPEND, .time_ns = 90, .bytes = 16, .after = 2, .batch = 2, .late = true},
    {APPEND, .time_ns = 90, .bytes = 16, .after = 1, .batch = 1},
    {APPEND, .time_ns = 150, .bytes = 16, .after = 3, .status = CORE_AGAIN},
    {CLOSE, .batch = 1},
    {OPEN, .time_ns = 300},
    {APPEND, .time_ns = 150, .bytes = 16, .after = 3, .batch = 3, .late = true},
    {APPEND, .time_ns = 150, .bytes = 16, .after = 1, .batch = 2},
    {0},
};

static const struct step full_of_bytes[] = {
    {OPEN, .time_ns = 100},
    {APPEND, .time_ns = 1, .bytes = ARENA_BYTES + 16, .status = CORE_FULL},
    {APPEND, .time_ns = 1, .bytes = ARENA_BYTES - 16, .batch = 1},
    {APPEND, .time_ns = 1, .writer = 1, .bytes = 32, .status = CORE_FULL}, /* does not use up the rest */
    {APPEND, .time_ns = 1, .writer = 2, .bytes = 16, .batch = 1},
    {APPEND, .time_ns = 1, .writer = 2, .bytes = 16, .status = CORE_FULL},
    {CLOSE, .batch = 2},
    {RELEASE, .batch = 1}, /* writer 1 left nothing, and holds nothing */
    {OPEN, .time_ns = 200},
    {OPEN, .time_ns = 300},
    {OPEN, .time_ns = 400}, /* in the arena of 1 */
    {0},
};

/* Six, whoever has them. */
static const struct step full_of_segments[] = {
    {OPEN, .time_ns = 100},
    {APPEND, .time_ns = 1, .bytes = 16, .batch = 1},
    {APPEND, .time_ns = 1, .bytes = 16, .batch = 1},
    {APPEND, .time_ns = 1, .bytes = 16, .batch = 1},
    {APPEND, .time_ns = 1, .bytes = 16, .batch = 1},
    {APPEND, .time_ns = 1, .writer = 1, .bytes = 16, .batch = 1},
    {APPEND, .time_ns = 1, .writer = 1, .bytes = 16, .batch = 1},
    {APPEND, .time_ns = 1, .writer = 1, .bytes = 16, .status = CORE_FULL},
    {APPEND, .time_ns = 1, .writer = 2, .bytes = 16, .status = CORE_FULL},
    {CLOSE, .batch = 6},
    {RELEASE, .batch = 1},
    {0},
};

static const struct step arena_not_free[] = {
    {OPEN, .time_ns = 100},
    {APPEND, .time_ns = 1, .bytes = 16, .batch = 1},
    {OPEN, .time_ns = 200},
    {APPEND, .time_ns = 200, .writer = 2, .bytes = 16, .batch = 2},
    {OPEN, .time_ns = 300},
    {OPEN, .time_ns = 400, .status = CORE_FULL}, /* 1 is open */
    {CLOSE, .batch = 1},
    {CLOSE, .batch = 1},
    {OPEN, .time_ns = 400, .status = CORE_FULL}, /* 1 is not released */
    {RELEASE, .batch = 2},
    {OPEN, .time_ns = 400, .status = CORE_FULL}, /* 2 is, but it is not its turn */
    {APPEND, .time_ns = 400, .bytes = 16, .status = CORE_AGAIN},
    {RELEASE, .batch = 1},
    {OPEN, .time_ns = 400},
    {APPEND, .time_ns = 400, .bytes = 16, .batch = 4},
    {CLOSE, .batch = 0}, /* an empty one, held by the batcher alone */
    {RELEASE, .batch = 3},
    {CLOSE, .batch = 1},
    {0},
};

static void follows_the_scripts(void **state)
{
    static const struct {
        const struct step *steps;
        struct gpu_arena_counters counters;
    } scripts[] = {
        {by_eligible_time, {.packets = 6, .bytes = 96, .late = 1, .early = 4, .opened = 2, .closed = 2}},
        {not_before_the_one_before,
         {.packets = 4, .bytes = 64, .late = 2, .early = 1, .opened = 3, .closed = 1}},
        {full_of_bytes, {.packets = 2, .bytes = ARENA_BYTES, .full_bytes = 3, .opened = 4, .closed = 1}},
        {full_of_segments, {.packets = 6, .bytes = 96, .full_segments = 2, .opened = 1, .closed = 1}},
        {arena_not_free, {.packets = 3, .bytes = 48, .early = 1, .opened = 4, .closed = 4, .held_up = 1}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
        struct gpu_arenas *arenas = create(&three_arenas);
        struct gpu_arena_batch closed[8];
        for (const struct step *step = scripts[i].steps; step->call != 0; step++)
            run_step(arenas, step, closed);
        struct gpu_arena_counters counters = gpu_arenas_counters(arenas);
        assert_memory_equal(&counters, &scripts[i].counters, sizeof counters);
        gpu_arenas_destroy(arenas);
    }
}

static void gives_records_and_tables(void **state)
{
    struct gpu_arenas *arenas = create(&three_arenas);
    const struct gpu_region *region = gpu_arenas_region(arenas);
    struct gpu_place place;
    (void)state;
    assert_int_equal(gpu_arena_open(arenas, 100), CORE_OK);
    for (uint32_t i = 0; i < 5; i++) { /* slot 2 twice from writer 1, slot 5 three times from writer 2 */
        struct gpu_packet packet = {.bytes = 16 + 16 * i, .slot = i % 2 ? 2 : 5, .cookie = i};
        assert_int_equal(append(arenas, i % 2 ? 1 : 2, &packet, &place), CORE_OK);
        assert_ptr_equal(place.input, gpu_region_input(region, 1) + place.offset_bytes);
    }
    struct gpu_arena_batch batch = close_batch(arenas);
    assert_int_equal(batch.number, 1);
    assert_int_equal(batch.arena, 1);
    assert_int_equal(batch.writers, 6);
    assert_int_equal(batch.job_count, 2);
    assert_int_equal(batch.segment_count, 5);
    assert_int_equal(batch.used_bytes, 240);
    assert_int_equal(batch.longest_job_blocks, 9);
    assert_int_equal(batch.close_ns, 100);

    struct gpu_record_list records = gpu_arena_records(arenas, 2, 1);
    assert_int_equal(records.left, 3);
    const struct gpu_job *job = gpu_region_jobs(region, batch.arena);
    const struct gpu_segment *segments = gpu_region_segments(region, batch.arena);
    assert_int_equal(job->key_slot, gpu_key_slot(5, 0));
    for (uint32_t i = 0, segment = job->first_segment; i < 3; i++, segment = segments[segment].next) {
        const struct gpu_record *record = gpu_record_next(&records);
        assert_int_equal(record->cookie, 2 * i);
        assert_int_equal(record->slot, 5);
        assert_int_equal(record->bytes, 16 + 32 * i);
        assert_int_equal(segments[segment].offset_bytes, record->offset_bytes);
        for (uint32_t j = 0; j < record->bytes; j++)
            assert_int_equal(gpu_region_input(region, batch.arena)[record->offset_bytes + j], 5 << 4 | 2 * i);
    }
    assert_null(gpu_record_next(&records));
    assert_int_equal(gpu_arena_records(arenas, 0, 1).left, 0);
    assert_int_equal(gpu_arena_records(arenas, WRITERS, 1).left, 0);
    assert_int_equal(gpu_arena_records(arenas, 0, 2).left, 0);
    assert_int_equal(gpu_arena_records(arenas, 0, 0).left, 0);
    gpu_arenas_destroy(arenas);
}

/* ---- records in pages ---- */

#define MANY (4 * GPU_RECORD_PAGE + WRITERS)

static void append_some(struct gpu_arenas *arenas, uint32_t writer, uint32_t packets)
{
    for (uint32_t i = 0; i < packets; i++) {
        const struct gpu_packet packet = {.bytes = 16, .cookie = writer * MANY + i};
        struct gpu_place place;
        assert_int_equal(append(arenas, writer, &packet, &place), CORE_OK);
    }
}

static void check_some(const struct gpu_arenas *arenas, uint32_t writer, uint64_t batch, uint32_t packets)
{
    struct gpu_record_list records = gpu_arena_records(arenas, writer, batch);
    assert_int_equal(records.left, packets);
    for (uint32_t i = 0; i < packets; i++)
        assert_int_equal(gpu_record_next(&records)->cookie, writer * MANY + i);
    assert_null(gpu_record_next(&records));
}

/* However the packets of a batch are dealt to the writers, each finds its own, in order: also where each has
 * a page of one packet, and where each has taken one that it does not need, since the batch is closed. */
static void keeps_records_however_they_are_dealt(void **state)
{
    static const uint32_t rows[][WRITERS] = {
        {MANY, 0, 0},
        {0, 0, MANY},
        {1, 1, MANY - 2},
        {GPU_RECORD_PAGE + 1, 2 * GPU_RECORD_PAGE + 1, 1},
        {GPU_RECORD_PAGE, GPU_RECORD_PAGE, 2 * GPU_RECORD_PAGE - WRITERS},
        {2 * GPU_RECORD_PAGE, GPU_RECORD_PAGE, GPU_RECORD_PAGE}};
    const struct gpu_arena_options options = {
        .shape = {.arenas = 2, .slots = 1, .segments = MANY, .arena_bytes = 16 * MANY}, .writers = WRITERS};
    const struct gpu_packet packet = {.bytes = 16};
    struct gpu_arenas *arenas = create(&options);
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct gpu_place places[WRITERS];
        bool reserved[WRITERS];
        assert_int_equal(gpu_arena_open(arenas, 100 + (core_ns)i), CORE_OK);
        for (uint32_t w = 0; w < WRITERS; w++)
            append_some(arenas, w, rows[i][w]);
        for (uint32_t w = 0; w < WRITERS; w++)
            reserved[w] = gpu_arena_reserve(arenas, w, &packet, &places[w]) == CORE_OK;
        struct gpu_arena_batch batch = close_batch(arenas);
        for (uint32_t w = 0; w < WRITERS; w++) {
            if (reserved[w])
                assert_int_equal(gpu_arena_commit(arenas, w, &packet, &places[w]), CORE_CLOSED);
            check_some(arenas, w, batch.number, rows[i][w]);
        }
        release_all(arenas, &batch);
    }
    gpu_arenas_destroy(arenas);
}

/* The payload as it came, and behind it PKCS #7's bytes: of a packet without any payload, too. */
static void pads_what_is_to_be_padded(void **state)
{
    uint8_t payload[ARENA_BYTES];
    struct gpu_arenas *arenas = create(&three_arenas);
    struct gpu_place place;
    (void)state;
    memset(payload, 0xbb, sizeof payload);
    for (uint32_t padding = 0; padding <= GPU_BLOCK_BYTES; padding++) {
        const struct gpu_packet packet = {.eligible_ns = 50 + 100 * (core_ns)padding,
                                          .payload = payload,
                                          .bytes = 16 + padding % 3 * 16,
                                          .padding_bytes = padding};
        assert_int_equal(gpu_arena_open(arenas, 100 + 100 * (core_ns)padding), CORE_OK);
        memset(gpu_region_input(gpu_arenas_region(arenas), (padding + 1) % 3), 0xee, ARENA_BYTES);
        assert_int_equal(gpu_arena_append(arenas, 0, &packet, &place), CORE_OK);
        for (uint32_t i = 0; i < packet.bytes; i++)
            assert_int_equal(place.input[i], i < packet.bytes - padding ? 0xbb : padding);
        assert_int_equal(place.input[packet.bytes], 0xee);
        struct gpu_arena_batch batch = close_batch(arenas);
        release_all(arenas, &batch);
    }
    gpu_arenas_destroy(arenas);
}

/* The close falls between reserve and commit: nothing is in the closed batch, and its arena is kept until the
 * writer has noticed. */
static void a_close_overtakes_a_writer(void **state)
{
    const struct gpu_packet packet = {.eligible_ns = 50, .bytes = 32, .slot = 3, .cookie = 9};
    struct gpu_arenas *arenas = create(&three_arenas);
    struct gpu_place place;
    (void)state;
    assert_int_equal(gpu_arena_open(arenas, 100), CORE_OK);
    assert_int_equal(gpu_arena_open(arenas, 200), CORE_OK);
    assert_int_equal(gpu_arena_open(arenas, 300), CORE_OK);
    assert_int_equal(gpu_arena_reserve(arenas, 0, &packet, &place), CORE_OK);
    assert_int_equal(place.batch, 1);
    assert_false(place.late);

    struct gpu_arena_batch batch = close_batch(arenas);
    assert_int_equal(batch.segment_count, 0);
    assert_int_equal(batch.writers, 0);
    assert_int_equal(gpu_arena_release(arenas, 0, 1), CORE_INVALID); /* its commit does that */
    assert_int_equal(gpu_arena_release(arenas, GPU_ARENA_BATCHER, 1), CORE_OK);
    assert_int_equal(gpu_arena_open(arenas, 400), CORE_FULL); /* the writer may still be writing there */

    memset(place.input, 0xee, packet.bytes);
    assert_int_equal(gpu_arena_commit(arenas, 0, &packet, &place), CORE_CLOSED);
    assert_int_equal(gpu_arena_open(arenas, 400), CORE_OK);
    assert_int_equal(gpu_arena_reserve(arenas, 0, &packet, &place), CORE_OK);
    assert_int_equal(place.batch, 2);
    assert_true(place.late);
    assert_int_equal(gpu_arena_commit(arenas, 0, &packet, &place), CORE_OK);
    batch = close_batch(arenas);
    assert_int_equal(batch.segment_count, 1);
    struct gpu_record_list records = gpu_arena_records(arenas, 0, 2);
    assert_int_equal(records.left, 1);
    assert_int_equal(gpu_record_next(&records)->cookie, 9);
    struct gpu_arena_counters counters = gpu_arenas_counters(arenas);
    assert_int_equal(counters.repeated, 1);
    assert_int_equal(counters.late, 1);
    assert_int_equal(counters.packets, 1);
    assert_int_equal(counters.held_up, 1);
    gpu_arenas_destroy(arenas);
}

/* The same when the writer has packets in the batch already: they stay, and only its release frees it. */
static void a_close_overtakes_a_writer_with_packets(void **state)
{
    const struct gpu_packet packet = {.eligible_ns = 50, .bytes = 32, .slot = 3};
    struct gpu_arenas *arenas = create(&three_arenas);
    struct gpu_place place;
    (void)state;
    for (core_ns close_ns = 100; close_ns <= 300; close_ns += 100)
        assert_int_equal(gpu_arena_open(arenas, close_ns), CORE_OK);
    assert_int_equal(append(arenas, 0, &packet, &place), CORE_OK);
    assert_int_equal(gpu_arena_reserve(arenas, 0, &packet, &place), CORE_OK);
    struct gpu_arena_batch batch = close_batch(arenas);
    assert_int_equal(batch.segment_count, 1);
    assert_int_equal(batch.used_bytes, 32);
    assert_int_equal(gpu_arena_commit(arenas, 0, &packet, &place), CORE_CLOSED);
    assert_int_equal(gpu_arena_release(arenas, GPU_ARENA_BATCHER, 1), CORE_OK);
    assert_int_equal(gpu_arena_open(arenas, 400), CORE_FULL);
    assert_int_equal(gpu_arena_release(arenas, 0, 1), CORE_OK);
    assert_int_equal(gpu_arena_open(arenas, 400), CORE_OK);
    gpu_arenas_destroy(arenas);
}

static void refuses_wrong_calls(void **state)
{
    static const struct gpu_packet wrong[] = {{.bytes = 0},
                                              {.bytes = 8},
                                              {.bytes = 17},
                                              {.bytes = 16, .slot = 8},
                                              {.bytes = 32, .padding_bytes = 17}};
    struct gpu_arenas *arenas = create(&three_arenas);
    const uint8_t iv[GPU_BLOCK_BYTES] = {1};
    struct gpu_packet packet = {.bytes = 16, .slot = 7};
    struct gpu_place place;
    (void)state;
    assert_int_equal(gpu_arena_open(arenas, 100), CORE_OK);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(append(arenas, 0, &wrong[i], &place), CORE_INVALID);
    assert_int_equal(append(arenas, 0, &packet, &place), CORE_OK);
    assert_int_equal(gpu_arena_release(arenas, GPU_ARENA_BATCHER, 1), CORE_INVALID); /* open */
    assert_int_equal(gpu_arena_release(arenas, 0, 1), CORE_INVALID);
    (void)close_batch(arenas);
    assert_int_equal(gpu_arena_release(arenas, 1, 1), CORE_INVALID);       /* has nothing in it */
    assert_int_equal(gpu_arena_release(arenas, WRITERS, 1), CORE_INVALID); /* there is none */
    assert_int_equal(gpu_arena_release(arenas, 0, 4), CORE_INVALID);       /* same arena, other batch */
    assert_int_equal(gpu_arena_release(arenas, 0, 0), CORE_INVALID);
    assert_int_equal(gpu_arena_release(arenas, 0, 1), CORE_OK);
    assert_int_equal(gpu_arena_release(arenas, 0, 1), CORE_INVALID); /* twice */
    assert_int_equal(gpu_arena_release(arenas, GPU_ARENA_BATCHER, 1), CORE_OK);
    assert_int_equal(gpu_arena_release(arenas, GPU_ARENA_BATCHER, 1), CORE_INVALID);
    assert_int_equal(gpu_arena_restart_chain(arenas, 8, iv), CORE_INVALID);
    gpu_arenas_destroy(arenas);
    gpu_arenas_destroy(NULL);
}

static void checks_its_options(void **state)
{
    static const struct {
        struct gpu_region_shape shape;
        uint32_t writers;
        const char *field;
    } rows[] = {
        {{0, 8, 6, 0, 256}, 1, "arenas"},   {{65, 8, 6, 0, 256}, 1, "arenas"},
        {{2, 0, 6, 0, 256}, 1, "slots"},    {{2, 1u << 21, 6, 0, 256}, 1, "slots"},
        {{2, 8, 0, 0, 256}, 1, "segments"}, {{2, 8, 1u << 25, 0, 256}, 1, "segments"},
        {{2, 8, 6, 1, 256}, 1, "reserved"}, {{2, 8, 6, 0, 0}, 1, "arena_bytes"},
        {{2, 8, 6, 0, 24}, 1, "modulo 16"}, {{2, 8, 6, 0, (UINT64_C(1) << 32) + 16}, 1, "arena_bytes"},
        {{2, 8, 6, 0, 256}, 0, "writers"},  {{2, 8, 6, 0, 256}, 64, "writers"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct gpu_arena_options options = {.shape = rows[i].shape, .writers = rows[i].writers};
        struct gpu_arenas *arenas = NULL;
        struct core_error error = {""};
        assert_int_equal(gpu_arenas_create(&arenas, &options, &error), CORE_INVALID);
        assert_non_null(strstr(error.text, rows[i].field));
        assert_null(arenas);
    }
}

/* Batches opened as a schedule says, over a change of the period: each packet finds its own. */
static void follows_the_schedule_over_a_change(void **state)
{
    struct gpu_arenas *arenas = create(&three_arenas);
    struct gpu_schedule schedule;
    core_ns eligible_ns = 0;
    (void)state;
    assert_int_equal(gpu_schedule_init(&schedule, 0, 90), CORE_OK);
    assert_int_equal(gpu_schedule_change(&schedule, 5, 40), CORE_OK);
    assert_int_equal(gpu_arena_open(arenas, gpu_schedule_close_ns(&schedule, 1)), CORE_OK);
    for (uint64_t number = 1; number <= 12; number++) {
        core_ns start_ns = gpu_schedule_close_ns(&schedule, number - 1);
        core_ns close_ns = gpu_schedule_close_ns(&schedule, number);
        assert_int_equal(gpu_arena_open(arenas, gpu_schedule_close_ns(&schedule, number + 1)), CORE_OK);
        while (gpu_schedule_batch(&schedule, eligible_ns + 20) <= number + 1) {
            struct gpu_packet packet = {.eligible_ns = eligible_ns += 20, .bytes = 16};
            struct gpu_place place;
            assert_int_equal(append(arenas, (uint32_t)(eligible_ns / 20 % 2), &packet, &place), CORE_OK);
            assert_int_equal(place.batch, gpu_schedule_batch(&schedule, eligible_ns));
            assert_false(place.late);
        }
        struct gpu_arena_batch batch = close_batch(arenas);
        assert_int_equal(batch.start_ns, number == 1 ? INT64_MIN : start_ns);
        assert_int_equal(batch.close_ns, close_ns);
        assert_int_equal(batch.segment_count, close_ns / 20 - start_ns / 20);
        release_all(arenas, &batch);
    }
    gpu_arenas_destroy(arenas);
}

/* The IV lies ahead of the payload, and takes its room. */
static void a_unit_brings_its_iv(void **state)
{
    struct gpu_arenas *arenas = create(&three_arenas);
    const uint64_t most = three_arenas.shape.arena_bytes / GPU_BLOCK_BYTES;
    const uint8_t iv[GPU_BLOCK_BYTES] = {1, 2, 3}, payload[16] = {7, 8, 9};
    const struct gpu_packet goes_on = {.eligible_ns = 1, .payload = payload, .bytes = 16, .slot = 4};
    struct gpu_packet begins = goes_on;
    struct gpu_place place;
    uint64_t count = 0;
    (void)state;
    begins.unit_iv = iv;
    assert_int_equal(gpu_arena_open(arenas, 1), CORE_OK);
    for (; count * 3 + 3 <= most && count < 3; count++) {
        assert_int_equal(gpu_arena_append(arenas, 0, &begins, &place), CORE_OK);
        assert_memory_equal(place.input - GPU_BLOCK_BYTES, iv, sizeof iv);
        assert_memory_equal(place.input, payload, sizeof payload);
        assert_int_equal(place.offset_bytes, count * 48 + 16);
        assert_int_equal(gpu_arena_append(arenas, 0, &goes_on, &place), CORE_OK);
        assert_int_equal(place.offset_bytes, count * 48 + 32);
    }
    struct gpu_arena_batch batch = close_batch(arenas);
    const struct gpu_segment *segments = gpu_region_segments(gpu_arenas_region(arenas), batch.arena);
    assert_int_equal(batch.used_bytes, count * 48);
    assert_int_equal(batch.blocks, 2 * count);
    for (uint64_t i = 0; i < 2 * count; i++)
        assert_int_equal(segments[i].flags, i % 2 == 0 ? GPU_SEGMENT_HAS_IV : 0);
    release_all(arenas, &batch);
    gpu_arenas_destroy(arenas);
}

static void chains_start_again_when_told(void **state)
{
    struct gpu_arenas *arenas = create(&three_arenas);
    const uint8_t iv[GPU_BLOCK_BYTES] = {1, 2, 3};
    const struct gpu_packet packet = {.eligible_ns = INT64_MIN + 1, .bytes = 16, .slot = 4};
    struct gpu_place place;
    (void)state;
    for (uint32_t number = 1; number <= 6; number++) {
        assert_int_equal(gpu_arena_open(arenas, number), CORE_OK);
        if (number == 1 || number == 4)
            assert_int_equal(gpu_arena_restart_chain(arenas, 4, iv), CORE_OK);
        assert_int_equal(append(arenas, 0, &packet, &place), CORE_OK);
        struct gpu_arena_batch batch = close_batch(arenas);
        const struct gpu_job *job = gpu_region_jobs(gpu_arenas_region(arenas), batch.arena);
        assert_int_equal(job->flags, number == 1 || number == 4 ? GPU_JOB_HAS_IV : 0);
        assert_int_equal(job->chain_from, (number - 1) % 2);
        if (job->flags != 0)
            assert_memory_equal(job->iv, iv, sizeof iv);
        release_all(arenas, &batch);
    }
    gpu_arenas_destroy(arenas);
}

/* What a child does: maps the region by itself, "encrypts" the first job of arena 1; then runs amok. */
static int child(int descriptor)
{
    struct gpu_region region;
    TEST_REQUIRE(gpu_region_attach(&region, descriptor, NULL, NULL) == CORE_OK);
    const struct gpu_job *job = gpu_region_jobs(&region, 1);
    uint32_t segment = job->first_segment;
    for (; segment != GPU_SEGMENT_NONE; segment = gpu_region_segments(&region, 1)[segment].next) {
        const struct gpu_segment *here = &gpu_region_segments(&region, 1)[segment];
        for (uint32_t i = 0; i < here->length_bytes; i++)
            gpu_region_output(&region, 1)[here->offset_bytes + i] =
                gpu_region_input(&region, 1)[here->offset_bytes + i] ^ 0x55;
    }
    gpu_region_close(&region);
    return 0;
}

static int wild_child(int descriptor)
{
    struct gpu_region region;
    TEST_REQUIRE(gpu_region_attach(&region, descriptor, NULL, NULL) == CORE_OK);
    memset(region.base, 0xff, region.bytes);
    TEST_REQUIRE(ftruncate(descriptor, 0) != 0 && errno == EPERM);
    TEST_REQUIRE(ftruncate(descriptor, 1 << 30) != 0 && errno == EPERM);
    return 0;
}

static void run_child(int (*run)(int descriptor), int descriptor)
{
    int status = -1;
    pid_t process = fork();
    assert_true(process >= 0);
    if (process == 0)
        _exit(run(descriptor));
    assert_int_equal(waitpid(process, &status, 0), process);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void another_process_sees_and_spoils_bytes_only(void **state)
{
    struct gpu_arenas *arenas = create(&three_arenas);
    const struct gpu_region *region = gpu_arenas_region(arenas);
    struct gpu_place place, second;
    (void)state;
    assert_int_equal(gpu_arena_open(arenas, 100), CORE_OK);
    assert_int_equal(gpu_arena_open(arenas, 200), CORE_OK);
    assert_int_equal(append(arenas, 0, &(struct gpu_packet){.bytes = 48, .slot = 3}, &place), CORE_OK);
    struct gpu_arena_batch batch = close_batch(arenas);
    run_child(child, region->descriptor);
    for (uint32_t i = 0; i < 48; i++)
        assert_int_equal(gpu_arena_output(arenas, 1)[place.offset_bytes + i], 0x30 ^ 0x55);

    assert_int_equal(append(arenas, 1, &(struct gpu_packet){.eligible_ns = 150, .bytes = 16}, &second),
                     CORE_OK);
    run_child(wild_child, region->descriptor);
    release_all(arenas, &batch);
    assert_int_equal(
        append(arenas, 2, &(struct gpu_packet){.eligible_ns = 151, .bytes = 16, .slot = 1}, &second),
        CORE_OK);
    batch = close_batch(arenas);
    assert_int_equal(batch.segment_count, 2);
    assert_int_equal(batch.used_bytes, 32);
    assert_int_equal(gpu_region_jobs(region, batch.arena)[1].blocks, 1);
    release_all(arenas, &batch);
    assert_int_equal(gpu_arena_open(arenas, 300), CORE_OK);
    assert_int_equal(gpu_arena_open(arenas, 400), CORE_OK);
    gpu_arenas_destroy(arenas);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_the_scripts),
        cmocka_unit_test(gives_records_and_tables),
        cmocka_unit_test(pads_what_is_to_be_padded),
        cmocka_unit_test(keeps_records_however_they_are_dealt),
        cmocka_unit_test(a_close_overtakes_a_writer),
        cmocka_unit_test(a_close_overtakes_a_writer_with_packets),
        cmocka_unit_test(refuses_wrong_calls),
        cmocka_unit_test(checks_its_options),
        cmocka_unit_test(follows_the_schedule_over_a_change),
        cmocka_unit_test(a_unit_brings_its_iv),
        cmocka_unit_test(chains_start_again_when_told),
        cmocka_unit_test(another_process_sees_and_spoils_bytes_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
