/* Whose request is next at the planner. The lines themselves; and a whole server whose planner is stopped in
 * the middle of a decision until the requests of several connections wait: what is decided then, and in
 * which order, is what the test looks at. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>

#include "partition/admission/admission.h"
#include "server/net/io.h"
#include "server/planner/turns.h"
#include "tests/support/client.h"
#include "tests/support/require.h"
#include "tests/support/server.h"
#include "tests/support/stream.h"

/* ---- the lines ---- */

#define MESSAGES 12

static struct server_message message[MESSAGES];
static struct server_asker asker[3];

static void add(struct server_turns *turns, enum server_turns_line line, size_t who, size_t from, size_t to)
{
    for (; from < to; from++)
        server_turns_add(turns, line, &asker[who], &message[from]);
}

static void must_come(struct server_turns *turns, const size_t *numbers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        assert_ptr_equal(server_turns_take(turns), &message[numbers[i]]);
    assert_null(server_turns_take(turns));
    assert_false(server_turns_wait(turns));
}

static void connections_take_turns(void **state)
{
    static const size_t order[] = {0, 4, 5, 1, 6, 2, 7, 3};
    struct server_turns turns = {0};
    (void)state;
    memset(asker, 0, sizeof asker);
    add(&turns, SERVER_TURNS_DECIDE, 0, 0, 4);
    add(&turns, SERVER_TURNS_DECIDE, 1, 4, 5);
    add(&turns, SERVER_TURNS_DECIDE, 2, 5, 8);
    must_come(&turns, order, sizeof order / sizeof order[0]);
    must_come(&turns, NULL, 0);
}

static void later_connection_waits_for_one_request_of_each(void **state)
{
    static const size_t order[] = {4, 1, 8, 5, 2, 3};
    struct server_turns turns = {0};
    (void)state;
    memset(asker, 0, sizeof asker);
    add(&turns, SERVER_TURNS_DECIDE, 0, 0, 4);
    add(&turns, SERVER_TURNS_DECIDE, 1, 4, 6);
    assert_ptr_equal(server_turns_take(&turns), &message[0]);
    add(&turns, SERVER_TURNS_DECIDE, 2, 8, 9);
    must_come(&turns, order, sizeof order / sizeof order[0]);
}

static void decisions_before_explanations(void **state)
{
    static const size_t order[] = {3, 4, 0, 2, 1};
    struct server_turns turns = {0};
    (void)state;
    memset(asker, 0, sizeof asker);
    add(&turns, SERVER_TURNS_EXPLAIN, 0, 0, 2);
    add(&turns, SERVER_TURNS_EXPLAIN, 1, 2, 3);
    assert_false(server_turns_others(&turns, &asker[1]));
    add(&turns, SERVER_TURNS_DECIDE, 0, 3, 5);
    assert_true(server_turns_others(&turns, &asker[1]));
    assert_false(server_turns_others(&turns, &asker[0]));
    add(&turns, SERVER_TURNS_DECIDE, 2, 5, 6);
    assert_true(server_turns_others(&turns, &asker[0]));
    assert_ptr_equal(server_turns_take(&turns), &message[3]);
    assert_ptr_equal(server_turns_take(&turns), &message[5]);
    must_come(&turns, order + 1, sizeof order / sizeof order[0] - 1);
}

/* Two connections of one peer, and one of another, which has one turn in two as long as it asks. */
static void peers_take_turns(void **state)
{
    static const size_t order[] = {0, 8, 4, 9, 1, 10, 5, 2, 6, 3};
    struct server_turns turns = {0};
    struct server_turns_peer crowd = {0};
    (void)state;
    memset(asker, 0, sizeof asker);
    asker[0].peer = asker[1].peer = &crowd;
    add(&turns, SERVER_TURNS_DECIDE, 0, 0, 4);
    add(&turns, SERVER_TURNS_DECIDE, 1, 4, 7);
    assert_true(server_turns_others(&turns, &asker[0]));
    add(&turns, SERVER_TURNS_DECIDE, 2, 8, 11);
    must_come(&turns, order, sizeof order / sizeof order[0]);
    add(&turns, SERVER_TURNS_DECIDE, 0, 0, 1);
    assert_false(server_turns_others(&turns, &asker[0]));
    assert_true(server_turns_others(&turns, &asker[1]));
    must_come(&turns, order, 1);
}

/* ---- the server ---- */

