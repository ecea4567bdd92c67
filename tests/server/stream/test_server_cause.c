/* Why a packet was late: worked timelines, what holds of all, and a server whose worker is kept from work.
 * One that is stopped as a whole: tests/server/test_server_clock.c. */
#include "tests/support/server.h"
#include "tests/support/stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "server/admin/snapshot.h"
#include "server/net/io.h"
#include "server/server_internal.h"
#include "server/stream/cause.h"
#include "tests/support/random.h"

#define MS    CORE_NS_PER_MS
#define NEVER 1000000

struct stall {
    int from, to, settled;
    enum core_stall_why why;
};

struct row {
    const char *name;
    struct {
        int from, handed, finished, at, deadline;
        int unit; /* a GPU's period and stages; 0: a worker */
    } way;
    bool diverted;
    struct stall stalls[2][2]; /* of the I/O thread and the worker; to 0: none */
    struct {
        enum server_cause cause;
        enum server_cause_holder holder;
        int held;
    } verdict;
};

#define WORK  CORE_STALL_AT_WORK
#define OFF   CORE_STALL_OFF_CORE
#define FAULT CORE_STALL_PAGE_FAULT
#define IO    SERVER_CAUSE_OF_IO
#define UNIT  SERVER_CAUSE_OF_UNIT
#define NONE  SERVER_CAUSE_OF_NONE

/* 1 ms is the margin of each hand-over. */
static const struct row rows[] = {
    {"in time", {100, 100, 110, 111, 120, 0}, false, {{{0}}, {{0}}}, {SERVER_CAUSE_NONE, NONE, 0}},
    {"in time, though its worker was late",
     {100, 100, 110, 111, 120, 0},
     false,
     {{{0}}, {{101, 109, 109, WORK}}},
     {SERVER_CAUSE_BURST_OVER_BOUND, UNIT, 8}},
    {"the server was stopped before it was read",
     {100, 300, 301, 302, 120, 0},
     false,
     {{{105, 299, 310, OFF}}, {{0}}},
     {SERVER_CAUSE_OFF_CORE, IO, 194}},
    {"read in a turn that took too long",
     {100, 140, 141, 142, 120, 0},
     false,
     {{{100, 141, NEVER, WORK}}, {{0}}},
     {SERVER_CAUSE_IO_LATE, IO, 41}},
    {"delivered in such a turn",
     {100, 101, 105, 150, 120, 0},
     false,
     {{{105, 150, NEVER, WORK}}, {{0}}},
     {SERVER_CAUSE_IO_LATE, IO, 45}},
    {"the I/O thread was late while it was in the queue: no matter",
     {100, 101, 146, 147, 120, 0},
     false,
     {{{102, 145, 145, OFF}}, {{0}}},
     {SERVER_CAUSE_QUEUE, UNIT, 45}},
    {"45 ms in the queue of a worker that had no core",
     {100, 100, 146, 147, 120, 0},
     false,
     {{{0}}, {{90, 145, 145, OFF}}},
     {SERVER_CAUSE_OFF_CORE, UNIT, 45}},
    {"that waited for a page",
     {100, 100, 146, 147, 120, 0},
     false,
     {{{0}}, {{99, 145, 145, FAULT}}},
     {SERVER_CAUSE_PAGE_FAULT, UNIT, 45}},
    {"whose burst took so long",
     {100, 100, 146, 147, 120, 0},
     false,
     {{{0}}, {{100, 145, 145, WORK}}},
     {SERVER_CAUSE_BURST_OVER_BOUND, UNIT, 45}},
    {"behind what such a stall left, which was over when it came",
     {100, 100, 146, 147, 120, 0},
     false,
     {{{0}}, {{40, 90, 160, OFF}}},
     {SERVER_CAUSE_OFF_CORE, UNIT, 47}},
    {"and at most for as long as the stall was",
     {100, 100, 146, 147, 120, 0},
     false,
     {{{0}}, {{60, 90, 160, OFF}}},
     {SERVER_CAUSE_OFF_CORE, UNIT, 30}},
    {"the worker finished it and lost its core before it handed it back",
     {100, 100, 105, 150, 120, 0},
     false,
     {{{0}}, {{105, 149, 150, OFF}}},
     {SERVER_CAUSE_OFF_CORE, UNIT, 44}},
    {"the worker's next burst is not its matter",
     {100, 100, 105, 150, 120, 0},
     false,
     {{{105, 150, NEVER, WORK}}, {{106, 149, 150, OFF}}},
     {SERVER_CAUSE_IO_LATE, IO, 45}},
    {"two stalls: the longer one",
     {100, 130, 160, 161, 120, 0},
     false,
     {{{100, 130, 131, OFF}}, {{131, 150, 151, WORK}}},
     {SERVER_CAUSE_OFF_CORE, IO, 30}},
    {"two of one sort are one cause",
     {100, 130, 171, 172, 120, 0},
     false,
     {{{100, 130, 131, OFF}}, {{131, 150, 150, WORK}, {150, 170, 170, WORK}}},
     {SERVER_CAUSE_BURST_OVER_BOUND, UNIT, 39}},
    {"behind others, and no stall",
     {100, 100, 146, 147, 120, 0},
     false,
     {{{0}}, {{0}}},
     {SERVER_CAUSE_QUEUE, UNIT, 46}},
    {"behind others, and a stall that does not explain it",
     {100, 100, 146, 147, 120, 0},
     false,
     {{{0}}, {{100, 102, 102, OFF}}},
     {SERVER_CAUSE_QUEUE, UNIT, 44}},
    {"held for a move", {100, 140, 141, 142, 120, 0}, false, {{{0}}, {{0}}}, {SERVER_CAUSE_HELD, UNIT, 39}},
    {"behind others of its stream",
     {100, 101, 105, 150, 120, 0},
     false,
     {{{0}}, {{0}}},
     {SERVER_CAUSE_HELD, UNIT, 44}},
    {"a batch over its bounds",
     {100, 101, 151, 152, 120, 15},
     false,
     {{{0}}, {{0}}},
     {SERVER_CAUSE_STAGE_OVER_BOUND, UNIT, 35}},
    {"a batch within them",
     {100, 101, 111, 112, 120, 15},
     false,
     {{{0}}, {{0}}},
     {SERVER_CAUSE_NONE, NONE, 0}},
    {"its card was lost",
     {100, 140, 141, 142, 120, 15},
     true,
     {{{100, 141, NEVER, WORK}}, {{0}}},
     {SERVER_CAUSE_DIVERTED, UNIT, 42}},
    {"early, and nothing was late",
     {100, 99, 105, 106, 120, 0},
     false,
     {{{0}}, {{0}}},
     {SERVER_CAUSE_NONE, NONE, 0}},
    {"late, and nothing was: nobody knows",
     {100, 101, 102, 103, 102, 0},
     false,
     {{{0}}, {{0}}},
     {SERVER_CAUSE_UNKNOWN, NONE, 3}},
};

