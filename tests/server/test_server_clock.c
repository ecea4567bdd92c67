/* The honest clock: a packet arrives when it is in the socket, whenever the server reads it. The pure part on
 * worked timelines; policing of what was not seen against the definition; and a server that is stopped, with
 * a client beside it that knows for certain which packets can not have been in time. */
#include "tests/support/random.h"
#include "tests/support/server.h"
#include "tests/support/stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/admin/snapshot.h"
#include "server/net/io.h"
#include "server/overload/monitor.h"
#include "server/stream/arrival.h"
#include "server/stream/policer.h"
#include "tests/support/http.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define US CORE_NS_PER_US
#define MS CORE_NS_PER_MS

/* ---- turns ---- */

struct look {
    core_ns entered_ns, due_ns, awake_ns;
    bool waits;
    core_ns since_ns, polled_ns; /* expected */
};

/* The look before was at 1 ms. */
static const struct look looks[] = {
    /* something was there: it came after the look before */
    {3 * MS, 4 * MS, 3 * MS + 5 * US, false, MS, 3 * MS + 5 * US},
    /* the same, allowed to sleep but not asleep */
    {3 * MS, 4 * MS, 3 * MS + 5 * US, true, MS, 3 * MS + 5 * US},
    /* asleep, and awake in time: it came now */
    {3 * MS, 4 * MS, 3 * MS + 500 * US, true, 3 * MS + 500 * US, 3 * MS + 500 * US},
    /* awake by the timer, as late as timers are */
    {3 * MS, 4 * MS, 4 * MS + SERVER_POLLS_SLACK_NS, true, 4 * MS + SERVER_POLLS_SLACK_NS,
     4 * MS + SERVER_POLLS_SLACK_NS},
    /* later than that: anything may have been there since it asked */
    {3 * MS, 4 * MS, 4 * MS + SERVER_POLLS_SLACK_NS + 1, true, 3 * MS, 3 * MS},
    {3 * MS, 4 * MS, 2000 * MS, true, 3 * MS, 3 * MS},
    /* a late look that did not sleep: what was there is from before, what comes next from when it asked */
    {3 * MS, 4 * MS, 2000 * MS, false, MS, 3 * MS},
    /* no timer: no stream */
    {3 * MS, CORE_NS_NEVER, 2000 * MS, true, 2000 * MS, 2000 * MS},
};

static void turns(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof looks / sizeof looks[0]; i++) {
        struct server_polls turns;
        server_polls_init(&turns, MS);
        server_polls_enter(&turns, looks[i].entered_ns, looks[i].due_ns, looks[i].waits);
        server_polls_wake(&turns, looks[i].awake_ns);
        server_polls_wake(&turns, looks[i].awake_ns + MS); /* of the second handler: nothing new */
        assert_int_equal(turns.since_ns, looks[i].since_ns);
        assert_int_equal(turns.polled_ns, looks[i].polled_ns);
    }
}

static void a_look_without_sleep_comes_first_after_a_long_turn(void **state)
{
    struct server_polls turns;
    (void)state;
    server_polls_init(&turns, MS);
    assert_false(server_polls_first(&turns, MS + SERVER_POLLS_SHORT_NS));
    assert_true(server_polls_first(&turns, MS + SERVER_POLLS_SHORT_NS + 1));
    server_polls_enter(&turns, 9 * MS, 12 * MS, false);
    server_polls_found_nothing(&turns);
    server_polls_enter(&turns, 9 * MS + US, 12 * MS, true);
    server_polls_wake(&turns, 9 * MS + 3 * US); /* it came between the looks */
    assert_int_equal(turns.since_ns, 9 * MS);
}

