#include "perfmodel/flow.h"

#include "perfmodel/majorant.h"
#include "perfmodel/wide.h"

#include <assert.h>
#include <stdlib.h>

#define RATE_BITS        32
#define PACKET_RATE_BITS 44
#define ARENAS_MIN       5 /* aggregate, copy up, kernel, copy down, deliver */
#define BATCH_MOST       ((perfmodel_wide)1 << 53)
#define JOBS_MOST        (UINT64_C(1) << 32)
#define LINE_NS          ((perfmodel_wide)1 << PERFMODEL_LINE_BITS)

/* perfmodel_gpu_stages rounds up twice, the table's value and that with the margin, which is at most double.
 */
#define ROUNDING_NS  3
#define COPY_NS_MOST (2 * CONFIG_PROFILE_COPY_NS_MAX)

/* ---- loads ---- */

static uint64_t saturated(perfmodel_wide value)
{
    return value < (perfmodel_wide)UINT64_MAX ? (uint64_t)value : UINT64_MAX;
}

struct perfmodel_flow_load perfmodel_flow_load_of(const struct core_stream_spec *spec,
                                                  const struct config_profile *profile)
{
    uint64_t packet = core_stream_packet_bytes(spec);
    uint64_t interval = (uint64_t)spec->interval_ns; /* at most 2^42, and the packet at most 2^21 */
    uint64_t rate = ((packet << RATE_BITS) + interval - 1) / interval;
    const uint64_t packet_rate = ((UINT64_C(1) << PACKET_RATE_BITS) + interval - 1) / interval;
    const bool alone = core_stream_packets_alone(spec);
    return (struct perfmodel_flow_load){.streams = 1,
                                        .jobs = alone ? spec->burst_packets : 1,
                                        .jobs_rate = alone ? packet_rate : 0,
                                        .burst_bytes = spec->burst_packets * packet,
                                        .rate = rate,
                                        .job_burst_bytes = alone ? packet : spec->burst_packets * packet,
                                        .job_rate = alone ? 0 : rate,
                                        .unit_bytes = CORE_BLOCK_BYTES,
                                        .shortest_ns = perfmodel_gpu_work_ns(spec, profile),
                                        .burst_packets = spec->burst_packets,
                                        .packet_rate = packet_rate};
}

