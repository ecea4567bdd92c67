/* From records to jobs: against the plainest way to say the same, for random batches. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/grouping.h"
#include "tests/support/random.h"

#define SLOTS   300
#define RECORDS 2000
#define WRITERS 5

#define PAGES ((RECORDS + GPU_RECORD_PAGE - 1) / GPU_RECORD_PAGE)

/* What a writer has, in one piece; and as arenas have it. */
struct packets {
    struct gpu_record record[RECORDS];
    uint32_t count;
    struct gpu_record_page page[PAGES];
};

static struct packets packets[WRITERS];
static struct gpu_segment segments[WRITERS * RECORDS];
static struct gpu_job jobs[WRITERS * RECORDS];

/* What the chain of each slot should be. */
struct chain {
    uint32_t from;
    bool restart;
    uint8_t iv[GPU_BLOCK_BYTES];
};

static struct gpu_record_list in_pages(struct packets *own)
{
    for (uint32_t i = 0; i < own->count; i++)
        own->page[i / GPU_RECORD_PAGE].records[i % GPU_RECORD_PAGE] = own->record[i];
    for (uint32_t page = 0; page + 1 < PAGES; page++)
        own->page[page].next = &own->page[page + 1];
    return (struct gpu_record_list){.page = own->page, .left = own->count};
}

static struct gpu_record_list of(struct packets *own, const struct gpu_record *record, uint32_t count)
{
    memcpy(own->record, record, count * sizeof *record);
    own->count = count;
    return in_pages(own);
}

/* Do the stream's packets stand alone? */
static bool is_alone(uint32_t slot)
{
    return slot % 3 == 0;
}

/* Records of random slots, slot modulo WRITERS being the writer; offsets as a cursor would deal them out. */
static uint64_t fill(struct test_random *random, int64_t longest_bytes)
{
    uint64_t offset_bytes = 0;
    uint32_t most = (uint32_t)test_random_in(random, 0, RECORDS);
    for (uint32_t w = 0; w < WRITERS; w++)
        packets[w].count = 0;
    for (uint32_t i = 0; i < most; i++) {
        uint32_t slot = (uint32_t)test_random_in(random, 0, SLOTS - 1);
        uint32_t bytes =
            (uint32_t)test_random_in(random, 1, longest_bytes / GPU_BLOCK_BYTES) * GPU_BLOCK_BYTES;
        struct packets *own = &packets[slot % WRITERS];
        if (offset_bytes + bytes > UINT32_MAX)
            break;
        own->record[own->count++] =
            (struct gpu_record){.offset_bytes = (uint32_t)offset_bytes,
                                .bytes = bytes,
                                .slot = slot,
                                .key = test_random_chance(random, 30) ? 1 : 0,
                                .begins_unit = is_alone(slot) || test_random_chance(random, 20),
                                .alone = is_alone(slot),
                                .has_iv = is_alone(slot) && test_random_chance(random, 5)};
        offset_bytes += bytes;
    }
    return offset_bytes;
}

/* The job's chain must be exactly the slot's records, in order; or the only one that lies where it begins. */
static void check_job(const struct gpu_job *job, const struct packets *own)
{
    uint32_t segment = job->first_segment;
    uint64_t blocks = 0;
    for (uint32_t i = 0; i < own->count; i++) {
        const uint32_t slot = own->record[i].slot;
        if (slot != job->chain_slot ||
            (is_alone(slot) && own->record[i].offset_bytes != segments[job->first_segment].offset_bytes))
            continue;
        assert_int_not_equal(segment, GPU_SEGMENT_NONE);
        assert_int_equal(segments[segment].offset_bytes, own->record[i].offset_bytes);
        assert_int_equal(segments[segment].length_bytes, own->record[i].bytes);
        uint32_t flags = segments[segment].flags;
        assert_int_equal((flags & GPU_SEGMENT_HAS_IV) != 0, own->record[i].begins_unit);
        assert_int_equal(job->key_slot ^ ((flags & GPU_SEGMENT_OTHER_KEY) != 0),
                         gpu_key_slot(job->chain_slot, own->record[i].key));
        blocks += own->record[i].bytes / GPU_BLOCK_BYTES;
        segment = segments[segment].next;
    }
    assert_int_equal(segment, GPU_SEGMENT_NONE);
    assert_int_equal(job->blocks, blocks);
}

