#include "server/planner/gpu_account.h"

#include <stdio.h>
#include <stdlib.h>

#define PLAN_ARENAS UINT64_C(5)
#define SPARE_SLOTS 16 /* one in so many is kept for streams that are leaving */

core_status server_gpu_account_init(struct server_gpu_account *account, const struct config_profile *profile,
                                    const struct config_profile_gpu *kind, uint32_t gpus, bool busy,
                                    const struct gpu_region_shape *shape, core_ns lead_ns)
{
    *account = (struct server_gpu_account){
        .profile = profile, .shape = *shape, .lead_ns = lead_ns, .hang_ns = CORE_NS_NEVER, .gpus = gpus};
    account->losses = calloc(gpus, sizeof *account->losses);
    return account->losses != NULL ? perfmodel_flow_card_create(&account->card, profile, kind, busy)
                                   : CORE_NO_MEMORY;
}

void server_gpu_account_free(struct server_gpu_account *account)
{
    perfmodel_flow_card_destroy(account->card);
    free(account->losses);
}

/* ---- who is in it ---- */

static struct server_gpu_crowd *crowd_of(struct server_gpu_account *account, uint32_t loss)
{
    return loss == SERVER_GPU_OWN ? &account->own : &account->losses[loss];
}

/* As the standing plan has it: a job is of whole packets. */
static struct perfmodel_flow_load load_of(const struct server_gpu_account *account,
                                          const struct core_stream_spec *spec)
{
    struct perfmodel_flow_load load = perfmodel_flow_load_of(spec, account->profile);
    load.unit_bytes = core_stream_padded_bytes(spec->padding, spec->packet_bytes);
    return load;
}

void server_gpu_account_add(struct server_gpu_account *account, uint32_t loss,
                            const struct core_stream_spec *spec)
{
    struct server_gpu_crowd *crowd = crowd_of(account, loss);
    struct perfmodel_flow_load load = load_of(account, spec);

    perfmodel_flow_load_add(&crowd->load, &load);
    crowd->burst_packets += spec->burst_packets;
    crowd->packets_per_ns += 1 / (double)spec->interval_ns;
    account->guaranteed += loss == SERVER_GPU_OWN && spec->guaranteed ? 1 : 0;
}

void server_gpu_account_remove(struct server_gpu_account *account, uint32_t loss,
                               const struct core_stream_spec *spec)
{
    struct server_gpu_crowd *crowd = crowd_of(account, loss);
    struct perfmodel_flow_load load = load_of(account, spec);

    perfmodel_flow_load_remove(&crowd->load, &load);
    crowd->burst_packets -= spec->burst_packets;
    crowd->packets_per_ns -= 1 / (double)spec->interval_ns;
    account->guaranteed -= loss == SERVER_GPU_OWN && spec->guaranteed ? 1 : 0;
    if (crowd->load.streams == 0)
        crowd->packets_per_ns = 0;
    account->stale = true;
}

void server_gpu_account_recount(struct server_gpu_account *account, const struct partition_standing *standing,
                                uint32_t gpu, uint32_t unit)
{
    account->own = (struct server_gpu_crowd){.burst_packets = 0};
    account->guaranteed = 0;
    account->stale = false;
    for (uint32_t loss = 0; loss < account->gpus; loss++)
        account->losses[loss] = (struct server_gpu_crowd){.burst_packets = 0};
    for (size_t n = 0; n < partition_standing_streams(standing); n++) {
        struct partition_standing_stream stream = partition_standing_stream_at(standing, n);
        if (stream.unit == unit)
            server_gpu_account_add(account, SERVER_GPU_OWN, &stream.spec);
        else if (stream.backup_unit == unit)
            server_gpu_account_add(account, stream.unit - (unit - gpu), &stream.backup_spec);
    }
}

/* The most of each figure. */
static void cover(struct server_gpu_crowd *cover, const struct server_gpu_crowd *by)
{
    perfmodel_flow_load_cover(&cover->load, &by->load);
    if (by->burst_packets > cover->burst_packets)
        cover->burst_packets = by->burst_packets;
    if (by->packets_per_ns > cover->packets_per_ns)
        cover->packets_per_ns = by->packets_per_ns;
}

/* What no case exceeds; its least d' is not told. */
static struct server_gpu_crowd all_cases(const struct server_gpu_account *account)
{
    struct server_gpu_crowd comes = {.burst_packets = 0}, all = account->own;

