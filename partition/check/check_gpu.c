#include "partition/check/check_gpu.h"

#include "partition/check/check_card.h"
#include "partition/check/check_flow.h"

#include <math.h>
#include <stdlib.h>

/* The certificate rounds up; beyond this it is not rounding any more. */
#define ROUNDING_NS    4
#define ROUNDING_SHARE 1e-6L
#define PPB            1e9L

#define ROWS 24 /* of batches that are counted out, of stairs */

struct check {
    const struct partition_plan_input *input;
    const struct config_profile_gpu *card;
    const struct partition_plan_gpu *gpu;
    const size_t *member;
    size_t count;
    long double copies, kernels; /* 1 and the margin of each */
    bool busy;
    uint64_t *job; /* of the fullest batch, falling */
    size_t jobs;
    struct core_error *error;
};

static int compare_falling(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left < right) - (left > right);
}

/* Does a packet wait for none before it? */
static bool stands_alone(const struct core_stream_spec *spec)
{
    return spec->message_packets == 1 && spec->iv != CORE_IV_CHAIN;
}

static uint64_t padded_bytes(const struct core_stream_spec *spec)
{
    uint64_t packet = spec->packet_bytes;
    uint64_t iv = spec->iv == CORE_IV_CHAIN || spec->iv == CORE_IV_EXPLICIT ? 0 : 16; /* ahead of a message */
    uint64_t blocks = spec->padding == CORE_PADDING_PKCS7 ? packet / 16 + 1 : (packet + 15) / 16, most = 0;
    uint32_t crypt = spec->crypt_blocks, cycle = crypt + spec->skip_blocks;
    for (uint32_t from = 0; from < cycle; from++) { /* wherever in the pattern it begins */
        uint64_t encrypted = blocks / cycle * crypt;
        for (uint64_t block = 0; block < blocks % cycle; block++)
            encrypted += (from + block) % cycle < crypt;
        most = encrypted > most ? encrypted : most;
    }
    return iv + 16 * (crypt > 0 ? most : blocks);
}

/* N(T) p^, or p^ each of N(T) times; paper: the fluid r T of the payload, rounded up. */
static uint64_t job_bytes(const struct core_stream_spec *spec, core_ns period_ns, bool paper, uint64_t *jobs)
{
    uint64_t packet = spec->packet_bytes, interval = (uint64_t)spec->interval_ns, T = (uint64_t)period_ns;
    uint64_t whole = T / interval, rest = T % interval;
    *jobs = 1;
    if (paper)
        return packet * whole + (packet * rest + interval - 1) / interval;
    if (stands_alone(spec)) {
        *jobs = spec->burst_packets + whole;
        return padded_bytes(spec);
    }
    return (spec->burst_packets + whole) * padded_bytes(spec);
}

/* d' */
static core_ns work_ns(const struct core_stream_spec *spec, const struct config_profile *profile)
{
    core_ns left_ns = spec->latency_ns - profile->margins.in_ns - profile->margins.out_ns;
    core_ns rests_ns =
        left_ns / 16 < 2 * profile->io.rest_max_ns ? left_ns / 16 : 2 * profile->io.rest_max_ns;
    return left_ns - rests_ns;
}

/* SM `sm` has jobs sm, sm + M, ... of the falling order: as the shortest ends, one less goes on. */
static long double sm_ns(const struct check *check, size_t sm)
{
    size_t sms = check->card->sms, running = (check->jobs - sm + sms - 1) / sms;
    long double sum = 0, done = 0;
    for (; running > 0; running--) {
        long double bytes = (long double)check->job[sm + (running - 1) * sms];
        if (bytes > done)
            sum += (bytes - done) * partition_check_price(check->card, running, check->input->paper);
        done = bytes;
    }
    return sum * partition_check_byte_ns(check->card);
}

static core_status expect(const struct check *check, const char *what, long double computed, core_ns told)
{
    long double most = computed * (1 + ROUNDING_SHARE) + ROUNDING_NS;
    if ((long double)told >= computed * (1 - 1e-15L) && (long double)told <= most)
        return CORE_OK;
    return core_error_set(check->error, CORE_REFUSED, "%s is %lld and not %.0Lf", what, (long long)told,
                          computed);
}

