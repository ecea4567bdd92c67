/* Newcomers for whom others have to move.
 *
 * Where an OPEN fits nowhere as things stand, partition_standing_replan is asked for moves that make room.
 * That takes as long as a plan of all streams does, so it runs on a thread of its own, without real-time
 * priority, on a copy of the standing plan, one newcomer after the other; other requests are answered
 * meanwhile. Only proposals are used whose moves can be made in turn, and after which the newcomer is
 * admitted like anybody: each move is proven by itself (partition/admission/admission.h), so that it does not
 * matter what else happens between them, nor that some are made and others not. The newcomer is tried again
 * whenever room has become free, is admitted when the standing plan takes it, and refused when its patience
 * is over.
 */
#include "core/log.h"
#include "core/realtime.h"
#include "server/planner/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define APPLICANTS_MAX 64 /* beyond so many nobody waits: the answer would come too late */
#define ATTEMPTS_MAX   3  /* plans for one newcomer: streams that come and go make them stale */
#define STACK_BYTES    ((size_t)1 << 20)

enum stage { WAITING, PLANNING, MOVING };

/* A newcomer. The planner thread's; while PLANNING also the replanner's, as said. */
struct applicant {
    struct server_message message; /* first member: to the replanner and back */
    struct server_planner *planner;
    struct applicant *next;
    struct server_request *request; /* NULL: answered */
    enum stage stage;
    core_ns until_ns;
    uint32_t attempts;
    uint64_t born;      /* grants with a higher number came after the copy was made */
    size_t started;     /* moves of these */
    uint32_t under_way; /* orders */
    /* the replanner's while PLANNING */
    struct partition_standing *copy;
    struct core_stream_spec spec;
    uint32_t io;
    bool accepted;
    size_t moves;
    struct partition_standing_move *move;
};

struct server_replanner {
    struct server_planner *planner;
    struct server_mailbox mailbox;
    struct server_message stop_message;
    const struct partition_plan_method *method;
    bool stopping; /* its own */
    pthread_t thread;
    /* the planner thread's */
    struct applicant *applicants;
    uint32_t count;
    bool busy;
};

/* ---- on the replanner's thread ---- */

static void take_proposal(void *owner, struct server_message *message);

static void plan(void *owner, struct server_message *message)
{
    struct server_replanner *replanner = owner;
    struct applicant *applicant = (struct applicant *)message;
    struct partition_standing_proposal proposal;

    if (partition_standing_replan(applicant->copy, replanner->method, &applicant->spec, applicant->io,
                                  &proposal, NULL) == CORE_OK) {
        applicant->accepted = proposal.accepted;
        applicant->moves = proposal.moves;
        applicant->move = proposal.move;
    }
    partition_standing_destroy(applicant->copy);
    applicant->copy = NULL;
    applicant->message.run = take_proposal;
    server_mailbox_post(&replanner->planner->mailbox, &applicant->message);
}

static void stop(void *owner, struct server_message *message)
{
    struct server_replanner *replanner = owner;
    (void)message;
    replanner->stopping = true;
}

static void *run(void *argument)
{
    struct server_replanner *replanner = argument;
    while (!replanner->stopping)
        server_mailbox_wait(&replanner->mailbox, replanner, -1);
    return NULL;
}

/* ---- applicants, on the planner's thread ---- */

static void forget_moves(struct applicant *applicant)
{
    free(applicant->move);
    applicant->move = NULL;
    applicant->moves = applicant->started = 0;
    applicant->accepted = false;
}

static void free_if_over(struct applicant *applicant)
{
    if (applicant->request != NULL || applicant->under_way > 0 || applicant->stage == PLANNING)
        return;
    forget_moves(applicant);
    free(applicant);
}

/* The list does not know it any more; orders that are under way end by themselves. */
static void answer(struct applicant *applicant)
{
    struct server_replanner *replanner = applicant->planner->replanner;
    struct applicant **link = &replanner->applicants;

    while (*link != applicant)
        link = &(*link)->next;
    *link = applicant->next;
    replanner->count--;
    server_planner_answer(applicant->planner, applicant->request);
    applicant->request = NULL;
}

