/* The poller of an I/O thread: a look names all that is ready, and nothing that was forgotten. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/net/poller.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define MANY 500

struct fixture {
    struct server_poller poller;
    struct server_watch *watches;
    uint32_t count;
    uint32_t called; /* handlers */
    uint32_t events; /* of the last of them */
};

static void count_call(struct server_watch *watch, uint32_t events)
{
    struct fixture *fixture = watch->owner;
    fixture->called++;
    fixture->events = events;
}

static void set_up(struct fixture *fixture, uint32_t count, void (*ready)(struct server_watch *, uint32_t))
{
    *fixture = (struct fixture){.watches = calloc(count, sizeof *fixture->watches), .count = count};
    assert_non_null(fixture->watches);
    assert_int_equal(server_poller_init(&fixture->poller, NULL), CORE_OK);
    const int one = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK); /* readable and writable, for ever */
    assert_true(one >= 0);
    for (uint32_t at = 0; at < count; at++) {
        fixture->watches[at] = (struct server_watch){
            .descriptor = fcntl(one, F_DUPFD_CLOEXEC, 0), .ready = ready, .owner = fixture};
        assert_true(fixture->watches[at].descriptor >= 0);
    }
    close(one);
}

static void watch_all(struct fixture *fixture, uint32_t events)
{
    for (uint32_t at = 0; at < fixture->count; at++)
        assert_true(server_poller_watch(&fixture->poller, &fixture->watches[at], events));
}

static void tear_down(struct fixture *fixture)
{
    for (uint32_t at = 0; at < fixture->count; at++) {
        (void)server_poller_watch(&fixture->poller, &fixture->watches[at], 0);
        close(fixture->watches[at].descriptor);
    }
    assert_int_equal(fixture->poller.watched, 0);
    server_poller_free(&fixture->poller);
    free(fixture->watches);
}

/* One, a few, more than fit the first room, and hundreds: each is named in the first look, and in each. */
static void a_look_names_all_that_is_ready(void **state)
{
    static const uint32_t counts[] = {1, 33, 64, 65, 300, MANY};
    (void)state;
    for (size_t at = 0; at < sizeof counts / sizeof *counts; at++) {
        struct fixture fixture;
        set_up(&fixture, counts[at], count_call);
        watch_all(&fixture, EPOLLIN);
        for (uint32_t look = 1; look <= 2; look++) {
            assert_int_equal(server_poller_look(&fixture.poller, -1), counts[at]);
            server_poller_run(&fixture.poller);
            assert_int_equal(fixture.called, look * counts[at]);
            assert_int_equal(fixture.events, EPOLLIN);
        }
        tear_down(&fixture);
    }
}

static void what_is_not_watched_for_is_not_told(void **state)
{
    struct fixture fixture;
    (void)state;
    set_up(&fixture, 1, count_call);
    struct server_watch *watch = &fixture.watches[0];
    assert_true(server_poller_watch(&fixture.poller, watch, EPOLLIN | EPOLLOUT));
    assert_int_equal(server_poller_look(&fixture.poller, 0), 1);
    assert_true(server_poller_watch(&fixture.poller, watch, EPOLLOUT)); /* after the look */
    server_poller_run(&fixture.poller);
    assert_int_equal(fixture.events, EPOLLOUT);
    assert_true(server_poller_watch(&fixture.poller, watch, 0));
    assert_int_equal(server_poller_look(&fixture.poller, 0), 0);
    assert_true(server_poller_watch(&fixture.poller, watch, EPOLLIN));
    assert_int_equal(server_poller_look(&fixture.poller, 0), 1);
    tear_down(&fixture);
}

/* The peer is gone: told as that for which it is watched, or a connection that only waits to write would
 * never be told. */
static void the_end_of_a_peer_is_told_as_what_is_watched_for(void **state)
{
    struct fixture fixture;
    int pair[2];
    (void)state;
    set_up(&fixture, 1, count_call);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    close(pair[1]);
    struct server_watch watch = {.descriptor = pair[0], .ready = count_call, .owner = &fixture};
    for (uint32_t events = EPOLLIN; events <= EPOLLOUT; events += EPOLLOUT - EPOLLIN) {
        assert_true(server_poller_watch(&fixture.poller, &watch, events));
        assert_int_equal(server_poller_look(&fixture.poller, 0), 1);
        server_poller_run(&fixture.poller);
        assert_int_equal(fixture.events, events);
    }
    assert_true(server_poller_watch(&fixture.poller, &watch, 0));
    close(pair[0]);
    tear_down(&fixture);
}

/* Forgets all others, whose memory is something else at once: none of them may be called. */
static void forget_others(struct server_watch *watch, uint32_t events)
{
    struct fixture *fixture = watch->owner;
    (void)events;
    fixture->called++;
    for (uint32_t at = 0; at < fixture->count; at++)
        if (&fixture->watches[at] != watch) {
            assert_true(server_poller_watch(&fixture->poller, &fixture->watches[at], 0));
            fixture->watches[at].events = UINT32_MAX;
        }
}

static void what_a_handler_has_forgotten_is_not_called(void **state)
{
    struct fixture fixture;
    (void)state;
    set_up(&fixture, 100, forget_others);
    watch_all(&fixture, EPOLLIN);
    assert_int_equal(server_poller_look(&fixture.poller, 0), 100);
    server_poller_run(&fixture.poller);
    assert_int_equal(fixture.called, 1);
    for (uint32_t at = 0; at < fixture.count; at++)
        if (fixture.watches[at].events == UINT32_MAX)
            fixture.watches[at].events = 0;
    tear_down(&fixture);
}

/* More come while a look is run than the room it was read into had. */
static void watch_the_rest(struct server_watch *watch, uint32_t events)
{
    struct fixture *fixture = watch->owner;
    (void)events;
    fixture->called++;
    watch_all(fixture, EPOLLIN);
}

static void a_handler_may_watch_more(void **state)
{
    struct fixture fixture;
    (void)state;
    set_up(&fixture, MANY, watch_the_rest);
    for (uint32_t at = 0; at < 10; at++)
        assert_true(server_poller_watch(&fixture.poller, &fixture.watches[at], EPOLLIN));
    assert_int_equal(server_poller_look(&fixture.poller, 0), 10);
    server_poller_run(&fixture.poller);
    assert_int_equal(fixture.called, 10);
    assert_int_equal(server_poller_look(&fixture.poller, 0), MANY);
    tear_down(&fixture);
}

/* A closed descriptor can not be watched; what was watched before is as it was. */
static void what_can_not_be_watched_is_told(void **state)
{
    struct fixture fixture;
    struct server_watch watch = {.descriptor = -1, .ready = count_call};
    (void)state;
    set_up(&fixture, 2, count_call);
    watch_all(&fixture, EPOLLIN);
    assert_false(server_poller_watch(&fixture.poller, &watch, EPOLLIN));
    assert_int_equal(watch.events, 0);
    assert_int_equal(fixture.poller.watched, 2);
    assert_int_equal(server_poller_look(&fixture.poller, 0), 2);
    tear_down(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_look_names_all_that_is_ready),
        cmocka_unit_test(what_is_not_watched_for_is_not_told),
        cmocka_unit_test(the_end_of_a_peer_is_told_as_what_is_watched_for),
        cmocka_unit_test(what_a_handler_has_forgotten_is_not_called),
        cmocka_unit_test(a_handler_may_watch_more),
        cmocka_unit_test(what_can_not_be_watched_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