static void time_of_turns_is_counted_once(void **state)
{
    struct server_polls turns;
    (void)state;
    server_polls_init(&turns, MS);
    server_polls_enter(&turns, 2 * MS, CORE_NS_NEVER, false);
    server_polls_wake(&turns, 2 * MS);
    assert_int_equal(server_polls_end(&turns, 5 * MS), 4 * MS);
    server_polls_enter(&turns, 6 * MS, CORE_NS_NEVER, false);
    server_polls_wake(&turns, 6 * MS); /* its bytes may be from 2 ms on: 2 to 5 were counted */
    assert_int_equal(server_polls_end(&turns, 7 * MS), 2 * MS);
}

static void beats(void **state)
{
    (void)state;
    assert_int_equal(server_polls_beat_ns(1 * MS), 500 * US);
    assert_int_equal(server_polls_beat_ns(16 * MS), 2 * MS);
    assert_int_equal(server_polls_beat_ns(CORE_LATENCY_NS_MAX), 10 * MS);
}

/* ---- sockets ---- */

/* Bytes come to a socket at random times, turns look at it and read some: none is taken for later than it
 * came, and a socket that was emptied is as fresh as the read. */
static void no_byte_is_taken_for_later_than_it_came(void **state)
{
    struct test_random random = {7};
    (void)state;
    for (int round = 0; round < 200; round++) {
        struct server_socket_clock clock = {0};
        struct server_arrival arrival = {0};
        core_ns came_ns[4096], now_ns = 0, polled_ns = 0;
        size_t head = 0, tail = 0;
        while (tail < 4000) {
            size_t more = (size_t)test_random_in(&random, 0, 40);
            for (; more > 0 && tail < 4000; more--) {
                now_ns += test_random_in(&random, 0, 3);
                came_ns[tail++] = now_ns;
            }
            now_ns += test_random_in(&random, 1, 50);
            core_ns since_ns = polled_ns;
            polled_ns = now_ns;
            if (head == tail)
                continue;
            now_ns += test_random_in(&random, 0, 50);
            size_t got = (size_t)test_random_in(&random, 1, 50);
            got = got < tail - head ? got : tail - head;
            server_arrival_read(&arrival, &clock, since_ns, now_ns, 60);
            assert_true(arrival.earliest_ns <= came_ns[head]);
            assert_true(arrival.earliest_ns <= arrival.counted_ns && arrival.counted_ns <= now_ns);
            head += got;
            server_arrival_took(&clock, &arrival, got, tail - head);
            if (head == tail)
                assert_int_equal(clock.empty_ns, now_ns);
        }
    }
}

/* Contracts count the read as long as the turn is on time, and what is earliest where it is not: what a late
 * thread finds was there all along. */
static void a_late_turn_counts_from_the_earliest(void **state)
{
    const struct server_socket_clock fresh = {.empty_ns = MS};
    struct server_arrival arrival = {0};
    (void)state;
    server_arrival_read(&arrival, &fresh, 2 * MS, 3 * MS, MS);
    assert_int_equal(arrival.counted_ns, 3 * MS);
    assert_int_equal(arrival.earliest_ns, 2 * MS);
    server_arrival_read(&arrival, &fresh, 4 * MS, 5 * MS + 1, MS);
    assert_int_equal(arrival.counted_ns, 4 * MS);
    server_arrival_read(&arrival, &fresh, 2 * MS, 5 * MS, MS); /* it does not run backwards */
    assert_int_equal(arrival.counted_ns, 4 * MS);
}

/* A socket was not read from 2 to 9 ms. Where that was for lack of our room, what waits counts from 2 ms; but
 * bytes behind it, and all after a pause that was the peer's doing, count from when it is read again. What
 * has waited in such a pause is known by that. */
