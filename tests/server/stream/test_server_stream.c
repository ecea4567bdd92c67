/* One stream's memory, judgement, order and stamps, without a thread or a socket. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "server/stream/io_thread.h"
#include "tests/support/random.h"

#define NOW_NS   (100 * CORE_NS_PER_S)
#define NO_LIMIT UINT64_MAX

static const struct core_stream_spec base_spec = {.packet_bytes = 64,
                                                  .burst_packets = 4,
                                                  .interval_ns = CORE_NS_PER_MS,
                                                  .latency_ns = 10 * CORE_NS_PER_MS,
                                                  .cipher = CORE_CIPHER_AES_128_CBC,
                                                  .padding = CORE_PADDING_NONE};

static struct server_stream *make(const struct core_stream_spec *spec)
{
    struct server_stream *stream = NULL;
    struct server_block *block =
        server_block_create(spec, server_stream_queue_packets(spec, spec->burst_packets), 3);
    assert_non_null(block);
    assert_int_equal(server_stream_create(&stream, spec, block), CORE_OK);
    server_policer_init(&stream->policer, &stream->spec, stream->spec.interval_ns);
    return stream;
}

static void destroy(struct server_stream *stream)
{
    server_stream_destroy(stream, NULL); /* never armed: no engine is asked */
}

static struct server_packet *accept_packet(struct server_stream *stream, uint32_t bytes, core_ns now_ns,
                                           uint64_t bytes_per_key)
{
    struct server_packet *packet = server_stream_take(stream, stream->queue.next_sequence++, bytes, 0);
    assert_non_null(packet);
    memset(server_packet_payload(packet), 0xAA, bytes <= stream->spec.packet_bytes ? bytes : 0);
    const struct server_arrival arrival = {now_ns, now_ns, now_ns, false};
    (void)server_stream_accept(stream, packet, &arrival, bytes_per_key);
    return packet;
}

/* Beside those that the contract may have inside at once. */
static void one_packet_may_come_ahead(void **state)
{
    struct core_stream_spec spec = base_spec;
    (void)state;
    assert_int_equal(server_stream_queue_packets(&spec, 4), 5);
    spec.packet_bytes = 1400;
    assert_int_equal(server_stream_queue_packets(&spec, 1), 2);
    spec.packet_bytes = 2048; /* with its record more than 2 KiB */
    assert_int_equal(server_stream_queue_packets(&spec, 4), 4);
}

static void slots_have_room_and_do_not_overlap(void **state)
{
    struct test_random random = {.state = 6};
    (void)state;
    for (int round = 0; round < 300; round++) {
        struct core_stream_spec spec = base_spec;
        spec.padding = round % 2 == 0 ? CORE_PADDING_PKCS7 : CORE_PADDING_NONE;
        spec.packet_bytes = (uint32_t)test_random_log(&random, 16, 70000) / 16 * 16;
        spec.burst_packets = (uint32_t)test_random_log(&random, 1, 40);
        struct server_stream *stream = make(&spec);
        uint32_t room = 32 + core_stream_padded_bytes(spec.padding, spec.packet_bytes);
        struct server_block *block = stream->memory.blocks;
        const uint8_t *begin = (const uint8_t *)(block + 1), *end = begin + block->room_bytes;
        const uint8_t *previous = NULL;

        assert_true(stream->memory.packets >= spec.burst_packets);
        assert_int_equal(stream->memory.packets, server_stream_queue_packets(&spec, spec.burst_packets));
        assert_null(block->next);
        assert_int_equal(block->count, stream->memory.packets);
        for (uint32_t i = 0; i < stream->memory.packets; i++) {
            uint8_t *slot = server_stream_take(stream, i, 16, 0)->output.frame;
            assert_true(slot - sizeof(struct server_packet) >= begin && slot + room <= end);
            assert_int_equal((uintptr_t)slot % 64, 0);
            if (previous != NULL) {
                assert_true(slot + room <= previous - sizeof(struct server_packet)); /* the last one first */
                assert_int_not_equal((previous - slot) % 4096, 0);                   /* other cache sets */
            }
            memset(slot, 0x55, room); /* the sanitizer watches */
            previous = slot;
        }
        destroy(stream);
    }
}

