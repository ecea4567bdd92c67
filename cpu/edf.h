/* Earliest-deadline-first queue: constant-time, allocation-free, exact to one bucket.
 *
 * A circular array of 2^18 buckets of CPU_EDF_BUCKET_NS each (a horizon of 1.07 s) under a three-level bitmap
 * (64^3) finds the earliest non-empty bucket in three word scans. Entries of one bucket leave first in, first
 * out. Keys beyond the horizon wait in a binary heap and enter the wheel as it turns, so any key is allowed.
 * Keys earlier than the wheel's base (already late) go to the base bucket.
 *
 * Guarantee: of two entries in the queue, neither with a key before the base, the one whose key is more than
 * CPU_EDF_BUCKET_NS earlier leaves first. The admission test therefore shortens every
 * relative deadline by CPU_EDF_BUCKET_NS (config_profile_cpu.queue_granularity_ns).
 *
 * One thread. Entries are embedded in the caller's objects; the queue owns only its array. */
#ifndef MILLRACE_CPU_EDF_H
#define MILLRACE_CPU_EDF_H

#include "core/status.h"
#include "core/time.h"

#include <stdbool.h>
#include <stdint.h>

#define CPU_EDF_BUCKET_NS INT64_C(4096)

struct cpu_edf_entry {
    struct cpu_edf_entry *next; /* owned by the queue while queued */
    core_ns key_ns;             /* absolute deadline; set by cpu_edf_push */
};

struct cpu_edf;

/* far_capacity: how many entries may wait beyond the horizon at once; grow it with cpu_edf_reserve at stream
 * open, on the queue's own thread or before that starts. */
CORE_CHECKED core_status cpu_edf_create(struct cpu_edf **queue, uint32_t far_capacity);
CORE_CHECKED core_status cpu_edf_reserve(struct cpu_edf *queue, uint32_t far_capacity);
void cpu_edf_destroy(struct cpu_edf *queue);

/* now_ns moves the wheel's base; it must not run backwards. The entry must not be queued already. */
void cpu_edf_push(struct cpu_edf *queue, struct cpu_edf_entry *entry, core_ns key_ns, core_ns now_ns);

/* Removes up to `count` earliest entries, in order, into entries[]; returns how many. */
uint32_t cpu_edf_pop_many(struct cpu_edf *queue, struct cpu_edf_entry **entries, uint32_t count);

/* Earliest key, CORE_NS_NEVER if empty (exact to one bucket). */
core_ns cpu_edf_first_ns(const struct cpu_edf *queue);
uint32_t cpu_edf_size(const struct cpu_edf *queue);

#endif
