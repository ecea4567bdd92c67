/* Requests for which other streams migrate.
 *
 * Where a stream fits nowhere as things stand, admission_replan is asked for migrations that make
 * room. That takes as long as a plan of all streams does, so the host does it, on a copy of the admission
 * state, for one request after the other; other requests are answered meanwhile. Each migration is proven by
 * itself (partition/admission/admission.h), so it does not matter what else happens between them, nor that
 * some are made and others not. The request is tried again whenever capacity has become free, is admitted
 * when a unit accepts its stream, and refused when its time is over. */
#include "partition/planner/internal.h"

#include <stdlib.h>

#define PENDING_MAX  64 /* beyond so many no request waits: the answer would come too late */
#define ATTEMPTS_MAX 3  /* plans for one request: streams that come and go make them stale */

enum stage { WAITING, SEARCHING, MOVING };

struct planner_pending {
    struct partition_planner_search search; /* first member; the host's while SEARCHING */
    struct partition_planner *planner;
    struct planner_pending *next;
    void *request; /* NULL: answered */
    enum stage stage;
    core_ns until_ns;
    uint32_t attempts;
    bool tentative;       /* migrations for other requests were in progress when the copy was made */
    uint64_t born;        /* reservations with a higher number came after the copy was made */
    size_t started;       /* migrations of the proposal */
    uint32_t in_progress; /* of these */
};

static void forget_proposal(struct planner_pending *pending)
{
    free(pending->search.proposal.move);
    pending->search.proposal = (struct admission_proposal){.accepted = false};
    pending->started = 0;
}

static void free_if_over(struct planner_pending *pending)
{
    struct planner_pending **link = &pending->planner->pending_requests;

    if (pending->request != NULL || pending->in_progress > 0 || pending->stage == SEARCHING)
        return;
    while (*link != pending)
        link = &(*link)->next;
    *link = pending->next;
    forget_proposal(pending);
    free(pending);
}

/* It stays in the list as long as a search or migrations are in progress for it. */
static void *take_request(struct planner_pending *pending)
{
    void *request = pending->request;

    pending->planner->pending_count--;
    pending->request = NULL;
    return request;
}

static void refuse(struct planner_pending *pending, enum partition_planner_refusal why)
{
    struct partition_planner *planner = pending->planner;

    planner->host.refuse(planner->context, take_request(pending), why);
}

/* Would it be admitted now? Then it is. */
static bool try_to_admit(struct planner_pending *pending)
{
    struct partition_planner *planner = pending->planner;
    const struct partition_planner_search *search = &pending->search;
    struct admission_placement placement;

    if (admission_query(planner->admission, &search->spec, search->io, false, &placement, NULL) != CORE_OK ||
        !placement.accepted)
        return false;
    planner->host.admit(planner->context, take_request(pending));
    return true;
}

void planner_made_room(struct planner_pending *pending)
{
    pending->in_progress--;
    free_if_over(pending);
}

/* Is the stream still where it was when the copy was made? */
static bool is_there(const struct planner_pending *pending, const struct admission_move *move)
{
    const struct partition_planner *planner = pending->planner;
    const struct planner_reservation *reservation = &planner->reservations[move->stream];

    return move->stream < planner->capacity && reservation->owner != NULL &&
           reservation->born <= pending->born && reservation->unit == move->from;
}

/* Starts as many migrations as there is room for now. Some wait for the room of others. */
static void start_migrations(struct planner_pending *pending, core_ns now_ns)
{
    const struct admission_proposal *proposal = &pending->search.proposal;
    char reason[256];

    for (; pending->started < proposal->moves; pending->started++) {
        const struct admission_move *next = &proposal->move[pending->started];
        const struct planner_move move = {.stream = next->stream,
                                          .unit = next->to,
                                          .period_ns = next->period_ns,
                                          .timeout_ns = pending->until_ns - now_ns,
                                          .now_ns = now_ns,
                                          .pending = pending};
        if (!is_there(pending, next))
            continue; /* it has left, which makes room as well */
        if (!planner_move(pending->planner, &move, reason, sizeof reason))
            return;
        pending->in_progress++;
    }
}

/* Nothing is left that could make room. */
static bool is_stuck(const struct planner_pending *pending)
{
    return pending->in_progress == 0 && pending->planner->retired == PLANNER_NONE;
}

static void go_on(struct planner_pending *pending, core_ns now_ns)
{
    if (pending->stage == MOVING) {
        if (try_to_admit(pending)) {
            free_if_over(pending);
            return;
        }
        start_migrations(pending, now_ns);
        if (is_stuck(pending)) {
            forget_proposal(pending);
            pending->stage = WAITING;
        }
    }
    if (pending->stage == WAITING && pending->attempts >= ATTEMPTS_MAX)
        refuse(pending, PARTITION_PLANNER_TRIED);
    else if (now_ns >= pending->until_ns)
        refuse(pending, PARTITION_PLANNER_TIMED_OUT);
    free_if_over(pending);
}

