/* Room of arenas: memory that comes and goes while batches do, in the region, beside it, in a real child; and
 * every call that makes it, failing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/arena.h"
#include "tests/support/gpu_rig.h"
#include "tests/support/require.h"

#define PACKET_BYTES 4096u

static const struct gpu_region_shape shape = {
    .arenas = 3, .slots = 100, .segments = 1000, .arena_bytes = UINT64_C(1) << 20};
static const struct gpu_room little = {.bytes = 3 * PACKET_BYTES, .segments = 4};
static const struct gpu_room much = {.bytes = 700 * UINT64_C(1008), .segments = 900};

/* ---- calls that fail ---- */

int __real_mprotect(void *at, size_t bytes, int protection);
int __wrap_mprotect(void *at, size_t bytes, int protection);
int __real_madvise(void *at, size_t bytes, int advice);
int __wrap_madvise(void *at, size_t bytes, int advice);

static uint32_t calls, fails_at; /* 0: none */

static bool call_fails(void)
{
    errno = ENOMEM;
    return ++calls == fails_at;
}

int __wrap_mprotect(void *at, size_t bytes, int protection)
{
    return protection != PROT_NONE && call_fails() ? -1 : __real_mprotect(at, bytes, protection);
}

int __wrap_madvise(void *at, size_t bytes, int advice)
{
    return call_fails() ? -1 : __real_madvise(at, bytes, advice);
}

/* ---- the region ---- */

static uint64_t memory_of(const struct gpu_region *region)
{
    struct stat file;
    assert_int_equal(fstat(region->descriptor, &file), 0);
    return (uint64_t)file.st_blocks * 512;
}

/* Can it be written to? In a process of its own, which ends by it or not. */
static bool can_touch(uint8_t *byte)
{
    int status = 0;
    const pid_t process = fork();
    assert_true(process >= 0);
    if (process == 0) {
        (void)signal(SIGSEGV, SIG_DFL);
        *(volatile uint8_t *)byte = 1;
        _exit(0);
    }
    assert_int_equal(waitpid(process, &status, 0), process);
    return WIFEXITED(status);
}

/* Every byte of the room can be written to, none behind it, and there is memory for just that. */
static void check_region(const struct gpu_region *region, const struct gpu_room *room)
{
    assert_memory_equal(&region->room, room, sizeof *room);
    assert_int_equal(memory_of(region), gpu_region_room_bytes(&region->shape, room));
    for (uint32_t arena = 0; arena < region->shape.arenas; arena++) {
        memset(gpu_region_input(region, arena), 1, room->bytes);
        memset(gpu_region_output(region, arena), 1, room->bytes);
        memset(gpu_region_segments(region, arena), 1, room->segments * sizeof(struct gpu_segment));
        memset(gpu_region_jobs(region, arena), 1, room->segments * sizeof(struct gpu_job));
    }
    const uint64_t pages = (room->bytes + 4095) / 4096 * 4096;
    if (pages < region->shape.arena_bytes)
        assert_false(can_touch(gpu_region_output(region, region->shape.arenas - 1) + pages));
}

static void memory_comes_and_goes(void **state)
{
    const struct gpu_room all = gpu_room_most(&shape);
    const struct gpu_room *const steps[] = {&much, &all, &little, &all, &much, &little};
    struct gpu_region region, other;
    (void)state;
    assert_int_equal(gpu_region_create(&region, &shape, &little, NULL), CORE_OK);
    check_region(&region, &little);
    assert_int_equal(gpu_region_attach(&other, region.descriptor, &little, NULL), CORE_OK);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        const bool grows = gpu_room_holds(steps[i], &region.room);
        if (!grows)
            assert_int_equal(gpu_region_resize(&other, steps[i], NULL), CORE_OK);
        gpu_region_input(&region, 1)[0] = 7;
        assert_int_equal(gpu_region_resize(&region, steps[i], NULL), CORE_OK);
        assert_int_equal(gpu_region_input(&region, 1)[0], 7);
        if (grows)
            assert_int_equal(gpu_region_resize(&other, steps[i], NULL), CORE_OK);
        check_region(&region, steps[i]);
        gpu_region_output(&other, 2)[steps[i]->bytes - 1] = 9;
        assert_int_equal(gpu_region_output(&region, 2)[steps[i]->bytes - 1], 9);
    }
    gpu_region_close(&other);
    gpu_region_close(&region);
}

/* Parts rise to the whole, from one that is hardly any, however large that is. */
static void room_has_parts(void **state)
{
    struct gpu_room parts[GPU_ROOM_PARTS_MAX];
    (void)state;
    for (uint64_t bytes = 4096; bytes <= GPU_REGION_ARENA_BYTES_MAX; bytes += bytes / 3 / 16 * 16) {
        const struct gpu_room room = {.bytes = bytes, .segments = (uint32_t)(bytes / 256)};
        const uint32_t count = gpu_room_parts(&room, parts);
        assert_true(count >= 1 && count <= GPU_ROOM_PARTS_MAX);
        assert_true(parts[0].bytes <= (UINT64_C(2) << 20) + 4096);
        assert_memory_equal(&parts[count - 1], &room, sizeof room);
        for (uint32_t i = 1; i < count; i++)
            assert_true(gpu_room_holds(&parts[i], &parts[i - 1]) && parts[i].bytes > parts[i - 1].bytes);
    }
}

