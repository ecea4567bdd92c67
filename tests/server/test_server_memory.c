/* Packet memory: what a frame asks for is reserved before a byte of it is there, what is large is made and
 * freed by the thread for that, and what is refused costs nothing. The linker puts an allocator that takes
 * notes in the place of the real one for the server's own code (--wrap in CMakeLists.txt). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "server/memory.h"
#include "server/stream/stream.h"
#include "tests/support/gpu_server.h"
#include "tests/support/require.h"
#include "tests/support/stream.h"

#define SMALL_BYTES 300000 /* more than anything else: a table of the planner's takes 256 KiB */

/* ---- the allocator ---- */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void __real_free(void *block);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void __wrap_free(void *block);

enum role { IO, PLANNER, MEMORY, OTHER, ROLES };

static atomic_bool held;                                         /* the thread frees nothing */
static _Atomic size_t largest_made[ROLES], largest_freed[ROLES]; /* bytes, since `forget` */

static enum role role(void)
{
    char name[16] = "";
    prctl(PR_GET_NAME, name);
    return strncmp(name, "io-", 3) == 0   ? IO
           : strcmp(name, "planner") == 0 ? PLANNER
           : strcmp(name, "memory") == 0  ? MEMORY
                                          : OTHER;
}

static void note(_Atomic size_t *largest, size_t bytes)
{
    if (bytes > atomic_load(largest)) /* one thread of each role */
        atomic_store(largest, bytes);
}

void *__wrap_malloc(size_t bytes)
{
    note(&largest_made[role()], bytes);
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    note(&largest_made[role()], count * bytes);
    return __real_calloc(count, bytes);
}

void __wrap_free(void *block)
{
    if (block != NULL)
        note(&largest_freed[role()], malloc_usable_size(block));
    while (role() == MEMORY && atomic_load(&held))
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    __real_free(block);
}

static void forget(void)
{
    for (int i = 0; i < ROLES; i++) {
        atomic_store(&largest_made[i], 0);
        atomic_store(&largest_freed[i], 0);
    }
}

static void expect_nothing_made(void)
{
    for (int i = 0; i < OTHER; i++)
        assert_in_range(atomic_load(&largest_made[i]), 0, SMALL_BYTES);
}

/* ---- a server with a card, and contracts that are for it ---- */

struct rig {
    struct test_server server;
    struct test_client client;
    struct config_profile *profile;
};

static const uint8_t key[32] = {3};

static void start(struct rig *rig, const char *limits)
{
    char yaml[256];

    *rig = (struct rig){.profile = test_gpu_profile(100000)};
    snprintf(yaml, sizeof yaml, "threads: {io: 1, workers: 1, realtime: off, pin: false}\nlimits: {%s}\n",
             limits);
    test_gpu_server_start(&rig->server, "", yaml, rig->profile);
    test_client_dial(&rig->client, test_server_unix(&rig->server));
    test_client_hello_version(&rig->client, 2, NULL);
}

static void stop(struct rig *rig)
{
    test_client_close(&rig->client);
    assert_int_equal(test_server_stop(&rig->server), 0);
    config_profile_free(rig->profile);
}

static struct core_stream_spec spec_of(core_ns interval_ns, uint32_t burst, core_ns latency_ns)
{
    struct core_stream_spec spec = test_spec;
    spec.packet_bytes = 64;
    spec.interval_ns = interval_ns;
    spec.burst_packets = burst;
    spec.latency_ns = latency_ns;
    return spec;
}

static const core_ns MS = CORE_NS_PER_MS, S = CORE_NS_PER_S;

/* True: granted, with so many packets. */
static bool modify(struct rig *rig, uint32_t stream, const struct core_stream_spec *spec, uint32_t *packets,
                   struct protocol_refused *refused)
{
    const struct protocol_modify modify = {.stream = stream,
                                           .burst_packets = spec->burst_packets,
                                           .interval_ns = spec->interval_ns,
                                           .latency_ns = spec->latency_ns};
    uint8_t bytes[TEST_FRAME_BYTES];
    struct protocol_modified modified;
    struct test_frame frame;