static void refuse(struct applicant *applicant, const char *advice)
{
    applicant->request->refusal = PROTOCOL_REFUSED_CAPACITY;
    applicant->request->advice = advice;
    answer(applicant);
}

/* Would it be admitted now? Then it is. */
static bool try_to_admit(struct applicant *applicant)
{
    struct server_planner *planner = applicant->planner;
    struct partition_standing_placement placement;
    struct server_request *request = applicant->request;

    if (partition_standing_query(planner->standing, &applicant->spec, applicant->io, false, &placement,
                                 NULL) != CORE_OK ||
        !placement.accepted)
        return false;
    request->refusal = 0;
    server_planner_admit(planner, request);
    answer(applicant);
    return true;
}

static void move_returned(void *owner, struct server_message *message)
{
    struct server_order *order = (struct server_order *)message;
    struct applicant *applicant = order->owner;

    (void)server_planner_moved(owner, order);
    applicant->under_way--;
    free_if_over(applicant);
}

/* Is the stream of the move still where it was when the copy was made? */
static struct server_grant *grant_of(const struct applicant *applicant,
                                     const struct partition_standing_move *move)
{
    const struct server_planner *planner = applicant->planner;
    struct server_grant *grant =
        move->stream < planner->grant_capacity ? planner->grants[move->stream] : NULL;
    bool same = grant != NULL && grant->born <= applicant->born && grant->unit == move->from;
    return same ? grant : NULL;
}

/* Starts as many moves as there is room for now. Some wait for the room of others. */
static void start_moves(struct applicant *applicant, core_ns now_ns)
{
    char reason[256];

    for (; applicant->started < applicant->moves; applicant->started++) {
        const struct partition_standing_move *next = &applicant->move[applicant->started];
        struct server_planner_move move = {.grant = grant_of(applicant, next),
                                           .to = next->to,
                                           .period_ns = next->period_ns,
                                           .patience_ns = applicant->until_ns - now_ns,
                                           .owner = applicant};
        if (move.grant == NULL)
            continue; /* it has left, which makes room as well */
        if (!server_planner_move(applicant->planner, &move, move_returned, reason, sizeof reason))
            return;
        applicant->under_way++;
    }
}

/* Nothing is left that could make room. */
static bool is_stuck(const struct applicant *applicant)
{
    return applicant->under_way == 0 && applicant->planner->leaving == NULL;
}

static void go_on(struct applicant *applicant, core_ns now_ns)
{
    if (applicant->stage == MOVING) {
        if (try_to_admit(applicant)) {
            free_if_over(applicant);
            return;
        }
        start_moves(applicant, now_ns);
        if (is_stuck(applicant)) {
            forget_moves(applicant);
            applicant->stage = WAITING;
        }
    }
    if (applicant->stage == WAITING && applicant->attempts >= ATTEMPTS_MAX)
        refuse(applicant, "capacity could not be freed by migrating other streams; retry later");
    else if (now_ns >= applicant->until_ns)
        refuse(applicant, "timed out while migrating other streams (timeouts.move_ms); retry");
    free_if_over(applicant);
}

/* ---- proposals ---- */

static bool send_to_replanner(struct applicant *applicant)
{
    struct server_planner *planner = applicant->planner;

    if (partition_standing_copy(planner->standing, &applicant->copy) != CORE_OK)
        return false;
    applicant->stage = PLANNING;
    applicant->attempts++;
    applicant->born = planner->born;
    applicant->message.run = plan;
    planner->replanner->busy = true;
    server_mailbox_post(&planner->replanner->mailbox, &applicant->message);
    return true;
}

static void take_proposal(void *owner, struct server_message *message)
{
    struct server_planner *planner = owner;
    struct applicant *applicant = (struct applicant *)message;

    planner->replanner->busy = false;
    applicant->stage = MOVING;
    if (applicant->request != NULL && !applicant->accepted)
        refuse(applicant, "no feasible plan even after migrating other streams");
    if (applicant->request != NULL)
        go_on(applicant, core_time_now_ns());
    else
        free_if_over(applicant);
}

