#include "server/admin/agent.h"

#include "core/log.h"
#include "server/net/poller.h"
#include "server/overload/monitor.h"
#include "server/server.h"
#include "server/server_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PIECE_STREAMS  128 /* counted in one round of the thread */
#define REST_OF_COUNTS 20  /* times what the last count took are between two of them */

#define OVERLOADED 10 /* its weight is divided by */

/* Has its line. */
struct guest {
    int descriptor; /* -1: none */
    core_ns until_ns;
};

struct server_agent {
    struct server *server;
    struct server_poller *poller;
    struct core_address bound;
    struct server_watch listener;
    struct guest guests[SERVER_AGENT_PLACES];
    uint32_t next_guest;
    struct server_planner_copy copy; /* the planner's while `asked` */
    bool asked;
    struct admission *counted; /* a count goes on; NULL: none */
    uint32_t streams, streams_max;
    core_ns spent_ns, next_ns;
    uint32_t
        whole; /* so many there were at the most, which is when nothing was admitted; 0: not counted yet */
    uint32_t left; /* and now */
    bool warned;   /* that there is room for none */
};

/* ---- the line ---- */

static uint32_t percent(const struct server_agent *agent)
{
    uint32_t share = agent->whole == 0 ? 0 : (uint32_t)(UINT64_C(100) * agent->left / agent->whole);
    if (server_monitor_is_overloaded(agent->server->watch))
        share /= OVERLOADED;
    return share > 0 ? share : 1;
}

static void describe(const struct server_agent *agent, char *line, size_t size)
{
    const struct server *server = agent->server;
    char reason[96];

    if (!server_lives(server, reason, sizeof reason))
        snprintf(line, size, "down #%s\n", reason);
    else if (atomic_load_explicit(&server->maintenance, memory_order_relaxed))
        snprintf(line, size, "up maint\n");
    else if (server_is_leaving(server) || atomic_load_explicit(&server->draining, memory_order_relaxed))
        snprintf(line, size, "up drain\n");
    else
        snprintf(line, size, "up ready %u%%\n", percent(agent));
}

/* ---- who connects ---- */

static void see_off(struct guest *guest)
{
    if (guest->descriptor >= 0)
        close(guest->descriptor);
    guest->descriptor = -1;
}

static void answer(struct server_agent *agent, int descriptor)
{
    struct guest *guest = &agent->guests[agent->next_guest++ % SERVER_AGENT_PLACES];
    char line[128];

    describe(agent, line, sizeof line);
    (void)!send(descriptor, line, strlen(line), MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)shutdown(descriptor, SHUT_WR);
    see_off(guest);
    *guest = (struct guest){descriptor, core_time_now_ns() + SERVER_AGENT_LINGER_MS * CORE_NS_PER_MS};
}

static void listen_on(struct server_agent *agent, bool wanted)
{
    (void)server_poller_watch(agent->poller, &agent->listener,
                              wanted ? EPOLLIN : 0); /* else the next round */
}

/* Without descriptors until the next round. */
static void on_connect(struct server_watch *watch, uint32_t events)
{
    struct server_agent *agent = watch->owner;
    (void)events;
    const int descriptor = accept4(watch->descriptor, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (descriptor >= 0)
        answer(agent, descriptor);
    else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
        core_log(CORE_LOG_WARNING, "agent.accept", "can not accept on the agent port: %m; trying again");
        listen_on(agent, false);
    }
}

/* ---- how many streams are left ---- */

static void on_copied(void *owner, struct server_message *message)
{
    struct server_agent *agent =
        (struct server_agent *)((char *)message - offsetof(struct server_agent, copy.message));
    (void)owner;
    agent->asked = false;
    agent->counted = agent->copy.admission;
    agent->streams = 0;
    agent->streams_max = agent->copy.streams_max;
    agent->spent_ns = 0;
    agent->next_ns = core_time_now_ns() + SERVER_AGENT_PERIOD_MS * CORE_NS_PER_MS;
}

static void ask(struct server_agent *agent)
{
    agent->asked = true;
    server_planner_copy(agent->server->planner, &agent->copy);
}