    for (uint32_t loss = 0; loss < account->gpus; loss++)
        cover(&comes, &account->losses[loss]);
    perfmodel_flow_load_add(&all.load, &comes.load);
    all.burst_packets += comes.burst_packets;
    all.packets_per_ns += comes.packets_per_ns;
    return all;
}

static uint64_t backups_of(const struct server_gpu_account *account)
{
    uint64_t sum = 0;
    for (uint32_t loss = 0; loss < account->gpus; loss++)
        sum += account->losses[loss].load.streams;
    return sum;
}

/* ---- room ---- */

/* A plan has at least PLAN_ARENAS batches on the way, each with input and output: none is larger then than an
 * arena. */
uint64_t server_gpu_account_memory_bytes(const struct gpu_region_shape *shape)
{
    return PLAN_ARENAS * 2 * shape->arena_bytes;
}

uint32_t server_gpu_account_streams_max(const struct gpu_region_shape *shape)
{
    return shape->slots - shape->slots / SPARE_SLOTS;
}

/* How long an I/O thread may let packets gather that has the stream with the least d'. */
static core_ns rest_ns(const struct config_profile *profile, core_ns shortest_ns)
{
    core_ns left_ns = shortest_ns + shortest_ns / 15; /* left - left/16 = d', or less than this is left */
    return perfmodel_io_rest_ns(left_ns + profile->margins.in_ns + profile->margins.out_ns, profile) / 2;
}

/* Batches from their opening to their delivery: beside what the model counts a batch is opened early and
 * closed late. */
static core_ns aside_ns(const struct server_gpu_account *account, core_ns delay_ns)
{
    return account->lead_ns + delay_ns + account->profile->margins.out_ns;
}

static uint64_t arenas_needed(const struct server_gpu_account *account,
                              const struct perfmodel_flow_verdict *verdict, core_ns delay_ns)
{
    core_ns held_ns = verdict->latency_ns - verdict->period_ns + aside_ns(account, delay_ns);
    return 1 + (uint64_t)((held_ns + verdict->period_ns - 1) / verdict->period_ns);
}

/* Share of its busiest stage that is held for the worst loss. */
static int64_t reserved_ppb(const struct server_gpu_account *account,
                            const struct perfmodel_flow_verdict *verdict)
{
    return verdict->busiest_ppb -
           perfmodel_flow_judge(account->card, &account->own.load, verdict->period_ns).busiest_ppb;
}

bool server_gpu_account_plan(struct server_gpu_account *account, core_ns period_ns, core_ns shortest_ns,
                             char *reason, size_t size)
{
    struct server_gpu_plan *plan = &account->plan;
    const struct gpu_region_shape *shape = &account->shape;
    struct server_gpu_crowd all = all_cases(account);
    uint64_t backups = backups_of(account);

    if (all.load.streams == 0) {
        *plan = (struct server_gpu_plan){.number = plan->number + 1};
        return true;
    }
    all.load.shortest_ns = shortest_ns; /* the account's may be of a stream that has left */
    struct perfmodel_flow_verdict verdict = perfmodel_flow_judge(account->card, &all.load, period_ns);
    if (verdict.binding != PERFMODEL_LIMIT_NONE) {
        snprintf(reason, size, "the GPU can not keep a period of %.3f ms", (double)period_ns / 1e6);
        return false;
    }
    /* in_ns is for two hand-overs here: half of it into the batch, half from there to the card. */
    core_ns delay_ns = account->profile->margins.in_ns / 2 + rest_ns(account->profile, shortest_ns);
    double packets = (double)all.burst_packets + all.packets_per_ns * (double)period_ns + 1;
    const struct {
        const char *what;
        double needed, there;
    } rows[] = {
        {"batches on the way", (double)arenas_needed(account, &verdict, delay_ns), shape->arenas},
        {"bytes in a batch", (double)verdict.batch_bytes, (double)shape->arena_bytes},
        {"packets in a batch", packets, shape->segments},
        {"streams", (double)(account->own.load.streams + backups), server_gpu_account_streams_max(shape)},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].needed > rows[i].there) {
            snprintf(reason, size,
                     "the GPU would need room for %.0f %s, and has it for %.0f; more memory may "
                     "be pinned (pinned_bytes of the profile)",
                     rows[i].needed, rows[i].what, rows[i].there);
            return false;
        }
    core_ns batch_ns = verdict.latency_ns - verdict.period_ns + account->profile->margins.in_ns / 2;
    if (account->guaranteed > 0 && batch_ns > account->hang_ns) {
        snprintf(reason, size,
                 "a batch of the GPU may take %.1f ms, and one of guaranteed streams is taken for lost after "
                 "%.1f ms (gpus.hang_ms)",
                 (double)batch_ns / 1e6, (double)account->hang_ns / 1e6);
        return false;
    }
    *plan =
        (struct server_gpu_plan){.number = plan->number + 1,
                                 .period_ns = period_ns,
                                 .delay_ns = delay_ns,
                                 .up_ns = verdict.bounds.up_ns,
                                 .kernel_ns = verdict.bounds.kernel_ns,
                                 .down_ns = verdict.bounds.down_ns,
                                 .latency_ns = verdict.latency_ns,
                                 .batch_ns = batch_ns,
                                 .batch_bytes = verdict.batch_bytes,
                                 .streams = (uint32_t)account->own.load.streams,
                                 .guaranteed = account->guaranteed,
                                 .backups = (uint32_t)backups,
                                 .reserved_ppb = reserved_ppb(account, &verdict),
                                 .card = account->card,
                                 .load = all.load,
                                 .arenas = shape->arenas,
                                 .aside_ns = aside_ns(account, delay_ns),
                                 .batch_most_ns = account->guaranteed > 0 ? account->hang_ns : CORE_NS_NEVER};
    return true;
}