static void packets_come_from_a_bounded_pool(void **state)
{
    struct server_stream *stream = make(&base_spec);
    struct server_packet *taken[64];
    uint32_t count = 0;
    (void)state;

    while ((taken[count] = server_stream_take(stream, count, 16, 0)) != NULL)
        count++;
    assert_int_equal(count, stream->memory.packets);
    assert_int_equal(stream->memory.busy, count);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = 0; j < i; j++)
            assert_ptr_not_equal(taken[i], taken[j]);
    server_stream_give(stream, taken[1]);
    assert_ptr_equal(server_stream_take(stream, 7, 16, 0), taken[1]);
    assert_null(server_stream_take(stream, 8, 16, 0));
    for (uint32_t i = 0; i < count; i++)
        server_stream_give(stream, taken[i]);
    assert_int_equal(stream->memory.busy, 0);
    destroy(stream);
}

static void padding_fills_to_the_block(void **state)
{
    struct core_stream_spec spec = base_spec;
    (void)state;
    spec.padding = CORE_PADDING_PKCS7;
    for (uint32_t bytes = 0; bytes <= spec.packet_bytes; bytes++) {
        struct server_stream *stream = make(&spec);
        struct server_packet *packet = accept_packet(stream, bytes, NOW_NS, NO_LIMIT);
        uint32_t padding = 16 - bytes % 16;
        assert_int_equal(packet->status, PROTOCOL_RESULT_OK);
        assert_int_equal(packet->cpu.bytes, bytes + padding);
        assert_ptr_equal(packet->cpu.data, server_packet_payload(packet));
        for (uint32_t i = 0; i < bytes + padding; i++)
            assert_int_equal(packet->cpu.data[i], i < bytes ? 0xAA : padding);
        assert_int_equal(stream->account.key_bytes, bytes + padding);
        server_stream_give(stream, packet);
        destroy(stream);
    }
}

/* What lies elsewhere is copied into the slot, with its padding, and nothing beside it; once. */
static void plaintext_comes_into_the_slot(void **state)
{
    uint8_t elsewhere[64];
    struct core_stream_spec spec = base_spec;
    (void)state;
    spec.padding = CORE_PADDING_PKCS7;
    memset(elsewhere, 0xBB, sizeof elsewhere);
    for (uint32_t bytes = 0; bytes < sizeof elsewhere; bytes++) {
        struct server_stream *stream = make(&spec);
        struct server_packet *packet = server_stream_take(stream, stream->queue.next_sequence++, bytes, 0);
        uint8_t *slot = server_packet_payload(packet);
        const struct server_arrival arrival = {NOW_NS, NOW_NS, NOW_NS, false};
        assert_ptr_equal(packet->cpu.data, slot);
        memset(slot, 0x11, 96);
        packet->cpu.data = elsewhere;
        assert_true(server_stream_accept(stream, packet, &arrival, NO_LIMIT));
        assert_ptr_equal(packet->cpu.data, elsewhere);
        for (uint32_t i = 0; i < 96; i++)
            assert_int_equal(slot[i], 0x11);
        for (int times = 0; times < 2; times++) {
            server_packet_fill(packet);
            assert_ptr_equal(packet->cpu.data, slot);
            for (uint32_t i = 0; i < 96; i++)
                assert_int_equal(slot[i], i < bytes ? 0xBB : i < packet->cpu.bytes ? 16 - bytes % 16 : 0x11);
        }
        server_stream_give(stream, packet);
        destroy(stream);
    }
}