static void packets_count_from_reading_pause(void **state)
{
    struct server_socket_clock clock = {0};
    struct server_arrival arrival = {0};
    (void)state;
    server_arrival_goes_on(&clock, 2 * MS, 9 * MS, 100, false);
    server_arrival_read(&arrival, &clock, 8 * MS, 10 * MS, MS);
    assert_int_equal(arrival.earliest_ns, 2 * MS);
    assert_int_equal(arrival.counted_ns, 10 * MS);
    assert_false(arrival.held);
    server_arrival_took(&clock, &arrival, 100, 50);
    server_arrival_read(&arrival, &clock, 10 * MS, 11 * MS, MS);
    assert_int_equal(arrival.earliest_ns, 9 * MS);
    server_arrival_goes_on(&clock, CORE_NS_NEVER, 20 * MS, 100, true);
    server_arrival_read(&arrival, &clock, 12 * MS, 21 * MS, MS);
    assert_int_equal(arrival.earliest_ns, 20 * MS);
    assert_true(arrival.held);
    server_arrival_took(&clock, &arrival, 100, 50); /* they came meanwhile */
    server_arrival_read(&arrival, &clock, 21 * MS, 22 * MS, MS);
    assert_int_equal(arrival.earliest_ns, 20 * MS);
    assert_false(arrival.held);
}

/* What waited in a pause would be a burst that admission has not seen, if contracts counted it from then. It
 * is late by what the thread was late after it, and by no more. */
static void contracts_count_from_the_end_of_a_pause(void **state)
{
    struct server_socket_clock clock = {0};
    struct server_arrival arrival = {0};
    (void)state;
    server_arrival_since(&arrival, 2 * MS, 9 * MS, false);
    assert_int_equal(arrival.earliest_ns, 2 * MS);
    assert_int_equal(arrival.counted_ns, 9 * MS);
    server_arrival_goes_on(&clock, 2 * MS, 9 * MS, 100, false);
    server_arrival_read(&arrival, &clock, 8 * MS, 10 * MS + 1, MS);
    assert_int_equal(arrival.earliest_ns, 2 * MS);
    assert_int_equal(arrival.counted_ns, 9 * MS);
    server_arrival_took(&clock, &arrival, 50, 50); /* left, and read again: still of before the pause */
    server_arrival_read(&arrival, &clock, 10 * MS, 10 * MS + 2, MS);
    assert_int_equal(arrival.earliest_ns, 2 * MS);
    assert_int_equal(arrival.counted_ns, 9 * MS);
}

/* ---- the rest ---- */

/* Two of them, and no more, fit what admission takes off the shortest bound. */
static void two_rests_are_what_admission_takes_off(void **state)
{
    struct config_profile profile = test_profile_real;
    struct server server = {.profile = &profile};
    struct server_io io = {.server = &server, .packets_per_ns = 1};
    (void)state;
    profile.io.rest_max_ns = 500 * US;
    for (int class = 20; class < 32; class ++) {
        core_ns bound_ns = INT64_C(1) << class;
        io.latency_classes[class] = 1;
        core_ns rest_ns = server_io_rest_ns(&io);
        assert_true(rest_ns > 0 && 2 * rest_ns <= perfmodel_io_rest_ns(bound_ns, &profile));
        assert_true(2 * rest_ns + 1 >= perfmodel_io_rest_ns(bound_ns, &profile));
        io.latency_classes[class] = 0;
    }
    io.packets_per_ns = 1e-9; /* a packet a second: none would gather */
    assert_int_equal(server_io_rest_ns(&io), 0);
}

/* ---- policing ---- */

/* eligible - unseen is never later than where the true arrivals put it, and eligible times conform. */
static void deadlines_are_never_later_than_true_ones(void **state)
{
    struct test_random random = {11};
    (void)state;
    for (int round = 0; round < 2000; round++) {
        const struct core_stream_spec spec = {.interval_ns = 100,
                                              .burst_packets = (uint32_t)test_random_in(&random, 1, 4)};
        struct server_policer counted, truth;
        core_ns true_ns = 0, last_ns = 0, step_ns = test_random_in(&random, 20, 200);
        server_policer_init(&counted, &spec, 0);
        server_policer_init(&truth, &spec, 0);
        for (int i = 0; i < 100; i++) {
            true_ns += test_random_in(&random, 0, 2 * step_ns);
            core_ns arrival_ns = true_ns + test_random_in(&random, 0, 90);
            arrival_ns = core_time_max(arrival_ns, last_ns);
            last_ns = arrival_ns;
            core_ns unseen_ns = arrival_ns - true_ns + test_random_in(&random, 0, 30);
            struct server_policer_times times = server_policer_unseen(&counted, arrival_ns, unseen_ns);
            core_ns eligible_ns = server_policer_packet(&truth, true_ns).eligible_ns;
            assert_true(times.eligible_ns - times.unseen_ns <= eligible_ns);
        }
    }
}

