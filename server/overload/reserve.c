#include "server/overload/reserve.h"

#include "core/proc.h"

#include <stdio.h>
#include <string.h>

#define QUIET_SLOTS (SERVER_OVERLOAD_SLOTS - 1)
#define ALL_PPB     INT64_C(1000000000)

void server_overload_init(struct server_overload *overload, core_ns quiet_ns, core_ns now_ns, core_ns lost_ns)
{
    core_ns slot_ns = quiet_ns / QUIET_SLOTS;
    *overload = (struct server_overload){.slot_ns = slot_ns > 0 ? slot_ns : 1, .seen_ns = lost_ns};
    overload->slot = now_ns / overload->slot_ns;
}

/* Slots that have begun since the last look are empty. */
static void move_to(struct server_overload *overload, int64_t slot)
{
    for (int64_t next = overload->slot + 1; next <= slot && next <= overload->slot + SERVER_OVERLOAD_SLOTS;
         next++)
        overload->worst_ns[next % SERVER_OVERLOAD_SLOTS] = 0;
    overload->slot = slot > overload->slot ? slot : overload->slot;
}

bool server_overload_poll(struct server_overload *overload, core_ns now_ns, core_ns lost_ns)
{
    core_ns more_ns = lost_ns - overload->seen_ns, level_ns = 0;

    move_to(overload, now_ns / overload->slot_ns);
    core_ns *worst_ns = &overload->worst_ns[overload->slot % SERVER_OVERLOAD_SLOTS];
    overload->seen_ns = lost_ns;
    if (more_ns > *worst_ns)
        *worst_ns = more_ns;
    for (int i = 0; i < SERVER_OVERLOAD_SLOTS; i++)
        if (overload->worst_ns[i] > level_ns)
            level_ns = overload->worst_ns[i];
    bool changed = level_ns != overload->level_ns;
    overload->level_ns = level_ns;
    return changed;
}

int64_t server_overload_share_ppb(core_ns level_ns, core_ns shortest_ns)
{
    core_ns window_ns = core_time_min(shortest_ns, SERVER_OVERLOAD_INTERVAL_NS);

    if (level_ns >= window_ns)
        return ALL_PPB;
    return (level_ns * ALL_PPB + window_ns - 1) / window_ns; /* level < 10^8 here: no overflow */
}

/* Can this sign explain at least half of it? */
static bool explains(core_ns sign_ns, core_ns excess_ns)
{
    return sign_ns > 0 && sign_ns >= excess_ns / 2;
}

static int64_t sum(int64_t a, int64_t b)
{
    return a > INT64_MAX - b ? INT64_MAX : a + b;
}

void server_overload_signs_add(struct server_overload_signs *signs, const char *schedstat, const char *stat)
{
    /* time on cores, time ready without one, turns */
    const core_ns delayed_ns = core_proc_figure(schedstat, 2, 1);
    const int64_t faults = core_proc_figure(core_proc_stat(stat), 10, 1); /* majflt */
    signs->delayed_ns = delayed_ns < 0 || signs->delayed_ns < 0 ? -1 : sum(signs->delayed_ns, delayed_ns);
    signs->faults = sum(signs->faults, faults < 0 ? 0 : faults);
}

static void add(char *text, size_t size, const char *part)
{
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s", used > 0 ? "; " : "", part);
}

void server_overload_cause(core_ns excess_ns, const struct server_overload_signs *signs, char *text,
                           size_t size)
{
    char part[96];

    text[0] = '\0';
    if (explains(signs->delayed_ns, excess_ns)) {
        snprintf(part, sizeof part, "its threads were off their cores for %.1f ms",
                 (double)signs->delayed_ns / 1e6);
        add(text, size, part);
    }
    if (signs->faults > 0) {
        snprintf(part, sizeof part, "%lld pages of memory had to be read from disk",
                 (long long)signs->faults);
        add(text, size, part);
    }
    if (explains(signs->stolen_ns, excess_ns)) {
        snprintf(part, sizeof part, "the hypervisor gave %.0f ms of the cores to others",
                 (double)signs->stolen_ns / 1e6);
        add(text, size, part);
    }
    if (text[0] != '\0')
        return;
    add(text, size,
        signs->delayed_ns < 0 ? "the system does not say why"
                              : "its threads had their cores: the device, the memory or the core was slow");
}
