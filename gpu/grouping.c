#include "gpu/grouping.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

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
};

struct gpu_grouping {
    uint32_t slots, run;
    struct chain *chains; /* by slot */
    struct group *groups; /* in order of first appearance */
    uint32_t *order;      /* groups in order of the job table */
    uint32_t *spare;      /* the other side of each sorting pass */
};

core_status gpu_grouping_create(struct gpu_grouping **grouping, uint32_t slots)
{
    struct gpu_grouping *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return CORE_NO_MEMORY;
    fresh->slots = slots;
    fresh->chains = calloc(slots, sizeof *fresh->chains);
    fresh->groups = calloc(slots, sizeof *fresh->groups);
    fresh->order = calloc(slots, sizeof *fresh->order);
    fresh->spare = calloc(slots, sizeof *fresh->spare);
    if (fresh->chains == NULL || fresh->groups == NULL || fresh->order == NULL || fresh->spare == NULL) {
        gpu_grouping_destroy(fresh);
        return CORE_NO_MEMORY;
    }
    for (uint32_t slot = 0; slot < slots; slot++) { /* touches the pages, too */
        fresh->chains[slot].run = 0;
        fresh->groups[slot].slot = slot;
        fresh->order[slot] = fresh->spare[slot] = slot;
    }
    *grouping = fresh;
    return CORE_OK;
}

uint64_t gpu_grouping_bytes(uint32_t slots)
{
    return sizeof(struct gpu_grouping) +
           slots * (sizeof(struct chain) + sizeof(struct group) + 2 * sizeof(uint32_t));
}

void gpu_grouping_destroy(struct gpu_grouping *grouping)
{
    if (grouping == NULL)
        return;
    free(grouping->chains);
    free(grouping->groups);
    free(grouping->order);
    free(grouping->spare);
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

/* Adds up every stream's packets. */
static void count_groups(struct gpu_grouping *grouping, struct gpu_record_list list,
                         struct gpu_arena_batch *batch)
{
    batch->segment_count += list.left;
    for (const struct gpu_record *record; (record = gpu_record_next(&list)) != NULL;) {
        struct chain *chain = &grouping->chains[record->slot];
        uint64_t end_bytes = (uint64_t)record->offset_bytes + record->bytes;
        if (chain->run != grouping->run) {
            chain->run = grouping->run;
            chain->job = batch->job_count++;
            grouping->groups[chain->job] = (struct group){.slot = record->slot, .key = record->key};
            if (record->has_iv)
                gpu_grouping_restart_chain(grouping, record->slot, record->iv);
        }
        struct group *group = &grouping->groups[chain->job];
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

static void write_segments(struct gpu_grouping *grouping, struct gpu_record_list list,
                           struct gpu_segment *segments)
{
    for (const struct gpu_record *record; (record = gpu_record_next(&list)) != NULL;) {
        struct group *group = &grouping->groups[grouping->chains[record->slot].job];
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
    for (uint32_t i = 0; i < list_count; i++)
        write_segments(grouping, lists[i], segments);
}