static void lengths_are_judged(void **state)
{
    static const struct {
        enum core_padding padding;
        uint32_t bytes;
        enum protocol_result_status status;
    } rows[] = {
        {CORE_PADDING_NONE, 0, PROTOCOL_RESULT_NOT_BLOCKS},
        {CORE_PADDING_NONE, 1, PROTOCOL_RESULT_NOT_BLOCKS},
        {CORE_PADDING_NONE, 15, PROTOCOL_RESULT_NOT_BLOCKS},
        {CORE_PADDING_NONE, 16, PROTOCOL_RESULT_OK},
        {CORE_PADDING_NONE, 63, PROTOCOL_RESULT_NOT_BLOCKS},
        {CORE_PADDING_NONE, 64, PROTOCOL_RESULT_OK},
        {CORE_PADDING_NONE, 65, PROTOCOL_RESULT_TOO_LONG},
        {CORE_PADDING_NONE, 80, PROTOCOL_RESULT_TOO_LONG},
        {CORE_PADDING_PKCS7, 0, PROTOCOL_RESULT_OK},
        {CORE_PADDING_PKCS7, 63, PROTOCOL_RESULT_OK},
        {CORE_PADDING_PKCS7, 64, PROTOCOL_RESULT_OK},
        {CORE_PADDING_PKCS7, 65, PROTOCOL_RESULT_TOO_LONG},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct core_stream_spec spec = base_spec;
        spec.padding = rows[i].padding;
        struct server_stream *stream = make(&spec);
        struct server_packet *packet = accept_packet(stream, rows[i].bytes, NOW_NS, NO_LIMIT);
        assert_int_equal(packet->status, rows[i].status);
        assert_int_equal(packet->ready, rows[i].status != PROTOCOL_RESULT_OK);
        if (rows[i].status != PROTOCOL_RESULT_OK)
            assert_int_equal(stream->account.key_bytes, 0);
        server_stream_give(stream, packet);
        destroy(stream);
    }
}

static void the_key_is_spent_to_the_byte(void **state)
{
    struct server_stream *stream = make(&base_spec);
    struct server_packet *packets[5];
    static const uint32_t bytes[5] = {64, 48, 16, 16, 16};
    (void)state;

    for (int i = 0; i < 5; i++)
        packets[i] = accept_packet(stream, bytes[i], NOW_NS, 128 + 8);
    assert_int_equal(packets[2]->status, PROTOCOL_RESULT_OK); /* 128 in all */
    assert_int_equal(packets[3]->status, PROTOCOL_RESULT_KEY_SPENT);
    assert_int_equal(packets[4]->status, PROTOCOL_RESULT_KEY_SPENT);
    assert_int_equal(stream->account.key_bytes, 128);
    for (int i = 0; i < 5; i++)
        server_stream_give(stream, packets[i]);
    destroy(stream);
}

static void results_leave_in_order_of_arrival(void **state)
{
    struct server_stream *stream = make(&base_spec);
    struct server_packet *packets[4];
    (void)state;

    packets[0] = accept_packet(stream, 16, NOW_NS, NO_LIMIT);
    packets[1] = accept_packet(stream, 17, NOW_NS, NO_LIMIT); /* ready at once */
    packets[2] = accept_packet(stream, 32, NOW_NS, NO_LIMIT);
    packets[3] = accept_packet(stream, 48, NOW_NS, NO_LIMIT);
    assert_null(server_stream_next_ready(stream));
    packets[2]->ready = true;
    assert_null(server_stream_next_ready(stream));
    packets[0]->ready = true;
    for (int i = 0; i < 3; i++)
        assert_ptr_equal(server_stream_next_ready(stream), packets[i]);
    assert_null(server_stream_next_ready(stream));
    packets[3]->ready = true;
    assert_ptr_equal(server_stream_next_ready(stream), packets[3]);
    assert_null(server_stream_next_ready(stream));
    for (int i = 0; i < 4; i++)
        server_stream_give(stream, packets[i]);
    destroy(stream);
}

static void times_follow_the_contract(void **state)
{
    struct core_stream_spec spec = base_spec;
    (void)state;
    spec.burst_packets = 1;
    struct server_stream *stream = make(&spec);
    struct server_packet *first = accept_packet(stream, 16, NOW_NS, NO_LIMIT);
    struct server_packet *second = accept_packet(stream, 16, NOW_NS + 1000, NO_LIMIT);
    assert_int_equal(first->eligible_ns, NOW_NS);
    assert_int_equal(first->deadline_ns, NOW_NS + spec.latency_ns);
    assert_false(first->policed);
    assert_int_equal(second->arrival_ns, NOW_NS + 1000);
    assert_int_equal(second->eligible_ns, NOW_NS + spec.interval_ns);
    assert_int_equal(second->deadline_ns, NOW_NS + spec.interval_ns + spec.latency_ns);
    assert_true(second->policed);
    server_stream_give(stream, first);
    server_stream_give(stream, second);
    destroy(stream);
}

