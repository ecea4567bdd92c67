/* Requests for which other streams migrate.
 *
 * Where a stream fits nowhere as things stand, partition_standing_replan is asked for migrations that make
 * room. That takes as long as a plan of all streams does, so the host does it, on a copy of the admission
 * state, for one request after the other; other requests are answered meanwhile. Each migration is proven by
 * itself (partition/admission/admission.h), so it does not matter what else happens between them, nor that
 * some are made and others not. The request is tried again whenever capacity has become free, is admitted
 * when a unit accepts its stream, and refused when its time is over. */
#include "partition/planner/internal.h"

#include <stdlib.h>

#define APPLICANTS_MAX 64 /* beyond so many no request waits: the answer would come too late */
#define ATTEMPTS_MAX   3  /* plans for one request: streams that come and go make them stale */

enum stage { WAITING, SEARCHING, MOVING };

struct planner_applicant {
    struct partition_planner_search search; /* first member; the host's while SEARCHING */
    struct partition_planner *planner;
    struct planner_applicant *next;
    void *request; /* NULL: answered */
    enum stage stage;
    core_ns until_ns;
    uint32_t attempts;
    uint64_t born;        /* reservations with a higher number came after the copy was made */
    size_t started;       /* migrations of the proposal */
    uint32_t in_progress; /* of these */
};

static void forget_proposal(struct planner_applicant *applicant)
{
    free(applicant->search.proposal.move);
    applicant->search.proposal = (struct partition_standing_proposal){.accepted = false};
    applicant->started = 0;
}

static void free_if_over(struct planner_applicant *applicant)
{
    struct planner_applicant **link = &applicant->planner->applicants;

    if (applicant->request != NULL || applicant->in_progress > 0 || applicant->stage == SEARCHING)
        return;
    while (*link != applicant)
        link = &(*link)->next;
    *link = applicant->next;
    forget_proposal(applicant);
    free(applicant);
}

/* It stays in the list as long as a search or migrations are in progress for it. */
static void *take_request(struct planner_applicant *applicant)
{
    void *request = applicant->request;

    applicant->planner->applicant_count--;
    applicant->request = NULL;
    return request;
}

static void refuse(struct planner_applicant *applicant, enum partition_planner_refusal why)
{
    struct partition_planner *planner = applicant->planner;

    planner->host.refuse(planner->context, take_request(applicant), why);
}

/* Would it be admitted now? Then it is. */
static bool try_to_admit(struct planner_applicant *applicant)
{
    struct partition_planner *planner = applicant->planner;
    const struct partition_planner_search *search = &applicant->search;
    struct partition_standing_placement placement;

    if (partition_standing_query(planner->standing, &search->spec, search->io, false, &placement, NULL) !=
            CORE_OK ||
        !placement.accepted)
        return false;
    planner->host.admit(planner->context, take_request(applicant));
    return true;
}

void planner_made_room(struct planner_applicant *applicant)
{
    applicant->in_progress--;
    free_if_over(applicant);
}

/* Is the stream still where it was when the copy was made? */
static bool is_there(const struct planner_applicant *applicant, const struct partition_standing_move *move)
{
    const struct partition_planner *planner = applicant->planner;
    const struct planner_reservation *reservation = &planner->reservations[move->stream];

    return move->stream < planner->capacity && reservation->owner != NULL &&
           reservation->born <= applicant->born && reservation->unit == move->from;
}

/* Starts as many migrations as there is room for now. Some wait for the room of others. */
static void start_migrations(struct planner_applicant *applicant, core_ns now_ns)
{
    const struct partition_standing_proposal *proposal = &applicant->search.proposal;
    char reason[256];

    for (; applicant->started < proposal->moves; applicant->started++) {
        const struct partition_standing_move *next = &proposal->move[applicant->started];
        const struct planner_move move = {.stream = next->stream,
                                          .unit = next->to,
                                          .period_ns = next->period_ns,
                                          .patience_ns = applicant->until_ns - now_ns,
                                          .now_ns = now_ns,
                                          .applicant = applicant};
        if (!is_there(applicant, next))
            continue; /* it has left, which makes room as well */
        if (!planner_move(applicant->planner, &move, reason, sizeof reason))
            return;
        applicant->in_progress++;
    }
}

/* Nothing is left that could make room. */
static bool is_stuck(const struct planner_applicant *applicant)
{
    return applicant->in_progress == 0 && applicant->planner->retired == PLANNER_NONE;
}

