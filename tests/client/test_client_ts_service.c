/* A service of millrace ts, without a server: what comes in that is dropped, and why; that what the server has encrypted
 * leaves as it came in, in order, and once; and what becomes of it when the network does not take it. */
#include "client/ts/metrics.h"
#include "client/ts/service.h"
#include "client/ts/sockets.h"
#include "tests/support/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])
#define SLOTS           64 /* of a service as slow as these */
#define BOUND_NS        (8 * CORE_NS_PER_MS)

static char name[] = "a", no_interface[] = "nosuch0", words[] = "true";
static char said[512];

static void say(const char *format, ...) CORE_PRINTF(1, 2);
static void say(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    (void)vsnprintf(said, sizeof said, format, values);
    va_end(values);
}

/* ---- the server, which takes what it is given, and the network, which may not ---- */

static unsigned taken;
static bool is_dead;
static int fails_with[2]; /* the next calls; 0: it does not */

millrace_status __wrap_millrace_data_part(struct millrace *connection, uint32_t stream, const void *packet,
                                          uint32_t bytes, unsigned flags, uint32_t *sequence, char *error);
millrace_status __wrap_millrace_data_part(struct millrace *connection, uint32_t stream, const void *packet,
                                          uint32_t bytes, unsigned flags, uint32_t *sequence, char *error)
{
    (void)connection;
    (void)stream;
    (void)packet;
    (void)bytes;
    (void)flags;
    (void)sequence;
    error[0] = '\0';
    taken += !is_dead;
    return is_dead ? MILLRACE_CLOSED : MILLRACE_OK;
}

int __real_sendmmsg(int descriptor, struct mmsghdr *messages, unsigned count, int flags);
int __wrap_sendmmsg(int descriptor, struct mmsghdr *messages, unsigned count, int flags);
int __wrap_sendmmsg(int descriptor, struct mmsghdr *messages, unsigned count, int flags)
{
    const int number = fails_with[0];
    fails_with[0] = fails_with[1];
    fails_with[1] = 0;
    if (number == 0)
        return __real_sendmmsg(descriptor, messages, count, flags);
    errno = number;
    return -1;
}

/* ---- a service on loopback ---- */

struct rig {
    struct config_ts_service config;
    struct ts_link link;
    struct ts_service service;
    int from, to; /* the sockets at its ends */
};

static int make_socket(struct config_ts_endpoint *endpoint)
{
    struct sockaddr_in *address = (struct sockaddr_in *)(void *)&endpoint->address;
    int made = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    endpoint->address_bytes = sizeof *address;
    assert_true(made >= 0 && bind(made, (struct sockaddr *)address, sizeof *address) == 0);
    assert_int_equal(getsockname(made, (struct sockaddr *)address, &endpoint->address_bytes), 0);
    return made;
}

static void begin(struct rig *rig)
{
    struct core_error error = {""};
    *rig = (struct rig){.config = {.name = name,
                                   .rate_bits_per_s = 1e5,
                                   .datagram_bytes = 2 * TS_PACKET_BYTES,
                                   .bound_ns = BOUND_NS,
                                   .words_command = words},
                        .link = {.say = say}};
    rig->to = make_socket(&rig->config.output);
    close(make_socket(&rig->config.input)); /* whose port is free then */
    rig->from = socket(AF_INET, SOCK_DGRAM, 0);
    if (ts_service_open(&rig->service, &rig->config, &rig->link, &error) != CORE_OK)
        fail_msg("%s", error.text);
    assert_int_equal(rig->service.slot_count, SLOTS);
    assert_int_equal(
        connect(rig->from, (struct sockaddr *)&rig->config.input.address, rig->config.input.address_bytes),
        0);
    taken = 0;
    is_dead = false;
    said[0] = '\0';
    memset(fails_with, 0, sizeof fails_with);
}

static void end(struct rig *rig)
{
    ts_link_close(&rig->link);
    ts_service_close(&rig->service);
    close(rig->from);
    close(rig->to);
}