/* Not where there is nobody to move, or not even idle units would take it, or its I/O thread has no room. */
static bool may_help(const struct server_planner *planner, const struct server_request *request)
{
    enum perfmodel_limit constraint = request->placement.constraint;

    return planner->replanner != NULL && request->refusal == PROTOCOL_REFUSED_CAPACITY &&
           constraint != PERFMODEL_LIMIT_IO && constraint != PERFMODEL_LIMIT_DEADLINE &&
           partition_standing_streams(planner->standing) > 0;
}

bool server_planner_apply(struct server_planner *planner, struct server_request *request)
{
    struct server_replanner *replanner = planner->replanner;
    struct applicant *applicant;

    if (!may_help(planner, request))
        return false;
    if (request->is_query) {
        request->advice = "an OPEN would also try to free capacity by migrating other streams";
        return false;
    }
    applicant = replanner->count < APPLICANTS_MAX ? calloc(1, sizeof *applicant) : NULL;
    if (applicant == NULL)
        return false;
    *applicant =
        (struct applicant){.planner = planner,
                           .request = request,
                           .stage = WAITING,
                           .until_ns = core_time_now_ns() + planner->server->config->timeouts.move_ns,
                           .spec = request->open.spec,
                           .io = request->io};
    struct applicant **link = &replanner->applicants;
    while (*link != NULL)
        link = &(*link)->next;
    *link = applicant;
    replanner->count++;
    return true;
}

bool server_planner_has_applicants(const struct server_planner *planner)
{
    return planner->replanner != NULL && planner->replanner->applicants != NULL;
}

void server_planner_replan(struct server_planner *planner)
{
    if (!server_planner_has_applicants(planner))
        return;
    core_ns now_ns = core_time_now_ns();
    bool draining = atomic_load_explicit(&planner->server->draining, memory_order_relaxed);
    for (struct applicant *applicant = planner->replanner->applicants, *next; applicant != NULL;
         applicant = next) {
        next = applicant->next;
        if (server_planner_is_gone(&applicant->request->turn)) {
            refuse(applicant, NULL);
            free_if_over(applicant);
            continue;
        }
        if (draining && applicant->stage != PLANNING)
            applicant->until_ns = now_ns;
        if (applicant->stage == PLANNING)
            continue;
        if (applicant->stage == WAITING && !planner->replanner->busy && now_ns < applicant->until_ns &&
            applicant->attempts < ATTEMPTS_MAX && send_to_replanner(applicant))
            continue;
        go_on(applicant, now_ns);
    }
}

/* ---- life ---- */

core_status server_planner_start_replanner(struct server_planner *planner, struct core_error *error)
{
    const struct server *server = planner->server;
    struct core_thread_options thread = {.name = "replanner", .cpu = -1, .stack_bytes = STACK_BYTES};
    struct server_replanner *fresh;

    if (server->worker_count + server->gpu_count < 2 || server->config->timeouts.move_ns == 0)
        return CORE_OK; /* there is nowhere to move to, or nobody is to */
    fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the planner");
    fresh->planner = planner;
    fresh->method = partition_plan_method_find(server->gpu_count > 1 ? "bands" : "rectangle");
    core_status status = server_mailbox_init(&fresh->mailbox, error);
    if (status == CORE_OK)
        status = core_thread_start(&fresh->thread, &thread, run, fresh, NULL, error);
    if (status != CORE_OK) {
        server_mailbox_destroy(&fresh->mailbox);
        free(fresh);
        return status;
    }
    planner->replanner = fresh;
    return CORE_OK;
}

void server_planner_stop_replanner(struct server_planner *planner)
{
    struct server_replanner *replanner = planner->replanner;
    if (replanner == NULL)
        return;
    replanner->stop_message.run = stop;
    server_mailbox_post(&replanner->mailbox, &replanner->stop_message);
    pthread_join(replanner->thread, NULL);
    server_mailbox_destroy(&replanner->mailbox);
    free(replanner);
    planner->replanner = NULL;
}