/* ---- a server that is stopped ---- */

#define PACKETS     40
#define LATENCY_NS  (20 * MS)
#define SEND_US     5000 /* the contract has one a millisecond: it is kept by far */
#define OFF_CORE_NS (5 * LATENCY_NS)

/* What the process and the test share. */
struct shared {
    _Atomic bool off_core; /* the next time that an I/O thread is awake it loses its core first */
    struct core_address addresses[2];
    uint64_t missed, missed_by[SERVER_CAUSES]; /* of its account at its end; */
    core_ns io_lost_ns;
    uint32_t worst_count;
    struct server_tail_latency_packet worst[SERVER_TAIL_LATENCY_PACKETS];
};

static struct shared *_Atomic served; /* atomic: in the process, of the main thread for its I/O threads */

static bool is_io(void)
{
    char name[16] = "";
    (void)prctl(PR_GET_NAME, name);
    return strncmp(name, "io-", 3) == 0;
}

size_t __real_server_poller_look(struct server_poller *poller, int timeout_ms);
size_t __wrap_server_poller_look(struct server_poller *poller, int timeout_ms);
size_t __wrap_server_poller_look(struct server_poller *poller, int timeout_ms)
{
    const size_t named = __real_server_poller_look(poller, timeout_ms);
    struct shared *shared = atomic_load(&served);
    if (shared != NULL && named > 0 && timeout_ms < 0 && is_io() && atomic_exchange(&shared->off_core, false))
        core_time_sleep_until(core_time_now_ns() + OFF_CORE_NS);
    return named;
}

static void keep_account(const struct server *server, struct shared *shared)
{
    struct server_snapshot *snapshot;
    if (server_snapshot_take(server, &snapshot) != CORE_OK)
        _exit(1);
    shared->missed = snapshot->totals.missed;
    memcpy(shared->missed_by, snapshot->missed_by, sizeof shared->missed_by);
    for (uint32_t i = 0; i < snapshot->io_count; i++)
        shared->io_lost_ns += snapshot->ios[i].lost_ns;
    shared->worst_count = snapshot->worst_count;
    memcpy(shared->worst, snapshot->worst, sizeof shared->worst);
    server_snapshot_free(snapshot);
}

/* A process of its own, which can be stopped while the test goes on. */
static void serve(const char *yaml, int ready, struct shared *shared)
{
    struct test_server server = {0};
    sigset_t end;
    int signal;
    sigemptyset(&end);
    sigaddset(&end, SIGTERM);
    sigprocmask(SIG_BLOCK, &end, NULL); /* of all its threads */
    test_server_prepare(&server);
    test_server_write(&server, "keyring", TEST_KEYRING);
    test_server_start(&server, yaml, &test_profile_real);
    atomic_store(&served, shared);
    shared->addresses[0] = *test_server_unix(&server);
    shared->addresses[1] = *test_server_tcp(&server);
    if (write(ready, "", 1) != 1)
        _exit(1);
    (void)sigwait(&end, &signal);
    keep_account(server.server, shared);
    (void)test_server_stop(&server);
}