/* The fullest batch, margins included. */
struct fullest {
    long double bytes, up_ns, kernel_ns, down_ns;
};

static struct fullest fullest_of(const struct check *check)
{
    struct fullest fullest = {0};
    for (size_t i = 0; i < check->jobs; i++)
        fullest.bytes += (long double)check->job[i];
    for (size_t sm = 0; sm < check->card->sms && sm < check->jobs; sm++)
        fullest.kernel_ns = fmaxl(fullest.kernel_ns, sm_ns(check, sm));
    long double tables = (long double)check->jobs * check->card->job_bytes;
    fullest.kernel_ns = (fullest.kernel_ns + (long double)check->card->launch_ns) * check->kernels;
    fullest.up_ns =
        check->copies * partition_check_copy_ns(check->card, true, check->busy, fullest.bytes + tables);
    fullest.down_ns = check->copies * partition_check_copy_ns(check->card, false, check->busy, fullest.bytes);
    return fullest;
}

static core_status check_bytes(const struct check *check, const struct fullest *fullest)
{
    if ((long double)check->gpu->batch_bytes != fullest->bytes)
        return core_error_set(check->error, CORE_REFUSED, "a batch has %.0Lf bytes", fullest->bytes);
    return CORE_OK;
}

static core_status check_stages(const struct check *check)
{
    const struct perfmodel_stages *stages = &check->gpu->stages;
    struct fullest fullest = fullest_of(check);
    core_status status = check_bytes(check, &fullest);
    if (status == CORE_OK)
        status = expect(check, "the copy up", fullest.up_ns, stages->up_ns);
    if (status == CORE_OK)
        status = expect(check, "the copy back", fullest.down_ns, stages->down_ns);
    if (status == CORE_OK)
        status = expect(check, "the kernel", fullest.kernel_ns, stages->kernel_ns);
    return status;
}

/* The most jobs of a batch where streams are summed: 1 or k of each, and what comes in a period of those whose
 * packets stand alone. A certificate may have each of their rates rounded up. */
static uint64_t jobs_by_sums(const struct check *check, long double rounded)
{
    uint64_t jobs = 0;
    long double rate = 0;
    for (size_t i = 0; i < check->count; i++) {
        const struct core_stream_spec *spec = &check->input->specs[check->member[i]];
        jobs += stands_alone(spec) ? spec->burst_packets : 1;
        rate += stands_alone(spec) ? 1 / (long double)spec->interval_ns + rounded : 0;
    }
    return jobs + (uint64_t)ceill(rate * (long double)check->gpu->period_ns * (1 - 1e-15L));
}

static core_status check_arenas(const struct check *check)
{
    const struct partition_plan_gpu *gpu = check->gpu;
    const struct config_profile *profile = check->input->profile;
    /* opened a period before the closing; freed when all was taken, however late it closed and that began */
    long double used_ns = (long double)(gpu->latency_ns - gpu->period_ns) +
                          (long double)(profile->margins.in_ns + profile->margins.out_ns) +
                          (long double)profile->io.rest_max_ns;
    long double arenas = fmaxl(5, 1 + ceill(used_ns / (long double)gpu->period_ns));
    long double most = (long double)jobs_by_sums(check, 0x1p-44L),
                least = (long double)jobs_by_sums(check, 0);
    if (check->input->paper)
        arenas = 5;
    if (gpu->rule != PARTITION_PLAN_BACKLOG)
        least = most = (long double)check->jobs;
    if ((long double)gpu->arenas != arenas || gpu->arenas > 64)
        return core_error_set(check->error, CORE_REFUSED, "it needs %.0Lf arenas", arenas);
    const long double tables = (long double)gpu->memory_bytes / arenas - 2 * (long double)gpu->batch_bytes;
    if (tables < least * check->card->job_bytes || tables > most * check->card->job_bytes)
        return core_error_set(check->error, CORE_REFUSED, "its arenas have other sizes");
    if (gpu->memory_bytes > check->card->memory_bytes)
        return core_error_set(check->error, CORE_REFUSED, "the arenas exceed the card");
    return CORE_OK;
}

