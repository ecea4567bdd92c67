#include "gpu/grouping.h"

#include "gpu/reserve.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define DIGIT_BITS 11u
#define DIGITS     (1u << DIGIT_BITS)

/* What is kept of a stream between batches. */
struct chain {
    uint8_t iv[GPU_BLOCK_BYTES];
    uint32_t job;       /* in the batch in the making, where run is the present one */
    uint32_t run;       /* the last run in which it had a job */
    uint8_t chain_from; /* of its next job */
    bool restart;       /* its next job starts from iv */
};

/* A job in the making. */
struct group {
    uint32_t slot, blocks, segments;
    uint32_t next; /* where its next segment goes */
    uint8_t key;   /* of its first packet */
    bool alone;    /* a packet that needs no chain */
};

struct gpu_grouping {
    uint32_t slots, run;
    struct chain *chains; /* by slot */
    uint8_t *reserved;    /* where the rest is: addresses for jobs_most, memory for `jobs` */
    uint32_t jobs_most, jobs;
    struct group *groups; /* in order of first appearance */
    uint32_t *order;      /* groups in order of the job table */
    uint32_t *spare;      /* the other side of each sorting pass */
};

/* ---- memory ---- */

#define AREAS 3
static const size_t entry_bytes[AREAS] = {sizeof(struct group), sizeof(uint32_t), sizeof(uint32_t)};

static size_t area_bytes(int area, uint32_t jobs)
{
    return (jobs * entry_bytes[area] + GPU_REGION_PAGE_BYTES - 1) / GPU_REGION_PAGE_BYTES *
           GPU_REGION_PAGE_BYTES;
}

/* From the start: the end of the last one is that of all. */
static size_t area_at(int area, uint32_t jobs_most)
{
    size_t at = 0;
    while (area-- > 0)
        at += area_bytes(area, jobs_most);
    return at;
}

static void shut(struct gpu_grouping *grouping, uint32_t less, uint32_t more)
{
    for (int area = 0; area < AREAS; area++) {
        const size_t from = area_bytes(area, less), to = area_bytes(area, more);
        if (to > from)
            gpu_reserve_shut(grouping->reserved + area_at(area, grouping->jobs_most) + from, to - from);
    }
}

core_status gpu_grouping_resize(struct gpu_grouping *grouping, uint32_t jobs)
{
    core_status status = CORE_OK;
    for (int area = 0; area < AREAS && status == CORE_OK; area++) {
        const size_t from = area_bytes(area, grouping->jobs), to = area_bytes(area, jobs);
        if (to > from)
            status =
                gpu_reserve_open(grouping->reserved + area_at(area, grouping->jobs_most) + from, to - from);
    }
    if (status != CORE_OK) {
        shut(grouping, grouping->jobs, jobs);
        return CORE_NO_MEMORY;
    }
    shut(grouping, jobs, grouping->jobs);
    grouping->jobs = jobs;
    return CORE_OK;
}

/* ---- life ---- */

core_status gpu_grouping_create(struct gpu_grouping **grouping, uint32_t slots, uint32_t jobs_most,
                                uint32_t jobs)
{
    struct gpu_grouping *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return CORE_NO_MEMORY;
    fresh->slots = slots;
    fresh->chains = calloc(slots, sizeof *fresh->chains);
    fresh->jobs_most = jobs_most;
    fresh->reserved = gpu_reserve_create(area_at(AREAS, jobs_most));
    if (fresh->chains == NULL || fresh->reserved == NULL || gpu_grouping_resize(fresh, jobs) != CORE_OK) {
        gpu_grouping_destroy(fresh);
        return CORE_NO_MEMORY;
    }
    fresh->groups = (struct group *)fresh->reserved;
    fresh->order = (uint32_t *)(fresh->reserved + area_at(1, jobs_most));
    fresh->spare = (uint32_t *)(fresh->reserved + area_at(2, jobs_most));
    for (uint32_t slot = 0; slot < slots; slot++) /* touches the pages, too */
        fresh->chains[slot].run = 0;
    *grouping = fresh;
    return CORE_OK;
}

uint64_t gpu_grouping_bytes(uint32_t slots, uint32_t jobs)
{
    return sizeof(struct gpu_grouping) + slots * sizeof(struct chain) + area_at(AREAS, jobs);
}

void gpu_grouping_destroy(struct gpu_grouping *grouping)
{
    if (grouping == NULL)
        return;
    if (grouping->reserved != NULL)
        munmap(grouping->reserved, area_at(AREAS, grouping->jobs_most));
    free(grouping->chains);
    free(grouping);
}

void gpu_grouping_restart_chain(struct gpu_grouping *grouping, uint32_t slot,
                                const uint8_t iv[GPU_BLOCK_BYTES])
{
    struct chain *chain = &grouping->chains[slot];
    memcpy(chain->iv, iv, GPU_BLOCK_BYTES);
    chain->restart = true;
}

/* A run's number tells whose job numbers are of this run. */
static void next_run(struct gpu_grouping *grouping)
{
    if (++grouping->run != 0)
        return;
    for (uint32_t slot = 0; slot < grouping->slots; slot++)
        grouping->chains[slot].run = 0;
    grouping->run = 1;
}

/* The job that a record goes to; *fresh: it is the record's first, number *jobs, which counts on. Asked for all
 * records again, in the same order, it has the same numbers. */
