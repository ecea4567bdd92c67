/* What an I/O thread does with the batches of a card that is lost (server/stream/gpu_results.c), by itself: the
 * batcher's events, the records of batches, and what happens to streams then are the test's (--wrap in
 * CMakeLists.txt). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "server/stream/advance.h"
#include "server/stream/backup.h"
#include "server/stream/io_thread.h"
#include "tests/support/require.h"

#define STREAMS       400 /* every 40th is guaranteed */
#define BACKED_ONE_IN 40
#define EVENTS        8
#define TURN_BYTES    ((32 << 10) + 8192) /* a packet more than gpu_results.c has it */
#define STEP_BYTES    512
#define PLACES_MOST   (32 * 1024 / STEP_BYTES)
#define RIGHT         0x11
#define WRONG         0x22

/* One stream, one packet, one place. */
struct victim {
    struct server_stream stream;
    struct server_packet packet;
    struct server_gpu_binding place;
    struct gpu_record record;
    uint32_t advanced, diverted, delivered, asked;
};

static struct victim *victims;
static struct cpu_stream *cpu_streams; /* of the victims; nothing runs them */
static struct gpu_record_page pages[EVENTS][STREAMS / GPU_RECORD_PAGE + 1];
static struct server_gpu_event events[EVENTS];
static uint32_t counts[EVENTS]; /* packets of the event's batch */
static uint32_t first_event, last_event, released;
static uint64_t corrupt;
static uint8_t output[8192];

static struct server server;
static struct server_stream_io io;
static struct server_gpu_port port;
static struct server_stream_client client;
static struct server_stats stats;

static struct victim *of(const struct server_stream *stream)
{
    return (struct victim *)((char *)stream - offsetof(struct victim, stream));
}

static bool is_backed(const struct victim *victim)
{
    return (victim - victims) % BACKED_ONE_IN == 0;
}

/* ---- what is beside it ---- */

bool __wrap_server_gpu_event_at(const struct server_gpu *gpu, uint32_t index, uint32_t skipped,
                                struct server_gpu_event *event);
void __wrap_server_gpu_event_done(struct server_gpu *gpu, uint32_t index);
struct gpu_arenas *__wrap_server_gpu_arenas(struct server_gpu *gpu);
struct gpu_record_list __wrap_gpu_arena_records(const struct gpu_arenas *arenas, uint32_t writer,
                                                uint64_t batch);
const uint8_t *__wrap_gpu_arena_output(const struct gpu_arenas *arenas, uint64_t batch);
core_status __wrap_gpu_arena_release(struct gpu_arenas *arenas, uint32_t holder, uint64_t batch);
void __wrap_server_stream_advance(struct server_stream *stream, core_ns now_ns);
void __wrap_server_gpu_binding_divert(struct server_stream_io *owner, struct server_packet *packet,
                                      core_ns ready_ns);
void __wrap_server_gpu_binding_send_again(struct server_gpu_binding *place);
bool __wrap_server_backup_is_held(const struct server_stream *stream);
void __wrap_server_gpu_report_corrupt(struct server_gpu *gpu, uint64_t batch);
const char *__wrap_server_gpu_name(const struct server_gpu *gpu);

bool __wrap_server_gpu_event_at(const struct server_gpu *gpu, uint32_t index, uint32_t skipped,
                                struct server_gpu_event *event)
{
    (void)gpu, (void)index;
    if (first_event + skipped >= last_event)
        return false;
    *event = events[first_event + skipped];
    return true;
}

void __wrap_server_gpu_event_done(struct server_gpu *gpu, uint32_t index)
{
    (void)gpu, (void)index;
    first_event++;
}

struct gpu_arenas *__wrap_server_gpu_arenas(struct server_gpu *gpu)
{
    return (struct gpu_arenas *)gpu;
}

/* Batch n + 1 is that of event n. */
struct gpu_record_list __wrap_gpu_arena_records(const struct gpu_arenas *arenas, uint32_t writer,
                                                uint64_t batch)
{
    (void)arenas, (void)writer;
    return (struct gpu_record_list){.page = pages[batch - 1], .left = counts[batch - 1]};
}