#define FLOOD     200
#define CROWD     12
#define TRICKLES  200
#define DECISIONS 8192

/* Who asks can be told by the length of the packets. */
enum who { GATE = 16, FLOODER = 32, OTHER_FLOODER = 48, HONEST = 64, GONE = 80 };

static struct test_server server;
static sem_t entered, go_on;
static _Atomic bool stop_next;                         /* the next question about a packet of GATE bytes */
static _Atomic size_t decisions;                       /* made so far */
static _Atomic uint32_t decided[DECISIONS];            /* whose they were, in order, */
static _Atomic bool taken[DECISIONS], told[DECISIONS]; /* accepted, or told why not */

/* While the planner is asked about a packet of FLOODER bytes one more request comes, up to so many times. */
static struct test_client *trickler;
static uint32_t trickles;

static void note(const struct core_stream_spec *spec, const struct admission_placement *placement)
{
    size_t n = atomic_load(&decisions);
    if (n == DECISIONS)
        return;
    atomic_store(&decided[n], spec->packet_bytes);
    atomic_store(&taken[n], placement->accepted);
    atomic_store(&told[n], placement->reason[0] != '\0');
    atomic_store(&decisions, n + 1);
}

static void trickle(void);

core_status __real_admission_query(const struct admission *admission, const struct core_stream_spec *spec,
                                   uint32_t io, bool with_offer, struct admission_placement *placement,
                                   struct core_error *error);
core_status __wrap_admission_query(const struct admission *admission, const struct core_stream_spec *spec,
                                   uint32_t io, bool with_offer, struct admission_placement *placement,
                                   struct core_error *error);
core_status __wrap_admission_query(const struct admission *admission, const struct core_stream_spec *spec,
                                   uint32_t io, bool with_offer, struct admission_placement *placement,
                                   struct core_error *error)
{
    if (spec->packet_bytes == GATE && atomic_exchange(&stop_next, false)) {
        sem_post(&entered);
        while (sem_wait(&go_on) != 0)
            ;
    }
    if (spec->packet_bytes == FLOODER && trickler != NULL && trickles > 0)
        trickle();
    core_status status = __real_admission_query(admission, spec, io, with_offer, placement, error);
    note(spec, placement);
    return status;
}

core_status __real_admission_admit(struct admission *admission, const struct core_stream_spec *spec,
                                   uint32_t io, uint64_t handle, struct admission_placement *placement,
                                   struct core_error *error);
core_status __wrap_admission_admit(struct admission *admission, const struct core_stream_spec *spec,
                                   uint32_t io, uint64_t handle, struct admission_placement *placement,
                                   struct core_error *error);
core_status __wrap_admission_admit(struct admission *admission, const struct core_stream_spec *spec,
                                   uint32_t io, uint64_t handle, struct admission_placement *placement,
                                   struct core_error *error)
{
    core_status status = __real_admission_admit(admission, spec, io, handle, placement, error);
    note(spec, placement);
    return status;
}

static int start(void **state)
{
    (void)state;
    memset(&server, 0, sizeof server);
    atomic_store(&decisions, 0);
    TEST_REQUIRE(sem_init(&entered, 0, 0) == 0 && sem_init(&go_on, 0, 0) == 0);
    test_server_prepare(&server);
    test_server_write(&server, "keyring", TEST_KEYRING);
    test_server_start(&server, "keyring: keyring\nthreads: {io: 1, workers: 1, realtime: off, pin: false}\n",
                      &test_profile_real);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    assert_int_equal(test_server_stop(&server), 0);
    sem_destroy(&entered);
    sem_destroy(&go_on);
    return 0;
}

static struct core_stream_spec spec_of(enum who who)
{
    return (struct core_stream_spec){.packet_bytes = who,
                                     .burst_packets = 1,
                                     .interval_ns = 20 * CORE_NS_PER_MS,
                                     .latency_ns = 40 * CORE_NS_PER_MS,
                                     .cipher = CORE_CIPHER_AES_128_CBC,
                                     .padding = CORE_PADDING_NONE};
}

/* One that not even an idle server could keep. */
static struct core_stream_spec refused_of(enum who who)
{
    struct core_stream_spec spec = spec_of(who);
    spec.latency_ns = CORE_LATENCY_NS_MIN;
    return spec;
}

static void dial(struct test_client *client)
{
    test_client_dial(client, test_server_unix(&server));
    test_client_hello_version(client, 2, NULL);
}