/* The server has admitted it, for so many datagrams without an answer; and a PAT has come. */
static void open_stream(struct rig *rig, uint32_t room)
{
    rig->service.stream.id = 1;
    rig->service.stream.room = room;
    rig->service.stream.interval_ns = CORE_NS_PER_MS;
    rig->service.tables.complete = true;
}

/* A datagram of so many packets, told apart by `mark`, and bytes of another kind behind them. */
static void give(struct rig *rig, size_t packets, size_t more, uint8_t mark)
{
    uint8_t datagram[4 * TS_PACKET_BYTES];
    memset(datagram, mark, sizeof datagram);
    for (size_t i = 0; i < packets; i++)
        memcpy(datagram + i * TS_PACKET_BYTES, (uint8_t[]){0x47, 0x01, 0x00, 0x10}, 4);
    const size_t bytes = packets * TS_PACKET_BYTES + more;
    assert_int_equal(send(rig->from, datagram, bytes, 0), bytes);
}

static void receive(struct rig *rig)
{
    ts_service_receive(&rig->service, ts_clock_offset_ns());
}

/* The server has encrypted the oldest one: its bytes are inverted. */
static void encrypt(struct rig *rig, size_t bytes, uint8_t mark)
{
    uint8_t packets[4 * TS_PACKET_BYTES];
    memset(packets, ~mark, sizeof packets);
    ts_service_done(&rig->service, packets, bytes);
}

/* The next one that has left is that with this mark; 0: there is none. */
static void expect_out(struct rig *rig, uint8_t mark)
{
    uint8_t datagram[4 * TS_PACKET_BYTES];
    const ssize_t bytes = recv(rig->to, datagram, sizeof datagram, MSG_DONTWAIT);
    if (mark == 0)
        assert_int_equal(bytes, -1);
    else if (bytes != TS_PACKET_BYTES || (datagram[TS_PACKET_BYTES - 1] ^ mark) != 0xFF)
        fail_msg("%zd bytes instead of the datagram with %02x", bytes, mark);
}

static uint64_t sum(const struct rig *rig)
{
    return rig->service.counts.datagrams + ts_report_dropped(&rig->service.counts);
}

/* ---- what comes ---- */

static void what_can_not_be_scrambled_is_dropped(void **state)
{
    struct rig rig;
    (void)state;
    begin(&rig);
    give(&rig, 0, 10, 'x');
    receive(&rig);
    assert_string_equal(said,
                        "a: datagrams that are no transport stream in clear, or of more than 376 bytes, "
                        "are dropped: the first one begins with 78 78 78 78");
    said[0] = '\0';
    give(&rig, 1, 1, 'x');
    give(&rig, 3, 0, 'x');
    give(&rig, 2, 0, 'x'); /* as long as it may be */
    receive(&rig);
    assert_string_equal(said, ""); /* told once */
    assert_int_equal(rig.service.counts.invalid, 3);
    assert_int_equal(rig.service.counts.early, 1);
    open_stream(&rig, 8);
    rig.service.stream.id = 0;
    give(&rig, 1, 0, 1);
    receive(&rig);
    open_stream(&rig, 8);
    rig.service.stream.opened_ns = core_time_now_ns() + CORE_NS_PER_S; /* they came before */
    give(&rig, 1, 0, 1);
    receive(&rig);
    assert_int_equal(rig.service.counts.away, 2);
    assert_int_equal(ts_service_release(&rig.service, core_time_now_ns()), CORE_NS_NEVER);
    assert_int_equal(rig.service.head, 6);
    assert_int_equal(taken, 0);
    expect_out(&rig, 0);
    assert_int_equal(sum(&rig), 6);
    end(&rig);
}