    assert_true(test_client_send(&rig->client, bytes, protocol_modify_write(bytes, 5, &modify)));
    assert_int_equal(test_client_next(&rig->client, &frame, TEST_PATIENCE_MS), TEST_FRAME);
    if (frame.header.type == PROTOCOL_REFUSED) {
        assert_int_equal(protocol_refused_read(2, frame.body, frame.header.body_bytes, refused, NULL),
                         CORE_OK);
        return false;
    }
    assert_int_equal(frame.header.type, PROTOCOL_MODIFIED);
    assert_int_equal(protocol_modified_read(frame.body, frame.header.body_bytes, &modified, NULL), CORE_OK);
    *packets = modified.queue_packets;
    return true;
}

static uint32_t open_on_card(struct rig *rig, const struct core_stream_spec *spec, uint32_t *packets)
{
    const struct protocol_open open = test_open_inline(spec, key);
    struct protocol_refused refused;
    struct protocol_opened opened;

    if (!test_client_ask(&rig->client, PROTOCOL_OPEN, &open, &opened, &refused))
        fail_msg("refused: %s", refused.text);
    assert_int_equal(opened.unit, PROTOCOL_UNIT_GPU);
    *packets = opened.queue_packets;
    return opened.stream;
}

/* ---- what can not be ---- */

static void contracts_that_no_memory_holds(void **state)
{
    const struct core_stream_spec specs[] = {spec_of(1000, 1, 20 * S), spec_of(1000, 1, 100 * S),
                                             spec_of(1000, 1, 2147 * S), spec_of(1000, 1, 2148 * S),
                                             spec_of(1000, 64, 3600 * S)};
    struct protocol_refused refused;
    uint32_t packets;
    struct rig rig;
    (void)state;

    start(&rig, "buffer_mib: 2048");
    const struct core_stream_spec sound = spec_of(4 * MS, 4, 200 * MS);
    uint32_t stream = open_on_card(&rig, &sound, &packets);
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        const struct protocol_open open = test_open_inline(&specs[i], key);
        forget();
        assert_false(modify(&rig, stream, &specs[i], &packets, &refused));
        assert_int_equal(refused.code, PROTOCOL_REFUSED_LIMIT);
        assert_non_null(strstr(refused.text, "buffer_mib"));
        expect_nothing_made();
        assert_false(test_client_ask(&rig.client, PROTOCOL_OPEN, &open, NULL, &refused));
        assert_false(test_client_ask(&rig.client, PROTOCOL_QUERY, &open, NULL, &refused));
        expect_nothing_made();
    }
    stop(&rig);
}

/* The planner refuses for another reason than memory, of which there is enough. */
static void contract_refused_by_all_units(void **state)
{
    const struct core_stream_spec rapid = spec_of(1000, 1, S / 10);
    const struct protocol_open open = test_open_inline(&rapid, key);
    struct protocol_refused refused;
    uint32_t packets;
    struct rig rig;
    (void)state;

    start(&rig, "buffer_mib: 2048");
    const struct core_stream_spec sound = spec_of(4 * MS, 4, 200 * MS);
    uint32_t stream = open_on_card(&rig, &sound, &packets);
    forget();
    assert_false(modify(&rig, stream, &rapid, &packets, &refused));
    assert_int_equal(refused.code, PROTOCOL_REFUSED_CAPACITY);
    assert_false(test_client_ask(&rig.client, PROTOCOL_OPEN, &open, NULL, &refused));
    assert_int_equal(refused.code, PROTOCOL_REFUSED_CAPACITY);
    expect_nothing_made();
    stop(&rig);
}

/* ---- at the limit ---- */

#define LIMIT_BYTES (UINT64_C(1) << 20)

static uint64_t bytes_of(const struct core_stream_spec *spec)
{
    return server_stream_buffer_bytes(spec,
                                      server_stream_queue_packets(spec, server_stream_gpu_packets(spec)));
}

/* The longest latency bound, in whole intervals, with which the stream's memory, and so much besides, is
 * within the limit. */
static struct core_stream_spec largest(struct core_stream_spec spec, uint64_t besides_bytes)
{
    for (spec.latency_ns = 100 * spec.interval_ns; bytes_of(&spec) + besides_bytes <= LIMIT_BYTES;)
        spec.latency_ns += spec.interval_ns;
    spec.latency_ns -= spec.interval_ns;
    return spec;
}