/* Read 700 ns after the first of its bytes may have come: the contract counts the read, the deadline does
 * not. */
static void deadlines_count_from_when_a_packet_may_have_come(void **state)
{
    const struct server_arrival arrival = {NOW_NS - 700, NOW_NS, NOW_NS, false};
    struct server_stream *stream = make(&base_spec);
    struct server_packet *packet = server_stream_take(stream, stream->queue.next_sequence++, 16, 0);
    (void)state;
    assert_non_null(packet);
    memset(server_packet_payload(packet), 0xAA, 16);
    (void)server_stream_accept(stream, packet, &arrival, NO_LIMIT);
    assert_int_equal(packet->eligible_ns, NOW_NS);
    assert_int_equal(packet->deadline_ns, NOW_NS - 700 + base_spec.latency_ns);
    assert_false(packet->policed);
    server_stream_give(stream, packet);
    destroy(stream);
}

static void result_flags_by_late_party(void **state)
{
    enum { MET = PROTOCOL_RESULT_MET, READER = PROTOCOL_RESULT_READER, POLICED = PROTOCOL_RESULT_POLICED };
    static const struct {
        core_ns early_ns;                           /* how long before it was eligible it came */
        core_ns finished_ns, handed_ns, blocked_ns; /* relative to the deadline; never: the reader is fine */
        unsigned flags;
    } rows[] = {
        {0, -5, -1, CORE_NS_NEVER, MET},
        {0, 0, 0, CORE_NS_NEVER, MET},
        {0, -5, 1, CORE_NS_NEVER, 0}, /* late in our hands */
        {0, -5, 1, -1, MET | READER}, /* the reader kept it waiting since before the deadline */
        {0, -5, 1, 0, MET | READER},
        {0, -5, 9, 1, 0},   /* the reader stopped only after we were late */
        {0, 1, 9, -100, 0}, /* finished late: no reader excuses that */
        {0, 1, 1, CORE_NS_NEVER, 0},
        {0, -5, -1, -100, MET}, /* a blocked connection, but in time */
        {700000, -5, -1, CORE_NS_NEVER, MET | POLICED},
        {700000, -5, 1, -1, MET | READER | POLICED},
        {700000, 1, 1, CORE_NS_NEVER, POLICED},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct core_stream_spec spec = base_spec;
        struct protocol_header header;
        struct protocol_result decoded;
        spec.burst_packets = 1;
        struct server_stream *stream = make(&spec);
        stream->id = 9;
        core_ns deadline_ns = NOW_NS + spec.latency_ns;
        if (rows[i].early_ns > 0) /* a packet just before uses up the token */
            server_stream_give(stream, accept_packet(stream, 16, NOW_NS - spec.interval_ns, NO_LIMIT));
        struct server_packet *packet = accept_packet(stream, 32, NOW_NS - rows[i].early_ns, NO_LIMIT);
        assert_int_equal(packet->deadline_ns, deadline_ns);
        packet->cpu.finished_ns = deadline_ns + rows[i].finished_ns;
        core_ns blocked_ns =
            rows[i].blocked_ns == CORE_NS_NEVER ? CORE_NS_NEVER : deadline_ns + rows[i].blocked_ns;
        struct protocol_result result =
            server_packet_stamp(packet, deadline_ns + rows[i].handed_ns, blocked_ns);
        assert_int_equal(result.flags, rows[i].flags);
        assert_int_equal(result.latency_ns, spec.latency_ns + rows[i].handed_ns);
        assert_int_equal(result.waited_us, rows[i].early_ns / 1000);
        assert_int_equal(packet->output.frame_bytes + packet->output.payload_bytes, 32 + 32);
        assert_int_equal(protocol_header_read(PROTOCOL_VERSION, packet->output.frame, &header), CORE_OK);
        assert_true(header.type == PROTOCOL_RESULT && header.id == 9 && header.body_bytes == 16 + 32);
        assert_int_equal(header.sequence, packet->sequence);
        assert_int_equal(
            protocol_result_read(PROTOCOL_VERSION, packet->output.frame + 16, 16 + 32, &decoded, NULL),
            CORE_OK);
        assert_int_equal(decoded.flags, rows[i].flags);
        server_stream_give(stream, packet);
        destroy(stream);
    }
}