static pid_t start_process(const char *yaml, struct shared **mapped)
{
    int ready[2];
    char byte;
    struct shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    assert_int_equal(pipe(ready), 0);
    pid_t process = fork();
    if (process == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve(yaml, ready[1], shared);
        _exit(0);
    }
    assert_true(process > 0);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    *mapped = shared;
    close(ready[0]);
    close(ready[1]);
    return process;
}

static void stop_process(pid_t process)
{
    int status;
    assert_int_equal(kill(process, SIGSTOP), 0);
    assert_int_equal(waitpid(process, &status, WUNTRACED), process);
    assert_true(WIFSTOPPED(status));
}

/* Sends packets to a process that stands; returns when it went on. */
static core_ns send_meanwhile(pid_t process, struct test_stream *stream, core_ns sent_ns[PACKETS])
{
    stop_process(process);
    for (int i = 0; i < PACKETS; i++) {
        assert_true(test_stream_send(stream, 1408));
        sent_ns[i] = core_time_now_ns();
        usleep(SEND_US);
    }
    core_ns on_ns = core_time_now_ns();
    assert_int_equal(kill(process, SIGCONT), 0);
    return on_ns;
}

static void takes_what_waited_for_late(pid_t process, const struct core_address *address)
{
    struct core_stream_spec spec = test_spec;
    struct test_client client;
    core_ns sent_ns[PACKETS];
    uint32_t late = 0;

    spec.latency_ns = LATENCY_NS;
    test_client_connect(&client, address, NULL);
    struct test_stream *stream = test_stream_open(&client, &spec, 1);
    for (int round = 0; round < 3; round++) {
        core_ns on_ns = send_meanwhile(process, stream, sent_ns);
        for (int i = 0; i < PACKETS; i++) {
            struct protocol_result result = test_streams_take(&client, &stream);
            assert_false(result.flags & PROTOCOL_RESULT_POLICED); /* it has kept its contract */
            if (on_ns - sent_ns[i] <= LATENCY_NS)
                continue;
            late++;
            assert_false(result.flags & PROTOCOL_RESULT_MET);
            assert_true(result.latency_ns >= on_ns - sent_ns[i]);
        }
    }
    struct protocol_closed closed = test_stream_close(stream);
    assert_true(late > 3 * PACKETS / 2);
    assert_true(closed.missed >= late);
    test_stream_free(stream);
    test_client_close(&client);
}

/* The account explains them: every miss has a cause, and its I/O thread, which was stopped with the process,
 * has lost the time. */
static void check_account(const struct shared *shared)
{
    uint64_t sum = 0;
    for (int i = 0; i < SERVER_CAUSES; i++)
        sum += shared->missed_by[i];
    assert_true(shared->missed > 0);
    assert_int_equal(sum, shared->missed);
    assert_int_equal(shared->missed_by[SERVER_CAUSE_NONE], 0);
    assert_int_equal(shared->missed_by[SERVER_CAUSE_UNKNOWN], 0);
    assert_true(shared->missed_by[SERVER_CAUSE_OFF_CORE] > 0);
    assert_true(shared->io_lost_ns >= 6 * LATENCY_NS); /* of each of six stops, more than that */
    assert_int_equal(shared->worst_count, SERVER_TAIL_LATENCY_PACKETS);
    for (uint32_t i = 0; i < shared->worst_count; i++) {
        assert_int_equal(shared->worst[i].cause, SERVER_CAUSE_OFF_CORE);
        assert_true(shared->worst[i].holder >= SERVER_TAIL_LATENCY_IO);
        assert_true(2 * shared->worst[i].held_ns >= -shared->worst[i].slack_ns); /* others may add to it */
    }
}

static void packets_late_after_server_stop(void **state)
{
    struct shared *shared;
    pid_t process = start_process("keyring: keyring\n", &shared);
    int status;
    (void)state;
    takes_what_waited_for_late(process, &shared->addresses[0]);
    takes_what_waited_for_late(process, &shared->addresses[1]);
    assert_int_equal(kill(process, SIGTERM), 0);
    assert_int_equal(waitpid(process, &status, 0), process);
    assert_int_equal(status, 0);
    check_account(shared);
    munmap(shared, sizeof *shared);
}