static struct core_stream_spec longer(struct core_stream_spec spec)
{
    spec.latency_ns += spec.interval_ns;
    return spec;
}

static void open_at_the_stream_limit(void **state)
{
    const struct core_stream_spec most = largest(spec_of(MS, 4, 0), 0), above = longer(most);
    const struct protocol_open open = test_open_inline(&above, key);
    struct protocol_refused refused;
    uint32_t packets;
    struct rig rig;
    (void)state;

    start(&rig, "buffer_mib: 1, stream_buffer_kib: 1024");
    forget();
    assert_false(test_client_ask(&rig.client, PROTOCOL_QUERY, &open, NULL, &refused));
    assert_int_equal(refused.code, PROTOCOL_REFUSED_LIMIT);
    assert_false(test_client_ask(&rig.client, PROTOCOL_OPEN, &open, NULL, &refused));
    assert_int_equal(refused.code, PROTOCOL_REFUSED_LIMIT);
    expect_nothing_made();
    (void)open_on_card(&rig, &most, &packets); /* and what was refused has left nothing behind */
    assert_int_equal(server_stream_buffer_bytes(&most, packets), bytes_of(&most));
    stop(&rig);
}

static void a_modify_at_the_limit(void **state)
{
    const struct core_stream_spec small = spec_of(MS, 4, 100 * MS);
    uint64_t has_bytes = bytes_of(&small);
    struct core_stream_spec most = small;
    struct protocol_refused refused;
    uint32_t has, packets;
    struct rig rig;
    (void)state;

    /* The stream keeps the block that it has, and gets one for the rest. */
    uint32_t room = server_stream_queue_packets(&small, server_stream_gpu_packets(&small));
    while (has_bytes +
               server_stream_buffer_bytes(
                   &most, server_stream_queue_packets(&most, server_stream_gpu_packets(&most)) - room) <=
           LIMIT_BYTES)
        most = longer(most);
    const struct core_stream_spec above = most;
    most.latency_ns -= most.interval_ns;

    start(&rig, "buffer_mib: 1, stream_buffer_kib: 1024");
    uint32_t stream = open_on_card(&rig, &small, &has);
    assert_int_equal(has, room);
    forget();
    assert_false(modify(&rig, stream, &above, &packets, &refused));
    assert_int_equal(refused.code, PROTOCOL_REFUSED_LIMIT);
    expect_nothing_made();
    assert_true(modify(&rig, stream, &most, &packets, &refused));
    assert_int_equal(packets, server_stream_queue_packets(&most, server_stream_gpu_packets(&most)));
    stop(&rig);
}

/* ---- who makes it, and who frees it ---- */

static void await_freed(size_t bytes)
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * MS;
    while (atomic_load(&largest_freed[MEMORY]) < bytes) {
        TEST_REQUIRE(core_time_now_ns() < until_ns);
        core_time_sleep_until(core_time_now_ns() + MS);
    }
}

static void expect_made_by_its_thread(void)
{
    assert_true(atomic_load(&largest_made[MEMORY]) > SMALL_BYTES);
    assert_in_range(atomic_load(&largest_made[IO]), 0, SMALL_BYTES);
    assert_in_range(atomic_load(&largest_made[PLANNER]), 0, SMALL_BYTES);
}

static void large_memory_has_its_thread(void **state)
{
    const struct core_stream_spec small = spec_of(MS, 4, 100 * MS), large = spec_of(MS, 4, 4 * S);
    struct protocol_refused refused;
    uint8_t bytes[TEST_FRAME_BYTES];
    struct test_frame frame;
    uint32_t packets;
    struct rig rig;
    (void)state;

    start(&rig, "buffer_mib: 64");
    forget();
    uint32_t stream = open_on_card(&rig, &small, &packets); /* an ordinary one waits for the planner alone */
    assert_int_equal(atomic_load(&largest_made[MEMORY]), 0);
    assert_true(modify(&rig, stream, &large, &packets, &refused));
    expect_made_by_its_thread();
    forget();
    assert_true(test_client_send(&rig.client, bytes, protocol_close_write(bytes, stream)));
    test_client_expect(&rig.client, PROTOCOL_CLOSED, &frame);
    await_freed(SMALL_BYTES);
    forget();
    (void)open_on_card(&rig, &large, &packets);
    expect_made_by_its_thread();
    forget();
    test_client_close(&rig.client); /* the connection goes with its stream */
    await_freed(SMALL_BYTES);
    assert_in_range(atomic_load(&largest_freed[IO]), 0, SMALL_BYTES);
    assert_in_range(atomic_load(&largest_freed[PLANNER]), 0, SMALL_BYTES);
    stop(&rig);
}

