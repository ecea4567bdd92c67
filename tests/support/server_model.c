#include "tests/support/server_model.h"

#include "core/log.h"
#include "server/gpu/internal.h"
#include "server/server_internal.h"
#include "tests/support/gpu_server.h"
#include "tests/support/require.h"
#include "tests/support/server_model_client.h"
#include "tests/support/virtual_gpu.h"
#include "tests/support/virtual_threads.h"

#include <errno.h>
#include <malloc.h>
#include <stdarg.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define CLIENTS          4
#define CPU_COST         300 /* times what a core of today takes: cards are used */
#define CARDS            2
#define CARD_BYTES       (UINT64_C(1) << 20)
#define MARGIN_NS        (300 * CORE_NS_PER_US)
#define SERVES_NS        (4060 * CORE_NS_PER_US) /* margin of one that serves: twice what a packet takes */
#define CHECKS_OF_OFFERS 64                      /* one check in so many asks for an offer */
#define KEPT_BYTES       (256 << 20)
#define SETTLE_NS        (10 * CORE_NS_PER_S)
#define PROBE_NS         (2 * CORE_NS_PER_MS)
#define REKEY_OPERATION  12

static struct test_server server;
static struct client clients[CLIENTS + 1]; /* the last one asks the empty server */
static struct client *const probe = &clients[CLIENTS];
static int ears; /* an epoll of the connections */
static core_ns worker_delay_ns;
static bool talks_messages; /* in this sequence clients ask for streams with messages, and change keys */
static bool gentle;         /* this sequence breaks no rule and delays no worker: it goes far */
static const char *name = "";

void test_model_name(const char *text)
{
    name = text;
}

_Noreturn void model_deviate(const struct client *client, const char *format, ...)
{
    va_list values;
    fprintf(stderr, "deviation in %s, client %d: ", name, (int)(client - clients));
    va_start(values, format);
    vfprintf(stderr, format, values);
    va_end(values);
    fprintf(stderr, "\n");
    abort();
}

/* ---- connections ---- */

static void hang_up(struct client *client)
{
    core_lane_free(&client->lane);
    client->shares = false;
    close(client->descriptor);
    client->descriptor = -1;
}

/* A stop of the server may leave what it has not read. */
static bool may_go_unanswered(const struct client *client, const struct request *request)
{
    if (!client->drained)
        return client->ended;
    return !client->welcomed || client->held_up || request->end > client->sent;
}

/* The server has closed its end. */
static void on_end(struct client *client)
{
    const bool ended = client->ended || (client->drained && !client->welcomed);
    MUST(client, ended || client->half_closed || client->fatal != 0, "ended by the server");
    MUST(client, ended || client->fatal == 0, "ended without ERROR %d", client->fatal);
    MUST(client, client->input_bytes == 0, "ended within a frame");
    for (uint32_t i = 0; (!ended || client->drained) && i < client->stream_count; i++)
        MUST(client, !client->streams[i].open, "ended without CLOSED of stream %u", client->streams[i].id);
    for (uint32_t i = 0; i < REQUESTS; i++)
        MUST(client, client->requests[i].type == 0 || may_go_unanswered(client, &client->requests[i]),
             "ended without an answer to request %u", client->requests[i].id);
    MUST(client, ended || client->note_count == 0, "ended without a PONG or an ERROR 6");
    hang_up(client);
}

static void read_frames(struct client *client)
{
    struct protocol_header header;
    size_t at = 0;
    while (client->input_bytes - at >= PROTOCOL_HEADER_BYTES) {
        MUST(client, protocol_header_read(client->version, client->input + at, &header) == CORE_OK,
             "a bad header");
        if (client->input_bytes - at < PROTOCOL_HEADER_BYTES + (size_t)header.body_bytes)
            break;
        const bool shared = client->shares;
        model_on_frame(client, &header, client->input + at + PROTOCOL_HEADER_BYTES);
        at += PROTOCOL_HEADER_BYTES + header.body_bytes;
        if (client->shares && !shared) /* what comes behind LANED only wakes */
            at = client->input_bytes;
    }
    memmove(client->input, client->input + at, client->input_bytes - at);
    client->input_bytes -= at;
}