static void end_process(pid_t process, struct shared *shared)
{
    int status;
    assert_int_equal(kill(process, SIGTERM), 0);
    assert_int_equal(waitpid(process, &status, 0), process);
    assert_int_equal(status, 0);
    munmap(shared, sizeof *shared);
}

/* No signal tells the thread, as one does where the process was stopped: what wakes it from its sleep, or comes
 * while it has no core, waits for it. */
static void packets_late_after_thread_lost_its_core(void **state)
{
    struct core_stream_spec spec = test_spec;
    struct test_client client;
    struct shared *shared;
    pid_t process = start_process("keyring: keyring\nthreads: {io: 1, workers: 1, realtime: off}\n", &shared);
    (void)state;

    spec.latency_ns = LATENCY_NS;
    test_client_connect(&client, &shared->addresses[0], NULL);
    struct test_stream *stream = test_stream_open(&client, &spec, 1);
    for (int lost = 0; lost < 5;) {
        usleep(2 * OFF_CORE_NS / US); /* it sleeps */
        atomic_store(&shared->off_core, true);
        assert_true(test_stream_send(stream, 1408));
        struct protocol_result result = test_streams_take(&client, &stream);
        if (atomic_exchange(&shared->off_core, false))
            continue; /* it was awake, and has kept its core */
        lost++;
        assert_true(result.latency_ns > OFF_CORE_NS / 2);
        assert_false(result.flags & PROTOCOL_RESULT_MET);
    }
    test_stream_free(stream);
    test_client_close(&client);
    end_process(process, shared);
}

/* More connections have something than one look may name: what a later look names was there at the first. */
#define CROWD 300

static uint32_t late_of_a_crowd(pid_t process, struct test_client *clients, struct test_stream **streams)
{
    core_ns sent_ns[CROWD];
    uint32_t late = 0;

    stop_process(process);
    for (int i = 0; i < CROWD; i++) {
        assert_true(test_stream_send(streams[i], 1408));
        sent_ns[i] = core_time_now_ns();
    }
    usleep(2 * LATENCY_NS / US);
    core_ns on_ns = core_time_now_ns();
    assert_int_equal(kill(process, SIGCONT), 0);
    for (int i = 0; i < CROWD; i++) {
        struct protocol_result result = test_streams_take(&clients[i], &streams[i]);
        assert_true(result.latency_ns >= on_ns - sent_ns[i]);
        late += (result.flags & PROTOCOL_RESULT_MET) == 0;
    }
    return late;
}

static void packets_of_a_crowd_late_after_server_stop(void **state)
{
    struct test_client *clients = calloc(CROWD, sizeof *clients);
    struct core_stream_spec spec = test_spec;
    struct test_stream *streams[CROWD];
    struct shared *shared;
    pid_t process = start_process("keyring: keyring\nthreads: {io: 1, workers: 1, realtime: off}\n", &shared);
    (void)state;

    assert_non_null(clients);
    spec.interval_ns = 200 * MS;
    spec.latency_ns = LATENCY_NS;
    for (int i = 0; i < CROWD; i++) {
        test_client_connect(&clients[i], &shared->addresses[i % 2], NULL);
        streams[i] = test_stream_open(&clients[i], &spec, (uint64_t)i);
    }
    assert_int_equal(late_of_a_crowd(process, clients, streams), CROWD);
    for (int i = 0; i < CROWD; i++) {
        test_stream_free(streams[i]);
        test_client_close(&clients[i]);
    }
    free(clients);
    end_process(process, shared);
}

/* One stream sends more than fits its room, far too early, so that nothing more of the connection is read; a
 * packet of another one is behind that. It must wait until the first stream's next packet goes, but not for a
 * stop of the server after that. */
#define EARLY_NS (500 * MS)