/* ---- the backlog rule ---- */

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    for (uint64_t rest; b != 0; b = rest) {
        rest = a % b;
        a = b;
    }
    return a;
}

/* The sums over the streams, and the longest job for the longest burst with the highest rate, in whole units.
 * A certificate may have each rate rounded up to a multiple of 2^-32. */
static struct partition_check_flow flow_of(const struct check *check)
{
    struct partition_check_flow flow = {.card = check->card,
                                        .busy = check->busy,
                                        .copies = check->copies,
                                        .kernels = check->kernels,
                                        .jobs = jobs_by_sums(check, 0),
                                        .jobs_max = jobs_by_sums(check, 0x1p-44L),
                                        .period_ns = (long double)check->gpu->period_ns};
    flow.in_ns = (long double)(check->input->profile->margins.in_ns + check->gpu->stages.host_ns);
    flow.up_ns = flow.kernel_ns = flow.down_ns = INFINITY;
    long double longest = 0, fastest = 0;
    uint64_t unit = 0;
    for (size_t i = 0; i < check->count; i++) {
        const struct core_stream_spec *spec = &check->input->specs[check->member[i]];
        long double packet = (long double)padded_bytes(spec), rate = packet / (long double)spec->interval_ns;
        flow.burst_bytes += spec->burst_packets * packet;
        flow.rate += rate;
        longest = fmaxl(longest, stands_alone(spec) ? packet : spec->burst_packets * packet);
        fastest = stands_alone(spec) ? fastest : fmaxl(fastest, rate);
        unit = common_divisor(unit, padded_bytes(spec));
    }
    flow.rate_max = flow.rate + (long double)check->count * 0x1p-32L;
    long double exact = longest + fastest * flow.period_ns, units = (long double)unit;
    long double rounded = longest + ceill((fastest + 0x1p-32L) * flow.period_ns);
    flow.job_bytes = floorl(exact / units) * units;
    flow.job_bytes_max = floorl(rounded / units) * units;
    return flow;
}

static core_status expect_between(const struct check *check, const char *what, long double told,
                                  long double least, long double most)
{
    if (told >= least * (1 - 1e-12L) && told <= most * (1 + ROUNDING_SHARE) + ROUNDING_NS)
        return CORE_OK;
    return core_error_set(check->error, CORE_REFUSED, "%s is %.0Lf, not between %.0Lf and %.0Lf", what, told,
                          least, most);
}

static void take_mean(const struct partition_check_range *range, struct partition_check_range *mean)
{
    mean->mean_least_ns = fmaxl(mean->mean_least_ns, range->mean_least_ns);
    mean->mean_most_ns = fmaxl(mean->mean_most_ns, range->mean_most_ns);
}

/* The bound of one stage; *mean gets its time in the long run where that is more. */
static core_status check_bound(const struct check *check, const struct partition_check_flow *flow,
                               enum partition_check_stage stage, core_ns told,
                               struct partition_check_range *mean)
{
    struct partition_check_range range;
    core_status status = partition_check_flow(flow, stage, &range);
    if (status != CORE_OK)
        return core_error_set(check->error, status, "no memory for %zu jobs", check->count);
    take_mean(&range, mean);
    return expect_between(check, "the bound of a stage", (long double)told, range.least_ns, range.most_ns);
}

/* With one copy engine the bounds of the copies depend on each other's share of it. */
static core_status check_turns(const struct check *check, const struct partition_check_flow *flow,
                               struct partition_check_range *mean)
{
    const struct perfmodel_stages *stages = &check->gpu->stages;
    struct partition_check_turns turns = {.up_ns = (long double)stages->up_ns,
                                          .kernel_ns = (long double)stages->kernel_ns,
                                          .down_ns = (long double)stages->down_ns};
    struct partition_check_range range;
    core_status status = partition_check_flow(flow, PARTITION_CHECK_COPIES, &range);
    if (status == CORE_OK)
        status = partition_check_turns(flow, &turns);
    if (status != CORE_OK)
        return core_error_set(check->error, status, "no memory for %zu jobs", check->count);
    take_mean(&range, mean);
    status =
        expect_between(check, "the bound of the copy up", turns.up_ns, turns.up.least_ns, turns.up.most_ns);
    if (status == CORE_OK)
        status = expect_between(check, "the bound of the copy back", turns.down_ns, turns.down.least_ns,
                                turns.down.most_ns);
    return status;
}

