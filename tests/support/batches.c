#include "tests/support/batches.h"

#include <stdlib.h>

#define ALL UINT64_MAX

struct source {
    const struct core_stream_spec *spec;
    uint64_t packet_bytes; /* p^ */
    uint64_t job_bytes;    /* the most of a batch */
    core_ns work_ns;       /* d' */
    struct batches_policed policed;
};

struct filling {
    const struct pipeline_gpu *gpu;
    const struct pipeline_pattern *pattern;
    struct test_random *random;
    struct source *source; /* by falling job_bytes */
    uint64_t *job, *scratch;
    size_t jobs; /* of the batch */
    bool sorted;
    uint32_t parts;          /* groups, or batches over which a burst is spread: 2 .. 4 */
    uint32_t start;          /* batch that PIPELINE_SAVED saves for */
    uint32_t active_batches; /* PIPELINE_AGAIN: until then all send */
    uint32_t silent_batches; /* and until then none */
};

static core_ns length_ns(const struct filling *filling, uint32_t n)
{
    return pipeline_close_ns(filling->gpu, n) - pipeline_close_ns(filling->gpu, n - 1);
}

/* What a stream wants of a batch: so many packets from this moment of its period on. */
struct wish {
    core_ns offset_ns;
    uint64_t packets;
};

uint64_t batches_police(struct batches_policed *policed, core_ns from_ns, core_ns to_ns, uint64_t most,
                        core_ns *first_ns)
{
    core_ns theoretical_ns = core_time_max(policed->theoretical_ns, from_ns);
    core_ns earliest_ns = theoretical_ns - policed->tolerance_ns;
    *first_ns = core_time_max(earliest_ns, from_ns);
    if (*first_ns >= to_ns || most == 0)
        return 0;
    uint64_t packets = (uint64_t)((to_ns - 1 - earliest_ns) / policed->interval_ns) + 1;
    if (packets > most)
        packets = most;
    policed->theoretical_ns = theoretical_ns + (core_ns)packets * policed->interval_ns;
    return packets;
}

static int by_job_falling(const void *a, const void *b)
{
    uint64_t left = ((const struct source *)a)->job_bytes, right = ((const struct source *)b)->job_bytes;
    return (left < right) - (left > right);
}

static void open_sources(struct filling *filling)
{
    const struct pipeline_gpu *gpu = filling->gpu;
    for (size_t i = 0; i < gpu->count; i++) {
        const struct core_stream_spec *spec = &gpu->specs[i];
        struct source *source = &filling->source[i];
        *source = (struct source){.spec = spec};
        source->packet_bytes = core_stream_packet_bytes(spec);
        source->job_bytes = perfmodel_gpu_job_bytes(spec, gpu->period_ns, false);
        source->work_ns = perfmodel_gpu_work_ns(spec, gpu->profile);
        source->policed.interval_ns = spec->interval_ns;
        source->policed.tolerance_ns = ((core_ns)spec->burst_packets - 1) * spec->interval_ns;
        source->policed.theoretical_ns = INT64_MIN / 2;
    }
    qsort(filling->source, gpu->count, sizeof *filling->source, by_job_falling);
}

static struct wish random_wish(struct filling *filling)
{
    core_ns last_ns = filling->gpu->period_ns - 1;
    struct wish wish = {0, ALL};
    if (test_random_chance(filling->random, 30))
        return (struct wish){0, 0};
    if (test_random_chance(filling->random, 30))
        wish.offset_ns =
            test_random_chance(filling->random, 50) ? last_ns : test_random_in(filling->random, 0, last_ns);
    if (test_random_chance(filling->random, 30))
        wish.packets = (uint64_t)test_random_log(filling->random, 1, 64);
    return wish;
}

/* An even part of the burst and what the interval allows; the rest is for the last of the parts. */
static struct wish part_of_burst(const struct filling *filling, size_t i, uint32_t n)
{
    const struct core_stream_spec *spec = filling->source[i].spec;
    uint64_t part = (spec->burst_packets + filling->parts - 1) / filling->parts;
    if (n >= filling->parts)
        return (struct wish){0, ALL};
    return (struct wish){0, part + (uint64_t)(filling->gpu->period_ns / spec->interval_ns)};
}

static struct wish when(bool wanted)
{
    return (struct wish){0, wanted ? ALL : 0};
}

static struct wish scripted(const struct filling *filling, size_t i, uint32_t n)
{
    switch ((enum pipeline_wish)filling->pattern->script->wish[n][i]) {
    case PIPELINE_ALL:
        return (struct wish){0, ALL};
    case PIPELINE_ALL_LATE:
        return (struct wish){length_ns(filling, n) - 1, ALL};
    case PIPELINE_ONE:
        return (struct wish){0, 1};
    default:
        return (struct wish){0, 0};
    }
}

static struct wish wish_of(struct filling *filling, size_t i, uint32_t n)
{
    size_t count = filling->gpu->count;
    switch (filling->pattern->arrivals) {
    case PIPELINE_BEFORE_CLOSING:
        return (struct wish){n == 1 ? filling->gpu->period_ns - 1 : 0, ALL};
    case PIPELINE_SPREAD:
        return part_of_burst(filling, i, n);
    case PIPELINE_GROUPS:
        return when(n > i % filling->parts);
    case PIPELINE_LONG_SHORT:
        return when((i < count / 2) == (n % 2 == 0));
    case PIPELINE_UNEVEN:
        return when(n % 3 == 1 || (n % 3 == 2 && i + 1 + count / 16 >= count));
    case PIPELINE_AGAIN:
        return when(n <= filling->active_batches);
    case PIPELINE_RANDOM:
        return random_wish(filling);
    case PIPELINE_SCRIPT:
        return scripted(filling, i, n);
    default: /* PERIODIC and SAVED differ in what is policed */
        return when(true);
    }
}