static void send_asks(struct test_client *client, enum protocol_type type,
                      const struct core_stream_spec *spec, uint32_t count)
{
    static const uint8_t key[32] = {5};
    struct protocol_open open = test_open_inline(spec, key);
    uint8_t frame[TEST_FRAME_BYTES];
    if ((client->welcome_flags & PROTOCOL_ALLOWS_INLINE_KEY) == 0) {
        open.key_kind = PROTOCOL_KEY_NAMED;
        open.key = (const uint8_t *)"test-1";
        open.key_bytes = 6;
    }
    for (uint32_t n = 0; n < count; n++)
        assert_true(test_client_send(client, frame, protocol_open_write(2, frame, type, n, &open)));
}

/* On the planner's thread. */
static void trickle(void)
{
    struct core_stream_spec spec = spec_of(HONEST);
    trickles--;
    send_asks(trickler, PROTOCOL_QUERY, &spec, 1);
    while (!server_mailbox_has_mail(server_planner_mailbox(server.server->planner)))
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS / 10);
}

/* All frames so far have been handled: requests are at the planner, which answers none of them now. */
static void await_handled(struct test_client *client)
{
    test_client_ping(client);
}

/* The planner is in the midst of a decision until gate_open. */
static void gate_shut(struct test_client *gate)
{
    struct core_stream_spec spec = spec_of(GATE);
    dial(gate);
    atomic_store(&stop_next, true);
    send_asks(gate, PROTOCOL_QUERY, &spec, 1);
    while (sem_wait(&entered) != 0)
        ;
}

static void gate_open(void)
{
    sem_post(&go_on);
}

static size_t place_of(enum who who)
{
    for (size_t n = 0; n < atomic_load(&decisions); n++)
        if (atomic_load(&decided[n]) == who)
            return n;
    return DECISIONS;
}

static size_t count_of(enum who who)
{
    size_t count = 0;
    for (size_t n = 0; n < atomic_load(&decisions); n++)
        count += atomic_load(&decided[n]) == who;
    return count;
}

static void await_connections(uint64_t count)
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    while (atomic_load(&server.server->ios[0]->stats.connections) != count) {
        TEST_REQUIRE(core_time_now_ns() < until_ns);
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    }
}

static void must_be_answered(struct test_client *client, enum protocol_type type, uint32_t count)
{
    struct test_frame frame;
    for (uint32_t n = 0; n < count; n++)
        test_client_expect(client, type, &frame);
}

static struct protocol_refused take_refused(struct test_client *client)
{
    struct protocol_refused refused;
    struct test_frame frame;
    struct core_error error;
    test_client_expect(client, PROTOCOL_REFUSED, &frame);
    assert_int_equal(protocol_refused_read(2, frame.body, frame.header.body_bytes, &refused, &error),
                     CORE_OK);
    return refused;
}

/* Each of two that have sent hundreds is decided once before the one who has sent one, and told why after. */
static void request_flood_does_not_block_others(void **state)
{
    struct core_stream_spec flood = refused_of(FLOODER), other = refused_of(OTHER_FLOODER),
                            honest = spec_of(HONEST);
    struct test_client gate, flooder, other_flooder, client;
    (void)state;

    gate_shut(&gate);
    dial(&flooder);
    send_asks(&flooder, PROTOCOL_QUERY, &flood, FLOOD);
    await_handled(&flooder);
    dial(&other_flooder);
    send_asks(&other_flooder, PROTOCOL_OPEN, &other, FLOOD);
    await_handled(&other_flooder);
    dial(&client);
    send_asks(&client, PROTOCOL_OPEN, &honest, 1);
    await_handled(&client);
    gate_open();
    must_be_answered(&client, PROTOCOL_OPENED, 1);
    must_be_answered(&flooder, PROTOCOL_REFUSED, FLOOD);
    must_be_answered(&other_flooder, PROTOCOL_REFUSED, FLOOD);
    assert_int_equal(place_of(GATE), 0);
    assert_int_equal(place_of(FLOODER), 1);
    assert_int_equal(place_of(OTHER_FLOODER), 2);
    assert_int_equal(place_of(HONEST), 3);
    assert_true(atomic_load(&taken[3]));
    assert_false(atomic_load(&told[1]));
    assert_false(atomic_load(&told[2]));
    test_client_close(&gate);
    test_client_close(&flooder);
    test_client_close(&other_flooder);
    test_client_close(&client);
}