static core_status check_bounds(const struct check *check, const struct partition_check_flow *flow)
{
    const struct perfmodel_stages *stages = &check->gpu->stages;
    struct partition_check_range mean = {0};
    core_status status = check_bound(check, flow, PARTITION_CHECK_KERNEL, stages->kernel_ns, &mean);
    if (status == CORE_OK && check->card->copy_engines == 1) {
        status = check_turns(check, flow, &mean);
    } else if (status == CORE_OK) {
        status = check_bound(check, flow, PARTITION_CHECK_UP, stages->up_ns, &mean);
        if (status == CORE_OK)
            status = check_bound(check, flow, PARTITION_CHECK_DOWN, stages->down_ns, &mean);
    }
    if (status != CORE_OK)
        return status;
    long double ppb = PPB / flow->period_ns;
    return expect_between(check, "the busiest stage's share", (long double)check->gpu->busiest_ppb,
                          mean.mean_least_ns * ppb - 1, (mean.mean_most_ns + 1) * ppb);
}

static core_status check_backlog(const struct check *check, const struct partition_check_flow *flow)
{
    long double full = flow->burst_bytes + flow->rate * flow->period_ns;
    long double most = flow->burst_bytes + ceill(flow->rate_max * flow->period_ns);
    if ((long double)check->gpu->batch_bytes < full * (1 - 1e-12L) ||
        (long double)check->gpu->batch_bytes > most)
        return core_error_set(check->error, CORE_REFUSED, "a batch has up to %.0Lf bytes", full);
    return check_bounds(check, flow);
}

static core_status check_sums(const struct check *check)
{
    struct partition_check_flow flow = flow_of(check);
    return check_backlog(check, &flow);
}

/* ---- stairs ---- */

/* Packets in so many periods, beyond k: one every t. */
static uint64_t packets_in(const struct check *check, const struct core_stream_spec *spec, uint64_t periods)
{
    return periods * (uint64_t)check->gpu->period_ns / (uint64_t)spec->interval_ns;
}

/* From k and what one period brings, up by that and a part of a packet with each further one, so that it
 * reaches the next whole packet where a stream does at the earliest, `next` periods on. Taken if that is late
 * by no more than a quarter of an interval. */
static void add_line(const struct check *check, const struct core_stream_spec *spec,
                     struct partition_check_flow *flow)
{
    uint64_t interval = (uint64_t)spec->interval_ns, rest = (uint64_t)check->gpu->period_ns % interval;
    uint64_t next = rest > 0 ? (interval + rest - 1) / rest : 0;
    long double packet = (long double)padded_bytes(spec), lower = 0;
    long double packets = flow->period_ns / (long double)spec->interval_ns;
    if (next > 1 && 4 * (interval - (next - 1) * rest) <= interval) {
        long double parts = (long double)(next - 1);
        packets = (long double)packets_in(check, spec, 1) + 1 / parts;
        lower = floorl(packet / parts); /* exact where it is whole */
    }
    flow->burst_bytes += spec->burst_packets * packet - lower;
    flow->rate += packet * packets / flow->period_ns;
}

static struct partition_check_flow flow_of_staircase(const struct check *check, const struct fullest *fullest)
{
    struct partition_check_flow flow = flow_of(check);
    flow.burst_bytes = flow.rate = 0;
    for (size_t i = 0; i < check->count; i++)
        add_line(check, &check->input->specs[check->member[i]], &flow);
    flow.rate_max = flow.rate + (long double)check->count * 0x1p-32L;
    flow.job_bytes = flow.job_bytes_max = (long double)check->job[0];
    flow.jobs = flow.jobs_max = check->jobs;
    flow.up_ns = fullest->up_ns;
    flow.kernel_ns = fullest->kernel_ns;
    flow.down_ns = fullest->down_ns;
    return flow;
}

