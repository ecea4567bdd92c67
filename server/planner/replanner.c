/* What takes as long as a plan of all streams does runs on a thread of its own, without real-time priority,
 * on a copy of the admission state: the search for migrations that make room for a request
 * (admission_replan), and, where check_plans is set, the check of what is in force. */
#include "core/log.h"
#include "partition/certificate.h"
#include "partition/check/check.h"
#include "server/planner/internal.h"

#include <stdlib.h>

#define STACK_BYTES ((size_t)1 << 20)

struct server_replanner {
    struct server_message message; /* first member: one search at a time, there and back */
    struct server_planner *planner;
    struct partition_planner_search *search;
    struct server_message check_message; /* there and back; the planner's while `copy` is NULL */
    struct admission *copy;              /* being checked */
    uint64_t changes;                    /* the planner's: admission_changes of the last copy */
    struct server_mailbox_thread thread;
    const struct partition_plan_method *method;
};

/* ---- on the replanner's thread ---- */

static void take_proposal(void *owner, struct server_message *message)
{
    struct server_planner *planner = owner;
    struct server_replanner *replanner = (struct server_replanner *)message;

    partition_planner_found(planner->inner, replanner->search, core_time_now_ns());
}

static void search(void *owner, struct server_message *message)
{
    struct server_replanner *replanner = owner;
    struct partition_planner_search *search = replanner->search;

    (void)message;
    if (admission_replan(search->copy, replanner->method, &search->spec, search->io, &search->proposal,
                         NULL) != CORE_OK)
        search->proposal = (struct admission_proposal){.accepted = false};
    replanner->message.run = take_proposal;
    server_mailbox_post(&replanner->planner->mailbox, &replanner->message);
}

/* One certificate: of what is in force, or of what is to be when GPU `lost` has failed. */
static core_status check_certificate(const struct admission *admission, uint32_t lost,
                                     struct core_error *error)
{
    struct partition_certificate certificate;
    core_status status = partition_certify(admission, lost, &certificate, error);

    if (status != CORE_OK)
        return status;
    if (certificate.plan->accepted)
        status = partition_check(&certificate.input, certificate.plan, error);
    else
        status = core_error_set(error, CORE_REFUSED, "%s", certificate.plan->reason);
    partition_certificate_free(&certificate);
    return lost == ADMISSION_NONE || status == CORE_OK
               ? status
               : core_error_prefix(error, status, "after a failure of GPU %u", lost);
}

static void take_verdict(void *owner, struct server_message *message)
{
    struct server_planner *planner = owner;
    (void)message;
    planner->replanner->copy = NULL;
}

/* Logs and counts; a plan that could not be checked is not counted. */
static void report_verdict(struct server_replanner *replanner, core_status status,
                           const struct core_error *error)
{
    struct server_planner_figures *figures = &replanner->planner->figures;

    if (status == CORE_NO_MEMORY) {
        core_log(CORE_LOG_WARNING, "plan.unchecked", "the plan in force was not checked: %s", error->text);
        return;
    }
    if (status != CORE_OK)
        core_log(CORE_LOG_ERROR, "plan.rejected",
                 "the plan in force, of %zu streams, does not hold: %s; deadlines may be missed: please "
                 "report this, with the profile and the streams (`millrace status --streams`)",
                 admission_streams(replanner->copy), error->text);
    server_stats_add(&figures->rejected, status != CORE_OK ? 1 : 0);
    server_stats_add(&figures->checked, 1);
}

static void check(void *owner, struct server_message *message)
{
    struct server_replanner *replanner = owner;
    struct core_error error = {""};
    core_status status = check_certificate(replanner->copy, ADMISSION_NONE, &error);

    for (uint32_t gpu = 0; status == CORE_OK && gpu < replanner->planner->server->gpu_count; gpu++)
        status = check_certificate(replanner->copy, gpu, &error);
    report_verdict(replanner, status, &error);
    admission_destroy(replanner->copy);
    message->run = take_verdict;
    server_mailbox_post(&replanner->planner->mailbox, message);
}

/* ---- on the planner's thread ---- */

void server_planner_check_plan(struct server_planner *planner)
{
    struct server_replanner *replanner = planner->replanner;
    const struct admission *admission = partition_planner_admission(planner->inner);

    if (!planner->server->config->check_plans || replanner->copy != NULL ||
        replanner->changes == admission_changes(admission) || server_turns_wait(&planner->turns) ||
        admission_copy(admission, &replanner->copy) != CORE_OK)
        return;
    replanner->changes = admission_changes(admission);
    replanner->check_message.run = check;
    server_mailbox_post(&replanner->thread.mailbox, &replanner->check_message);
}

void server_planner_search(void *host, struct partition_planner_search *wanted)
{
    struct server_planner *planner = host;
    struct server_replanner *replanner = planner->replanner;

    replanner->search = wanted;
    replanner->message.run = search;
    server_mailbox_post(&replanner->thread.mailbox, &replanner->message);
}

void server_planner_admit_waiting(void *host, void *request)
{
    struct server_request *waiting = request;

    waiting->refusal = 0;
    server_planner_admit(host, waiting);
    server_planner_answer(host, waiting);
}

void server_planner_refuse_waiting(void *host, void *request, enum partition_planner_refusal why)
{
    static const char *const advice[] = {
        [PARTITION_PLANNER_NO_PLAN] = "no feasible plan even after migrating other streams",
        [PARTITION_PLANNER_TRIED] = "capacity could not be freed by migrating other streams; retry later",
        [PARTITION_PLANNER_TIMED_OUT] = "timed out while migrating other streams (timeouts.move_ms); retry"};
    struct server_request *refused = request;

    refused->refusal = PROTOCOL_REFUSED_CAPACITY;
    if (why == PARTITION_PLANNER_WITHDRAWN) {
        refused->refusal = PROTOCOL_REFUSED_DRAINING;
        refused->refusal_text = "the server is stopping; connect to another one";
    } else {
        refused->advice = advice[why];
    }
    server_planner_answer(host, refused);
}

bool server_planner_still_waits(void *host, void *request)
{
    const struct server_planner *planner = host;
    const struct server_request *waiting = request;

    return !server_planner_is_gone(&waiting->turn) &&
           !atomic_load_explicit(&planner->server->draining, memory_order_relaxed);
}

bool server_planner_wait_for_room(struct server_planner *planner, struct server_request *request)
{
    if (request->refusal != PROTOCOL_REFUSED_CAPACITY ||
        !partition_planner_may_help(planner->inner, request->placement.constraint))
        return false;
    if (request->is_query) {
        request->advice = "an OPEN would also try to free capacity by migrating other streams";
        return false;
    }
    return partition_planner_wait(planner->inner, &request->open.spec, request->io, request,
                                  core_time_now_ns());
}

/* ---- life ---- */

core_status server_planner_start_replanner(struct server_planner *planner, struct core_error *error)
{
    const struct server *server = planner->server;
    struct server_replanner *fresh;

    if ((server->worker_count + server->gpu_count < 2 || server->config->timeouts.move_ns == 0) &&
        !server->config->check_plans)
        return CORE_OK; /* there is no unit to move to, or no stream is to */
    fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the planner");
    fresh->planner = planner;
    fresh->method = partition_plan_method_find(server->gpu_count > 1 ? "bands" : "rectangle");
    core_status status = server_mailbox_thread_start(&fresh->thread, "replanner", STACK_BYTES, fresh, error);
    if (status != CORE_OK) {
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
    server_mailbox_thread_stop(&replanner->thread);
    free(replanner);
    planner->replanner = NULL;
}