static void slack_is_counted_by_its_share_of_the_bound(void **state)
{
    static const struct {
        core_ns slack_ns;
        int class;
    } rows[] = {{-1, 0},  {-6400, 0}, {0, 1},   {99, 1},   {100, 2},  {199, 2},  {200, 3},  {399, 3},
                {400, 4}, {799, 4},   {800, 5}, {1599, 5}, {1600, 6}, {3199, 6}, {3200, 7}, {6400, 7}};
    (void)state;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct server_stream_account account = {0};
        server_stream_account_slack(&account, rows[i].slack_ns, 6400);
        for (int class = 0; class < SERVER_SLACK_CLASSES; class ++)
            assert_int_equal(account.slack[class], class == rows[i].class);
    }
}

static void full_counts_of_slack_keep_their_shape(void **state)
{
    struct server_stream_account account = {.slack = {2, [1] = 1000, [7] = UINT32_MAX - 1}};
    (void)state;

    server_stream_account_slack(&account, 6400, 6400);
    assert_int_equal(account.slack[0], 1);
    assert_int_equal(account.slack[1], 500);
    assert_int_equal(account.slack[7], UINT32_MAX / 2);
    server_stream_account_slack(&account, 6400, 6400);
    assert_int_equal(account.slack[7], UINT32_MAX / 2 + 1);
}

static void a_rejected_packet_promises_nothing(void **state)
{
    struct server_stream *stream = make(&base_spec);
    struct server_packet *packet = accept_packet(stream, 17, NOW_NS, NO_LIMIT);
    (void)state;
    struct protocol_result result = server_packet_stamp(packet, NOW_NS + CORE_NS_PER_S, CORE_NS_NEVER);
    assert_int_equal(result.status, PROTOCOL_RESULT_NOT_BLOCKS);
    assert_true(result.flags == 0 && result.latency_ns == 0 && result.waited_us == 0);
    assert_int_equal(packet->output.frame_bytes + packet->output.payload_bytes, 32); /* no ciphertext */
    server_stream_give(stream, packet);
    destroy(stream);
}

/* Blocks come and go while packets of theirs are busy; what is retired is freed with its last packet. */
/* Frees what is not the stream's any more; returns how many bytes it was. */
static uint64_t shed(struct server_stream *stream)
{
    struct server_block *blocks = server_stream_shed(stream);
    uint64_t bytes = server_blocks_bytes(blocks);
    for (const struct server_block *block = blocks; block != NULL; block = block->next)
        assert_true(block->retired && stream->memory.leaving == 0);
    server_blocks_destroy(blocks);
    return bytes;
}