/* No rows of batches hold more than the line says. */
static core_status check_rows(const struct check *check, const struct partition_check_flow *flow)
{
    for (uint64_t n = 1; n <= ROWS; n++) {
        long double bytes = 0;
        for (size_t i = 0; i < check->count; i++) {
            const struct core_stream_spec *spec = &check->input->specs[check->member[i]];
            bytes += (long double)((spec->burst_packets + packets_in(check, spec, n)) * padded_bytes(spec));
        }
        if (bytes > (flow->burst_bytes + (long double)n * flow->rate * flow->period_ns) * (1 + 1e-12L))
            return core_error_set(check->error, CORE_REFUSED, "%d batches hold %.0Lf bytes", (int)n, bytes);
    }
    return CORE_OK;
}

static core_status check_staircase(const struct check *check)
{
    struct fullest fullest = fullest_of(check);
    struct partition_check_flow flow = flow_of_staircase(check, &fullest);
    core_status status = check_rows(check, &flow);
    return status == CORE_OK ? check_backlog(check, &flow) : status;
}

/* ---- period and latency ---- */

/* A stream with d' = left_ns. */
static bool keeps(const struct check *check, core_ns left_ns, core_ns latency_ns)
{
    if (check->input->paper)
        return check->gpu->period_ns <= left_ns / 4;
    return latency_ns <= left_ns;
}

static core_status check_period(const struct check *check)
{
    const struct partition_plan_gpu *gpu = check->gpu;
    core_ns up_ns = gpu->stages.up_ns, down_ns = gpu->stages.down_ns, kernel_ns = gpu->stages.kernel_ns;
    bool turns = check->card->copy_engines == 1;
    core_ns copies_ns = turns && !check->input->paper ? up_ns + down_ns : up_ns > down_ns ? up_ns : down_ns;
    bool twice = turns && gpu->rule == PARTITION_PLAN_BATCH; /* each told as a batch's own */
    core_ns latency_ns =
        gpu->period_ns + gpu->stages.host_ns + kernel_ns + (twice ? 2 : 1) * (up_ns + down_ns);
    if (gpu->rule == PARTITION_PLAN_BATCH && (kernel_ns > gpu->period_ns || copies_ns > gpu->period_ns))
        return core_error_set(check->error, CORE_REFUSED, "a stage exceeds the period");
    if (gpu->stages.host_ns > gpu->period_ns)
        return core_error_set(check->error, CORE_REFUSED, "the batcher needs more than the period");
    long double share_ppb = (long double)(kernel_ns > copies_ns ? kernel_ns : copies_ns) * PPB;
    share_ppb /= (long double)gpu->period_ns;
    if (gpu->rule == PARTITION_PLAN_BATCH && fabsl((long double)gpu->busiest_ppb - share_ppb) > 2)
        return core_error_set(check->error, CORE_REFUSED, "the busiest stage has %.0Lf ppb", share_ppb);
    if (latency_ns != gpu->latency_ns)
        return core_error_set(check->error, CORE_REFUSED, "the latency is %lld", (long long)latency_ns);
    core_ns shortest_ns = CORE_NS_NEVER;
    for (size_t i = 0; i < check->count; i++) {
        const struct core_stream_spec *spec = &check->input->specs[check->member[i]];
        core_ns left_ns = work_ns(spec, check->input->profile);
        if (spec->direction == CORE_DIRECTION_DECRYPT || spec->records != CORE_RECORDS_NONE)
            return core_error_set(check->error, CORE_REFUSED, "stream %zu is none that a GPU can serve",
                                  check->member[i]);
        shortest_ns = left_ns < shortest_ns ? left_ns : shortest_ns;
        if (!keeps(check, left_ns, latency_ns))
            return core_error_set(check->error, CORE_REFUSED, "the bound of stream %zu is not kept",
                                  check->member[i]);
    }
    if (shortest_ns != gpu->shortest_ns)
        return core_error_set(check->error, CORE_REFUSED, "the shortest d' is %lld", (long long)shortest_ns);
    return CORE_OK;
}

/* The batcher's work for a batch with all packets that there may be. By sums, a certificate may count one of
 * each stream, and one more, beyond those of a period. */