/* ---- arenas ---- */

static core_status append(struct gpu_arenas *arenas, uint32_t writer, uint32_t cookie)
{
    uint8_t payload[PACKET_BYTES];
    const struct gpu_packet packet = {.bytes = sizeof payload, .payload = payload, .cookie = cookie};
    struct gpu_place place;
    memset(payload, (int)cookie, sizeof payload);
    return gpu_arena_append(arenas, writer, &packet, &place);
}

/* Appends until there is no room. */
static uint32_t fill(struct gpu_arenas *arenas, uint32_t writer)
{
    uint32_t packets = 0;
    core_status status;
    while ((status = append(arenas, writer, packets)) == CORE_OK)
        packets++;
    assert_int_equal(status, CORE_FULL);
    return packets;
}

static struct gpu_arena_batch close_full(struct gpu_arenas *arenas, uint32_t packets)
{
    struct gpu_arena_batch batch;
    assert_int_equal(gpu_arena_close(arenas, &batch), CORE_OK);
    assert_int_equal(batch.segment_count, packets);
    struct gpu_record_list records = gpu_arena_records(arenas, 0, batch.number);
    assert_int_equal(records.left, packets);
    for (uint32_t i = 0; i < packets; i++)
        assert_int_equal(gpu_record_next(&records)->cookie, i);
    return batch;
}

static void let_go(struct gpu_arenas *arenas, uint64_t batch)
{
    assert_int_equal(gpu_arena_release(arenas, GPU_ARENA_BATCHER, batch), CORE_OK);
    assert_int_equal(gpu_arena_release(arenas, 0, batch), CORE_OK);
}

/* A batch has the room with which it was opened, before, while and after that changes; and memory goes only
 * once nobody has an arena any more that had it: neither a writer nor the batcher. */
static void batches_keep_their_room(void **state)
{
    const struct gpu_arena_options options = {.shape = shape, .room = &little, .writers = 2};
    const struct gpu_room more = {.bytes = 100 * PACKET_BYTES, .segments = 80};
    struct gpu_arenas *arenas = NULL;
    (void)state;
    assert_int_equal(gpu_arenas_create(&arenas, &options, NULL), CORE_OK);
    assert_int_equal(gpu_arena_open(arenas, 100), CORE_OK);
    assert_int_equal(gpu_arenas_resize(arenas, &more, NULL), CORE_OK);
    assert_int_equal(fill(arenas, 0), 3); /* by bytes */
    gpu_arenas_set_room(arenas, &more);
    assert_int_equal(append(arenas, 1, 0), CORE_FULL);
    (void)close_full(arenas, 3);

    assert_int_equal(gpu_arena_open(arenas, 200), CORE_OK);
    assert_int_equal(fill(arenas, 0), 80); /* by segments */
    gpu_arenas_set_room(arenas, &little);
    assert_int_equal(gpu_arena_open(arenas, 300), CORE_OK);
    (void)close_full(arenas, 80);
    assert_int_equal(fill(arenas, 0), 3);
    (void)close_full(arenas, 3);
    assert_false(gpu_arenas_within(arenas, &little));
    assert_true(gpu_arenas_within(arenas, &more));
    assert_int_equal(gpu_arena_release(arenas, GPU_ARENA_BATCHER, 2), CORE_OK);
    assert_false(gpu_arenas_within(arenas, &little)); /* the writer has it still */
    assert_int_equal(gpu_arena_release(arenas, 0, 2), CORE_OK);
    assert_true(gpu_arenas_within(arenas, &little)); /* the others are held, and little */
    assert_int_equal(gpu_arenas_resize(arenas, &little, NULL), CORE_OK);
    let_go(arenas, 1);
    let_go(arenas, 3);
    gpu_arenas_destroy(arenas);
}

/* Whichever call fails, the arenas are what they were; and when none does they grow. */
static void whatever_fails_leaves_the_room(void **state)
{
    const struct gpu_arena_options options = {.shape = shape, .room = &little, .writers = 2};
    struct gpu_arenas *arenas = NULL;
    struct core_error error;
    core_status status = CORE_SYSTEM;
    uint32_t failed = 0;
    (void)state;
    assert_int_equal(gpu_arenas_create(&arenas, &options, NULL), CORE_OK);
    for (core_ns close_ns = 1; status != CORE_OK; close_ns++) {
        calls = 0;
        fails_at = ++failed;
        status = gpu_arenas_resize(arenas, &much, &error);
        fails_at = 0;
        if (status != CORE_OK)
            assert_int_equal(status, CORE_SYSTEM);
        else
            gpu_arenas_set_room(arenas, &much);
        check_region(gpu_arenas_region(arenas), status == CORE_OK ? &much : &little);
        assert_int_equal(gpu_arena_open(arenas, close_ns), CORE_OK);
        const uint32_t packets = fill(arenas, 0);
        assert_int_equal(packets, status == CORE_OK ? 172 : 3);
        let_go(arenas, close_full(arenas, packets).number);
    }
    assert_true(failed > 18); /* two calls for each of four areas in three arenas hardly leave fewer */
    gpu_arenas_destroy(arenas);
}