static void go_on(struct planner_applicant *applicant, core_ns now_ns)
{
    if (applicant->stage == MOVING) {
        if (try_to_admit(applicant)) {
            free_if_over(applicant);
            return;
        }
        start_migrations(applicant, now_ns);
        if (is_stuck(applicant)) {
            forget_proposal(applicant);
            applicant->stage = WAITING;
        }
    }
    if (applicant->stage == WAITING && applicant->attempts >= ATTEMPTS_MAX)
        refuse(applicant, PARTITION_PLANNER_TRIED);
    else if (now_ns >= applicant->until_ns)
        refuse(applicant, PARTITION_PLANNER_TIMED_OUT);
    free_if_over(applicant);
}

/* ---- searches ---- */

static bool begin_search(struct planner_applicant *applicant)
{
    struct partition_planner *planner = applicant->planner;

    if (partition_standing_copy(planner->standing, &applicant->search.copy) != CORE_OK)
        return false;
    applicant->stage = SEARCHING;
    applicant->attempts++;
    applicant->born = planner->born;
    planner->searching = applicant;
    planner->host.search(planner->context, &applicant->search);
    return true;
}

void partition_planner_found(struct partition_planner *planner, struct partition_planner_search *search,
                             core_ns now_ns)
{
    struct planner_applicant *applicant = (struct planner_applicant *)search;

    partition_standing_destroy(search->copy);
    search->copy = NULL;
    planner->searching = NULL;
    applicant->stage = MOVING;
    if (applicant->request != NULL && !search->proposal.accepted)
        refuse(applicant, PARTITION_PLANNER_NO_PLAN);
    if (applicant->request != NULL)
        go_on(applicant, now_ns);
    else
        free_if_over(applicant);
}

/* Not where there is no stream to move, or not even an idle unit would accept it, or its I/O thread has no
 * capacity. */
bool partition_planner_may_help(const struct partition_planner *planner, enum perfmodel_limit constraint)
{
    return planner->options.wait_ns > 0 && planner->options.workers + planner->options.gpus > 1 &&
           constraint != PERFMODEL_LIMIT_IO && constraint != PERFMODEL_LIMIT_DEADLINE &&
           partition_standing_streams(planner->standing) > 0;
}

bool partition_planner_wait(struct partition_planner *planner, const struct core_stream_spec *spec,
                            uint32_t io, void *request, core_ns now_ns)
{
    struct planner_applicant **link = &planner->applicants;
    struct planner_applicant *applicant =
        planner->applicant_count < APPLICANTS_MAX ? calloc(1, sizeof *applicant) : NULL;

    if (applicant == NULL)
        return false;
    *applicant = (struct planner_applicant){.planner = planner,
                                            .request = request,
                                            .stage = WAITING,
                                            .until_ns = now_ns + planner->options.wait_ns,
                                            .search = {.spec = *spec, .io = io}};
    while (*link != NULL)
        link = &(*link)->next;
    *link = applicant;
    planner->applicant_count++;
    return true;
}

static void maintain_request(struct planner_applicant *applicant, core_ns now_ns)
{
    struct partition_planner *planner = applicant->planner;

    if (applicant->request == NULL)
        return;
    if (!planner->host.still_waits(planner->context, applicant->request)) {
        refuse(applicant, PARTITION_PLANNER_WITHDRAWN);
        free_if_over(applicant);
        return;
    }
    if (applicant->stage == SEARCHING)
        return;
    if (applicant->stage == WAITING && planner->searching == NULL && now_ns < applicant->until_ns &&
        applicant->attempts < ATTEMPTS_MAX && begin_search(applicant))
        return;
    go_on(applicant, now_ns);
}

void planner_maintain_requests(struct partition_planner *planner, core_ns now_ns)
{
    for (struct planner_applicant *applicant = planner->applicants, *next; applicant != NULL;
         applicant = next) {
        next = applicant->next;
        maintain_request(applicant, now_ns);
    }
}

void planner_drop_applicants(struct partition_planner *planner)
{
    for (struct planner_applicant *applicant = planner->applicants, *next; applicant != NULL;
         applicant = next) {
        next = applicant->next;
        partition_standing_destroy(applicant->search.copy);
        forget_proposal(applicant);
        free(applicant);
    }
}