static bool plan_as_it_stands(struct server_gpu_account *account, const struct partition_standing *standing,
                              uint32_t gpu, uint32_t unit, char *reason, size_t size)
{
    struct partition_standing_gpu now = partition_standing_gpu_at(standing, gpu);

    if (server_gpu_account_plan(account, now.period_ns, now.shortest_ns, reason, size))
        return true;
    server_gpu_account_recount(account, standing, gpu, unit);
    return server_gpu_account_plan(account, now.period_ns, now.shortest_ns, reason, size);
}

static void say_period(uint32_t gpu, const struct server_gpu_plan *last, enum perfmodel_limit *constraint,
                       char *reason, size_t size)
{
    *constraint = PERFMODEL_LIMIT_GPU_LATENCY;
    snprintf(reason, size,
             "GPU %u would need another period than the %.3f ms that it has, and its streams would be late "
             "while it changes",
             gpu, (double)last->period_ns / 1e6);
}

/* The plan with the newcomer, who is not in the account before nor after. */
static bool plan_with(struct server_gpu_account *account, const struct partition_standing_room *room,
                      char *reason, size_t size)
{
    uint32_t loss = room->loss == PARTITION_STANDING_NONE ? SERVER_GPU_OWN : room->loss;
    uint32_t guaranteed = account->guaranteed;
    struct server_gpu_crowd *crowd = crowd_of(account, loss), before = *crowd;

    server_gpu_account_add(account, loss, &room->spec);
    bool fits = server_gpu_account_plan(account, room->period_ns, room->shortest_ns, reason, size);
    *crowd = before;
    account->guaranteed = guaranteed;
    return fits;
}

bool server_gpu_account_takes(struct server_gpu_account *account, const struct partition_standing *standing,
                              uint32_t unit, const struct partition_standing_room *room,
                              enum perfmodel_limit *constraint, char *reason, size_t size)
{
    const struct server_gpu_plan last = account->plan;

    *constraint = PERFMODEL_LIMIT_GPU_MEMORY;
    bool fits = plan_with(account, room, reason, size);
    if (!fits && account->stale) {
        server_gpu_account_recount(account, standing, room->gpu, unit);
        fits = plan_with(account, room, reason, size);
    }
    bool leads = fits && server_gpu_plan_leads_to(&last, &account->plan);
    account->plan = last;
    if (fits && !leads)
        say_period(room->gpu, &last, constraint, reason, size);
    return leads;
}

bool server_gpu_account_replan(struct server_gpu_account *account, struct partition_standing *standing,
                               uint32_t gpu, uint32_t unit, enum perfmodel_limit *constraint, char *reason,
                               size_t size)
{
    const struct server_gpu_plan last = account->plan;
    char again[256];

    *constraint = PERFMODEL_LIMIT_GPU_MEMORY;
    bool fits = plan_as_it_stands(account, standing, gpu, unit, reason, size);
    if (fits && server_gpu_plan_leads_to(&last, &account->plan))
        return true;
    /* The period that there is, which also fits once who came for another one has left. */
    account->plan = last;
    if (last.period_ns > 0 && partition_standing_set_period(standing, gpu, last.period_ns) &&
        plan_as_it_stands(account, standing, gpu, unit, again, sizeof again))
        return true;
    if (!fits)
        return false;
    say_period(gpu, &last, constraint, reason, size);
    return false;
}
