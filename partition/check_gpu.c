#include "partition/check_gpu.h"

#include <math.h>
#include <stdlib.h>

/* The certificate rounds up; beyond this it is not rounding any more. */
#define ROUNDING_NS    4
#define ROUNDING_SHARE 1e-6L

struct check {
    const struct partition_plan_input *input;
    const struct config_profile_gpu *card;
    const struct partition_plan_gpu *gpu;
    const size_t *member;
    size_t count;
    long double margin;
    bool busy;
    uint64_t *job; /* falling */
    struct core_error *error;
};

static int compare_falling(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left < right) - (left > right);
}

/* N(T) p^; paper: the fluid r T of the payload, rounded up. */
static uint64_t job_bytes(const struct core_stream_spec *spec, core_ns period_ns, bool paper)
{
    uint64_t packet = spec->packet_bytes, interval = (uint64_t)spec->interval_ns, T = (uint64_t)period_ns;
    uint64_t whole = T / interval, rest = T % interval;
    if (paper)
        return packet * whole + (packet * rest + interval - 1) / interval;
    uint64_t padded = spec->padding == CORE_PADDING_PKCS7 ? (packet / 16 + 1) * 16 : (packet + 15) / 16 * 16;
    return (spec->burst_packets + whole) * padded;
}

/* d' */
static core_ns work_ns(const struct core_stream_spec *spec, const struct config_profile *profile)
{
    core_ns rest_ns = spec->latency_ns / 32;
    if (rest_ns > profile->io.rest_max_ns)
        rest_ns = profile->io.rest_max_ns;
    return spec->latency_ns - profile->margins.in_ns - profile->margins.out_ns - rest_ns;
}

static long double column_ns(const struct config_profile_copy *row, bool up, bool busy)
{
    core_ns alone_ns = up ? row->up_ns : row->down_ns;
    core_ns busy_ns = up ? row->up_busy_ns : row->down_busy_ns;
    return (long double)(busy ? busy_ns : alone_ns);
}

/* On the straight line between two rows; before the first its time; beyond the last row the steeper of the
 * last segment and the last row's own rate. */
static long double table_ns(const struct check *check, bool up, bool busy, long double bytes)
{
    const struct config_profile_copy *row = check->card->copies;
    uint32_t last = check->card->copy_count - 1, above = 0;
    while (above < last && (long double)row[above].bytes < bytes)
        above++;
    long double at = (long double)row[above].bytes, at_ns = column_ns(&row[above], up, busy), slope = 0;
    if (above > 0)
        slope = (at_ns - column_ns(&row[above - 1], up, busy)) / (at - (long double)row[above - 1].bytes);
    if (bytes <= at)
        return above == 0 ? at_ns : at_ns - slope * (at - bytes);
    return fmaxl(at_ns + slope * (bytes - at), at_ns / at * bytes);
}

static long double copy_ns(const struct check *check, bool up, long double bytes)
{
    long double alone_ns = table_ns(check, up, false, bytes);
    return check->busy ? fmaxl(alone_ns, table_ns(check, up, true, bytes)) : alone_ns;
}

/* c(n): the largest j / u of the rows up to n and the next one at n or above; beyond the last, n / u. */
static long double price(const struct config_profile_gpu *card, size_t n)
{
    long double most = 0;
    for (uint32_t row = 0; row < card->utilisation_count; row++) {
        const struct config_profile_utilisation *at = &card->utilisation[row];
        most = fmaxl(most, (long double)at->jobs / (long double)at->share_ppm);
        if (at->jobs >= n)
            return most * CONFIG_PROFILE_SHARE_PPM;
    }
    const struct config_profile_utilisation *last = &card->utilisation[card->utilisation_count - 1];
    return fmaxl(most, (long double)n / (long double)last->share_ppm) * CONFIG_PROFILE_SHARE_PPM;
}

/* SM `sm` has jobs sm, sm + M, ... of the falling order: as the shortest ends, one less goes on. */
static long double sm_ns(const struct check *check, size_t sm)
{
    size_t sms = check->card->sms, running = (check->count - sm + sms - 1) / sms;
    long double sum = 0, done = 0;
    for (; running > 0; running--) {
        long double bytes = (long double)check->job[sm + (running - 1) * sms];
        if (bytes > done)
            sum += (bytes - done) * price(check->card, running);
        done = bytes;
    }
    return sum / (long double)check->card->sm_bytes_per_s * 1e9L;
}

static core_status expect(const struct check *check, const char *what, long double computed, core_ns told)
{
    long double most = computed * (1 + ROUNDING_SHARE) + ROUNDING_NS;
    if ((long double)told >= computed * (1 - 1e-15L) && (long double)told <= most)
        return CORE_OK;
    return core_error_set(check->error, CORE_REFUSED, "%s is %lld and not %.0Lf", what, (long long)told,
                          computed);
}

