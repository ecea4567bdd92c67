#include "server/stream/cause.h"

#include <string.h>

const char *server_cause_name(enum server_cause cause)
{
    static const char *const names[SERVER_CAUSES] = {
        [SERVER_CAUSE_NONE] = "none",
        [SERVER_CAUSE_IO_LATE] = "io_late",
        [SERVER_CAUSE_BURST_OVER_BOUND] = "burst_over_bound",
        [SERVER_CAUSE_STAGE_OVER_BOUND] = "stage_over_bound",
        [SERVER_CAUSE_OFF_CORE] = "off_core",
        [SERVER_CAUSE_PAGE_FAULT] = "page_fault",
        [SERVER_CAUSE_QUEUE] = "queue",
        [SERVER_CAUSE_HELD] = "held",
        [SERVER_CAUSE_DIVERTED] = "diverted",
        [SERVER_CAUSE_UNKNOWN] = "unknown",
    };
    return names[cause];
}

/* What disturbed the packet, by cause. */
struct account {
    core_ns io_ns[SERVER_CAUSES], unit_ns[SERVER_CAUSES];
    core_ns sum_ns;
};

static void add(struct account *account, core_ns by_cause_ns[SERVER_CAUSES], enum server_cause cause,
                core_ns time_ns)
{
    if (time_ns <= 0)
        return;
    by_cause_ns[cause] += time_ns;
    account->sum_ns += time_ns;
}

static enum server_cause cause_of(const struct core_stall *stall, enum server_cause at_work)
{
    return stall->why == CORE_STALL_OFF_CORE     ? SERVER_CAUSE_OFF_CORE
           : stall->why == CORE_STALL_PAGE_FAULT ? SERVER_CAUSE_PAGE_FAULT
                                                 : at_work;
}

/* Of the time between these two, what the stall and what it left behind cover; no more than it was long. */
static core_ns share_ns(const struct core_stall *stall, core_ns from_ns, core_ns to_ns)
{
    core_ns common_ns = core_time_min(stall->settled_ns, to_ns) - core_time_max(stall->from_ns, from_ns);
    return core_time_max(0, core_time_min(common_ns, stall->to_ns - stall->from_ns));
}

/* A part of the packet's time, and what of it nobody's stall has taken so far. */
struct part {
    core_ns from_ns, to_ns, left_ns;
};

static struct part part_of(core_ns from_ns, core_ns to_ns)
{
    return (struct part){from_ns, to_ns, core_time_max(0, to_ns - from_ns)};
}

/* Returns for how long the stall took of the part, at most limit_ns. */
static core_ns take(struct part *part, const struct core_stall *stall, core_ns limit_ns)
{
    core_ns time_ns =
        core_time_min(core_time_min(part->left_ns, limit_ns), share_ns(stall, part->from_ns, part->to_ns));
    part->left_ns -= time_ns;
    return time_ns;
}

/* The stalls of one thread, which had the packet in these two parts; not those that began after latest_ns. */
static void add_stalls(struct account *account, core_ns by_cause_ns[SERVER_CAUSES], enum server_cause at_work,
                       const struct server_cause_stalls *stalls, core_ns latest_ns, struct part *first,
                       struct part *second)
{
    for (uint32_t i = 0; i < stalls->count; i++) {
        const struct core_stall *stall = &stalls->list[i];
        if (stall->from_ns > latest_ns)
            continue;
        core_ns length_ns = stall->to_ns - stall->from_ns, time_ns = take(first, stall, length_ns);
        time_ns += take(second, stall, length_ns - time_ns);
        add(account, by_cause_ns, cause_of(stall, at_work), time_ns);
    }
}

static struct server_cause_verdict largest(const struct account *account)
{
    struct server_cause_verdict verdict = {SERVER_CAUSE_NONE, SERVER_CAUSE_OF_NONE, 0};
    for (int i = 0; i < SERVER_CAUSES; i++) {
        if (account->io_ns[i] > verdict.held_ns)
            verdict =
                (struct server_cause_verdict){(enum server_cause)i, SERVER_CAUSE_OF_IO, account->io_ns[i]};
        if (account->unit_ns[i] > verdict.held_ns)
            verdict = (struct server_cause_verdict){(enum server_cause)i, SERVER_CAUSE_OF_UNIT,
                                                    account->unit_ns[i]};
    }
    return verdict;
}

/* Returns for how long a worker had it without a stall; a GPU: 0, since all is held against its bounds. */
static core_ns take_account(struct account *account, const struct server_cause_way *way,
                            const struct server_cause_stalls *io, const struct server_cause_stalls *unit)
{
    bool worker = way->unit_ns == CORE_NS_NEVER;
    core_ns handed_ns = core_time_max(way->handed_ns, way->from_ns),
            finished_ns = core_time_max(way->finished_ns, handed_ns);
    struct part there = part_of(way->from_ns, handed_ns), inside = part_of(handed_ns, finished_ns),
                back = part_of(finished_ns, way->at_ns);

    add_stalls(account, account->io_ns, SERVER_CAUSE_IO_LATE, io, CORE_NS_NEVER, &there, &back);
    if (worker) /* what it began after it had finished the packet was work on others */
        add_stalls(account, account->unit_ns, SERVER_CAUSE_BURST_OVER_BOUND, unit, way->finished_ns, &inside,
                   &back);
    else
        add(account, account->unit_ns, SERVER_CAUSE_STAGE_OVER_BOUND, inside.left_ns - way->unit_ns);
    add(account, account->unit_ns, SERVER_CAUSE_HELD, there.left_ns - way->io_ns);
    add(account, account->unit_ns, SERVER_CAUSE_HELD, back.left_ns - way->io_ns);
    return worker ? inside.left_ns : 0;
}

struct server_cause_verdict server_cause_find(const struct server_cause_way *way,
                                              const struct server_cause_stalls *io,
                                              const struct server_cause_stalls *unit)
{
    core_ns late_ns = way->at_ns - way->deadline_ns, whole_ns = way->at_ns - way->from_ns;
    struct account account;

    if (way->diverted)
        return (struct server_cause_verdict){SERVER_CAUSE_DIVERTED, SERVER_CAUSE_OF_UNIT, whole_ns};
    memset(&account, 0, sizeof account);
    core_ns queue_ns = take_account(&account, way, io, unit);
    struct server_cause_verdict verdict = largest(&account);
    if (late_ns <= 0 || account.sum_ns >= late_ns)
        return verdict;
    if (queue_ns > whole_ns / 2)
        return (struct server_cause_verdict){SERVER_CAUSE_QUEUE, SERVER_CAUSE_OF_UNIT, queue_ns};
    if (verdict.cause == SERVER_CAUSE_NONE)
        verdict = (struct server_cause_verdict){SERVER_CAUSE_UNKNOWN, SERVER_CAUSE_OF_NONE, whole_ns};
    return verdict;
}