static void blocks_are_adopted_and_retired(void **state)
{
    struct test_random random = {7};
    struct server_packet *busy[512];
    uint32_t busy_count = 0, retirements = 0;
    uint64_t shed_bytes = 0, retired_bytes = 0;
    (void)state;
    struct server_stream *stream = make(&base_spec);
    for (int step = 0; step < 3000; step++) {
        struct server_packet *packet;
        int64_t what = test_random_in(&random, 0, 99);
        const uint32_t sequence = stream->queue.next_sequence;
        if (what < 50 && busy_count < 512 && (packet = server_stream_take(stream, sequence, 16, 0)) != NULL) {
            stream->queue.next_sequence++;
            assert_false(packet->block->retired);
            assert_ptr_equal(packet->stream, stream);
            memset(packet->output.frame, 0x55, 32 + 16); /* the sanitizer watches */
            busy[busy_count++] = packet;
        } else if (what < 94 && busy_count > 0) {
            uint32_t which = (uint32_t)test_random_in(&random, 0, busy_count - 1);
            server_stream_give(stream, busy[which]);
            busy[which] = busy[--busy_count];
        } else if (what < 97 && stream->memory.packets < 256) {
            uint32_t before = stream->memory.packets, count = (uint32_t)test_random_in(&random, 1, 40);
            server_stream_adopt(stream, server_block_create(&base_spec, count, (uint32_t)step));
            assert_int_equal(stream->memory.packets, before + count);
        } else if (what < 98) {
            struct server_block *fresh = server_block_create(&base_spec, 5, 0);
            for (struct server_block *block = stream->memory.blocks; block != NULL; block = block->next)
                retired_bytes += block->retired ? 0 : block->bytes;
            server_stream_retire(stream);
            assert_null(server_stream_take(stream, sequence, 16, 0));
            server_stream_adopt(stream, fresh);
            assert_int_equal(stream->memory.packets, 5);
            retirements++;
        } else {
            shed_bytes += shed(stream);
        }
        assert_int_equal(stream->memory.busy, busy_count);
    }
    assert_true(retirements > 5);
    while (busy_count > 0)
        server_stream_give(stream, busy[--busy_count]);
    shed_bytes += shed(stream);
    assert_false(server_stream_sheds(stream));
    assert_int_equal(shed_bytes, retired_bytes);
    destroy(stream);
}

/* ---- shared slots ---- */

static struct server_stream *make_sharing(const struct core_stream_spec *spec, struct server_hot_slots *hot)
{
    static struct server_stream_client client;
    struct server_stream *stream = make(spec);

    stream->client = &client;
    server_stream_share(stream, hot);
    return stream;
}

static struct server_packet *take_next(struct server_stream *stream)
{
    struct server_packet *packet = server_stream_take(stream, stream->queue.next_sequence, 64, 0);
    stream->queue.next_sequence += packet != NULL ? 1 : 0;
    return packet;
}

static void a_slot_given_back_is_the_next_one_taken(void **state)
{
    struct server_hot_slots hot;
    (void)state;

    assert_int_equal(server_hot_slots_create(&hot), CORE_OK);
    struct server_stream *streams[2] = {make_sharing(&base_spec, &hot), make_sharing(&base_spec, &hot)};
    struct server_packet *packet = take_next(streams[0]);
    assert_true(packet->hot);
    server_stream_give(streams[0], packet);
    assert_ptr_equal(take_next(streams[1]), packet);
    assert_ptr_equal(packet->stream, streams[1]);
    server_stream_give(streams[1], packet);
    destroy(streams[0]);
    destroy(streams[1]);
    server_hot_slots_destroy(&hot);
}

/* However many others have, each stream has as many packets as without them, and no more. */
static void every_stream_has_its_packets_whoever_has_the_shared_slots(void **state)
{
    enum { STREAMS = 80, PACKETS = 16 };
    struct server_packet *taken[STREAMS][PACKETS];
    struct server_stream *streams[STREAMS];
    struct test_random random = {.state = 12};
    struct server_hot_slots hot;
    (void)state;

    assert_int_equal(server_hot_slots_create(&hot), CORE_OK);
    for (int i = 0; i < STREAMS; i++)
        streams[i] = make_sharing(&base_spec, &hot);
    const uint32_t count = streams[0]->memory.packets;
    assert_true(count <= PACKETS && STREAMS * count > SERVER_HOT_SLOTS);
    for (int round = 0; round < 4; round++) {
        uint32_t shared = 0;
        for (int i = 0; i < STREAMS; i++) {
            for (uint32_t j = 0; j < count; j++) {
                taken[i][j] = take_next(streams[i]);
                assert_non_null(taken[i][j]);
                memset(taken[i][j]->output.frame, 0x55, 32 + 64); /* the sanitizer watches */
                shared += taken[i][j]->hot ? 1 : 0;
            }
            assert_null(take_next(streams[i]));
        }
        assert_int_equal(shared, SERVER_HOT_SLOTS);
        for (int i = STREAMS - 1; i >= 0; i--)
            for (uint32_t j = 0; j < count; j++) {
                const uint32_t other = (uint32_t)test_random_in(&random, j, count - 1);
                struct server_packet *packet = taken[i][other];
                taken[i][other] = taken[i][j];
                server_stream_give(streams[i], packet);
            }
    }
    for (int i = 0; i < STREAMS; i++)
        destroy(streams[i]);
    server_hot_slots_destroy(&hot);
}