const uint8_t *__wrap_gpu_arena_output(const struct gpu_arenas *arenas, uint64_t batch)
{
    (void)arenas, (void)batch;
    return output;
}

core_status __wrap_gpu_arena_release(struct gpu_arenas *arenas, uint32_t holder, uint64_t batch)
{
    (void)arenas, (void)holder;
    TEST_REQUIRE(batch <= first_event);
    released++;
    return CORE_OK;
}

void __wrap_server_stream_advance(struct server_stream *stream, core_ns now_ns)
{
    (void)now_ns;
    of(stream)->advanced++;
}

void __wrap_server_gpu_binding_divert(struct server_stream_io *owner, struct server_packet *packet,
                                      core_ns ready_ns)
{
    (void)owner, (void)ready_ns;
    of(packet->stream)->diverted++;
}

void __wrap_server_gpu_binding_send_again(struct server_gpu_binding *place)
{
    of(place->stream)->asked++;
}

bool __wrap_server_backup_is_held(const struct server_stream *stream)
{
    return is_backed(of(stream));
}

void __wrap_server_gpu_report_corrupt(struct server_gpu *gpu, uint64_t batch)
{
    (void)gpu;
    corrupt = batch;
}

const char *__wrap_server_gpu_name(const struct server_gpu *gpu)
{
    (void)gpu;
    return "gpu-0";
}

static void mark(struct server_stream_client *marked)
{
    (void)marked;
}

static void results(struct server_stream *stream)
{
    of(stream)->delivered++;
}

static void settle(struct server_stream *stream)
{
    (void)stream;
}

static core_status encrypt(struct cpu_engine *engine, enum core_cipher cipher, struct cpu_piece *pieces,
                           uint32_t count)
{
    (void)engine, (void)cipher;
    for (uint32_t i = 0; i < count; i++)
        memset(pieces[i].target, RIGHT, pieces[i].bytes);
    return CORE_OK;
}

static const struct server_stream_io_calls calls = {.mark = mark, .results = results, .settle = settle};
static const struct cpu_engine_ops engine = {.name = "test", .encrypt = encrypt};

/* ---- the situation ---- */

/* Every stream has a place at the card; none has a packet. */
static int start(void **state)
{
    static uint8_t scratch[sizeof output];
    (void)state;
    victims = calloc(STREAMS, sizeof *victims);
    cpu_streams = aligned_alloc(alignof(struct cpu_stream), STREAMS * sizeof *cpu_streams);
    if (victims == NULL || cpu_streams == NULL)
        return -1;
    memset(cpu_streams, 0, STREAMS * sizeof *cpu_streams);
    memset(output, RIGHT, sizeof output);
    server = (struct server){.gpu_count = 1, .engine = &engine};
    io = (struct server_stream_io){
        .calls = &calls, .server = &server, .stats = &stats, .ports = &port, .scratch = scratch};
    client = (struct server_stream_client){.io = &io};
    memset(&port, 0, sizeof port);
    port.generation = 1;
    port.up = true;
    first_event = last_event = released = 0;
    corrupt = 0;
    for (uint32_t i = 0; i < STREAMS; i++) {
        struct victim *victim = &victims[i];
        victim->stream = (struct server_stream){.client = &client,
                                                .keys.held = 1,
                                                .cpu = &cpu_streams[i],
                                                .path = SERVER_PATH_GPU,
                                                .units.gpu = &victim->place};
        victim->place = (struct server_gpu_binding){.stream = &victim->stream,
                                                    .port = &port,
                                                    .keyed = 1,
                                                    .keys = 1,
                                                    .next = port.places,
                                                    .previous = &port.places};
        if (port.places != NULL)
            port.places->previous = &victim->place.next;
        port.places = &victim->place;
    }
    return 0;
}

static int end(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < STREAMS; i++)
        free(victims[i].packet.output.frame);
    free(victims);
    free(cpu_streams);
    return 0;
}

static void push(enum server_gpu_event_kind kind)
{
    assert_true(last_event < EVENTS);
    events[last_event] = (struct server_gpu_event){.kind = kind, .batch = last_event + 1, .generation = 2};
    last_event++;
}