static struct server_cause_stalls stalls_of(const struct stall stalls[2])
{
    struct server_cause_stalls result = {0};
    for (int i = 0; i < 2 && stalls[i].to != 0; i++)
        result.list[result.count++] = (struct core_stall){.from_ns = stalls[i].from * MS,
                                                          .to_ns = stalls[i].to * MS,
                                                          .settled_ns = stalls[i].settled * MS,
                                                          .why = stalls[i].why};
    return result;
}

static void timelines(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct row *row = &rows[i];
        struct server_cause_way way = {.from_ns = row->way.from * MS,
                                       .handed_ns = row->way.handed * MS,
                                       .finished_ns = row->way.finished * MS,
                                       .at_ns = row->way.at * MS,
                                       .deadline_ns = row->way.deadline * MS,
                                       .io_ns = MS,
                                       .unit_ns = row->way.unit > 0 ? row->way.unit * MS : CORE_NS_NEVER,
                                       .diverted = row->diverted};
        struct server_cause_stalls io = stalls_of(row->stalls[0]), worker = stalls_of(row->stalls[1]);
        struct server_cause_verdict verdict = server_cause_find(&way, &io, &worker);
        if (verdict.cause != row->verdict.cause || verdict.holder != row->verdict.holder ||
            verdict.held_ns != row->verdict.held * MS)
            fail_msg("%s: %s by %d for %lld us", row->name, server_cause_name(verdict.cause),
                     (int)verdict.holder, (long long)(verdict.held_ns / CORE_NS_PER_US));
    }
}

/* Whatever happened: a miss has a cause, somebody held the packet unless nobody knows, and for no longer than
 * it was there. */
static void every_miss_has_a_cause(void **state)
{
    struct test_random random = {3};
    (void)state;
    for (int round = 0; round < 100000; round++) {
        core_ns from_ns = 1000, handed_ns = from_ns + test_random_in(&random, -10, 60),
                finished_ns = handed_ns + test_random_in(&random, 1, 60),
                at_ns = finished_ns + test_random_in(&random, 0, 60);
        struct server_cause_stalls all[2] = {0};
        struct server_cause_way way = {.from_ns = from_ns,
                                       .handed_ns = handed_ns,
                                       .finished_ns = finished_ns,
                                       .at_ns = at_ns,
                                       .deadline_ns = from_ns + test_random_in(&random, 1, 150),
                                       .io_ns = test_random_in(&random, 0, 30),
                                       .unit_ns = test_random_in(&random, 0, 1) == 0 ? CORE_NS_NEVER : 20};
        for (int thread = 0; thread < 2; thread++) {
            core_ns now_ns = 900;
            for (int i = (int)test_random_in(&random, 0, 5); i > 0; i--) {
                struct core_stall *stall = &all[thread].list[all[thread].count++];
                stall->from_ns = now_ns + test_random_in(&random, 0, 60);
                now_ns = stall->to_ns = stall->from_ns + test_random_in(&random, 1, 60);
                stall->settled_ns = test_random_in(&random, 0, 3) == 0
                                        ? CORE_NS_NEVER
                                        : stall->to_ns + test_random_in(&random, 0, 99);
                stall->why = (uint64_t)test_random_in(&random, 0, 2);
            }
        }
        struct server_cause_verdict verdict = server_cause_find(&way, &all[0], &all[1]);
        assert_true(at_ns <= way.deadline_ns || verdict.cause != SERVER_CAUSE_NONE);
        assert_true((verdict.holder == NONE) ==
                    (verdict.cause == SERVER_CAUSE_NONE || verdict.cause == SERVER_CAUSE_UNKNOWN));
        assert_true(verdict.held_ns >= 0 && verdict.held_ns <= (at_ns > from_ns ? at_ns - from_ns : 0));
    }
}