static struct protocol_result behind_an_early_one(pid_t process, const struct core_address *address)
{
    struct core_stream_spec spec = test_spec;
    struct test_stream *streams[2];
    struct protocol_result result;
    struct test_client client;

    test_client_connect(&client, address, NULL);
    spec.burst_packets = 1;
    spec.interval_ns = EARLY_NS;
    spec.latency_ns = LATENCY_NS;
    for (uint64_t i = 0; i < 2; i++)
        streams[i] = test_stream_open(&client, &spec, i);
    for (uint32_t i = 0; i < streams[0]->opened.queue_packets + 2; i++)
        assert_true(test_stream_send(streams[0], 1408));
    assert_true(test_stream_send(streams[1], 1408));
    (void)test_streams_take(&client, streams);
    stop_process(process);
    usleep(2 * EARLY_NS / CORE_NS_PER_US);
    assert_int_equal(kill(process, SIGCONT), 0);
    while (streams[1]->received == 0)
        result = test_streams_take(&client, streams);
    for (int i = 0; i < 2; i++)
        test_stream_free(streams[i]);
    test_client_close(&client);
    return result;
}

static void packets_behind_an_early_one_late_too(void **state)
{
    struct shared *shared;
    pid_t process = start_process("keyring: keyring\n", &shared);
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct protocol_result result = behind_an_early_one(process, &shared->addresses[i]);
        assert_true(result.flags & PROTOCOL_RESULT_POLICED);
        assert_false(result.flags & PROTOCOL_RESULT_MET);
        assert_true(result.latency_ns > EARLY_NS / 2);
    }
    end_process(process, shared);
}

/* ---- an I/O thread that is held up ---- */

#define HELD_NS (60 * MS) /* longer than the latency bound: all of the thread is kept from new streams */

static void hold_up(void *owner, struct server_message *message)
{
    (void)owner;
    (void)message;
    core_time_sleep_until(core_time_now_ns() + HELD_NS);
}

static double metric(const struct test_server *server, const char *name)
{
    struct http_answer answer = http_ask(server_admin_address(server->server), "GET", "/metrics");
    const char *line = strstr(answer.body, name);
    assert_non_null(line);
    double value = strtod(line + strlen(name), NULL);
    http_free(&answer);
    return value;
}

static bool would_be_granted(struct test_client *client, struct protocol_refused *refused)
{
    static const uint8_t key[16];
    struct core_stream_spec spec = test_spec;
    spec.latency_ns = LATENCY_NS;
    struct protocol_open open = test_open_inline(&spec, key);
    return test_client_ask(client, PROTOCOL_QUERY, &open, NULL, refused);
}

static void await_answer(struct test_client *client, bool granted, struct protocol_refused *refused)
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * MS;
    while (would_be_granted(client, refused) != granted) {
        assert_true(core_time_now_ns() < until_ns);
        usleep(10000);
    }
}