/* Streams `first` to `last` have a packet each in a batch, of which the event tells. */
static void push_batch(enum server_gpu_event_kind kind, uint32_t first, uint32_t last, uint32_t bytes)
{
    uint32_t count = 0;
    for (uint32_t i = first; i <= last; i++, count++) {
        struct victim *victim = &victims[i];
        struct gpu_record_page *page = &pages[last_event][count / GPU_RECORD_PAGE];
        page->next = page + 1;
        victim->packet = (struct server_packet){.stream = &victim->stream, .bytes = bytes};
        victim->packet.output.frame = calloc(1, PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES + bytes);
        assert_non_null(victim->packet.output.frame);
        victim->packet.cpu.bytes = bytes;
        victim->packet.cpu.data = server_packet_payload(&victim->packet);
        victim->stream.queue.head = &victim->packet;
        victim->place.inside = 1;
        page->records[count % GPU_RECORD_PAGE] = (struct gpu_record){
            .cookie = server_gpu_cookie(&victim->packet, is_backed(victim)), .bytes = bytes};
    }
    counts[last_event] = count;
    push(kind);
}

struct sums {
    uint32_t advanced, diverted, backed_out, asked;
};

static struct sums sums(void)
{
    struct sums sums = {0};
    for (uint32_t i = 0; i < STREAMS; i++) {
        sums.advanced += victims[i].advanced;
        sums.diverted += victims[i].diverted;
        sums.asked += victims[i].asked;
        sums.backed_out += is_backed(&victims[i]) && victims[i].place.lost;
    }
    return sums;
}

/* ---- the tests ---- */

/* All that is told already, in the first turn; then the rest bit by bit, as it was put in. Each batch is given
 * back when all of it is out. */
static void guaranteed_streams_leave_first_and_the_rest_bit_by_bit(void **state)
{
    const uint32_t bytes = 4096, most = TURN_BYTES / (bytes + STEP_BYTES) + 1;
    uint32_t turns = 0, before = 0;
    bool left = true;
    (void)state;

    push(SERVER_GPU_DOWN);
    push_batch(SERVER_GPU_LOST, 0, 199, bytes);
    push_batch(SERVER_GPU_LOST, 200, STREAMS - 1, bytes);
    for (; left; turns++) {
        left = server_gpu_collect(&io);
        const struct sums now = sums();
        assert_int_equal(now.backed_out, STREAMS / BACKED_ONE_IN);
        assert_true(now.diverted - before <= most);
        before = now.diverted;
        for (uint32_t i = 1; i < STREAMS; i++)
            assert_true(is_backed(&victims[i]) || victims[i].diverted == 0 || victims[i - 1].diverted > 0 ||
                        is_backed(&victims[i - 1]));
        server_gpu_let_go(&io);
        assert_int_equal(released, first_event > 0 ? first_event - 1 : 0);
    }
    assert_int_equal(first_event, last_event);
    assert_true(turns >= STREAMS / most);
    for (uint32_t i = 0; i < STREAMS; i++) {
        assert_int_equal(victims[i].diverted, is_backed(&victims[i]) ? 0 : 1);
        assert_int_equal(victims[i].place.inside, 0);
        assert_true(victims[i].advanced >= 1); /* its path has gone on since it has nothing inside */
    }
}

/* What the batcher tells later, while earlier losses are being taken. */
static void guaranteed_packets_of_a_later_loss_do_not_wait(void **state)
{
    (void)state;
    push(SERVER_GPU_DOWN);
    push_batch(SERVER_GPU_LOST, 1, 39, 8192);
    assert_true(server_gpu_collect(&io));
    push_batch(SERVER_GPU_LOST, 40, 79, 8192);
    assert_true(server_gpu_collect(&io));
    assert_int_equal(victims[40].place.inside, 0);
    assert_int_equal(victims[41].place.inside, 1);
    while (server_gpu_collect(&io)) {
    }
    assert_int_equal(sums().diverted, 39 + 39);
    assert_int_equal(sums().backed_out, 1);
}