/* As recv, from the socket or the lane. */
static ssize_t hear_bytes(struct client *client)
{
    uint8_t *room = client->input + client->input_bytes;
    const size_t bytes = sizeof client->input - client->input_bytes;
    size_t got;
    if (!client->shares)
        return recv(client->descriptor, room, bytes, MSG_DONTWAIT);
    const core_status status = core_lane_read(&client->lane, room, bytes, &got);
    MUST(client, status != CORE_INVALID, "a lane's counts can not be");
    if (got > 0)
        core_lane_release(&client->lane);
    errno = status == CORE_AGAIN ? EAGAIN : EPIPE;
    return got > 0 ? (ssize_t)got : status == CORE_NOT_FOUND ? 0 : -1;
}

/* True: there was something. */
static bool hear(struct client *client)
{
    const ssize_t got = hear_bytes(client);
    if (got < 0 && errno == EAGAIN)
        return false;
    client->input_bytes += got > 0 ? (size_t)got : 0;
    read_frames(client);
    if (got <= 0)
        on_end(client);
    return true;
}

static bool has_more(const struct client *client)
{
    return client->shares && core_lane_left_bytes(&client->lane) > 0;
}

/* Every one that has something to hear, but for the deaf. */
static bool hear_all(void)
{
    struct epoll_event events[CLIENTS + 1];
    bool ready[CLIENTS + 1] = {false}, any = false;

    const int named = epoll_wait(ears, events, CLIENTS + 1, 0);
    for (int i = 0; i < named; i++)
        ready[events[i].data.u32] = true;
    for (size_t i = 0; i <= CLIENTS; i++)
        any |= (ready[i] || has_more(&clients[i])) && !clients[i].deaf && hear(&clients[i]);
    return any;
}

static void pass(core_ns time_ns)
{
    test_virtual_run(test_virtual_now_ns() + time_ns);
}

static void connect_client(struct client *client)
{
    EVP_CIPHER_CTX *chains[STREAMS];
    struct core_error error;
    int pair[2];

    for (size_t i = 0; i < STREAMS; i++)
        chains[i] = client->streams[i].chain;
    memset(client, 0, offsetof(struct client, output));
    for (size_t i = 0; i < STREAMS; i++)
        client->streams[i].chain = chains[i];
    TEST_REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    client->descriptor = pair[0];
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)(client - clients)};
    TEST_REQUIRE(epoll_ctl(ears, EPOLL_CTL_ADD, client->descriptor, &event) == 0);
    client->workers_late = worker_delay_ns > 0;
    TEST_REQUIRE(server_adopt(server.server, pair[1], &error) == CORE_OK);
}

static void half_close(struct client *client)
{
    model_push(client, client->output_bytes);
    if (client->output_bytes > 0 || !client->welcomed)
        return;
    client->half_closed = true;
    for (uint32_t i = 0; i < client->stream_count; i++)
        client->streams[i].asked_to_close = true;
    shutdown(client->descriptor, SHUT_WR);
}

/* ---- sequences ---- */

static void give_frame(struct client *client, uint32_t operation, struct tape *tape)
{
    if (!model_has_room(client))
        return;
    switch (operation) {
    case 0:
        model_give_hello(client, tape, true);
        break;
    case 1:
        model_give_hello(client, tape, false);
        break;
    case 2:
        model_give_open(client, tape, true, PROTOCOL_OPEN);
        break;
    case 3:
        model_give_open(client, tape, take(tape) & 1, PROTOCOL_OPEN);
        break;
    case 4:
        model_give_open(client, tape, take(tape) & 1, PROTOCOL_QUERY);
        break;
    case 5:
        model_give_wrong_data(client, tape);
        break;
    case 6:
        model_give_close(client, tape);
        break;
    case 7:
        model_give_ping(client, tape);
        break;
    case 8:
        model_give_malformed(client, tape);
        break;
    case 9:
        model_give_modify(client, tape);
        break;
    case 10:
        model_give_unknown(client, tape, take(tape) & 1 ? PROTOCOL_CLOSE : PROTOCOL_DATA);
        break;
    case REKEY_OPERATION:
        if (talks_messages) {
            model_give_rekey(client, tape);
            break;
        }
        __attribute__((fallthrough));
    default:
        model_give_right_data(client, tape);
    }
}