static uint32_t job_of(struct gpu_grouping *grouping, const struct gpu_record *record, uint32_t *jobs,
                       bool *fresh)
{
    struct chain *chain = &grouping->chains[record->slot];
    if (record->alone) {
        *fresh = true;
        return (*jobs)++;
    }
    if (chain->run != grouping->run) {
        chain->run = grouping->run;
        chain->job = *jobs;
    }
    *fresh = chain->job == *jobs;
    *jobs += *fresh;
    return chain->job;
}

/* Adds up every job's packets. */
static void count_groups(struct gpu_grouping *grouping, struct gpu_record_list list,
                         struct gpu_arena_batch *batch)
{
    batch->segment_count += list.left;
    for (const struct gpu_record *record; (record = gpu_record_next(&list)) != NULL;) {
        bool fresh;
        struct group *group = &grouping->groups[job_of(grouping, record, &batch->job_count, &fresh)];
        uint64_t end_bytes = (uint64_t)record->offset_bytes + record->bytes;
        if (fresh) {
            *group = (struct group){.slot = record->slot, .key = record->key, .alone = record->alone};
            if (record->has_iv && !record->alone)
                gpu_grouping_restart_chain(grouping, record->slot, record->iv);
        }
        group->blocks += record->bytes / GPU_BLOCK_BYTES;
        group->segments++;
        batch->blocks += record->bytes / GPU_BLOCK_BYTES;
        if (end_bytes > batch->used_bytes)
            batch->used_bytes = end_bytes;
        if (group->blocks > batch->longest_job_blocks)
            batch->longest_job_blocks = group->blocks;
    }
}

/* One stable pass: by one digit of the number of blocks, falling. */
static void sort_digit(struct gpu_grouping *grouping, uint32_t count, uint32_t shift)
{
    uint32_t place[DIGITS] = {0};
    for (uint32_t i = 0; i < count; i++)
        place[grouping->groups[i].blocks >> shift & (DIGITS - 1)]++;
    for (uint32_t digit = DIGITS, sum = 0; digit-- > 0;) {
        uint32_t same = place[digit];
        place[digit] = sum;
        sum += same;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t job = grouping->order[i];
        grouping->spare[place[grouping->groups[job].blocks >> shift & (DIGITS - 1)]++] = job;
    }
    uint32_t *sorted = grouping->spare;
    grouping->spare = grouping->order;
    grouping->order = sorted;
}

static void sort_groups(struct gpu_grouping *grouping, const struct gpu_arena_batch *batch)
{
    for (uint32_t i = 0; i < batch->job_count; i++)
        grouping->order[i] = i;
    for (uint32_t shift = 0; shift < 32 && batch->longest_job_blocks >> shift != 0; shift += DIGIT_BITS)
        sort_digit(grouping, batch->job_count, shift);
}

static struct gpu_job make_job(struct chain *chain, const struct group *group, uint32_t first_segment)
{
    struct gpu_job job = {.key_slot = gpu_key_slot(group->slot, group->key),
                          .chain_slot = group->slot,
                          .first_segment = first_segment,
                          .blocks = group->blocks,
                          .chain_from = chain->chain_from};
    if (group->alone) {
        job.flags = GPU_JOB_ALONE;
        return job;
    }
    if (chain->restart) {
        job.flags = GPU_JOB_HAS_IV;
        memcpy(job.iv, chain->iv, GPU_BLOCK_BYTES);
        chain->restart = false;
    }
    chain->chain_from = 1 - chain->chain_from;
    return job;
}

static void write_jobs(struct gpu_grouping *grouping, uint32_t count, struct gpu_job *jobs)
{
    uint32_t segment = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct group *group = &grouping->groups[grouping->order[i]];
        jobs[i] = make_job(&grouping->chains[group->slot], group, segment);
        group->next = segment;
        segment += group->segments;
    }
}

static uint32_t segment_flags(const struct group *group, const struct gpu_record *record)
{
    return (record->begins_unit ? GPU_SEGMENT_HAS_IV : 0) |
           (record->key != group->key ? GPU_SEGMENT_OTHER_KEY : 0);
}

static void write_segments(struct gpu_grouping *grouping, struct gpu_record_list list, uint32_t *jobs,
                           struct gpu_segment *segments)
{
    bool fresh;

    for (const struct gpu_record *record; (record = gpu_record_next(&list)) != NULL;) {
        struct group *group = &grouping->groups[job_of(grouping, record, jobs, &fresh)];
        uint32_t here = group->next++;
        segments[here] = (struct gpu_segment){.offset_bytes = record->offset_bytes,
                                              .length_bytes = record->bytes,
                                              .next = --group->segments > 0 ? here + 1 : GPU_SEGMENT_NONE,
                                              .flags = segment_flags(group, record)};
    }
}

void gpu_grouping_run(struct gpu_grouping *grouping, const struct gpu_record_list *lists, uint32_t list_count,
                      struct gpu_segment *segments, struct gpu_job *jobs, struct gpu_arena_batch *batch)
{
    batch->writers = batch->blocks = batch->used_bytes = 0;
    batch->job_count = batch->segment_count = batch->longest_job_blocks = 0;
    next_run(grouping);
    for (uint32_t i = 0; i < list_count; i++) {
        count_groups(grouping, lists[i], batch);
        batch->writers |= lists[i].left > 0 ? UINT64_C(1) << i : 0;
    }
    sort_groups(grouping, batch);
    write_jobs(grouping, batch->job_count, jobs);
    for (uint32_t i = 0, counted = 0; i < list_count; i++)
        write_segments(grouping, lists[i], &counted, segments);
}