/* From DOWN on no place is keyed, though most have not been told; and each is, a few in a turn. One that goes
 * meanwhile is left out. */
static void nothing_is_put_into_a_lost_card(void **state)
{
    uint32_t told = 0, detached = 0;
    bool left = true;
    (void)state;

    assert_false(server_gpu_binding_is_stale(&victims[0].stream));
    push(SERVER_GPU_DOWN);
    while (left) {
        left = server_gpu_collect(&io);
        const uint32_t now = sums().advanced;
        assert_true(now - told <= PLACES_MOST);
        told = now;
        for (uint32_t i = 0; i < STREAMS; i++)
            assert_true(server_gpu_binding_is_stale(&victims[i].stream));
        if (port.taking.place != NULL && detached == 0) {
            server_gpu_binding_detach(port.taking.place);
            detached = 1;
        }
    }
    assert_int_equal(detached, 1);
    assert_int_equal(told, STREAMS - 1);
    push(SERVER_GPU_UP);
    while (server_gpu_collect(&io)) {
    }
    assert_int_equal(sums().asked, STREAMS - 1);
    assert_true(server_gpu_binding_is_stale(&victims[0].stream)); /* until the new process has its key */
    victims[0].place.keyed = 2;
    assert_false(server_gpu_binding_is_stale(&victims[0].stream));
}

/* A place that got its key from the new process before it was told of it does not send it again: that would
 * start the chain anew while packets are on their way. */
static void a_key_that_is_there_is_not_sent_again(void **state)
{
    (void)state;
    push(SERVER_GPU_UP);
    assert_true(server_gpu_collect(&io));
    struct victim *next = of(port.taking.place->stream);
    next->place.keyed = 2;
    while (server_gpu_collect(&io)) {
    }
    assert_int_equal(next->asked, 0);
    assert_int_equal(sums().asked, STREAMS - 1);
}

/* The first wrong packet: what came before it is delivered, nothing is after it, and guaranteed streams do not
 * wait for the others. */
static void a_card_that_is_wrong_is_lost_from_that_packet_on(void **state)
{
    (void)state;
    push_batch(SERVER_GPU_DONE, 1, 199, 4096);
    push_batch(SERVER_GPU_DONE, 200, 399, 4096);
    victims[10].packet.audited = true;
    assert_true(victims[10].packet.cpu.data[0] != RIGHT);
    memset(output, WRONG, sizeof output);
    assert_true(server_gpu_collect(&io));
    assert_int_equal(corrupt, 1);
    assert_int_equal(sums().backed_out, STREAMS / BACKED_ONE_IN - 1); /* all but the first, which had none */
    for (uint32_t i = 1; i < 10; i++)
        assert_int_equal(victims[i].delivered, 1);
    assert_int_equal(victims[10].delivered, 0);
    while (server_gpu_collect(&io)) {
    }
    for (uint32_t i = 10; i < STREAMS; i++) {
        assert_int_equal(victims[i].delivered, 0);
        assert_int_equal(victims[i].diverted, is_backed(&victims[i]) ? 0 : 1);
    }
}

/* What is delivered is not limited: that is what the plans reckon with. */
static void what_is_done_is_taken_at_once(void **state)
{
    (void)state;
    push_batch(SERVER_GPU_DONE, 0, STREAMS - 1, 8192);
    assert_false(server_gpu_collect(&io));
    for (uint32_t i = 0; i < STREAMS; i++)
        assert_int_equal(victims[i].delivered, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(guaranteed_streams_leave_first_and_the_rest_bit_by_bit, start, end),
        cmocka_unit_test_setup_teardown(guaranteed_packets_of_a_later_loss_do_not_wait, start, end),
        cmocka_unit_test_setup_teardown(nothing_is_put_into_a_lost_card, start, end),
        cmocka_unit_test_setup_teardown(a_key_that_is_there_is_not_sent_again, start, end),
        cmocka_unit_test_setup_teardown(a_card_that_is_wrong_is_lost_from_that_packet_on, start, end),
        cmocka_unit_test_setup_teardown(what_is_done_is_taken_at_once, start, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