/* From now on workers begin so late. */
static void delay_workers(core_ns delay_ns)
{
    worker_delay_ns = delay_ns;
    test_virtual_delay_workers(delay_ns);
    for (size_t i = 0; delay_ns > 0 && i < CLIENTS; i++)
        clients[i].workers_late = true;
}

static void lose_card(struct tape *tape)
{
    const uint32_t card = take(tape) % CARDS, noticed = take(tape), lingers = take(tape);
    (void)test_virtual_gpu_lose(card, noticed * 1000 / 255,
                                lingers % 2 == 0 ? 0 : (core_ns)lingers * CORE_NS_PER_MS);
}

/* What is not about frames. */
static void disturb(struct client *client, struct tape *tape)
{
    const uint32_t how = gentle ? 5 + take(tape) % 5 : take(tape) % 10;
    if (client->descriptor < 0)
        return;
    if (how == 0)
        hang_up(client);
    else if (how == 1 && client->fatal == 0 && !client->half_closed)
        half_close(client);
    else if (how == 2)
        client->deaf = client->held_up = true;
    else if (how == 3)
        client->deaf = false;
    else if (how == 4)
        delay_workers((core_ns)take(tape) * 20000);
    else if (how == 5 || how == 6)
        lose_card(tape);
    else
        pass((core_ns)take(tape) << take(tape) % 24);
}

/* No packet of a plan that is in force can find a batch full. */
static void check_batches(void)
{
    for (uint32_t i = 0; i < server.server->gpu_count; i++) {
        const struct server_gpu *gpu = server.server->gpus[i];
        MUST(probe,
             gpu->plan.period_ns == 0 || gpu->plan_in_force != gpu->plan.number ||
                 server_gpu_room_is_open(gpu, &gpu->plan),
             "card %u has opened a batch that is too small for its plan", i);
    }
}

static void step(struct tape *tape)
{
    static const uint8_t gentle_operations[16] = {2,  2, 2, 2, 4, 6, 7, 9, 9, 11, 11, 11, 11, REKEY_OPERATION,
                                                  15, 15};
    struct client *client = &clients[take(tape) % CLIENTS];
    const uint32_t operation = gentle ? gentle_operations[take(tape) % 16] : take(tape), cut = take(tape);

    if (client->descriptor < 0) {
        connect_client(client);
        if (operation % 8 != 0) /* few begin with anything else */
            model_give_hello(client, tape, true);
    } else if (operation % 16 == 15)
        disturb(client, tape);
    else
        give_frame(client, operation % 16, tape);
    model_push(client, cut < 192 ? client->output_bytes : cut - 191);
    if (cut % 8 != 7) {
        pass(cut % 4 == 0 ? (core_ns)cut * 1000 : 0);
        check_batches();
        return;
    }
    for (uint32_t turns = cut / 8 % 4; turns > 0; turns--) /* the next operation comes in between */
        test_virtual_turn();
    check_batches();
}

/* Each says all that it had to say, and hears to the end. */
static void finish(void)
{
    delay_workers(0);
    for (size_t i = 0; i < CLIENTS; i++)
        clients[i].deaf = false;
    for (uint32_t patience = 0; patience < 4000; patience++) {
        bool waits = false;
        for (size_t i = 0; i < CLIENTS; i++) {
            struct client *client = &clients[i];
            if (client->descriptor < 0)
                continue;
            waits = true;
            model_push(client, client->output_bytes);
            if (client->fatal == 0 && !client->half_closed && client->welcomed)
                half_close(client);
            else if (!client->greets && client->fatal == 0)
                hang_up(client); /* it never spoke */
        }
        if (!waits)
            return;
        pass(CORE_NS_PER_MS);
    }
    for (size_t i = 0; i < CLIENTS; i++)
        MUST(&clients[i], clients[i].descriptor < 0, "the connection does not end");
}

static void await_cards(void)
{
    for (core_ns waited_ns = 0; !test_virtual_gpus_ready(); waited_ns += PROBE_NS) {
        MUST(probe, waited_ns < SETTLE_NS, "a card does not come back");
        pass(PROBE_NS);
    }
}