/* ---- searches ---- */

/* Streams that migrate for another request have capacity at two units. What a search does not find then, it
 * may find when they have arrived. */
static bool others_migrate(const struct planner_pending *pending)
{
    const struct planner_pending *other = pending->planner->pending_requests;

    while (other != NULL && (other == pending || other->in_progress == 0))
        other = other->next;
    return other != NULL;
}

static bool begin_search(struct planner_pending *pending)
{
    struct partition_planner *planner = pending->planner;

    if (admission_copy(planner->admission, &pending->search.copy) != CORE_OK)
        return false;
    pending->stage = SEARCHING;
    pending->attempts++;
    pending->tentative = others_migrate(pending);
    pending->born = planner->born;
    planner->searching = pending;
    planner->host.search(planner->context, &pending->search);
    return true;
}

static bool may_search_again(const struct planner_pending *pending, core_ns now_ns)
{
    return pending->tentative && pending->attempts < ATTEMPTS_MAX && now_ns < pending->until_ns;
}

void partition_planner_found(struct partition_planner *planner, struct partition_planner_search *search,
                             core_ns now_ns)
{
    struct planner_pending *pending = (struct planner_pending *)search;

    admission_destroy(search->copy);
    search->copy = NULL;
    planner->searching = NULL;
    pending->stage = search->proposal.accepted ? MOVING : WAITING;
    if (pending->request != NULL && !search->proposal.accepted && !may_search_again(pending, now_ns))
        refuse(pending, PARTITION_PLANNER_NO_PLAN);
    if (pending->request != NULL && pending->stage == MOVING)
        go_on(pending, now_ns);
    else
        free_if_over(pending);
}

/* Not where there is no stream to move, or not even an idle unit would accept it, or its I/O thread has no
 * capacity. */
bool partition_planner_may_help(const struct partition_planner *planner, enum perfmodel_limit constraint)
{
    return planner->options.wait_ns > 0 && planner->options.workers + planner->options.gpus > 1 &&
           constraint != PERFMODEL_LIMIT_IO && constraint != PERFMODEL_LIMIT_DEADLINE &&
           admission_streams(planner->admission) > 0;
}

bool partition_planner_wait(struct partition_planner *planner, const struct core_stream_spec *spec,
                            uint32_t io, void *request, core_ns now_ns)
{
    struct planner_pending **link = &planner->pending_requests;
    struct planner_pending *pending =
        planner->pending_count < PENDING_MAX ? calloc(1, sizeof *pending) : NULL;

    if (pending == NULL)
        return false;
    *pending = (struct planner_pending){.planner = planner,
                                        .request = request,
                                        .stage = WAITING,
                                        .until_ns = now_ns + planner->options.wait_ns,
                                        .search = {.spec = *spec, .io = io}};
    while (*link != NULL)
        link = &(*link)->next;
    *link = pending;
    planner->pending_count++;
    return true;
}

/* No plan has been found as long as others migrate. */
static void await_others(struct planner_pending *pending, core_ns now_ns)
{
    if (!try_to_admit(pending) && now_ns >= pending->until_ns)
        refuse(pending, PARTITION_PLANNER_NO_PLAN);
    free_if_over(pending);
}

static void maintain_request(struct planner_pending *pending, core_ns now_ns)
{
    struct partition_planner *planner = pending->planner;

    if (pending->request == NULL)
        return;
    if (!planner->host.still_waits(planner->context, pending->request)) {
        refuse(pending, PARTITION_PLANNER_WITHDRAWN);
        free_if_over(pending);
        return;
    }
    if (pending->stage == SEARCHING)
        return;
    if (pending->tentative && pending->stage == WAITING && others_migrate(pending)) {
        await_others(pending, now_ns);
        return;
    }
    if (pending->stage == WAITING && planner->searching == NULL && now_ns < pending->until_ns &&
        pending->attempts < ATTEMPTS_MAX && begin_search(pending))
        return;
    go_on(pending, now_ns);
}

void planner_maintain_requests(struct partition_planner *planner, core_ns now_ns)
{
    for (struct planner_pending *pending = planner->pending_requests, *next; pending != NULL;
         pending = next) {
        next = pending->next;
        maintain_request(pending, now_ns);
    }
}

void planner_drop_pending(struct partition_planner *planner)
{
    for (struct planner_pending *pending = planner->pending_requests, *next; pending != NULL;
         pending = next) {
        next = pending->next;
        admission_destroy(pending->search.copy);
        forget_proposal(pending);
        free(pending);
    }
}