static void warn_of_none(struct server_agent *agent)
{
    if (!agent->warned)
        core_log(
            CORE_LOG_WARNING, "agent.typical",
            "there is room for no stream of the agent's contract (agent.packet_bytes, burst_packets, "
            "interval_us, latency_us), so the weight is 1%%; if that stays so while nothing is open, name a "
            "contract that this server can promise");
    agent->warned = true;
}

/* The first count is of an empty server, unless there was no memory for it. */
static void end_count(struct server_agent *agent, core_ns now_ns)
{
    admission_destroy(agent->counted);
    agent->counted = NULL;
    if (agent->streams > agent->whole)
        agent->whole = agent->streams;
    agent->left = agent->streams;
    if (agent->whole == 0)
        warn_of_none(agent);
    agent->next_ns = core_time_max(agent->next_ns, now_ns + REST_OF_COUNTS * agent->spent_ns);
}

static void count_on(struct server_agent *agent)
{
    const core_ns begun_ns = core_time_now_ns();
    const uint32_t most = agent->streams_max - agent->streams;
    const uint32_t wanted = most < PIECE_STREAMS ? most : PIECE_STREAMS;
    const uint32_t done = admission_fill(agent->counted, &agent->server->config->agent.typical, wanted);
    const core_ns now_ns = core_time_now_ns();

    agent->streams += done;
    agent->spent_ns += now_ns - begun_ns;
    if (done < PIECE_STREAMS)
        end_count(agent, now_ns);
}

bool server_agent_go_on(struct server_agent *agent, core_ns now_ns)
{
    if (agent == NULL)
        return false;
    for (uint32_t i = 0; i < SERVER_AGENT_PLACES; i++)
        if (now_ns > agent->guests[i].until_ns)
            see_off(&agent->guests[i]);
    listen_on(agent, true);
    if (agent->counted != NULL)
        count_on(agent);
    else if (!agent->asked && now_ns >= agent->next_ns)
        ask(agent);
    return agent->counted != NULL;
}

/* ---- life ---- */

static core_status start_listening(struct server_agent *agent, struct core_error *error)
{
    char text[300];
    core_status status = core_address_listen(&agent->server->config->agent.address, 0,
                                             &agent->listener.descriptor, &agent->bound, error);
    if (status != CORE_OK)
        return core_error_prefix(error, status, "agent");
    core_log(CORE_LOG_INFO, "start.agent", "HAProxy's agent-check on %s",
             core_address_format(&agent->bound, text, sizeof text));
    return server_poller_watch(agent->poller, &agent->listener, EPOLLIN)
               ? CORE_OK
               : core_error_set(error, CORE_NO_MEMORY, "no memory for the agent port");
}

core_status server_agent_create(struct server_agent **agent, struct server *server,
                                struct server_poller *poller, struct server_mailbox *mailbox,
                                struct core_error *error)
{
    struct server_agent *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the agent port");
    fresh->server = server;
    fresh->poller = poller;
    fresh->listener = (struct server_watch){.descriptor = -1, .ready = on_connect, .owner = fresh};
    fresh->copy = (struct server_planner_copy){.reply = mailbox,
                                               .copied = on_copied,
                                               .typical = &server->config->agent.typical,
                                               .changes = UINT64_MAX};
    for (uint32_t i = 0; i < SERVER_AGENT_PLACES; i++)
        fresh->guests[i].descriptor = -1;
    core_status status = start_listening(fresh, error);
    if (status != CORE_OK) {
        server_agent_destroy(fresh);
        return status;
    }
    ask(fresh);
    *agent = fresh;
    return CORE_OK;
}

bool server_agent_is_asking(const struct server_agent *agent)
{
    return agent != NULL && agent->asked;
}

void server_agent_destroy(struct server_agent *agent)
{
    if (agent == NULL)
        return;
    for (uint32_t i = 0; i < SERVER_AGENT_PLACES; i++)
        see_off(&agent->guests[i]);
    if (agent->listener.descriptor >= 0) {
        listen_on(agent, false);
        core_address_remove(&agent->bound);
        close(agent->listener.descriptor);
    }
    admission_destroy(agent->counted);
    free(agent);
}

const struct core_address *server_agent_bound(const struct server_agent *agent)
{
    return &agent->bound;
}