/* What is offered to who asks for a stream of this interval: another one where it is refused, 0 if none. */
static core_ns ask_offer_ns(core_ns interval_ns)
{
    const struct protocol_open open = {.spec = {.packet_bytes = 1024,
                                                .burst_packets = 2,
                                                .interval_ns = interval_ns,
                                                .latency_ns = 100 * CORE_NS_PER_MS,
                                                .cipher = CORE_CIPHER_AES_256_CBC,
                                                .padding = CORE_PADDING_NONE}};
    struct request *request = model_new_request(probe, PROTOCOL_QUERY);
    uint8_t frame[FRAME_BYTES];

    request->open = open;
    probe->offer_interval_ns = interval_ns;
    model_give(probe, frame, protocol_open_write(probe->version, frame, PROTOCOL_QUERY, request->id, &open));
    model_push(probe, probe->output_bytes);
    pass(0);
    for (core_ns waited_ns = 0; request->type != 0; waited_ns += PROBE_NS) {
        MUST(probe, waited_ns < SETTLE_NS, "a QUERY remains without an answer");
        pass(PROBE_NS);
    }
    return probe->offer_interval_ns;
}

/* The empty server grants what it offered. What it offers now takes it long to find: it is asked now and then,
 * the first time at once. */
static void check_empty(core_ns before_ns)
{
    static uint32_t checks;
    core_ns offer_ns;

    for (core_ns waited_ns = 0; (offer_ns = ask_offer_ns(before_ns)) != before_ns; waited_ns += PROBE_NS) {
        MUST(probe, waited_ns < SETTLE_NS, "the empty server offers %lld ns instead of %lld ns",
             (long long)offer_ns, (long long)before_ns);
        pass(PROBE_NS);
    }
    if (checks++ % CHECKS_OF_OFFERS == 0)
        offer_ns = ask_offer_ns(CORE_INTERVAL_NS_MIN);
    MUST(probe, offer_ns == before_ns, "the empty server offers %lld ns instead of %lld ns",
         (long long)offer_ns, (long long)before_ns);
}

static bool is_anything_reserved(void)
{
    const struct server *inside = server.server;
    const struct server_planner *planner = inside->planner;
    bool reserved = false;

    for (uint32_t i = 0; i < inside->io_count; i++)
        reserved |= atomic_load(&server_planner_io_load(planner, i)->utilisation_ppb) != 0;
    for (uint32_t i = 0; i < inside->worker_count; i++) {
        const struct server_planner_load *load = server_planner_worker_load(planner, i);
        reserved |= server_stats_get(&load->streams) + server_stats_get(&load->backups) > 0 ||
                    atomic_load(&load->utilisation_ppb) != 0;
    }
    for (uint32_t i = 0; i < inside->gpu_count; i++) {
        const struct server_gpu_figures *figures = server_gpu_figures(inside->gpus[i]);
        reserved |= server_stats_get(&figures->streams) + server_stats_get(&figures->backups) > 0;
    }
    return reserved;
}

/* One card can hide what is left behind on another, and on the worker, from who asks for room. */
static void check_nothing_reserved(void)
{
    for (core_ns waited_ns = 0; is_anything_reserved(); waited_ns += PROBE_NS) {
        MUST(probe, waited_ns < SETTLE_NS, "the empty server has something reserved");
        pass(PROBE_NS);
    }
}

/* Of each card while nothing is reserved. */
static struct held {
    uint64_t memory_bytes, restarts;
} held[CARDS];

static struct held held_by(uint32_t card)
{
    const struct server_gpu_figures *figures = server_gpu_figures(server.server->gpus[card]);
    return (struct held){.memory_bytes = atomic_load(&figures->memory_bytes),
                         .restarts = server_stats_get(&figures->restarts)};
}

static void note_held(void)
{
    for (uint32_t i = 0; i < server.server->gpu_count; i++)
        held[i] = held_by(i);
}

/* A process that was started with more can not give it back in small pieces. */
static void check_memory_is_back(void)
{
    for (uint32_t i = 0; i < server.server->gpu_count; i++)
        for (core_ns waited_ns = 0;
             held_by(i).restarts == held[i].restarts && held_by(i).memory_bytes > held[i].memory_bytes;
             waited_ns += PROBE_NS) {
            MUST(probe, waited_ns < SETTLE_NS, "a card without streams keeps %llu bytes, more than %llu",
                 (unsigned long long)held_by(i).memory_bytes, (unsigned long long)held[i].memory_bytes);
            pass(PROBE_NS);
        }
    note_held();
}

