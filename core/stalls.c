#include "core/stalls.h"

#include "core/sequence.h"

#include <sys/resource.h>

_Static_assert(sizeof(struct core_stall) % sizeof(uint64_t) == 0, "whole words");

static int64_t pages_read(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_majflt : 0;
}

void core_stalls_mark_now(struct core_stalls *stalls, core_ns now_ns)
{
    stalls->marked_ns = now_ns;
    stalls->marked_cpu_ns = core_time_thread_cpu_ns();
    stalls->marked_faults = pages_read();
}

enum core_stall_why core_stall_why(core_ns length_ns, core_ns cpu_ns, int64_t faults)
{
    if (length_ns - cpu_ns < length_ns / 2)
        return CORE_STALL_AT_WORK;
    return faults > 0 ? CORE_STALL_PAGE_FAULT : CORE_STALL_OFF_CORE;
}

static void publish(struct core_stalls *stalls, uint32_t number)
{
    struct core_stall_place *place = &stalls->places[number % CORE_STALLS];
    core_sequence_write(&place->changes, place->words, &stalls->last[number % CORE_STALLS], CORE_STALL_WORDS);
}

/* The owner's view of it. */
static uint32_t count_of(const struct core_stalls *stalls)
{
    return atomic_load_explicit(&stalls->count, memory_order_relaxed);
}

static struct core_stall *last(struct core_stalls *stalls)
{
    return &stalls->last[(count_of(stalls) - 1) % CORE_STALLS];
}

void core_stalls_add(struct core_stalls *stalls, core_ns from_ns, core_ns to_ns)
{
    core_ns before_ns = stalls->marked_cpu_ns;
    int64_t faults = stalls->marked_faults;
    uint32_t number = count_of(stalls);

    if (stalls->unsettled > 0 && last(stalls)->from_ns == from_ns) {
        last(stalls)->to_ns = to_ns;
        publish(stalls, number - 1);
        return;
    }
    core_stalls_mark_now(stalls, to_ns);
    stalls->unsettled += stalls->unsettled < CORE_STALLS ? 1 : 0;
    stalls->last[number % CORE_STALLS] =
        (struct core_stall){.from_ns = from_ns,
                            .to_ns = to_ns,
                            .settled_ns = CORE_NS_NEVER,
                            .why = core_stall_why(to_ns - from_ns, stalls->marked_cpu_ns - before_ns,
                                                  stalls->marked_faults - faults)};
    publish(stalls, number);
    /* release: who sees the count finds the stall */
    atomic_store_explicit(&stalls->count, number + 1, memory_order_release);
}

void core_stalls_settle_all(struct core_stalls *stalls, core_ns now_ns)
{
    for (; stalls->unsettled > 0; stalls->unsettled--) {
        uint32_t number = count_of(stalls) - stalls->unsettled;
        stalls->last[number % CORE_STALLS].settled_ns = now_ns;
        publish(stalls, number);
    }
}

uint32_t core_stalls_read(const struct core_stalls *stalls, core_ns since_ns,
                          struct core_stall list[CORE_STALLS])
{
    /* acquire: see the writer */
    uint32_t newest = atomic_load_explicit(&stalls->count, memory_order_acquire), count = 0;

    for (uint32_t back = 1; back <= CORE_STALLS && back <= newest; back++) {
        const struct core_stall_place *place = &stalls->places[(newest - back) % CORE_STALLS];
        if (!core_sequence_read(&place->changes, place->words, &list[count], CORE_STALL_WORDS))
            continue; /* being written */
        if (list[count].settled_ns <= since_ns)
            break; /* and so were those before it */
        count++;
    }
    return count;
}