struct perfmodel_flow_load perfmodel_flow_load_at(const struct core_stream_spec *spec,
                                                  const struct config_profile *profile, core_ns period_ns)
{
    struct perfmodel_flow_load load = perfmodel_flow_load_of(spec, profile);
    const perfmodel_wide packet = (perfmodel_wide)core_stream_packet_bytes(spec);
    const core_ns whole = period_ns / spec->interval_ns, rest_ns = period_ns % spec->interval_ns;
    const struct perfmodel_jobs jobs = perfmodel_gpu_jobs(spec, period_ns, false);
    load.jobs = jobs.count;
    load.job_burst_bytes = jobs.bytes;
    load.jobs_rate = load.job_rate = 0;
    if (rest_ns == 0)
        return load;
    const perfmodel_wide parts = (spec->interval_ns - 1) / rest_ns, periods = parts * period_ns;
    if (4 * ((perfmodel_wide)spec->interval_ns - parts * rest_ns) > spec->interval_ns)
        return load;
    load.burst_bytes -= (uint64_t)(packet / parts);
    load.rate = saturated(perfmodel_wide_divide_up((packet * (parts * whole + 1)) << RATE_BITS, periods));
    return load;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint32_t common_divisor(uint32_t a, uint32_t b)
{
    while (b != 0) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

void perfmodel_flow_load_add(struct perfmodel_flow_load *load, const struct perfmodel_flow_load *more)
{
    if (more->streams == 0)
        return;
    if (load->streams == 0 || more->shortest_ns < load->shortest_ns)
        load->shortest_ns = more->shortest_ns;
    load->streams += more->streams;
    load->jobs += more->jobs;
    load->jobs_rate += more->jobs_rate;
    load->burst_bytes += more->burst_bytes;
    load->rate += more->rate;
    load->burst_packets += more->burst_packets;
    load->packet_rate += more->packet_rate;
    load->job_burst_bytes = larger(load->job_burst_bytes, more->job_burst_bytes);
    load->job_rate = larger(load->job_rate, more->job_rate);
    if (load->unit_bytes != more->unit_bytes)
        load->unit_bytes = common_divisor(load->unit_bytes, more->unit_bytes);
}

void perfmodel_flow_load_cover(struct perfmodel_flow_load *load, const struct perfmodel_flow_load *other)
{
    if (other->streams == 0)
        return;
    if (load->streams == 0 || other->shortest_ns < load->shortest_ns)
        load->shortest_ns = other->shortest_ns;
    load->streams = larger(load->streams, other->streams);
    load->jobs = larger(load->jobs, other->jobs);
    load->jobs_rate = larger(load->jobs_rate, other->jobs_rate);
    load->burst_bytes = larger(load->burst_bytes, other->burst_bytes);
    load->rate = larger(load->rate, other->rate);
    load->burst_packets = larger(load->burst_packets, other->burst_packets);
    load->packet_rate = larger(load->packet_rate, other->packet_rate);
    load->job_burst_bytes = larger(load->job_burst_bytes, other->job_burst_bytes);
    load->job_rate = larger(load->job_rate, other->job_rate);
    load->unit_bytes = common_divisor(load->unit_bytes, other->unit_bytes);
}

void perfmodel_flow_load_remove(struct perfmodel_flow_load *load, const struct perfmodel_flow_load *less)
{
    assert(load->streams >= less->streams && load->burst_bytes >= less->burst_bytes &&
           load->rate >= less->rate);
    load->streams -= less->streams;
    load->jobs -= less->jobs;
    load->jobs_rate -= less->jobs_rate;
    load->burst_bytes -= less->burst_bytes;
    load->rate -= less->rate;
    load->burst_packets -= less->burst_packets;
    load->packet_rate -= less->packet_rate;
    if (load->streams == 0)
        *load = (struct perfmodel_flow_load){0};
}

static perfmodel_wide in_period(uint64_t rate, core_ns period_ns)
{
    return perfmodel_wide_divide_up((perfmodel_wide)rate * period_ns, (perfmodel_wide)1 << RATE_BITS);
}

static perfmodel_wide packets_in_period(uint64_t packet_rate, core_ns period_ns)
{
    return perfmodel_wide_divide_up((perfmodel_wide)packet_rate * period_ns,
                                    (perfmodel_wide)1 << PACKET_RATE_BITS);
}

uint64_t perfmodel_flow_batch_packets(const struct perfmodel_flow_load *load, core_ns period_ns)
{
    return saturated(load->burst_packets + packets_in_period(load->packet_rate, period_ns) + 1);
}

uint64_t perfmodel_flow_batch_jobs(const struct perfmodel_flow_load *load, core_ns period_ns)
{
    return saturated(load->jobs + packets_in_period(load->jobs_rate, period_ns));
}

uint64_t perfmodel_flow_arenas(const struct config_profile *profile, core_ns bounds_ns, core_ns period_ns)
{
    const struct config_profile_margins *margins = &profile->margins;
    assert(period_ns > 0);
    perfmodel_wide used_ns =
        (perfmodel_wide)margins->in_ns + bounds_ns + profile->io.rest_max_ns + margins->out_ns;
    perfmodel_wide arenas = 1 + perfmodel_wide_divide_up(used_ns, period_ns);
    return arenas < ARENAS_MIN ? ARENAS_MIN : (uint64_t)arenas;
}

uint64_t perfmodel_flow_memory_bytes(const struct config_profile_gpu *gpu, uint64_t arenas,
                                     uint64_t batch_bytes, uint64_t jobs)
{
    perfmodel_wide each = 2 * (perfmodel_wide)batch_bytes + (perfmodel_wide)jobs * gpu->job_bytes;
    if (arenas > 0 && each > (perfmodel_wide)UINT64_MAX / (perfmodel_wide)arenas)
        return UINT64_MAX;
    return saturated((perfmodel_wide)arenas * each);
}

/* ---- cards ---- */

struct perfmodel_flow_gpu {
    const struct config_profile_gpu *gpu;
    bool busy;
    const struct config_profile *profile;
    perfmodel_wide launch; /* with margin; ns times 2^40 */
    struct perfmodel_majorant up, kernel, down;
};

core_status perfmodel_flow_gpu_create(struct perfmodel_flow_gpu **card, const struct config_profile *profile,
                                      const struct config_profile_gpu *gpu, bool busy)
{
    struct perfmodel_flow_gpu *made = calloc(1, sizeof *made);
    const struct config_profile_margins *margins = &profile->margins;
    if (made == NULL)
        return CORE_NO_MEMORY;
    made->gpu = gpu;
    made->busy = busy;
    made->profile = profile;
    made->launch = perfmodel_wide_with_margin(gpu->launch_ns * LINE_NS, margins->kernels_ppm);
    core_status status = perfmodel_majorant_copy(&made->up, gpu, PERFMODEL_UP, busy, margins->copies_ppm);
    if (status == CORE_OK)
        status = perfmodel_majorant_copy(&made->down, gpu, PERFMODEL_DOWN, busy, margins->copies_ppm);
    if (status == CORE_OK)
        status = perfmodel_majorant_kernel(&made->kernel, gpu, margins->kernels_ppm);
    if (status != CORE_OK) {
        perfmodel_flow_gpu_destroy(made);
        return status;
    }
    *card = made;
    return CORE_OK;
}

void perfmodel_flow_gpu_destroy(struct perfmodel_flow_gpu *card)
{
    if (card == NULL)
        return;
    perfmodel_majorant_free(&card->up);
    perfmodel_majorant_free(&card->down);
    perfmodel_majorant_free(&card->kernel);
    free(card);
}

/* ---- stages ---- */

/* Batches of a period, in the long run: bytes of one, and of the longest job. */
struct batch_period {
    core_ns period_ns;
    perfmodel_wide mean, job;
};

/* What the lines are asked for. */
struct question {
    struct batch_period period; /* at which a line is to be stable, */
    struct batch_period other;  /* and here, too, where a run has batches of two periods; else the same */
    uint64_t jobs;              /* n, of both periods */
    perfmodel_wide job, first;  /* of a run's first batch: bytes of the longest job, and all */
    perfmodel_wide full;        /* bytes of the fullest batch */
    perfmodel_wide tables;      /* bytes that go up with the jobs */
    core_ns host_ns;            /* T_H of the batch with most packets, of both periods */
};

/* A stage, in ns times 2^40: a batch in the long run; and the bound, on a line that is stable. Made from the
 * lines of its majorant by rising slope. */
struct answer {
    perfmodel_wide limit, other_limit; /* T */
    bool known, stable;
    perfmodel_wide mean, bound;
    perfmodel_wide last_mean, last_other, last_first;
};

/* What a line takes of batches: in the long run, at either period; and of a run's first. */
struct taken {
    perfmodel_wide mean, other, first;
};

static struct answer answer_start(const struct question *question)
{
    return (struct answer){.limit = question->period.period_ns * LINE_NS,
                           .other_limit = question->other.period_ns * LINE_NS};
}

/* full + part of (more - full), part = over / of <= 1, rounded up: by 2^-30 of it at the most. */
static perfmodel_wide between(perfmodel_wide full, perfmodel_wide more, perfmodel_wide over,
                              perfmodel_wide of)
{
    const unsigned bits = 30;
    for (; of >> 90 > 0; of >>= 1)
        over = (over + 1) >> 1;
    perfmodel_wide part = perfmodel_wide_divide_up(over << bits, of), rise = more - full;
    perfmodel_wide high = (rise >> bits) * part, low = (rise & (((perfmodel_wide)1 << bits) - 1)) * part;
    return full + high + perfmodel_wide_divide_up(low, (perfmodel_wide)1 << bits);
}

/* Between a line that is not stable and the next, which is, there is one, of the two mixed, that is just
 * stable. */
static perfmodel_wide mixed(const struct answer *answer, const struct taken *taken)
{
    perfmodel_wide over = answer->last_mean - answer->limit;
    perfmodel_wide other_over = answer->last_other - answer->other_limit, best = 0;
    if ((over <= 0 && other_over <= 0) || answer->last_first >= taken->first)
        return taken->first;
    if (over > 0)
        best = between(answer->last_first, taken->first, over, answer->last_mean - taken->mean);
    if (other_over > 0) {
        perfmodel_wide other =
            between(answer->last_first, taken->first, other_over, answer->last_other - taken->other);
        best = other > best ? other : best;
    }
    return best;
}

static void take(struct answer *answer, struct taken taken)
{
    bool first = !answer->known;
    if (first || taken.mean < answer->mean)
        answer->mean = taken.mean;
    answer->known = true;
    if (taken.mean <= answer->limit && taken.other <= answer->other_limit) {
        perfmodel_wide best = first ? taken.first : mixed(answer, &taken);
        if (!answer->stable || best < answer->bound)
            answer->bound = best;
        answer->stable = true;
    }
    answer->last_mean = taken.mean;
    answer->last_other = taken.other;
    answer->last_first = taken.first;
}

static struct answer ask_kernel(const struct perfmodel_flow_gpu *card, const struct question *question)
{
    struct answer answer = answer_start(question);
    const perfmodel_wide launch = card->launch + ROUNDING_NS * LINE_NS;
    if (card->kernel.count == 0)
        return answer;
    struct perfmodel_corner all = perfmodel_majorant_jobs(&card->kernel, card->gpu, question->jobs);
    if (all.y > PERFMODEL_LINE_MOST)
        return answer;
    struct perfmodel_majorant_walk walk = perfmodel_majorant_to(&card->kernel, all.x, all.y);
    struct perfmodel_line line = perfmodel_majorant_flat(&card->kernel, all.y);
    do {
        const struct batch_period *period = &question->period, *other = &question->other;
        if (line.slope <= PERFMODEL_LINE_MOST)
            take(&answer, (struct taken){launch + line.start * period->job + line.slope * period->mean,
                                         launch + line.start * other->job + line.slope * other->mean,
                                         launch + line.start * question->job + line.slope * question->first});
    } while (perfmodel_majorant_next(&card->kernel, &walk, &line));
    return answer;
}

/* The lines of a copy of batches with up to question->full bytes, and `tables` on top; false: they would take
 * for ever. *level: no batch takes longer than the fullest. */
static bool walk_copy(const struct perfmodel_flow_gpu *card, enum perfmodel_direction direction,
                      const struct question *question, struct perfmodel_majorant_walk *walk,
                      struct perfmodel_line *level)
{
    bool up = direction == PERFMODEL_UP;
    perfmodel_wide bytes = question->full + (up ? question->tables : 0);
    core_ns ns = perfmodel_copy_ns(card->gpu, direction, card->busy, (uint64_t)bytes);
    if (ns > COPY_NS_MOST)
        return false;
    *walk = perfmodel_majorant_to(up ? &card->up : &card->down, bytes, ns);
    *level = perfmodel_majorant_flat(up ? &card->up : &card->down, ns);
    level->left = bytes;
    return true;
}

static perfmodel_wide line_at(const struct perfmodel_line *line, perfmodel_wide bytes)
{
    return line->start + line->slope * bytes + ROUNDING_NS * LINE_NS;
}

static struct answer ask_copy(const struct perfmodel_flow_gpu *card, enum perfmodel_direction direction,
                              const struct question *question)
{
    const struct perfmodel_majorant *copy = direction == PERFMODEL_UP ? &card->up : &card->down;
    perfmodel_wide more = direction == PERFMODEL_UP ? question->tables : 0;
    struct answer answer = answer_start(question);
    struct perfmodel_majorant_walk walk;
    struct perfmodel_line line;
    if (!walk_copy(card, direction, question, &walk, &line))
        return answer;
    while (perfmodel_majorant_next(copy, &walk, &line))
        if (line.slope <= PERFMODEL_LINE_MOST)
            take(&answer, (struct taken){line_at(&line, question->period.mean + more),
                                         line_at(&line, question->other.mean + more),
                                         line_at(&line, question->first + more)});
    return answer;
}

/* ---- one copy engine ---- */

/* Both directions, of one card. */
struct turns {
    core_ns kernel_ns, in_ns;     /* K^; and how late the card may have a batch */
    struct answer up, down;       /* their means are that of both copies together */
    perfmodel_wide burst, beside; /* P, and rho (T_l - T_s): 0 unless a run has batches of two periods */
};

static void take_bound(struct answer *answer, perfmodel_wide bound)
{
    if (!answer->stable || bound < answer->bound)
        answer->bound = bound;
    answer->stable = true;
}

/* A stage of which no batch takes more than that, if it is no more than T. */
static void take_single(struct answer *answer, perfmodel_wide single)
{
    if (single > answer->limit)
        return;
    take_bound(answer, single);
    if (!answer->known || single < answer->mean)
        answer->mean = single;
    answer->known = true;
}

/* The least x with x >= most + (x + more_ns) share / limit, rounded up to a ns, for share < limit by a ns. */
static perfmodel_wide with_share(perfmodel_wide most, core_ns more_ns, perfmodel_wide share,
                                 perfmodel_wide limit)
{
    const perfmodel_wide scale = LINE_NS >> 20;
    if (more_ns == CORE_NS_NEVER)
        return CORE_NS_NEVER * LINE_NS;
    core_ns most_ns = perfmodel_wide_limit(perfmodel_wide_divide_up(most, LINE_NS), CORE_NS_NEVER);
    share = perfmodel_wide_divide_up(share, scale);
    perfmodel_wide rest = ((perfmodel_wide)most_ns + more_ns) * share;
    rest = most_ns + perfmodel_wide_divide_up(rest, limit / scale - share);
    return perfmodel_wide_limit(rest, CORE_NS_NEVER) * LINE_NS;
}

/* A direction of copies: the level line, on which every batch takes what the fullest does, and then those
 * from the end on; by rising slope. */
struct lines {
    const struct perfmodel_majorant *copy;
    struct perfmodel_majorant_walk walk;
    struct perfmodel_line line;
    bool begun;
    perfmodel_wide tables, mean; /* what goes with a batch, and the bytes of one in the long run, both */
};

static bool lines_open(const struct perfmodel_flow_gpu *card, enum perfmodel_direction direction,
                       const struct question *question, struct lines *lines)
{
    lines->begun = false;
    lines->copy = direction == PERFMODEL_UP ? &card->up : &card->down;
    lines->tables = direction == PERFMODEL_UP ? question->tables : 0;
    lines->mean = question->period.mean + lines->tables;
    return walk_copy(card, direction, question, &lines->walk, &lines->line);
}

static bool lines_next(struct lines *lines)
{
    if (!lines->begun)
        return lines->begun = true;
    return perfmodel_majorant_next(lines->copy, &lines->walk, &lines->line) &&
           lines->line.slope <= PERFMODEL_LINE_MOST;
}

/* The first line that takes no more than this of a period: on it the fullest batch takes least. */
static bool lines_within(struct lines *lines, perfmodel_wide room)
{
    while (lines_next(lines))
        if (line_at(&lines->line, lines->mean) <= room)
            return true;
    return false;
}

static perfmodel_wide first_batch(const struct lines *lines, const struct question *question)
{
    return line_at(&lines->line, question->first + lines->tables);
}

/* U^ on each line of the copies back, with the best that is stable beside it. */
static void bound_up(const struct question *question, const struct lines *ups, const struct lines *downs,
                     struct turns *turns)
{
    const perfmodel_wide limit = turns->up.limit, more = turns->burst + turns->beside;
    for (struct lines down = *downs; lines_next(&down);) {
        struct lines up = *ups;
        perfmodel_wide share = line_at(&down.line, down.mean);
        if (!lines_within(&up, limit - share))
            continue;
        perfmodel_wide first = first_batch(&up, question) + down.line.slope * more;
        if (!turns->up.stable || first < turns->up.bound)
            take_bound(&turns->up, with_share(first, turns->kernel_ns, share, limit));
    }
}

/* R^ likewise, on each line of the copies up. */
static void bound_down(const struct question *question, const struct lines *ups, const struct lines *downs,
                       struct turns *turns)
{
    const perfmodel_wide limit = turns->down.limit;
    for (struct lines up = *ups; lines_next(&up);) {
        struct lines down = *downs;
        perfmodel_wide share = line_at(&up.line, up.mean);
        if (!lines_within(&down, limit - share))
            continue;
        perfmodel_wide first = first_batch(&up, question) + first_batch(&down, question);
        if (!turns->down.stable || first < turns->down.bound)
            take_bound(&turns->down, with_share(first, turns->in_ns, share, limit));
    }
}

/* In the long run, on the best line. */
static perfmodel_wide mean_of(struct lines lines)
{
    perfmodel_wide least = line_at(&lines.line, lines.mean);
    while (lines_next(&lines)) {
        perfmodel_wide mean = line_at(&lines.line, lines.mean);
        least = mean < least ? mean : least;
    }
    return least;
}

static void ask_turns(const struct perfmodel_flow_gpu *card, const struct question *question,
                      struct turns *turns)
{
    struct lines ups, downs;
    turns->up = turns->down = answer_start(question);
    turns->in_ns = card->profile->margins.in_ns + question->host_ns;
    if (!lines_open(card, PERFMODEL_UP, question, &ups) ||
        !lines_open(card, PERFMODEL_DOWN, question, &downs))
        return;
    turns->up.known = turns->down.known = true;
    turns->up.mean = turns->down.mean = mean_of(ups) + mean_of(downs);
    take_single(&turns->up, line_at(&ups.line, 0) + line_at(&downs.line, 0));
    take_single(&turns->down, line_at(&ups.line, 0) + line_at(&downs.line, 0));
    bound_up(question, &ups, &downs, turns);
    bound_down(question, &ups, &downs, turns);
}

/* ---- verdicts ---- */

static core_ns bound_ns(const struct answer *answer)
{
    if (!answer->stable)
        return CORE_NS_NEVER;
    return perfmodel_wide_limit(perfmodel_wide_divide_up(answer->bound, LINE_NS), CORE_NS_NEVER);
}

static void take_room(struct perfmodel_flow_verdict *verdict, perfmodel_wide used, perfmodel_wide limit)
{
    perfmodel_wide room = -PERFMODEL_PPB;
    if (limit > 0 && used < 2 * limit)
        room = used <= limit ? (limit - used) * PERFMODEL_PPB / limit
                             : -perfmodel_wide_divide_up((used - limit) * PERFMODEL_PPB, limit);
    if (room < verdict->headroom_ppb)
        verdict->headroom_ppb = (int64_t)room;
}

static void take_stage(struct perfmodel_flow_verdict *verdict, const struct answer *answer)
{
    const perfmodel_wide never = (perfmodel_wide)CORE_NS_NEVER;
    perfmodel_wide mean_ns = never;
    if (answer->known)
        mean_ns = perfmodel_wide_limit(perfmodel_wide_divide_up(answer->mean, LINE_NS), CORE_NS_NEVER);
    take_room(verdict, mean_ns, verdict->period_ns);
    int64_t busy_ppb =
        mean_ns < never
            ? perfmodel_wide_limit(perfmodel_wide_divide_up(mean_ns * PERFMODEL_PPB, verdict->period_ns),
                                   PERFMODEL_PPB_MAX)
            : PERFMODEL_PPB_MAX;
    if (busy_ppb > verdict->busiest_ppb)
        verdict->busiest_ppb = busy_ppb;
}

/* Latency and arenas, of stages that are all stable. */
static void judge_latency(const struct perfmodel_flow_gpu *card, const struct perfmodel_flow_load *load,
                          struct perfmodel_flow_verdict *verdict)
{
    const core_ns period_ns = verdict->period_ns;
    const struct perfmodel_stages *bounds = &verdict->bounds;
    core_ns after_ns = perfmodel_wide_limit(
        (perfmodel_wide)bounds->host_ns + bounds->up_ns + bounds->kernel_ns + bounds->down_ns, CORE_NS_NEVER);
    verdict->latency_ns = perfmodel_wide_limit((perfmodel_wide)period_ns + after_ns, CORE_NS_NEVER);
    take_room(verdict, verdict->latency_ns, load->shortest_ns);
    take_room(verdict, bounds->host_ns, period_ns);
    uint64_t arenas = perfmodel_flow_arenas(card->profile, after_ns, period_ns);
    bool too_many = arenas > PERFMODEL_FLOW_ARENAS_MAX;
    verdict->arenas = too_many ? PERFMODEL_FLOW_ARENAS_MAX : (uint32_t)arenas;
    verdict->memory_bytes = perfmodel_flow_memory_bytes(card->gpu, verdict->arenas, verdict->batch_bytes,
                                                        perfmodel_flow_batch_jobs(load, period_ns));
    if (too_many)
        take_room(verdict, (perfmodel_wide)arenas, PERFMODEL_FLOW_ARENAS_MAX);
    take_room(verdict, (perfmodel_wide)verdict->memory_bytes, (perfmodel_wide)card->gpu->memory_bytes);
    if (verdict->latency_ns > load->shortest_ns || bounds->host_ns > period_ns)
        verdict->binding = PERFMODEL_LIMIT_GPU_LATENCY;
    else if (too_many || verdict->memory_bytes > card->gpu->memory_bytes)
        verdict->binding = PERFMODEL_LIMIT_GPU_MEMORY;
}

static void refuse(struct perfmodel_flow_verdict *verdict, enum perfmodel_limit binding)
{
    verdict->binding = binding;
    verdict->latency_ns = CORE_NS_NEVER;
    verdict->memory_bytes = UINT64_MAX;
    verdict->headroom_ppb = -PERFMODEL_PPB;
}

/* The copies, of which two engines do one direction each. */
static void ask_copies(const struct perfmodel_flow_gpu *card, const struct question *question,
                       struct turns *turns)
{
    if (card->gpu->copy_engines < 2) {
        ask_turns(card, question, turns);
        return;
    }
    turns->up = ask_copy(card, PERFMODEL_UP, question);
    turns->down = ask_copy(card, PERFMODEL_DOWN, question);
}

/* The latency, if no batch waited for another: no bound is less, which saves asking the lines. */
static perfmodel_wide latency_least(const struct perfmodel_flow_gpu *card, const struct question *question,
                                    const struct answer *kernel)
{
    bool turns = card->gpu->copy_engines < 2;
    uint64_t up = (uint64_t)(question->full + question->tables), down = (uint64_t)question->full;
    perfmodel_wide up_ns = perfmodel_copy_ns(card->gpu, PERFMODEL_UP, card->busy, up);
    perfmodel_wide down_ns = perfmodel_copy_ns(card->gpu, PERFMODEL_DOWN, card->busy, down);
    return (perfmodel_wide)question->period.period_ns + question->host_ns + bound_ns(kernel) +
           (turns ? 2 : 1) * up_ns + down_ns;
}

static void take_singles(const struct perfmodel_flow_gpu *card, const struct perfmodel_stages *fullest,
                         struct turns *copies)
{
    bool turns = card->gpu->copy_engines < 2;
    perfmodel_wide up_ns = fullest->up_ns, down_ns = fullest->down_ns, both_ns = up_ns + down_ns;
    take_single(&copies->up, (turns ? both_ns : up_ns) * LINE_NS);
    take_single(&copies->down, (turns ? both_ns : down_ns) * LINE_NS);
}

/* To the end only if there is more headroom than room_ppb; else that is at most room_ppb, too. `fullest` is
 * NULL where it is not known. */
static void judge_stages(const struct perfmodel_flow_gpu *card, const struct perfmodel_flow_load *load,
                         const struct question *question, const struct perfmodel_stages *fullest,
                         int64_t room_ppb, struct perfmodel_flow_verdict *verdict)
{
    struct answer kernel = ask_kernel(card, question);
    if (fullest != NULL)
        take_single(&kernel, fullest->kernel_ns * LINE_NS);
    take_stage(verdict, &kernel);
    if (fullest == NULL)
        take_room(verdict, latency_least(card, question, &kernel), load->shortest_ns);
    if (verdict->headroom_ppb <= room_ppb)
        return;
    struct turns copies = {.kernel_ns = bound_ns(&kernel), .burst = (perfmodel_wide)load->burst_bytes};
    ask_copies(card, question, &copies);
    if (fullest != NULL)
        take_singles(card, fullest, &copies);
    verdict->bounds = (struct perfmodel_stages){bound_ns(&copies.up), bound_ns(&kernel),
                                                bound_ns(&copies.down), question->host_ns};
    take_stage(verdict, &copies.up);
    take_stage(verdict, &copies.down);
    if (!copies.up.stable || !copies.down.stable)
        refuse(verdict, PERFMODEL_LIMIT_GPU_COPY);
    else if (!kernel.stable)
        refuse(verdict, PERFMODEL_LIMIT_GPU_KERNEL);
    else
        judge_latency(card, load, verdict);
}

static struct batch_period batch_period_of(const struct perfmodel_flow_load *load, core_ns period_ns)
{
    struct batch_period period = {.period_ns = period_ns, .mean = in_period(load->rate, period_ns)};
    period.job = load->job_burst_bytes + in_period(load->job_rate, period_ns);
    period.job -= period.job % load->unit_bytes;
    return period;
}

static struct question question_of(const struct perfmodel_flow_gpu *card,
                                   const struct perfmodel_flow_load *load, core_ns period_ns)
{
    struct question question = {
        .period = batch_period_of(load, period_ns),
        .jobs = perfmodel_flow_batch_jobs(load, period_ns),
        .host_ns = perfmodel_gpu_host_ns(card->gpu, perfmodel_flow_batch_packets(load, period_ns))};
    question.tables = (perfmodel_wide)question.jobs * card->gpu->job_bytes;
    question.other = question.period;
    question.job = question.period.job;
    question.full = question.first = load->burst_bytes + question.period.mean;
    return question;
}

static struct perfmodel_flow_verdict judge(const struct perfmodel_flow_gpu *card,
                                           const struct perfmodel_flow_load *load,
                                           const struct question *question,
                                           const struct perfmodel_stages *fullest, int64_t room_ppb)
{
    struct perfmodel_flow_verdict verdict = {.period_ns = question->period.period_ns,
                                             .headroom_ppb = PERFMODEL_PPB,
                                             .batch_bytes = saturated(question->full)};
    if (question->full + question->tables > BATCH_MOST || question->job > BATCH_MOST ||
        question->jobs > JOBS_MOST) {
        verdict.bounds =
            (struct perfmodel_stages){CORE_NS_NEVER, CORE_NS_NEVER, CORE_NS_NEVER, question->host_ns};
        refuse(&verdict, PERFMODEL_LIMIT_GPU_COPY);
        return verdict;
    }
    judge_stages(card, load, question, fullest, room_ppb, &verdict);
    return verdict;
}

/* Exact only if it has more headroom than room_ppb. */
static struct perfmodel_flow_verdict judge_above(const struct perfmodel_flow_gpu *card,
                                                 const struct perfmodel_flow_load *load, core_ns period_ns,
                                                 int64_t room_ppb)
{
    assert(period_ns > 0);
    if (load->streams == 0)
        return (struct perfmodel_flow_verdict){.headroom_ppb = PERFMODEL_PPB};
    struct question question = question_of(card, load, period_ns);
    return judge(card, load, &question, NULL, room_ppb);
}

struct perfmodel_flow_verdict perfmodel_flow_judge(const struct perfmodel_flow_gpu *card,
                                                   const struct perfmodel_flow_load *load, core_ns period_ns)
{
    return judge_above(card, load, period_ns, INT64_MIN);
}

struct perfmodel_flow_verdict perfmodel_flow_judge_staircase(const struct perfmodel_flow_gpu *card,
                                                             const struct perfmodel_flow_load *load,
                                                             const struct perfmodel_stages *fullest,
                                                             core_ns period_ns)
{
    assert(period_ns > 0);
    if (load->streams == 0)
        return (struct perfmodel_flow_verdict){.headroom_ppb = PERFMODEL_PPB};
    struct question question = question_of(card, load, period_ns);
    return judge(card, load, &question, fullest, INT64_MIN);
}

/* ---- another period ---- */

/* Of runs with batches of both periods that begin with one of first_ns. */
static struct question question_of_both(const struct perfmodel_flow_gpu *card,
                                        const struct perfmodel_flow_load *load, core_ns first_ns,
                                        core_ns other_ns)
{
    struct question question = question_of(card, load, first_ns);
    const struct question other = question_of(card, load, other_ns);
    question.other = other.period;
    question.host_ns = core_time_max(question.host_ns, other.host_ns);
    question.jobs = larger(question.jobs, other.jobs);
    question.tables = question.tables > other.tables ? question.tables : other.tables;
    return question;
}

static struct perfmodel_stages bounds_growing(const struct perfmodel_flow_gpu *card,
                                              const struct perfmodel_flow_load *load, core_ns from_ns,
                                              core_ns to_ns)
{
    struct question begun_short = question_of_both(card, load, from_ns, to_ns);
    struct question begun_long = question_of(card, load, to_ns);
    begun_short.full = begun_long.full;
    struct perfmodel_stages a = judge(card, load, &begun_short, NULL, INT64_MIN).bounds;
    struct perfmodel_stages b = judge(card, load, &begun_long, NULL, INT64_MIN).bounds;
    return (struct perfmodel_stages){core_time_max(a.up_ns, b.up_ns), core_time_max(a.kernel_ns, b.kernel_ns),
                                     core_time_max(a.down_ns, b.down_ns),
                                     core_time_max(a.host_ns, b.host_ns)};
}

static struct perfmodel_stages bounds_shrinking(const struct perfmodel_flow_gpu *card,
                                                const struct perfmodel_flow_load *load, core_ns from_ns,
                                                core_ns to_ns)
{
    struct question question = question_of_both(card, load, from_ns, to_ns);
    return judge(card, load, &question, NULL, INT64_MIN).bounds;
}

/* One copy engine: the copies of batches of both periods. */
static void bound_turns(const struct perfmodel_flow_gpu *card, const struct perfmodel_flow_load *load,
                        core_ns short_ns, core_ns long_ns, struct perfmodel_stages *bounds)
{
    struct question question = question_of(card, load, short_ns);
    struct turns turns = {.kernel_ns = bounds->kernel_ns,
                          .burst = (perfmodel_wide)load->burst_bytes,
                          .beside = in_period(load->rate, long_ns - short_ns)};
    const struct question longer = question_of(card, load, long_ns);
    question.full = question.first = longer.full;
    question.host_ns = longer.host_ns;
    question.tables = longer.tables;
    ask_turns(card, &question, &turns);
    bounds->up_ns = bound_ns(&turns.up);
    bounds->down_ns = bound_ns(&turns.down);
}

struct perfmodel_flow_change perfmodel_flow_judge_change(const struct perfmodel_flow_gpu *card,
                                                         const struct perfmodel_flow_load *load,
                                                         core_ns from_ns, core_ns to_ns)
{
    assert(from_ns > 0 && to_ns > 0);
    if (load->streams == 0 || from_ns == to_ns)
        return (struct perfmodel_flow_change){.holds = true};
    struct perfmodel_flow_change change = {0};
    bool grows = to_ns > from_ns, turns = card->gpu->copy_engines < 2;
    change.bounds =
        grows ? bounds_growing(card, load, from_ns, to_ns) : bounds_shrinking(card, load, from_ns, to_ns);
    if (turns && change.bounds.up_ns < CORE_NS_NEVER)
        bound_turns(card, load, grows ? from_ns : to_ns, grows ? to_ns : from_ns, &change.bounds);
    perfmodel_wide stages = (perfmodel_wide)change.bounds.up_ns + change.bounds.kernel_ns;
    stages += (perfmodel_wide)change.bounds.down_ns + change.bounds.host_ns;
    change.latency_ns = perfmodel_wide_limit(to_ns + stages, CORE_NS_NEVER);
    if (turns)
        change.old_latency_ns = perfmodel_wide_limit(from_ns + stages, CORE_NS_NEVER);
    change.holds = core_time_max(change.latency_ns, change.old_latency_ns) <= load->shortest_ns;
    return change;
}

/* A period, if it has more headroom than the best so far. */
static bool try_period(const struct perfmodel_flow_gpu *card, const struct perfmodel_flow_load *load,
                       core_ns period_ns, struct perfmodel_flow_verdict *best)
{
    struct perfmodel_flow_verdict verdict =
        judge_above(card, load, period_ns > 0 ? period_ns : 1, best->headroom_ppb);
    bool better = verdict.headroom_ppb > best->headroom_ppb;
    if (better)
        *best = verdict;
    return better;
}

/* The room of T grows with it and that of d' falls, so there is one best period, more or less: first roughly,
 * then in ever smaller steps to both sides. */
struct perfmodel_flow_verdict perfmodel_flow_fit(const struct perfmodel_flow_gpu *card,
                                                 const struct perfmodel_flow_load *load)
{
    static const int per_mille[] = {450, 400, 350, 300, 220, 190, 160, 130, 100, 80, 60, 40, 20};
    struct perfmodel_flow_verdict best = {.headroom_ppb = -PERFMODEL_PPB - 1};
    (void)try_period(card, load, load->shortest_ns / 4, &best);
    if (best.binding == PERFMODEL_LIMIT_NONE)
        return best;
    for (size_t i = 0; i < sizeof per_mille / sizeof *per_mille; i++)
        (void)try_period(card, load, load->shortest_ns * per_mille[i] / 1000, &best);
    for (core_ns part = 12; part <= 100 && best.headroom_ppb > -PERFMODEL_PPB / 5; part *= 2) {
        core_ns at_ns = best.period_ns, step_ns = at_ns / part;
        if (!try_period(card, load, at_ns - step_ns, &best))
            (void)try_period(card, load, at_ns + step_ns, &best);
    }
    return best;
}