/* Nor does one who has many connections get more turns by them. */
static void connections_of_a_peer_share_its_turn(void **state)
{
    struct core_stream_spec flood = refused_of(FLOODER), honest = spec_of(HONEST);
    struct test_client gate, crowd[CROWD], client;
    (void)state;

    gate_shut(&gate);
    for (size_t i = 0; i < CROWD; i++) {
        test_client_dial(&crowd[i], test_server_tcp(&server));
        test_client_hello_version(&crowd[i], 2, NULL);
        send_asks(&crowd[i], PROTOCOL_QUERY, &flood, 3);
        await_handled(&crowd[i]);
    }
    dial(&client);
    send_asks(&client, PROTOCOL_OPEN, &honest, 1);
    await_handled(&client);
    gate_open();
    must_be_answered(&client, PROTOCOL_OPENED, 1);
    for (size_t i = 0; i < CROWD; i++) {
        must_be_answered(&crowd[i], PROTOCOL_REFUSED, 3);
        test_client_close(&crowd[i]);
    }
    assert_int_equal(place_of(FLOODER), 1);
    assert_int_equal(place_of(HONEST), 2);
    test_client_close(&gate);
    test_client_close(&client);
}

/* What a refusal says is the same, whether it had to wait or not. */
static void deferred_refusal_has_reason_and_offer(void **state)
{
    struct core_stream_spec flood = refused_of(FLOODER), honest = spec_of(HONEST);
    struct test_client gate, flooder, client;
    struct protocol_refused quiet;
    static const uint8_t key[32] = {5};
    (void)state;

    dial(&flooder);
    struct protocol_open open = test_open_inline(&flood, key);
    assert_false(test_client_ask(&flooder, PROTOCOL_QUERY, &open, NULL, &quiet));
    assert_true(quiet.offer_latency_ns > flood.latency_ns);
    gate_shut(&gate);
    send_asks(&flooder, PROTOCOL_QUERY, &flood, 2);
    await_handled(&flooder);
    dial(&client);
    send_asks(&client, PROTOCOL_QUERY, &honest, 2);
    await_handled(&client);
    size_t before = atomic_load(&decisions);
    gate_open();
    for (int n = 0; n < 2; n++) {
        struct protocol_refused refused = take_refused(&flooder);
        assert_int_equal(refused.constraint, quiet.constraint);
        assert_int_equal(refused.offer_latency_ns, quiet.offer_latency_ns);
        assert_int_equal(refused.offer_interval_ns, quiet.offer_interval_ns);
        assert_string_equal(refused.text, quiet.text);
    }
    assert_false(atomic_load(&told[before + 1])); /* it had to wait */
    test_client_close(&gate);
    test_client_close(&flooder);
    test_client_close(&client);
}

/* Nor is a MODIFY that had to wait told less. */
static void deferred_modify_refusal_has_reason_and_offer(void **state)
{
    struct core_stream_spec spec = spec_of(HONEST);
    struct protocol_modify modify = {
        .stream = 1, .burst_packets = 1, .interval_ns = spec.interval_ns, .latency_ns = CORE_LATENCY_NS_MIN};
    struct test_client gate, client, other;
    uint8_t frame[TEST_FRAME_BYTES];
    (void)state;

    dial(&client);
    send_asks(&client, PROTOCOL_OPEN, &spec, 1);
    must_be_answered(&client, PROTOCOL_OPENED, 1);
    uint32_t bytes = protocol_modify_write(frame, 7, &modify);
    assert_true(test_client_send(&client, frame, bytes));
    struct protocol_refused quiet = take_refused(&client);
    assert_true(quiet.offer_latency_ns > modify.latency_ns);
    gate_shut(&gate);
    assert_true(test_client_send(&client, frame, bytes));
    await_handled(&client);
    dial(&other);
    send_asks(&other, PROTOCOL_QUERY, &spec, 2);
    await_handled(&other);
    gate_open();
    struct protocol_refused refused = take_refused(&client);
    assert_int_equal(refused.constraint, quiet.constraint);
    assert_int_equal(refused.offer_latency_ns, quiet.offer_latency_ns);
    assert_int_equal(refused.offer_interval_ns, quiet.offer_interval_ns);
    assert_string_equal(refused.text, quiet.text);
    must_be_answered(&other, PROTOCOL_OPENED, 2);
    test_client_close(&gate);
    test_client_close(&client);
    test_client_close(&other);
}