static void io_thread_overrun_withheld_from_admission(void **state)
{
    static struct server_message message = {.run = hold_up};
    const core_ns lost_ns = HELD_NS - test_profile_real.margins.in_ns - test_profile_real.margins.out_ns;
    struct core_stream_spec spec = test_spec;
    struct protocol_refused refused = {.code = 0};
    struct test_server server = {0};
    struct test_client client;
    (void)state;

    spec.latency_ns = LATENCY_NS;
    test_server_start(&server,
                      "threads: {io: 1, workers: 1, cores: 2, realtime: off}\n"
                      "admin: 'unix:admin'\noverload: {tighten: true, quiet_ms: 2000}\n",
                      &test_profile_real);
    test_client_connect(&client, test_server_unix(&server), NULL);
    struct test_stream *stream = test_stream_open(&client, &spec, 1);
    server_mailbox_post(&server.server->ios[0]->mailbox, &message);
    await_answer(&client, false, &refused);
    assert_int_equal(refused.constraint, PERFMODEL_LIMIT_RESERVE);
    assert_int_equal(server_monitor_share_ppb(server.server->watch, 0), 1000000000);
    struct http_answer answer = http_ask(server_admin_address(server.server), "GET", "/readyz");
    assert_int_equal(answer.code, 503);
    assert_string_equal(answer.body, "overloaded\n");
    http_free(&answer);
    assert_true(metric(&server, "\nmillrace_io_turn_excess_seconds_total{io=\"0\"} ") >=
                (double)lost_ns / 1e9);
    assert_true(metric(&server, "\nmillrace_io_lost_seconds_total{io=\"0\"} ") >= (double)lost_ns / 1e9);
    assert_true(metric(&server, "\nmillrace_io_overload_seconds{io=\"0\"} ") >= (double)lost_ns / 1e9);
    assert_true(test_stream_send(stream, 1408)); /* who is there goes on */
    test_stream_drain(stream);
    await_answer(&client, true, &refused);
    test_stream_free(stream);
    test_client_close(&client);
    (void)test_server_stop(&server);
}

/* ---- workers that sleep ---- */

/* Packets that the I/O thread has encrypted itself, of so many that came one at a time. */
static double served_of(const struct config_profile *profile, uint32_t packet_bytes, int packets)
{
    struct core_stream_spec spec = test_spec;
    struct test_server server = {0};
    struct test_client client;

    spec.packet_bytes = packet_bytes;
    spec.interval_ns = MS;
    spec.latency_ns = 2000 * MS;
    test_server_start(&server, "threads: {io: 1, workers: 1, cores: 2, realtime: off}\nadmin: 'unix:admin'\n",
                      profile);
    test_client_connect(&client, test_server_unix(&server), NULL);
    struct test_stream *stream = test_stream_open(&client, &spec, 1);
    for (int i = 0; i < packets; i++) {
        assert_true(test_stream_send(stream, packet_bytes));
        test_stream_drain(stream);
    }
    const double packets_here = metric(&server, "\nmillrace_served_total{io=\"0\"} ");
    test_stream_free(stream);
    test_client_close(&client);
    (void)test_server_stop(&server);
    return packets_here;
}

/* The I/O thread does the work of a worker that sleeps if the turn has time for it, and it is no more than a burst. */
static void sleeping_workers_are_served_in_time_only(void **state)
{
    struct config_profile profile = test_profile_real;
    (void)state;
    profile.margins.in_ns = 20 * MS;                   /* no turn is longer here */
    assert_true(served_of(&profile, 1408, 100) >= 50); /* the monitor wakes the worker now and then */
    assert_true(served_of(&profile, 65520, 20) == 0);  /* 16 pieces one after another: longer than a burst */
    profile.margins.in_ns = US;
    assert_true(served_of(&profile, 1408, 100) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns),
        cmocka_unit_test(a_look_without_sleep_comes_first_after_a_long_turn),
        cmocka_unit_test(time_of_turns_is_counted_once),
        cmocka_unit_test(beats),
        cmocka_unit_test(no_byte_is_taken_for_later_than_it_came),
        cmocka_unit_test(a_late_turn_counts_from_the_earliest),
        cmocka_unit_test(packets_count_from_reading_pause),
        cmocka_unit_test(contracts_count_from_the_end_of_a_pause),
        cmocka_unit_test(two_rests_are_what_admission_takes_off),
        cmocka_unit_test(deadlines_are_never_later_than_true_ones),
        cmocka_unit_test(packets_late_after_server_stop),
        cmocka_unit_test(packets_late_after_thread_lost_its_core),
        cmocka_unit_test(packets_of_a_crowd_late_after_server_stop),
        cmocka_unit_test(packets_behind_an_early_one_late_too),
        cmocka_unit_test(io_thread_overrun_withheld_from_admission),
        cmocka_unit_test(sleeping_workers_are_served_in_time_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