static core_status check_host(const struct check *check)
{
    long double least = 0, most = 1;
    const struct config_profile_gpu *card = check->card;
    for (size_t i = 0; i < check->count; i++) {
        const struct core_stream_spec *spec = &check->input->specs[check->member[i]];
        uint64_t packets = spec->burst_packets + packets_in(check, spec, 1);
        least += (long double)packets;
        most += (long double)packets + 1;
    }
    least = (long double)card->host_batch_ns + least * (long double)card->host_packet_ns;
    most = (long double)card->host_batch_ns + most * (long double)card->host_packet_ns;
    if (check->gpu->rule == PARTITION_PLAN_BATCH)
        most = least;
    if (check->input->paper)
        least = most = 0;
    long double told = (long double)check->gpu->stages.host_ns;
    if (told < least || told > most)
        return core_error_set(check->error, CORE_REFUSED, "the batcher's work is %.0Lf, not %.0Lf", told,
                              least);
    return CORE_OK;
}

static core_status check_empty(const struct check *check)
{
    const struct partition_plan_gpu *gpu = check->gpu;
    if (gpu->period_ns != 0 || gpu->memory_bytes != 0 || gpu->stages.kernel_ns != 0)
        return core_error_set(check->error, CORE_REFUSED, "it has figures and no stream");
    return CORE_OK;
}

static uint32_t cards_of(const struct config_profile *profile)
{
    uint32_t cards = 0;
    for (uint32_t kind = 0; kind < profile->gpu_count; kind++)
        cards += profile->gpus[kind].count;
    return cards;
}

/* Of the fullest batch, one by one. */
static core_status list_jobs(struct check *check)
{
    uint64_t count;
    for (size_t i = 0; i < check->count; i++) {
        (void)job_bytes(&check->input->specs[check->member[i]], check->gpu->period_ns, check->input->paper,
                        &count);
        check->jobs += count;
    }
    check->job = malloc(check->jobs * sizeof *check->job);
    if (check->job == NULL)
        return core_error_set(check->error, CORE_NO_MEMORY, "no memory for %zu jobs", check->jobs);
    check->jobs = 0;
    for (size_t i = 0; i < check->count; i++) {
        const uint64_t bytes = job_bytes(&check->input->specs[check->member[i]], check->gpu->period_ns,
                                         check->input->paper, &count);
        for (; count > 0; count--)
            check->job[check->jobs++] = bytes;
    }
    qsort(check->job, check->jobs, sizeof *check->job, compare_falling);
    return CORE_OK;
}

core_status partition_check_gpu(const struct partition_plan_input *input,
                                const struct partition_plan_gpu *gpu, const size_t *member, size_t count,
                                struct core_error *error)
{
    struct check check = {.input = input, .gpu = gpu, .member = member, .count = count, .error = error};
    check.card = &input->profile->gpus[gpu->kind];
    check.copies = 1 + (long double)input->profile->margins.copies_ppm / 1e6L;
    check.kernels = 1 + (long double)input->profile->margins.kernels_ppm / 1e6L;
    /* another card copies at the same time, or the other direction of this one */
    check.busy = cards_of(input->profile) > 1 || (check.card->copy_engines == 2 && !input->paper);
    if (gpu->streams != count)
        return core_error_set(error, CORE_REFUSED, "it has %zu streams, not %zu", count, gpu->streams);
    if (count == 0)
        return check_empty(&check);
    if (gpu->period_ns <= 0 || gpu->period_ns > CORE_LATENCY_NS_MAX)
        return core_error_set(error, CORE_REFUSED, "it has no period");
    core_status status = list_jobs(&check);
    if (status != CORE_OK)
        return status;
    if (gpu->rule != PARTITION_PLAN_BATCH &&
        (input->paper || (input->sums && gpu->rule != PARTITION_PLAN_BACKLOG)))
        status = core_error_set(error, CORE_REFUSED, "it has a rule that was not to be used");
    else if (gpu->rule == PARTITION_PLAN_STAIRCASE)
        status = check_staircase(&check);
    else if (gpu->rule == PARTITION_PLAN_BACKLOG)
        status = check_sums(&check);
    else
        status = check_stages(&check);
    if (status == CORE_OK)
        status = check_host(&check);
    if (status == CORE_OK)
        status = check_arenas(&check);
    if (status == CORE_OK)
        status = check_period(&check);
    free(check.job);
    return status;
}