static void requests_of_closed_connections_dropped(void **state)
{
    struct core_stream_spec spec = spec_of(GONE), honest = spec_of(HONEST);
    struct test_client gate, gone[3], client;
    (void)state;

    gate_shut(&gate);
    for (size_t i = 0; i < 3; i++) {
        dial(&gone[i]);
        send_asks(&gone[i], i == 0 ? PROTOCOL_QUERY : PROTOCOL_OPEN, &spec, FLOOD);
        await_handled(&gone[i]);
        test_client_close(&gone[i]);
    }
    await_connections(1);
    dial(&client);
    send_asks(&client, PROTOCOL_OPEN, &honest, 1);
    await_handled(&client);
    gate_open();
    must_be_answered(&client, PROTOCOL_OPENED, 1);
    must_be_answered(&gate, PROTOCOL_OPENED, 1);
    send_asks(&gate, PROTOCOL_QUERY, &honest, 1); /* behind all that waits */
    must_be_answered(&gate, PROTOCOL_OPENED, 1);
    assert_int_equal(count_of(GONE), 0);
    test_client_close(&gate);
    test_client_close(&client);
}

/* Whoever keeps asking can not keep a refused one from its answer. */
static void explanation_cut_off_a_limited_number_of_times(void **state)
{
    struct core_stream_spec flood = refused_of(FLOODER);
    struct test_client flooder, client;
    (void)state;

    dial(&client);
    dial(&flooder);
    trickler = &client;
    trickles = TRICKLES;
    send_asks(&flooder, PROTOCOL_QUERY, &flood, 1);
    must_be_answered(&flooder, PROTOCOL_REFUSED, 1);
    trickler = NULL; /* nobody asks the planner about the flooder's any more */
    assert_true(trickles > 0);
    assert_true(count_of(FLOODER) > 1);
    must_be_answered(&client, PROTOCOL_OPENED, TRICKLES - trickles);
    test_client_close(&flooder);
    test_client_close(&client);
}

/* The stream ends while its MODIFY waits: the room that it had is there until that has been decided. */
static void a_stream_may_end_before_its_turn(void **state)
{
    struct core_stream_spec spec = spec_of(HONEST), flood = refused_of(FLOODER);
    struct protocol_modify modify = {
        .stream = 1, .burst_packets = 2, .interval_ns = spec.interval_ns, .latency_ns = spec.latency_ns};
    struct test_client gate, client;
    uint8_t frame[TEST_FRAME_BYTES];
    (void)state;

    dial(&client);
    send_asks(&client, PROTOCOL_OPEN, &spec, 1);
    must_be_answered(&client, PROTOCOL_OPENED, 1);
    gate_shut(&gate);
    send_asks(&client, PROTOCOL_QUERY, &flood, FLOOD); /* the room is taken back before its turn */
    assert_true(test_client_send(&client, frame, protocol_modify_write(frame, 7, &modify)));
    assert_true(test_client_send(&client, frame, protocol_close_write(frame, 1)));
    must_be_answered(&client, PROTOCOL_REFUSED, 1); /* of MODIFY, by the I/O thread */
    must_be_answered(&client, PROTOCOL_CLOSED, 1);
    gate_open();
    must_be_answered(&client, PROTOCOL_REFUSED, FLOOD);
    send_asks(&client, PROTOCOL_OPEN, &spec, 1);
    must_be_answered(&client, PROTOCOL_OPENED, 1);
    test_client_close(&gate);
    test_client_close(&client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connections_take_turns),
        cmocka_unit_test(peers_take_turns),
        cmocka_unit_test(later_connection_waits_for_one_request_of_each),
        cmocka_unit_test(decisions_before_explanations),
        cmocka_unit_test_setup_teardown(request_flood_does_not_block_others, start, stop),
        cmocka_unit_test_setup_teardown(connections_of_a_peer_share_its_turn, start, stop),
        cmocka_unit_test_setup_teardown(deferred_refusal_has_reason_and_offer, start, stop),
        cmocka_unit_test_setup_teardown(deferred_modify_refusal_has_reason_and_offer, start, stop),
        cmocka_unit_test_setup_teardown(requests_of_closed_connections_dropped, start, stop),
        cmocka_unit_test_setup_teardown(explanation_cut_off_a_limited_number_of_times, start, stop),
        cmocka_unit_test_setup_teardown(a_stream_may_end_before_its_turn, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