static void check_chain(const struct gpu_job *job, struct chain *chain)
{
    assert_int_equal(job->key_slot / GPU_SLOT_KEYS, job->chain_slot);
    if (is_alone(job->chain_slot)) {
        assert_int_equal(job->flags, GPU_JOB_ALONE);
        return;
    }
    assert_int_equal(job->chain_from, chain->from);
    assert_int_equal(job->flags, chain->restart ? GPU_JOB_HAS_IV : 0);
    if (chain->restart)
        assert_memory_equal(job->iv, chain->iv, GPU_BLOCK_BYTES);
    chain->restart = false;
    chain->from = 1 - chain->from;
}

static void check_batch(const struct gpu_arena_batch *batch, struct chain *chains, uint64_t used_bytes)
{
    bool seen[SLOTS] = {false};
    uint64_t blocks = 0;
    uint32_t records_in_all = 0, jobs_in_all = 0;
    for (uint32_t i = 0; i < batch->job_count; i++) {
        uint32_t slot = jobs[i].chain_slot;
        assert_true(slot < SLOTS && (is_alone(slot) || !seen[slot]));
        seen[slot] = true;
        check_job(&jobs[i], &packets[slot % WRITERS]);
        check_chain(&jobs[i], &chains[slot]);
        assert_true(i == 0 || jobs[i].blocks <= jobs[i - 1].blocks);
        blocks += jobs[i].blocks;
    }
    for (uint32_t w = 0; w < WRITERS; w++) {
        assert_int_equal(batch->writers >> w & 1, packets[w].count > 0);
        records_in_all += packets[w].count;
        for (uint32_t i = 0; i < packets[w].count; i++) {
            assert_true(seen[packets[w].record[i].slot]);
            jobs_in_all += is_alone(packets[w].record[i].slot);
        }
    }
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        jobs_in_all += seen[slot] && !is_alone(slot);
    assert_int_equal(batch->writers >> WRITERS, 0);
    assert_int_equal(batch->job_count, jobs_in_all);
    assert_int_equal(batch->segment_count, records_in_all);
    assert_int_equal(batch->blocks, blocks);
    assert_int_equal(batch->used_bytes, used_bytes);
    assert_int_equal(batch->longest_job_blocks, batch->job_count > 0 ? jobs[0].blocks : 0);
}

static void agrees_with_brute_force(void **state)
{
    static const int64_t longest_bytes[] = {16, 64, 2048, 65536, 1 << 20, 1 << 26, 1 << 28};
    struct test_random random = {11};
    struct gpu_grouping *grouping = NULL;
    struct chain chains[SLOTS] = {0}; /* all start from what the device has */
    (void)state;
    assert_int_equal(gpu_grouping_create(&grouping, SLOTS, WRITERS * RECORDS, 1), CORE_OK);
    for (int round = 0; round < 140; round++) {
        struct gpu_record_list lists[WRITERS];
        struct gpu_arena_batch batch = {.number = 99, .job_count = 7}; /* to be overwritten */
        uint64_t used_bytes = fill(&random, longest_bytes[round % 7]);
        uint32_t count = 1;
        for (uint32_t w = 0; w < WRITERS; w++)
            count += packets[w].count;
        assert_int_equal(gpu_grouping_resize(grouping, count), CORE_OK); /* now more, now less */
        for (uint32_t w = 0; w < WRITERS; w++)
            lists[w] = in_pages(&packets[w]);
        for (int i = 0; i < 20; i++) {
            struct chain *chain = &chains[test_random_in(&random, 0, SLOTS - 1)];
            memset(chain->iv, (int)test_random_in(&random, 0, 255), sizeof chain->iv);
            chain->restart = true;
            gpu_grouping_restart_chain(grouping, (uint32_t)(chain - chains), chain->iv);
        }
        gpu_grouping_run(grouping, lists, WRITERS, segments, jobs, &batch);
        assert_int_equal(batch.number, 99);
        check_batch(&batch, chains, used_bytes);
    }
    gpu_grouping_destroy(grouping);
}

