#include "server/admin/agent.h"

#include "core/log.h"
#include "server/admin/connections.h"
#include "server/overload/monitor.h"
#include "server/server.h"
#include "server/server_internal.h"

#include <stdlib.h>

#define PIECE_STREAMS  128 /* counted in one round of the thread */
#define REST_OF_COUNTS 20  /* times what the last count took are between two of them */
#define OVERLOADED     10  /* its weight is divided by */

struct server_agent {
    struct server_planner_copy copy; /* first member; the planner's while `asked` */
    struct server *server;
    struct server_admin_connections *connections;
    bool asked;
    struct admission *counted; /* a count goes on; NULL: none */
    uint32_t streams;          /* that it has found */
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

static void on_connect(void *argument, struct server_admin_guest *guest,
                       const struct server_admin_request *request)
{
    const struct server_agent *agent = argument;
    const struct server *server = agent->server;
    char line[128], reason[96];

    (void)request;
    if (!server_lives(server, reason, sizeof reason))
        snprintf(line, sizeof line, "down #%s", reason);
    else if (atomic_load_explicit(&server->maintenance, memory_order_relaxed))
        snprintf(line, sizeof line, "up maint");
    else if (server_is_leaving(server) || atomic_load_explicit(&server->draining, memory_order_relaxed))
        snprintf(line, sizeof line, "up drain");
    else
        snprintf(line, sizeof line, "up ready %u%%", percent(agent));
    server_admin_say(guest, line);
}

/* ---- how many streams are left ---- */

static void on_copied(void *owner, struct server_message *message)
{
    struct server_agent *agent = (struct server_agent *)message;
    (void)owner;
    agent->asked = false;
    agent->counted = agent->copy.admission;
    agent->streams = 0;
    agent->spent_ns = 0;
    agent->next_ns = core_time_now_ns() + SERVER_AGENT_PERIOD_MS * CORE_NS_PER_MS;
}

static void ask(struct server_agent *agent)
{
    agent->asked = true;
    server_planner_copy(agent->server->planner, &agent->copy);
}

/* The first count is of an empty server, unless there was no memory for it. */
static void end_count(struct server_agent *agent, core_ns now_ns)
{
    admission_destroy(agent->counted);
    agent->counted = NULL;
    agent->left = agent->streams;
    if (agent->left > agent->whole)
        agent->whole = agent->left;
    agent->next_ns = core_time_max(agent->next_ns, now_ns + REST_OF_COUNTS * agent->spent_ns);
    if (agent->whole > 0 || agent->warned)
        return;
    agent->warned = true;
    core_log(CORE_LOG_WARNING, "agent.typical",
             "there is room for no stream of the agent's contract (agent.packet_bytes, burst_packets, "
             "interval_us, latency_us), so the weight is 1%%; if that stays so while nothing is open, name a "
             "contract that this server can promise");
}

static void count_on(struct server_agent *agent)
{
    const core_ns begun_ns = core_time_now_ns();
    const uint32_t most = agent->copy.streams_max - agent->streams;
    const uint32_t wanted = most < PIECE_STREAMS ? most : PIECE_STREAMS;
    const uint32_t done = admission_fill(agent->counted, agent->copy.typical, wanted);
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
    server_admin_connections_end_overdue(agent->connections, now_ns);
    if (agent->counted != NULL)
        count_on(agent);
    else if (!agent->asked && now_ns >= agent->next_ns)
        ask(agent);
    return agent->counted != NULL;
}

/* ---- life ---- */

core_status server_agent_create(struct server_agent **agent, struct server *server,
                                struct server_poller *poller, struct server_mailbox *mailbox,
                                struct core_error *error)
{
    char text[300];
    struct server_agent *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the agent port");
    const struct server_admin_port port = {.name = "agent",
                                           .address = &server->config->agent.address,
                                           .speaks_first = true,
                                           .answer = on_connect,
                                           .argument = fresh};
    fresh->server = server;
    fresh->copy = (struct server_planner_copy){.reply = mailbox,
                                               .copied = on_copied,
                                               .typical = &server->config->agent.typical,
                                               .changes = UINT64_MAX};
    core_status status = server_admin_connections_create(&fresh->connections, poller, &port, error);
    if (status != CORE_OK) {
        free(fresh);
        return status;
    }
    core_log(CORE_LOG_INFO, "start.agent", "HAProxy's agent-check on %s",
             core_address_format(server_agent_bound(fresh), text, sizeof text));
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
    server_admin_connections_destroy(agent->connections);
    admission_destroy(agent->counted);
    free(agent);
}

const struct core_address *server_agent_bound(const struct server_agent *agent)
{
    return server_admin_connections_bound(agent->connections);
}