/* A packet may leave in the very turn that was late for it: what there is of that counts already. */
static void the_turn_at_hand_is_a_stall_once_it_is_late(void **state)
{
    static struct server_io io = {.allowed_ns = 2 * MS};
    struct core_stall list[CORE_STALLS];
    (void)state;

    server_polls_init(&io.turns, 10 * MS);
    server_polls_enter(&io.turns, 100 * MS, 110 * MS, true);
    server_polls_wake(&io.turns, 150 * MS); /* it should have been awake at 110 ms */
    server_io_admit_stall(&io, 112 * MS);
    assert_int_equal(core_stalls_read(&io.stats.stalls, 0, list), 0);
    server_io_admit_stall(&io, 151 * MS);
    server_io_admit_stall(&io, 152 * MS);
    assert_int_equal(core_stalls_read(&io.stats.stalls, 0, list), 1);
    assert_int_equal(list[0].from_ns, 110 * MS);
    assert_int_equal(list[0].to_ns, 152 * MS);
}

/* ---- a server whose worker is kept from work ---- */

#define US         CORE_NS_PER_US
#define LATENCY_MS 20
#define KEPT_MS    300 /* longer than other threads may wait for a core on a loaded machine */

static atomic_int keep, kept;

/* On the worker's thread, wherever it was. */
static void keep_thread(int signal)
{
    (void)signal;
    atomic_store(&kept, 1);
    while (atomic_load(&keep) != 0)
        usleep(1000);
    atomic_store(&kept, 0);
}

static void keep_worker(const struct test_server *server)
{
    struct sigaction action = {.sa_handler = keep_thread, .sa_flags = SA_RESTART};
    assert_int_equal(sigaction(SIGUSR1, &action, NULL), 0);
    atomic_store(&keep, 1);
    assert_int_equal(tgkill(getpid(), cpu_worker_thread_id(server->server->workers[0]), SIGUSR1), 0);
    while (atomic_load(&kept) == 0)
        usleep(100);
}

/* A packet that waits for a worker that has it in its queue and does not run: nobody else was late, and no
 * burst was long. */
static void delayed_worker_is_the_cause(void **state)
{
    struct test_server server = {0};
    struct test_client client;
    struct core_stream_spec spec = test_spec;
    struct config_profile profile = test_profile_real;
    struct server_snapshot *snapshot;
    (void)state;

    profile.margins.in_ns = US; /* the I/O thread has no time to do the worker's work */
    spec.latency_ns = LATENCY_MS * MS;
    test_server_start(&server, "threads: {io: 1, workers: 1, realtime: off}\n", &profile);
    test_client_connect(&client, test_server_unix(&server), NULL);
    struct test_stream *stream = test_stream_open(&client, &spec, 1);
    keep_worker(&server);
    assert_true(test_stream_send(stream, 1408));
    usleep(KEPT_MS * 1000);
    atomic_store(&keep, 0);
    struct protocol_result result = test_streams_take(&client, &stream);
    assert_false(result.flags & PROTOCOL_RESULT_MET);
    (void)test_stream_close(stream);

    assert_int_equal(server_snapshot_take(server.server, &snapshot), CORE_OK);
    const struct server_tail_latency_packet *worst = &snapshot->worst[0];
    assert_int_equal(snapshot->totals.missed, 1);
    assert_int_equal(snapshot->missed_by[SERVER_CAUSE_OFF_CORE], 1);
    assert_int_equal(worst->cause, SERVER_CAUSE_OFF_CORE);
    assert_int_equal(worst->holder, 0);
    assert_true(worst->held_ns >= -worst->slack_ns);
    assert_true(worst->stage_ns[SERVER_TAIL_LATENCY_QUEUE] > worst->bound_ns / 2);
    assert_true(snapshot->units[0].lost_ns > worst->bound_ns / 2);
    server_snapshot_free(snapshot);
    test_stream_free(stream);
    test_client_close(&client);
    assert_int_equal(test_server_stop(&server), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(timelines),
        cmocka_unit_test(every_miss_has_a_cause),
        cmocka_unit_test(the_turn_at_hand_is_a_stall_once_it_is_late),
        cmocka_unit_test(delayed_worker_is_the_cause),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