static core_status check_stages(const struct check *check)
{
    const struct perfmodel_stages *stages = &check->gpu->stages;
    long double bytes = 0, kernel_ns = 0;
    for (size_t i = 0; i < check->count; i++)
        bytes += (long double)check->job[i];
    for (size_t sm = 0; sm < check->card->sms && sm < check->count; sm++)
        kernel_ns = fmaxl(kernel_ns, sm_ns(check, sm));
    long double tables = (long double)check->count * check->card->job_bytes;
    long double up_ns = copy_ns(check, true, bytes + tables), down_ns = copy_ns(check, false, bytes);
    if ((long double)check->gpu->batch_bytes != bytes ||
        (long double)check->gpu->memory_bytes != 5 * (2 * bytes + tables))
        return core_error_set(check->error, CORE_REFUSED, "a batch has %.0Lf bytes", bytes);
    if (check->gpu->memory_bytes > check->card->memory_bytes)
        return core_error_set(check->error, CORE_REFUSED, "the arenas exceed the card");
    core_status status = expect(check, "the copy up", up_ns * check->margin, stages->up_ns);
    if (status == CORE_OK)
        status = expect(check, "the copy back", down_ns * check->margin, stages->down_ns);
    if (status == CORE_OK)
        status = expect(check, "the kernel",
                        (kernel_ns + (long double)check->card->launch_ns) * check->margin, stages->kernel_ns);
    return status;
}

static core_status check_period(const struct check *check)
{
    const struct partition_plan_gpu *gpu = check->gpu;
    core_ns up_ns = gpu->stages.up_ns, down_ns = gpu->stages.down_ns, kernel_ns = gpu->stages.kernel_ns;
    if (up_ns > gpu->period_ns || down_ns > gpu->period_ns || kernel_ns > gpu->period_ns)
        return core_error_set(check->error, CORE_REFUSED, "a stage exceeds the period");
    bool turns = check->card->copy_engines == 1;
    core_ns copies_ns = turns && !check->input->paper ? up_ns + down_ns : up_ns > down_ns ? up_ns : down_ns;
    core_ns latency_ns = gpu->period_ns + kernel_ns + (turns ? 2 : 1) * (up_ns + down_ns);
    if (copies_ns > gpu->period_ns)
        return core_error_set(check->error, CORE_REFUSED, "both copies together exceed the period");
    if (latency_ns != gpu->latency_ns)
        return core_error_set(check->error, CORE_REFUSED, "the latency is %lld", (long long)latency_ns);
    core_ns shortest_ns = CORE_NS_NEVER;
    for (size_t i = 0; i < check->count; i++) {
        core_ns left_ns = work_ns(&check->input->specs[check->member[i]], check->input->profile);
        shortest_ns = left_ns < shortest_ns ? left_ns : shortest_ns;
        if (check->input->paper ? gpu->period_ns > left_ns / 4 : latency_ns > left_ns)
            return core_error_set(check->error, CORE_REFUSED, "the bound of stream %zu is not kept",
                                  check->member[i]);
    }
    if (shortest_ns != gpu->shortest_ns)
        return core_error_set(check->error, CORE_REFUSED, "the shortest d' is %lld", (long long)shortest_ns);
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

core_status partition_check_gpu(const struct partition_plan_input *input,
                                const struct partition_plan_gpu *gpu, const size_t *member, size_t count,
                                struct core_error *error)
{
    struct check check = {.input = input, .gpu = gpu, .member = member, .count = count, .error = error};
    check.card = &input->profile->gpus[gpu->kind];
    check.margin = (100 + (long double)input->profile->margins.percent) / 100;
    /* another card copies at the same time, or the other direction of this one */
    check.busy = cards_of(input->profile) > 1 || (check.card->copy_engines == 2 && !input->paper);
    if (gpu->streams != count)
        return core_error_set(error, CORE_REFUSED, "it has %zu streams, not %zu", count, gpu->streams);
    if (count == 0)
        return check_empty(&check);
    if (gpu->period_ns <= 0 || gpu->period_ns > CORE_LATENCY_NS_MAX)
        return core_error_set(error, CORE_REFUSED, "it has no period");
    check.job = malloc(count * sizeof *check.job);
    if (check.job == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for %zu jobs", count);
    for (size_t i = 0; i < count; i++)
        check.job[i] = job_bytes(&input->specs[member[i]], gpu->period_ns, input->paper);
    qsort(check.job, count, sizeof *check.job, compare_falling);
    core_status status = check_stages(&check);
    if (status == CORE_OK)
        status = check_period(&check);
    free(check.job);
    return status;
}