/* ---- a real child ---- */

static struct gpu_crowd *small_crowd(uint64_t seed)
{
    struct gpu_crowd *crowd = gpu_crowd_open(4, 60, 400, 1 << 20, seed);
    const struct gpu_room room = {.bytes = 1 << 15, .segments = 60};
    assert_int_equal(gpu_region_resize(&crowd->region, &room, NULL), CORE_OK);
    return crowd;
}

static const struct gpu_room rooms[] = {{.bytes = 1 << 16, .segments = 200},
                                        {.bytes = 1 << 19, .segments = 300},
                                        {.bytes = 1 << 20, .segments = 400}};

/* Batches come back right to the byte while the room changes, and larger ones once it has. */
static struct gpu_event resize(struct gpu_rig *rig, const struct gpu_room *room)
{
    struct gpu_event event;
    assert_int_equal(gpu_engine_resize(rig->engine, room), CORE_OK);
    assert_true(gpu_crowd_wait(rig->engine, &event));
    return event;
}

static void a_child_takes_room_and_gives_it_back(void **state)
{
    (void)state;
    struct gpu_crowd *crowd = small_crowd(3);
    const struct gpu_room least = crowd->region.room;
    const struct gpu_emulation card = gpu_crowd_card(2);
    struct gpu_rig rig;
    gpu_rig_open(&rig, crowd, &card, NULL);
    for (int round = 0; round < 3; round++) {
        gpu_rig_submit(&rig, 15, 300);
        gpu_rig_take_all(&rig);
        for (size_t i = 0; i < 3; i++) {
            assert_int_equal(gpu_region_resize(&crowd->region, &rooms[i], NULL), CORE_OK);
            assert_string_equal(resize(&rig, &rooms[i]).room.text, "");
            gpu_rig_submit(&rig, 60, (uint32_t)(rooms[i].bytes / 60 / 3 / 2));
            gpu_rig_take_all(&rig);
        }
        assert_string_equal(resize(&rig, &least).room.text, "");
        assert_int_equal(gpu_region_resize(&crowd->region, &least, NULL), CORE_OK);
    }
    gpu_rig_close(&rig);
}

/* Its batches go on as before. */
static void a_child_that_can_not_pin_says_so(void **state)
{
    (void)state;
    struct gpu_crowd *crowd = small_crowd(4);
    struct gpu_emulation card = gpu_crowd_card(2);
    struct gpu_rig rig;
    card.failure = GPU_FAILURE_PIN;
    card.failure_bytes = 1 << 16;
    gpu_rig_open(&rig, crowd, &card, NULL);
    assert_int_equal(gpu_region_resize(&crowd->region, &rooms[2], NULL), CORE_OK);
    for (int i = 0; i < 3; i++) {
        const struct gpu_event event = resize(&rig, &rooms[1]);
        assert_int_equal(event.kind, GPU_EVENT_ROOM);
        assert_non_null(strstr(event.room.text, "pin"));
        gpu_rig_submit(&rig, 15, 300);
        gpu_rig_take_all(&rig);
    }
    assert_string_equal(resize(&rig, &rooms[0]).room.text, "");
    gpu_rig_close(&rig);
}

/* The next one has the room that was the last one's for certain, and does not pin what nobody needs. */
static void a_child_that_is_killed_while_it_grows(void **state)
{
    (void)state;
    struct gpu_crowd *crowd = small_crowd(5);
    const struct gpu_emulation card = gpu_crowd_card(2);
    struct gpu_rig rig;
    struct gpu_event event;
    gpu_rig_open(&rig, crowd, &card, NULL);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(gpu_region_resize(&crowd->region, &rooms[2], NULL), CORE_OK);
        assert_int_equal(gpu_engine_resize(rig.engine, &rooms[2]), CORE_OK);
        assert_int_equal(kill(gpu_engine_process(rig.engine), SIGKILL), 0);
        assert_true(gpu_crowd_wait(rig.engine, &event));
        if (event.kind == GPU_EVENT_ROOM) /* it was quick */
            assert_true(gpu_crowd_wait(rig.engine, &event));
        assert_int_equal(event.kind, GPU_EVENT_FAULT);
        assert_int_equal(gpu_region_resize(&crowd->region, &rooms[0], NULL), CORE_OK);
        gpu_engine_set_room(rig.engine, &rooms[0]);
        gpu_rig_start(&rig);
        gpu_rig_submit(&rig, 30, 300);
        gpu_rig_take_all(&rig);
    }
    gpu_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_comes_and_goes),
        cmocka_unit_test(room_has_parts),
        cmocka_unit_test(batches_keep_their_room),
        cmocka_unit_test(whatever_fails_leaves_the_room),
        cmocka_unit_test(a_child_takes_room_and_gives_it_back),
        cmocka_unit_test(a_child_that_can_not_pin_says_so),
        cmocka_unit_test(a_child_that_is_killed_while_it_grows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