static void what_is_too_much_is_dropped(void **state)
{
    struct rig rig;
    (void)state;
    begin(&rig);
    open_stream(&rig, 0); /* the server takes none now */
    for (uint8_t i = 0; i < 40; i++)
        give(&rig, 1, 0, 1);
    receive(&rig);
    for (uint8_t i = 0; i < 40; i++)
        give(&rig, 1, 0, 2);
    while (sum(&rig) < 16)
        receive(&rig);
    assert_int_equal(rig.service.tail, SLOTS);
    assert_int_equal(rig.service.counts.excess, 16);
    rig.service.stream.room = SLOTS;
    is_dead = true; /* nor then */
    ts_service_push(&rig.service);
    assert_int_equal(rig.service.sent, 0);
    is_dead = false;
    ts_service_push(&rig.service);
    assert_int_equal(taken, SLOTS);
    for (int i = 0; i < SLOTS; i++)
        encrypt(&rig, TS_PACKET_BYTES, i < 40 ? 1 : 2);
    assert_int_equal(ts_service_release(&rig.service, core_time_now_ns()), CORE_NS_NEVER);
    for (int i = 0; i < SLOTS; i++)
        expect_out(&rig, i < 40 ? 1 : 2);
    expect_out(&rig, 0);
    assert_int_equal(sum(&rig), 80);
    end(&rig);
}

/* What the system drops, since nobody reads, is counted with the next that comes. */
static void what_the_system_drops_is_counted(void **state)
{
    const int least = 1;
    struct rig rig;
    (void)state;
    begin(&rig);
    open_stream(&rig, SLOTS);
    assert_int_equal(setsockopt(rig.service.input, SOL_SOCKET, SO_RCVBUF, &least, sizeof least), 0);
    for (uint8_t i = 0; i < 50; i++)
        give(&rig, 1, 0, 1);
    receive(&rig);
    const uint32_t kept = rig.service.tail;
    assert_true(kept > 0 && kept < 50);
    give(&rig, 1, 0, 1);
    receive(&rig);
    assert_int_equal(rig.service.tail, kept + 1);
    assert_int_equal(rig.service.counts.overflow, 50 - kept);
    end(&rig);
}

/* ---- what comes back, and goes ---- */

static void answers_are_of_the_oldest(void **state)
{
    struct rig rig;
    (void)state;
    begin(&rig);
    open_stream(&rig, SLOTS);
    encrypt(&rig, TS_PACKET_BYTES, 9); /* nothing was sent */
    for (uint8_t mark = 1; mark <= 7; mark++)
        give(&rig, mark == 3 ? 0 : 1, mark == 3 ? 10 : 0, mark); /* the third one is invalid */
    receive(&rig);
    assert_int_equal(taken, 6);
    encrypt(&rig, TS_PACKET_BYTES, 1);
    ts_service_done(&rig.service, NULL, TS_PACKET_BYTES); /* 2: not encrypted */
    encrypt(&rig, 2 * TS_PACKET_BYTES, 4);                /* longer than it was */
    encrypt(&rig, TS_PACKET_BYTES, 5);
    assert_int_equal(rig.service.counts.refused, 2);
    rig.service.stream.id = 0;
    give(&rig, 0, 10, 8);
    receive(&rig);
    ts_service_lost(&rig.service); /* 6, 7 */
    assert_int_equal(rig.service.counts.away, 2);
    encrypt(&rig, TS_PACKET_BYTES, 9);
    (void)ts_service_release(&rig.service, core_time_now_ns());
    expect_out(&rig, 1);
    expect_out(&rig, 5);
    expect_out(&rig, 0);
    assert_int_equal(rig.service.counts.datagrams, 2);
    assert_int_equal(sum(&rig), 8);
    end(&rig);
}