/* Each loss of a card is told there. */
static bool drop_event(const struct core_log_entry *entry)
{
    (void)entry;
    return true;
}

/* serves: its I/O thread often has the time for a worker's work. */
static void start_server(bool serves)
{
    struct tape version_2 = {(const uint8_t[]){1}, 1};
    struct config_profile *profile = test_gpu_profile(CPU_COST);
    test_server_prepare(&server);
    test_server_write(&server, "keyring", model_keyring);
    (void)mallopt(M_MMAP_THRESHOLD, KEPT_BYTES); /* the planner copies its state often: no page faults */
    (void)mallopt(M_TRIM_THRESHOLD, KEPT_BYTES);
    profile->gpus[0].count = CARDS;
    profile->pinned_bytes = CARDS * CARD_BYTES;
    profile->margins.out_ns = MARGIN_NS;
    profile->margins.in_ns = serves ? SERVES_NS : MARGIN_NS;
    profile->io.rest_max_ns = 0; /* what is sent has arrived: it is read at once */
    test_gpu_server_start(&server, "hang_ms: 20",
                          "listeners: [{address: 'unix:socket'}]\n"
                          "client_iv: true\n"
                          "keyring: keyring\n"
                          "limits: {packet_bytes: 4096, burst_packets: 16, streams: 64, lane_mib: 64}\n",
                          profile);
    config_profile_free(profile);
    core_log_configure(
        &(struct core_log_options){.level = CORE_LOG_ERROR, .descriptor = STDERR_FILENO, .sink = drop_event});
    connect_client(probe);
    model_give_hello(probe, &version_2, true);
    note_held();
}

/* SIGTERM. What was sent by now is delivered, and each client is told. */
static void drain(void)
{
    pass(0); /* what was sent is read */
    delay_workers(0);
    for (size_t i = 0; i <= CLIENTS; i++) {
        clients[i].deaf = false;
        clients[i].drained = true;
    }
    MUST(probe, test_server_stop(&server) == 0, "packets were lost");
    (void)hear_all();
    for (size_t i = 0; i <= CLIENTS; i++)
        MUST(&clients[i], clients[i].descriptor < 0, "the connection outlives the server");
}

static void restart_server(bool serves)
{
    drain();
    start_server(serves);
}

void test_model_run(const uint8_t *bytes, size_t count)
{
    static core_ns offers_ns[2]; /* what the empty server offers at first */
    struct tape tape = {bytes, count};
    const uint32_t kind = take(&tape);
    const bool serves = kind >= 240 && kind < 244, drains = kind >= 248 && kind < 250;

    if (serves)
        restart_server(true);
    if (offers_ns[serves] == 0)
        offers_ns[serves] = ask_offer_ns(CORE_INTERVAL_NS_MIN);
    TEST_REQUIRE(offers_ns[serves] > CORE_INTERVAL_NS_MIN);
    gentle = kind % 8 == 0 || serves;
    talks_messages = kind % 4 == 1 || kind % 32 == 0;
    model_talk_messages(talks_messages);
    while (tape.left > 0)
        step(&tape);
    if (drains) {
        restart_server(false);
        return;
    }
    finish();
    await_cards();
    check_empty(offers_ns[serves]);
    check_nothing_reserved();
    check_memory_is_back();
    if (serves)
        restart_server(false);
}

void test_model_start(void)
{
    for (size_t i = 0; i <= CLIENTS; i++)
        clients[i].descriptor = -1;
    ears = epoll_create1(EPOLL_CLOEXEC);
    TEST_REQUIRE(ears >= 0);
    test_virtual_rest(hear_all);
    start_server(false);
}

void test_model_stop(void)
{
    hang_up(probe);
    pass(CORE_NS_PER_S);
    TEST_REQUIRE(test_server_stop(&server) == 0);
    for (size_t i = 0; i < CLIENTS; i++)
        for (size_t at = 0; at < STREAMS; at++)
            EVP_CIPHER_CTX_free(clients[i].streams[at].chain);
}