/* Jobs of equal length keep the order of their first packets; segments lie in the order of the jobs. */
static void orders_the_tables(void **state)
{
    static const struct gpu_record first[] = {{.slot = 4, .offset_bytes = 0, .bytes = 32},
                                              {.slot = 2, .offset_bytes = 32, .bytes = 16},
                                              {.slot = 4, .offset_bytes = 64, .bytes = 16},
                                              {.slot = 9, .offset_bytes = 80, .bytes = 16}};
    static const struct gpu_record second[] = {{.slot = 1, .offset_bytes = 48, .bytes = 16},
                                               {.slot = 0, .offset_bytes = 96, .bytes = 48}};
    const struct gpu_record_list lists[] = {of(&packets[0], first, 4), {0}, of(&packets[1], second, 2)};
    static const uint32_t slots[] = {4, 0, 2, 9, 1};
    static const uint32_t offsets[] = {0, 64, 96, 32, 80, 48};
    struct gpu_grouping *grouping = NULL;
    struct gpu_arena_batch batch = {0};
    (void)state;
    assert_int_equal(gpu_grouping_create(&grouping, 10, 10, 10), CORE_OK);
    gpu_grouping_run(grouping, lists, 3, segments, jobs, &batch);
    assert_int_equal(batch.job_count, 5);
    assert_int_equal(batch.writers, 5);
    assert_int_equal(batch.used_bytes, 144);
    assert_int_equal(batch.longest_job_blocks, 3);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(jobs[i].key_slot, gpu_key_slot(slots[i], 0));
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(segments[i].offset_bytes, offsets[i]);
    gpu_grouping_destroy(grouping);
}

/* A packet may bring what its stream's chain goes on from; it counts for one job, and before anything else.
 */
static void takes_chaining_values_from_packets(void **state)
{
    static const struct gpu_record with[] = {
        {.slot = 3, .bytes = 16, .has_iv = true, .iv = {7, 8, 9}},
        {.slot = 3, .offset_bytes = 16, .bytes = 16},
        {.slot = 5, .offset_bytes = 32, .bytes = 16},
    };
    static const uint8_t other[GPU_BLOCK_BYTES] = {1};
    struct gpu_grouping *grouping = NULL;
    struct gpu_arena_batch batch = {0};
    (void)state;
    assert_int_equal(gpu_grouping_create(&grouping, 10, 10, 10), CORE_OK);
    gpu_grouping_restart_chain(grouping, 3, other);
    struct gpu_record_list list = of(&packets[0], with, 3);
    gpu_grouping_run(grouping, &list, 1, segments, jobs, &batch);
    assert_true(jobs[0].chain_slot == 3 && jobs[0].flags == GPU_JOB_HAS_IV);
    assert_memory_equal(jobs[0].iv, with[0].iv, GPU_BLOCK_BYTES);
    assert_true(jobs[1].chain_slot == 5 && jobs[1].flags == 0);
    list = of(&packets[0], with + 1, 2);
    gpu_grouping_run(grouping, &list, 1, segments, jobs, &batch);
    assert_true(jobs[0].chain_slot == 3 && jobs[0].flags == 0 && jobs[0].chain_from == 1);
    gpu_grouping_destroy(grouping);
}

static void takes_an_empty_batch(void **state)
{
    static const struct gpu_record_list lists[2];
    struct gpu_grouping *grouping = NULL;
    struct gpu_arena_batch batch = {.job_count = 3, .segment_count = 3, .used_bytes = 3, .writers = 3};
    (void)state;
    assert_int_equal(gpu_grouping_create(&grouping, 1, 1, 1), CORE_OK);
    gpu_grouping_run(grouping, lists, 2, segments, jobs, &batch);
    assert_int_equal(batch.job_count + batch.segment_count + batch.used_bytes + batch.writers, 0);
    gpu_grouping_destroy(grouping);
    gpu_grouping_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_brute_force),
        cmocka_unit_test(orders_the_tables),
        cmocka_unit_test(takes_chaining_values_from_packets),
        cmocka_unit_test(takes_an_empty_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