/* Several calls are needed for them. */
static void the_network_may_not_take_them(void **state)
{
    static const struct {
        int fails_with[2];
        unsigned unsent;
        bool waits;
    } cases[] = {
        {{EAGAIN, 0}, 0, true}, {{EINTR, 0}, 0, true}, {{EPERM, 0}, 1, false}, {{EPERM, EAGAIN}, 1, true}};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct rig rig;
        begin(&rig);
        open_stream(&rig, SLOTS);
        for (uint8_t mark = 1; mark <= TS_BATCH + 8; mark++)
            give(&rig, 1, 0, mark);
        receive(&rig);
        for (uint8_t mark = 1; mark <= TS_BATCH + 8; mark++)
            encrypt(&rig, TS_PACKET_BYTES, mark);
        memcpy(fails_with, cases[i].fails_with, sizeof fails_with);
        const core_ns now_ns = core_time_now_ns(), again_ns = ts_service_release(&rig.service, now_ns);
        assert_int_equal(again_ns < CORE_NS_NEVER, cases[i].waits);
        assert_true(again_ns > now_ns);
        assert_int_equal(rig.service.counts.unsent, cases[i].unsent);
        if (cases[i].waits) {
            expect_out(&rig, 0);
            assert_int_equal(ts_service_release(&rig.service, again_ns), CORE_NS_NEVER);
        }
        for (uint8_t mark = (uint8_t)(1 + cases[i].unsent); mark <= TS_BATCH + 8; mark++)
            expect_out(&rig, mark);
        expect_out(&rig, 0);
        assert_int_equal(sum(&rig), TS_BATCH + 8);
        end(&rig);
    }
}

static void what_is_held_leaves_when_it_is_due(void **state)
{
    struct rig rig;
    (void)state;
    begin(&rig);
    rig.config.hold = true;
    open_stream(&rig, SLOTS);
    give(&rig, 1, 0, 1);
    receive(&rig);
    encrypt(&rig, TS_PACKET_BYTES, 1);
    const core_ns in_ns = rig.service.slots[0].in_ns, due_ns = ts_service_release(&rig.service, in_ns);
    assert_true(due_ns > in_ns && due_ns < in_ns + BOUND_NS);
    assert_int_equal(ts_service_release(&rig.service, due_ns - 1), due_ns);
    expect_out(&rig, 0);
    assert_int_equal(ts_service_release(&rig.service, due_ns), CORE_NS_NEVER);
    expect_out(&rig, 1);
    end(&rig);
}

/* ---- its sockets ---- */

static void sockets_that_can_not_be_are_told(void **state)
{
    static const struct {
        const char *text, *address;
        bool is_output, is_group, has_source;
        char *interface;
        int ttl;
    } cases[] = {
        {"a: its input: the interface nosuch0", "127.0.0.1", false, false, false, no_interface, 0},
        {"a: its output: the interface nosuch0", "127.0.0.1", true, false, false, no_interface, 0},
        {"a: its input can not be received", "192.0.2.1", false, false, false, NULL, 0}, /* of no machine */
        {"a: its input can not be received", "127.0.0.1", false, true, false, NULL, 0},  /* no group */
        {"a: its input can not be received", "127.0.0.1", false, true, true, NULL, 0},
        {"a: its output can not be sent", "239.0.0.1", true, true, false, NULL, 300},
        {"a: its input: a socket", "", false, false, false, NULL, 0}, /* of no family */
        {"a: its output: a socket", "", true, false, false, NULL, 0},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct sockaddr_in address = {.sin_family = cases[i].address[0] != '\0' ? AF_INET : AF_UNSPEC};
        struct config_ts_service config = {
            .name = name, .ttl = cases[i].ttl, .has_source = cases[i].has_source};
        struct config_ts_endpoint *endpoint = cases[i].is_output ? &config.output : &config.input;
        struct core_error error = {""};
        int descriptor = -1;
        (void)inet_pton(AF_INET, cases[i].address, &address.sin_addr);
        memcpy(&endpoint->address, &address, sizeof address);
        endpoint->address_bytes = sizeof address;
        endpoint->is_group = cases[i].is_group;
        endpoint->interface = cases[i].interface;
        core_status status = cases[i].is_output ? ts_socket_output(&config, &descriptor, &error)
                                                : ts_socket_input(&config, &descriptor, &error);
        if (status == CORE_OK || strncmp(error.text, cases[i].text, strlen(cases[i].text)) != 0)
            fail_msg("'%s' instead of '%s'", error.text, cases[i].text);
        assert_int_equal(descriptor, -1);
    }
}