static void who_takes_no_part_in_shared_slots(void **state)
{
    enum { LARGE, ON_GPU, EARLY, SLOW_READER, CASES };
    struct core_stream_spec specs[CASES] = {base_spec, base_spec, base_spec, base_spec};
    struct server_stream_client slow = {.lags = true};
    struct server_hot_slots hot;
    (void)state;

    specs[LARGE].packet_bytes = 4096;
    specs[EARLY].burst_packets = 2;
    assert_int_equal(server_hot_slots_create(&hot), CORE_OK);
    for (int i = 0; i < CASES; i++) {
        struct server_stream *stream = make_sharing(&specs[i], &hot);
        struct server_gpu_binding *gpu = (struct server_gpu_binding *)&specs; /* not looked into */
        if (i == ON_GPU)
            stream->units.gpu = gpu;
        if (i == SLOW_READER)
            stream->client = &slow;
        if (i == EARLY) /* its own are as many as come here in time, and one */
            server_stream_adopt(stream, server_block_create(&specs[i], 2, 0));
        for (int n = 0; i == EARLY && n < 3; n++)
            assert_true(accept_packet(stream, 64, NOW_NS, NO_LIMIT)->hot);
        struct server_packet *own = take_next(stream);
        assert_false(own->hot);
        server_stream_give(stream, own);
        if (i == EARLY) { /* until it keeps its contract again */
            assert_false(accept_packet(stream, 64, NOW_NS + CORE_NS_PER_S, NO_LIMIT)->hot);
            assert_true(take_next(stream)->hot);
        }
        destroy(stream);
        server_hot_slots_destroy(&hot);
        assert_int_equal(server_hot_slots_create(&hot), CORE_OK);
    }
    server_hot_slots_destroy(&hot);
}

/* The longest packets that share, with all that may be around them. */
static void shared_slots_have_room(void **state)
{
    struct core_stream_spec spec = base_spec;
    struct server_hot_slots hot;
    uint32_t longest = 0;
    (void)state;

    spec.unit = CORE_UNIT_MESSAGE;
    spec.padding = CORE_PADDING_PKCS7;
    spec.mac = CORE_MAC_HMAC_SHA_256_128;
    assert_int_equal(server_hot_slots_create(&hot), CORE_OK);
    for (spec.packet_bytes = 1500; spec.packet_bytes < 2200; spec.packet_bytes++) {
        struct server_stream *stream = make_sharing(&spec, &hot);
        struct server_packet *packet = take_next(stream);
        const uint32_t bytes = 32 + 16 + core_stream_padded_bytes(spec.padding, spec.packet_bytes) + 16;
        if (packet->hot) {
            const uint8_t *next = (const uint8_t *)take_next(stream);
            assert_true(next < packet->output.frame || next >= packet->output.frame + bytes);
            longest = spec.packet_bytes;
        }
        memset(packet->output.frame, 0x55, bytes); /* the sanitizer watches */
        destroy(stream);
        server_hot_slots_destroy(&hot);
        assert_int_equal(server_hot_slots_create(&hot), CORE_OK);
    }
    assert_true(longest >= 1500);
    server_hot_slots_destroy(&hot);
}

static bool has_secret(const struct server_packet *packet)
{
    return memchr(packet->output.frame, 0xAA, 32 + 16 + 64) != NULL;
}