/* As if the burst were one packet, where a stream sends no faster than in the long run. */
static bool in_step(const struct filling *filling, uint32_t n)
{
    return filling->pattern->arrivals == PIPELINE_PERIODIC ||
           (filling->pattern->arrivals == PIPELINE_SAVED && n < filling->start);
}

static void alternate(struct filling *filling, uint32_t n)
{
    if (n <= filling->silent_batches)
        return;
    filling->active_batches = n + (uint32_t)test_random_in(filling->random, 0, 2);
    filling->silent_batches = filling->active_batches + (uint32_t)test_random_in(filling->random, 1, 6);
}

static void add_job(struct filling *filling, uint64_t bytes)
{
    filling->sorted = filling->sorted && (filling->jobs == 0 || bytes <= filling->job[filling->jobs - 1]);
    filling->job[filling->jobs++] = bytes;
}

/* Of so many packets of a stream: all that there may be, or less. */
static uint64_t any_bytes(struct filling *filling, const struct source *source, uint64_t packets)
{
    const uint64_t least = packets * CORE_BLOCK_BYTES, most = packets * source->packet_bytes;
    if (!filling->pattern->small_too || test_random_chance(filling->random, 30))
        return most;
    return least + (uint64_t)test_random_in(filling->random, 0, (int64_t)(most - least)) / 16 * 16;
}

/* A stream's jobs. */
static void fill_jobs(struct filling *filling, struct source *source, size_t i, uint32_t n,
                      struct batch *batch)
{
    core_ns opening_ns = pipeline_close_ns(filling->gpu, n - 1), first_ns;
    core_ns closing_ns = pipeline_close_ns(filling->gpu, n);
    struct wish wish = wish_of(filling, i, n);
    struct batches_policed *policed = &source->policed;
    core_ns tolerance_ns = policed->tolerance_ns;
    policed->tolerance_ns = in_step(filling, n) ? 0 : tolerance_ns;
    uint64_t packets =
        batches_police(policed, opening_ns + wish.offset_ns, closing_ns, wish.packets, &first_ns);
    policed->tolerance_ns = tolerance_ns;
    if (packets == 0)
        return;
    core_ns due_ns = first_ns + filling->gpu->profile->margins.in_ns + source->work_ns;
    if (batch->packets == 0 || due_ns < batch->due_ns) {
        batch->due_ns = due_ns;
        batch->work_ns = source->work_ns;
    }
    batch->packets += packets;
    const uint64_t each = core_stream_packets_alone(source->spec) ? 1 : packets;
    for (; packets > 0; packets -= each)
        add_job(filling, any_bytes(filling, source, each));
}

static int falling(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left < right) - (left > right);
}

static void fill_batch(struct filling *filling, uint32_t n, struct batch *batch)
{
    const struct pipeline_gpu *gpu = filling->gpu;
    *batch = (struct batch){0};
    filling->jobs = 0;
    filling->sorted = true;
    alternate(filling, n);
    for (size_t i = 0; i < gpu->count; i++)
        fill_jobs(filling, &filling->source[i], i, n, batch);
    if (!filling->sorted)
        qsort(filling->job, filling->jobs, sizeof *filling->job, falling);
    batch->stages = perfmodel_gpu_stages(gpu->card, &gpu->profile->margins, filling->job, filling->jobs,
                                         gpu->busy, filling->scratch);
}

/* Of one batch, at either period. */
static size_t jobs_most(const struct pipeline_gpu *gpu)
{
    const core_ns period_ns = core_time_max(gpu->period_ns, gpu->next_period_ns);
    uint64_t jobs = 1;
    for (size_t i = 0; i < gpu->count; i++)
        jobs += perfmodel_gpu_jobs(&gpu->specs[i], period_ns, false).count;
    return (size_t)jobs;
}

core_status batches_fill(const struct pipeline_gpu *gpu, const struct pipeline_pattern *pattern,
                         struct test_random *random, struct batch *batch)
{
    struct filling filling = {.gpu = gpu, .pattern = pattern, .random = random};
    filling.source = malloc(gpu->count * sizeof *filling.source);
    filling.job = malloc(jobs_most(gpu) * sizeof *filling.job);
    filling.scratch = malloc(jobs_most(gpu) * sizeof *filling.scratch);
    core_status status = CORE_NO_MEMORY;
    if (filling.source != NULL && filling.job != NULL && filling.scratch != NULL) {
        filling.parts = (uint32_t)test_random_in(random, 2, 4);
        filling.start = (uint32_t)test_random_in(random, 2, 5);
        open_sources(&filling);
        for (uint32_t n = 1; n <= pattern->batches; n++)
            fill_batch(&filling, n, &batch[n]);
        status = CORE_OK;
    }
    free(filling.source);
    free(filling.job);
    free(filling.scratch);
    return status;
}