static void a_service_without_sockets_is_closed(void **state)
{
    struct rig rig;
    struct core_error error = {""};
    struct ts_service second;
    (void)state;
    begin(&rig);
    assert_int_equal(ts_service_open(&second, &rig.config, &rig.link, &error),
                     CORE_SYSTEM); /* the same port */
    assert_non_null(strstr(error.text, "a: its input can not be received"));
    rig.config.output.interface = no_interface;
    struct ts_service third;
    assert_int_equal(ts_service_open(&third, &rig.config, &rig.link, &error), CORE_SYSTEM);
    ts_link_close(&rig.link);
    ts_service_close(&second);
    ts_service_close(&third);
    end(&rig);
}

/* ---- its figures ---- */

static void expect_answer(struct ts_metrics *metrics, const char *request, int code, const char *text)
{
    int descriptor = http_dial(&metrics->bound);
    struct pollfd ends = {.fd = descriptor, .events = POLLRDHUP};
    http_send(descriptor, request, strlen(request));
    for (int tries = 0; tries < 1000 && poll(&ends, 1, 1) == 0; tries++)
        ts_metrics_turn(metrics);
    struct http_answer answer = http_read(descriptor);
    if (answer.code != code || strstr(answer.body, text) == NULL)
        fail_msg("%s: %d\n%s", request, answer.code, answer.body);
    http_free(&answer);
}

#define END " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

static void figures_are_told_to_this_machine(void **state)
{
    static const char *const others[] = {"tcp:0.0.0.0:0", "tcp:192.0.2.1:80", "vsock:2:80", "nonsense",
                                         "unix:/nonsense/metrics"};
    static const char *const ours[] = {"tcp:127.0.0.1:0", "tcp:localhost:0", "tcp:[::1]:0"};
    struct rig rig;
    struct ts_metrics metrics = {0};
    struct core_error error = {""};
    (void)state;
    begin(&rig);
    give(&rig, 0, 10, 1);
    receive(&rig);
    const struct ts_set set = {.services = &rig.service, .count = 1};
    assert_int_equal(ts_metrics_descriptor(&metrics), -1);
    ts_metrics_turn(&metrics);
    ts_metrics_stop(&metrics);
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        assert_int_not_equal(ts_metrics_start(&metrics, &set, others[i], &error), CORE_OK);
        assert_int_equal(ts_metrics_descriptor(&metrics), -1);
    }
    for (size_t i = 0; i < COUNT_OF(ours); i++) {
        if (ts_metrics_start(&metrics, &set, ours[i], &error) != CORE_OK) {
            assert_int_equal(i, 2); /* a machine may have no IPv6 */
            continue;
        }
        assert_true(ts_metrics_descriptor(&metrics) >= 0);
        expect_answer(&metrics, "GET /metrics" END, 200,
                      "\nmillrace_ts_dropped_total{service=\"a\",reason=\"invalid\"} 1\n");
        expect_answer(&metrics, "GET /" END, 404, "GET /metrics");
        expect_answer(&metrics, "DELETE /metrics" END, 404, "GET /metrics");
        ts_metrics_stop(&metrics);
    }
    end(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_can_not_be_scrambled_is_dropped),
        cmocka_unit_test(what_is_too_much_is_dropped),
        cmocka_unit_test(what_the_system_drops_is_counted),
        cmocka_unit_test(answers_are_of_the_oldest),
        cmocka_unit_test(the_network_may_not_take_them),
        cmocka_unit_test(what_is_held_leaves_when_it_is_due),
        cmocka_unit_test(sockets_that_can_not_be_are_told),
        cmocka_unit_test(a_service_without_sockets_is_closed),
        cmocka_unit_test(figures_are_told_to_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