static void no_plaintext_is_left_in_a_shared_slot(void **state)
{
    enum { ENCRYPTED, HALF_RECEIVED, NEVER_ENCRYPTED, FAILED, DECRYPTED, REJECTED, PASSES_IN_PART, CASES };
    (void)state;

    for (int round = 0; round < CASES; round++) {
        struct core_stream_spec spec = base_spec;
        struct server_hot_slots hot;
        assert_int_equal(server_hot_slots_create(&hot), CORE_OK);
        spec.direction = round == DECRYPTED ? CORE_DIRECTION_DECRYPT : CORE_DIRECTION_ENCRYPT;
        spec.padding = round == PASSES_IN_PART ? CORE_PADDING_CLEAR : CORE_PADDING_NONE;
        struct server_stream *stream = make_sharing(&spec, &hot);
        struct server_packet *packet;
        if (round == HALF_RECEIVED) { /* where one was encrypted before */
            packet = accept_packet(stream, 64, NOW_NS, NO_LIMIT);
            packet->cpu.done_bytes = packet->cpu.bytes;
            server_stream_give(stream, packet);
            packet = take_next(stream);
            memset(server_packet_payload(packet), 0xAA, 40);
        } else
            packet = accept_packet(stream, round == REJECTED || round == PASSES_IN_PART ? 63 : 64, NOW_NS,
                                   NO_LIMIT);
        assert_true(packet->hot && has_secret(packet));
        if (round != HALF_RECEIVED && round != NEVER_ENCRYPTED)
            packet->cpu.done_bytes = packet->cpu.bytes; /* by its worker */
        if (round == FAILED)
            packet->status = PROTOCOL_RESULT_FAILED;
        server_stream_give(stream, packet);
        assert_int_equal(has_secret(packet), round == ENCRYPTED);
        destroy(stream);
        server_hot_slots_destroy(&hot);
    }
}

/* A packet in a shared slot that was taken before a retirement is none of those that the new blocks have room for. */
static void shared_slots_in_use_outlast_a_retirement(void **state)
{
    struct server_hot_slots hot;
    (void)state;

    assert_int_equal(server_hot_slots_create(&hot), CORE_OK);
    struct server_stream *stream = make_sharing(&base_spec, &hot);
    struct server_packet *old[2] = {take_next(stream), take_next(stream)}, *fresh[3];
    server_stream_retire(stream);
    assert_null(take_next(stream));
    server_stream_adopt(stream, server_block_create(&base_spec, 3, 0));
    for (int i = 0; i < 3; i++)
        assert_non_null(fresh[i] = take_next(stream));
    assert_null(take_next(stream));
    server_stream_give(stream, fresh[0]);
    assert_null(server_stream_shed(stream));
    server_stream_give(stream, old[1]);
    assert_null(server_stream_shed(stream));
    server_stream_give(stream, old[0]);
    assert_int_not_equal(shed(stream), 0);
    assert_non_null(fresh[0] = take_next(stream));
    assert_null(take_next(stream));
    for (int i = 0; i < 3; i++)
        server_stream_give(stream, fresh[i]);
    assert_int_equal(stream->memory.busy, 0);
    destroy(stream);
    server_hot_slots_destroy(&hot);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_packet_may_come_ahead),
        cmocka_unit_test(slots_have_room_and_do_not_overlap),
        cmocka_unit_test(packets_come_from_a_bounded_pool),
        cmocka_unit_test(blocks_are_adopted_and_retired),
        cmocka_unit_test(a_slot_given_back_is_the_next_one_taken),
        cmocka_unit_test(every_stream_has_its_packets_whoever_has_the_shared_slots),
        cmocka_unit_test(who_takes_no_part_in_shared_slots),
        cmocka_unit_test(shared_slots_have_room),
        cmocka_unit_test(no_plaintext_is_left_in_a_shared_slot),
        cmocka_unit_test(shared_slots_in_use_outlast_a_retirement),
        cmocka_unit_test(padding_fills_to_the_block),
        cmocka_unit_test(plaintext_comes_into_the_slot),
        cmocka_unit_test(lengths_are_judged),
        cmocka_unit_test(the_key_is_spent_to_the_byte),
        cmocka_unit_test(results_leave_in_order_of_arrival),
        cmocka_unit_test(times_follow_the_contract),
        cmocka_unit_test(deadlines_count_from_when_a_packet_may_have_come),
        cmocka_unit_test(result_flags_by_late_party),
        cmocka_unit_test(slack_is_counted_by_its_share_of_the_bound),
        cmocka_unit_test(full_counts_of_slack_keep_their_shape),
        cmocka_unit_test(a_rejected_packet_promises_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