/* ---- the limit, while something waits to be freed ---- */

struct answer {
    struct server_message message; /* first member */
    bool come;
};

static void take_answer(void *owner, struct server_message *message)
{
    (void)owner;
    ((struct answer *)message)->come = true;
}

static void memory_to_be_wiped_counts(void **state)
{
    const struct core_stream_spec spec = spec_of(MS, 4, 100 * MS);
    struct answer answers[2] = {{.message.run = take_answer}, {.message.run = take_answer}};
    struct server_memory_request orders[2];
    struct server_mailbox reply;
    struct server_memory *memory;
    (void)state;

    assert_int_equal(server_mailbox_init(&reply, NULL), CORE_OK);
    assert_int_equal(server_memory_start(&memory, server_stream_ops.memory, LIMIT_BYTES, NULL), CORE_OK);
    struct server_block *block = server_block_create(&spec, 1000, 0);
    uint64_t waiting_bytes = block->bytes;
    for (int i = 0; i < 2; i++)
        orders[i] = (struct server_memory_request){.spec = &spec,
                                                   .packets = 10,
                                                   .bytes = server_stream_buffer_bytes(&spec, 10),
                                                   .answer = &answers[i].message,
                                                   .reply = &reply};
    atomic_store(&held, true);
    server_memory_wipe(memory, block);
    server_memory_make(memory, &orders[0], LIMIT_BYTES - waiting_bytes);
    server_mailbox_run(&reply, NULL);
    assert_true(answers[0].come && orders[0].block != NULL); /* at once: there is room for both */
    server_memory_make(memory, &orders[1], LIMIT_BYTES - waiting_bytes + 1);
    server_mailbox_run(&reply, NULL);
    assert_false(answers[1].come);
    atomic_store(&held, false);
    while (!answers[1].come)
        server_mailbox_wait(&reply, NULL, -1);
    assert_non_null(orders[1].block);
    server_blocks_destroy(orders[0].block);
    server_blocks_destroy(orders[1].block);
    server_memory_stop(memory);
    server_mailbox_destroy(&reply);
}

/* ---- the sizes ---- */

static void sizes_do_not_overflow(void **state)
{
    (void)state;
    for (uint32_t burst = 1; burst <= CORE_BURST_MAX; burst *= 2)
        for (uint32_t bytes = 16; bytes <= CORE_PACKET_BYTES_MAX; bytes *= 2) {
            struct core_stream_spec spec = spec_of(CORE_INTERVAL_NS_MIN, burst, CORE_LATENCY_NS_MAX);
            spec.packet_bytes = bytes;
            uint32_t packets = server_stream_queue_packets(&spec, server_stream_gpu_packets(&spec));
            assert_true(server_stream_buffer_bytes(&spec, packets) == UINT64_MAX);
            spec.latency_ns = (core_ns)(UINT32_MAX / 2 - burst) * spec.interval_ns; /* 2^31 - 1 packets */
            assert_int_equal(server_stream_gpu_packets(&spec), UINT32_MAX / 2);
            uint64_t least = (uint64_t)(UINT32_MAX / 2) * (bytes + sizeof(struct server_packet));
            uint64_t got = server_stream_buffer_bytes(&spec, UINT32_MAX / 2);
            assert_true(got > least && got < 2 * least);
            spec.latency_ns++;
            assert_true(server_stream_buffer_bytes(&spec, server_stream_gpu_packets(&spec)) == UINT64_MAX);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contracts_that_no_memory_holds), cmocka_unit_test(contract_refused_by_all_units),
        cmocka_unit_test(open_at_the_stream_limit),       cmocka_unit_test(a_modify_at_the_limit),
        cmocka_unit_test(large_memory_has_its_thread),    cmocka_unit_test(memory_to_be_wiped_counts),
        cmocka_unit_test(sizes_do_not_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
