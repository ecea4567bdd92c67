#include "tests/support/flow_attack.h"

#include "tests/support/require.h"
#include "tests/support/units.h"

#include <stdlib.h>
#include <string.h>

/* ---- sets ---- */

/* Bursts that are earned back within a few periods, so that a script has several of them. */
static void random_streams(struct flow_attack_set *set, struct test_random *random)
{
    struct test_random beside = {~random->state}; /* the rest is as it would be without */
    const int alone_percent = test_random_chance(&beside, 50) ? 60 : 0;
    const core_ns period_ns = set->gpu.period_ns;
    const bool alike = test_random_chance(random, 30), fluid = test_random_chance(random, 25);
    set->gpu.count = (size_t)test_random_in(random, 1, FLOW_ATTACK_STREAMS);
    for (size_t i = 0; i < set->gpu.count; i++) {
        struct core_stream_spec *spec = &set->specs[i];
        *spec = alike && i > 0 ? set->specs[0]
                               : (struct core_stream_spec){
                                     .packet_bytes = 16 * (uint32_t)test_random_log(random, 1, 512),
                                     .burst_packets = (uint32_t)test_random_log(random, 1, 8),
                                     .interval_ns = test_random_log(random, period_ns / 6, period_ns * 5),
                                     .cipher = CORE_CIPHER_AES_128_CBC};
        spec->latency_ns = CORE_LATENCY_NS_MAX;
        if (fluid) { /* next to no bursts */
            spec->interval_ns = test_random_log(random, period_ns / 100 + 1, period_ns / 10 + 2);
            spec->burst_packets = 1;
        } else if (test_random_chance(random, 20)) /* a batch has k packets of it, and no more */
            spec->interval_ns = period_ns + period_ns / test_random_in(random, 8, 100);
        test_units_stand_alone(spec, &beside, alone_percent);
        struct perfmodel_flow_load one = perfmodel_flow_load_of(spec, &set->profile);
        perfmodel_flow_load_add(&set->load, &one);
    }
}

/* A copy of so many bytes takes this; a part of it begins with the first byte. Perhaps the rate is better
 * from half of it on. */
static core_ns copy_ns(core_ns most_ns, uint64_t at, uint64_t bytes, int start_percent)
{
    core_ns start_ns = most_ns * start_percent / 100;
    return 1 + start_ns + (core_ns)((double)(most_ns - start_ns) * (double)at / (double)bytes);
}

static core_ns without_margin_ns(core_ns ns, uint32_t margin_ppm)
{
    return ns * CONFIG_PROFILE_MARGIN_PPM / (CONFIG_PROFILE_MARGIN_PPM + margin_ppm);
}

/* A batch of so many bytes takes such parts of a period, in percent: up, kernel, back. */
static void card_for(struct flow_attack_set *set, struct test_random *random, uint64_t bytes,
                     const int64_t percent[PIPELINE_STAGES])
{
    struct test_gpu *card = &set->card;
    const core_ns copies_ns = without_margin_ns(set->gpu.period_ns, set->profile.margins.copies_ppm);
    const core_ns kernels_ns = without_margin_ns(set->gpu.period_ns, set->profile.margins.kernels_ppm);
    const core_ns up_ns = copies_ns * percent[PIPELINE_UP] / 100;
    const core_ns down_ns = copies_ns * percent[PIPELINE_DOWN] / 100;
    const int up_start = (int)test_random_in(random, 0, 30), down_start = (int)test_random_in(random, 0, 30);
    const uint64_t at[] = {1, bytes, 16 * bytes};
    for (int row = 0; row < 3; row++) {
        core_ns up = copy_ns(up_ns, at[row], bytes, up_start);
        core_ns down = copy_ns(down_ns, at[row], bytes, down_start);
        card->copies[row] = (struct config_profile_copy){at[row], up, down, up, down};
    }
    card->gpu.copy_count = 3;
    card->gpu.launch_ns = test_random_in(random, 0, kernels_ns / 20);
    const double kernel_ns = (double)kernels_ns * (double)percent[PIPELINE_KERNEL] / 100;
    card->gpu.sm_bytes_per_s = 1 + (int64_t)((double)bytes * 1e9 / kernel_ns / card->gpu.sms);
}

static void random_card(struct flow_attack_set *set, struct test_random *random, uint32_t engines,
                        uint64_t bytes)
{
    struct config_profile_gpu *card = &set->card.gpu;
    set->card.utilisation[0] = (struct config_profile_utilisation){1, CONFIG_PROFILE_SHARE_PPM};
    *card = (struct config_profile_gpu){.count = 1,
                                        .sms = (uint32_t)test_random_log(random, 1, 4),
                                        .copy_engines = engines,
                                        .memory_bytes = (int64_t)1 << 40,
                                        .job_bytes = (uint32_t)test_random_in(random, 0, 64),
                                        .copies = set->card.copies,
                                        .utilisation = set->card.utilisation,
                                        .utilisation_count = 1};
    int64_t percent[] = {test_random_in(random, 10, 98), test_random_in(random, 3, 95),
                         test_random_in(random, 10, 98)};
    if (engines == 1) { /* both together */
        int64_t part = test_random_in(random, 10, 90), both = percent[PIPELINE_UP];
        percent[PIPELINE_UP] = both * part / 100 + 1;
        percent[PIPELINE_DOWN] = both * (100 - part) / 100 + 1;
    }
    card_for(set, random, bytes, percent);
}

static uint64_t packets_of(const struct flow_attack_set *set, core_ns period_ns)
{
    uint64_t packets = 0;
    for (size_t i = 0; i < set->gpu.count; i++)
        packets += perfmodel_gpu_job_packets(&set->specs[i], period_ns);
    return packets;
}

/* In some sets the batcher takes up to a period for a batch. */
static void random_host(struct flow_attack_set *set, uint64_t seed)
{
    struct test_random random = {~seed};
    struct config_profile_gpu *card = &set->card.gpu;
    if (test_random_chance(&random, 60))
        return;
    core_ns most_ns = set->gpu.period_ns * test_random_in(&random, 0, 100) / 100;
    card->host_batch_ns = test_random_in(&random, 0, most_ns);
    card->host_packet_ns =
        (most_ns - card->host_batch_ns) / (core_ns)(packets_of(set, set->gpu.period_ns) + set->gpu.count);
}

/* In some sets jobs share an SM as on a card, a pass that is begun in full, and there are more of them than rows. */
static void random_utilisation(struct flow_attack_set *set, uint64_t seed)
{
    struct test_random random = {seed ^ UINT64_C(0x9e3779b97f4a7c15)};
    struct config_profile_gpu *card = &set->card.gpu;
    if (test_random_chance(&random, 60))
        return;
    const uint32_t step = (uint32_t)test_random_in(&random, 1, 6);
    card->utilisation_count = (uint32_t)test_random_in(&random, 1, 3);
    for (uint32_t row = 0; row < card->utilisation_count; row++)
        set->card.utilisation[row] = (struct config_profile_utilisation){
            1 + row * step, (uint32_t)test_random_in(&random, 600000, CONFIG_PROFILE_SHARE_PPM)};
    if (test_random_chance(&random, 50)) /* one alone has a part of an SM */
        set->card.utilisation[0].share_ppm = (uint32_t)test_random_log(&random, 100000, 600000);
}

static struct perfmodel_stages fullest_of(const struct flow_attack_set *set, core_ns period_ns)
{
    struct perfmodel_jobs jobs[FLOW_ATTACK_STREAMS];
    for (size_t i = 0; i < set->gpu.count; i++) {
        size_t at = i;
        const struct perfmodel_jobs own = perfmodel_gpu_jobs(&set->specs[i], period_ns, false);
        for (; at > 0 && jobs[at - 1].bytes < own.bytes; at--)
            jobs[at] = jobs[at - 1];
        jobs[at] = own;
    }
    struct perfmodel_stages stages = perfmodel_gpu_stages_falling(&set->card.gpu, &set->profile.margins, jobs,
                                                                  set->gpu.count, set->gpu.busy);
    stages.host_ns = perfmodel_gpu_host_ns(&set->card.gpu, packets_of(set, period_ns));
    return stages;
}

/* ---- promises ---- */

static void promise(core_ns end_ns[PIPELINE_STAGES], core_ns up_ns, core_ns kernel_ns, core_ns down_ns)
{
    end_ns[PIPELINE_UP] = up_ns;
    end_ns[PIPELINE_KERNEL] = up_ns + kernel_ns;
    end_ns[PIPELINE_DOWN] = up_ns + kernel_ns + down_ns;
}

static void promise_stages(core_ns end_ns[PIPELINE_STAGES], const struct perfmodel_stages *bounds)
{
    promise(end_ns, bounds->host_ns + bounds->up_ns, bounds->kernel_ns, bounds->down_ns);
}

/* The bound of all streams, so that d' is this. */
static void set_deadline(struct flow_attack_set *set, core_ns work_ns)
{
    const struct config_profile_margins *margins = &set->profile.margins;
    for (size_t i = 0; i < set->gpu.count; i++)
        set->specs[i].latency_ns = work_ns + margins->in_ns + margins->out_ns;
    set->load.shortest_ns = work_ns;
}

static bool promise_batch(struct flow_attack_set *set)
{
    struct perfmodel_stages stages = fullest_of(set, set->gpu.period_ns);
    const core_ns period_ns = set->gpu.period_ns;
    if (perfmodel_gpu_judge(&set->card.gpu, &stages, period_ns, CORE_LATENCY_NS_MAX, false) !=
        PERFMODEL_LIMIT_NONE)
        return false;
    core_ns both_ns = stages.up_ns + stages.down_ns;
    bool turns = set->card.gpu.copy_engines == 1;
    promise(set->gpu.end_ns, stages.host_ns + (turns ? both_ns : stages.up_ns), stages.kernel_ns,
            turns ? both_ns : stages.down_ns);
    set_deadline(set, perfmodel_gpu_latency_ns(&set->card.gpu, &stages, period_ns));
    return true;
}

/* Both copies of the fullest batch outlast the period: then no promise is that of a batch by itself. */
static bool copies_outlast(const struct flow_attack_set *set, core_ns long_ns, core_ns period_ns)
{
    struct perfmodel_stages fullest = fullest_of(set, long_ns);
    return fullest.up_ns + fullest.down_ns > period_ns;
}

static bool promise_verdict(struct flow_attack_set *set, const struct perfmodel_flow_verdict *verdict)
{
    if (verdict->binding != PERFMODEL_LIMIT_NONE)
        return false;
    set->any_order = copies_outlast(set, set->gpu.period_ns, set->gpu.period_ns);
    promise_stages(set->gpu.end_ns, &verdict->bounds);
    set_deadline(set, verdict->latency_ns);
    set->arenas = verdict->arenas;
    return true;
}

static bool promise_stairs(struct flow_attack_set *set, const struct perfmodel_flow_gpu *card)
{
    struct perfmodel_flow_load load = {0};
    struct perfmodel_stages fullest = fullest_of(set, set->gpu.period_ns);
    for (size_t i = 0; i < set->gpu.count; i++) {
        struct perfmodel_flow_load one =
            perfmodel_flow_load_at(&set->specs[i], &set->profile, set->gpu.period_ns);
        perfmodel_flow_load_add(&load, &one);
    }
    struct perfmodel_flow_verdict verdict =
        perfmodel_flow_judge_staircase(card, &load, &fullest, set->gpu.period_ns);
    return load.burst_bytes < set->load.burst_bytes && promise_verdict(set, &verdict);
}

static core_ns longer(core_ns a_ns, core_ns b_ns)
{
    return core_time_max(a_ns, b_ns);
}

/* To a period longer or shorter, in the first half of the batches. */
static bool promise_change(struct flow_attack_set *set, const struct perfmodel_flow_gpu *card,
                           struct test_random *random)
{
    struct pipeline_gpu *gpu = &set->gpu;
    gpu->change = (uint32_t)test_random_in(random, 2, FLOW_ATTACK_BATCHES / 2);
    gpu->next_period_ns = gpu->period_ns * test_random_log(random, 101, 500) / 100;
    if (test_random_chance(random, 50)) {
        core_ns short_ns = gpu->period_ns;
        gpu->period_ns = gpu->next_period_ns;
        gpu->next_period_ns = short_ns;
    }
    struct perfmodel_flow_verdict before = perfmodel_flow_judge(card, &set->load, gpu->period_ns);
    struct perfmodel_flow_verdict after = perfmodel_flow_judge(card, &set->load, gpu->next_period_ns);
    struct perfmodel_flow_change change =
        perfmodel_flow_judge_change(card, &set->load, gpu->period_ns, gpu->next_period_ns);
    if (!change.holds || after.binding != PERFMODEL_LIMIT_NONE || !promise_verdict(set, &before))
        return false;
    promise_stages(gpu->next_end_ns, &change.bounds);
    if (set->card.gpu.copy_engines == 1)
        promise_stages(gpu->end_ns, &change.bounds);
    set_deadline(set, longer(longer(before.latency_ns, after.latency_ns),
                             longer(change.latency_ns, change.old_latency_ns)));
    set->arenas = 0;
    bool grows = gpu->next_period_ns > gpu->period_ns;
    set->any_order = grows ? copies_outlast(set, gpu->next_period_ns, gpu->period_ns)
                           : copies_outlast(set, gpu->period_ns, gpu->next_period_ns);
    return true;
}

static bool promise_rule(struct flow_attack_set *set, enum flow_attack_rule rule, struct test_random *random)
{
    struct perfmodel_flow_gpu *card;
    bool made = false;
    TEST_REQUIRE(perfmodel_flow_gpu_create(&card, &set->profile, &set->card.gpu, false) == CORE_OK);
    if (rule == FLOW_ATTACK_BATCH) {
        made = promise_batch(set);
    } else if (rule == FLOW_ATTACK_SUMS) {
        struct perfmodel_flow_verdict verdict = perfmodel_flow_judge(card, &set->load, set->gpu.period_ns);
        made = promise_verdict(set, &verdict);
    } else if (rule == FLOW_ATTACK_STAIRS) {
        made = promise_stairs(set, card);
    } else {
        made = promise_change(set, card, random);
    }
    perfmodel_flow_gpu_destroy(card);
    return made;
}

bool flow_attack_set_promise(struct flow_attack_set *set)
{
    set->gpu.profile = &set->profile;
    set->gpu.card = &set->card.gpu;
    set->gpu.specs = set->specs;
    for (size_t i = 0; i < set->gpu.count; i++) {
        struct perfmodel_flow_load one = perfmodel_flow_load_of(&set->specs[i], &set->profile);
        perfmodel_flow_load_add(&set->load, &one);
    }
    return promise_rule(set, FLOW_ATTACK_SUMS, NULL);
}

bool flow_attack_set_make(struct flow_attack_set *set, enum flow_attack_rule rule, uint32_t engines,
                          uint64_t seed)
{
    struct test_random random = {seed};
    random.state = test_random_next(&random); /* neighbours have nothing in common */
    *set = (struct flow_attack_set){
        .gpu = {.profile = &set->profile, .card = &set->card.gpu, .specs = set->specs}};
    test_gpu_margins_random(&set->profile.margins, &random);
    set->gpu.period_ns = test_random_log(&random, 50000, 20000000);
    if (test_random_chance(&random, 60))
        set->profile.margins.in_ns = test_random_log(&random, 1, set->gpu.period_ns / 2);
    random_streams(set, &random);
    uint64_t full = 0;
    for (size_t i = 0; i < set->gpu.count; i++)
        full += perfmodel_gpu_job_bytes(&set->specs[i], set->gpu.period_ns, false);
    uint64_t mean = 1 + (uint64_t)((double)set->load.rate / 0x1p32 * (double)set->gpu.period_ns);
    random_card(set, &random, engines, rule == FLOW_ATTACK_BATCH ? full : mean);
    random_host(set, seed);
    random_utilisation(set, seed);
    return promise_rule(set, rule, &random);
}

/* ---- scripts ---- */

static enum pipeline_order any_order(const struct flow_attack_set *set, struct test_random *random)
{
    if (!set->any_order || test_random_chance(random, 40))
        return PIPELINE_TURNS;
    return (enum pipeline_order)test_random_in(random, 0, PIPELINE_ORDERS - 1);
}

static void wish_all(struct pipeline_script *script, const struct flow_attack_set *set, uint32_t n,
                     enum pipeline_wish wish)
{
    for (size_t i = 0; i < set->gpu.count; i++)
        script->wish[n][i] = (uint8_t)wish;
}

/* Periods in which the slowest burst is earned back. */
static uint32_t refill(const struct flow_attack_set *set)
{
    core_ns most_ns = 1;
    for (size_t i = 0; i < set->gpu.count; i++)
        most_ns = longer(most_ns, set->specs[i].burst_packets * set->specs[i].interval_ns);
    core_ns periods = most_ns / set->gpu.period_ns + 1;
    return periods < FLOW_ATTACK_BATCHES / 3 ? (uint32_t)periods : FLOW_ATTACK_BATCHES / 3;
}

/* Full bursts, with one or some between them. */
static void begin_script(struct pipeline_script *script, const struct flow_attack_set *set,
                         struct test_random *random)
{
    const uint32_t gap = refill(set) + (uint32_t)test_random_in(random, 0, 2);
    const uint32_t active = (uint32_t)test_random_in(random, 1, 3);
    const int64_t kind = test_random_in(random, 0, 4);
    memset(script, 0, sizeof *script);
    memset(script->took, UINT8_MAX, sizeof script->took);
    memset(script->late, test_random_chance(random, 70) ? UINT8_MAX : 0, sizeof script->late);
    for (uint32_t n = 1; n <= FLOW_ATTACK_BATCHES; n++) {
        const uint32_t phase = n % (gap + active);
        if (kind == 0 || (kind == 1 && phase < active) || (kind == 2 && n > gap))
            wish_all(script, set, n, PIPELINE_ALL);
        for (size_t i = 0; i < set->gpu.count && kind > 2; i++) /* small ones after the full burst */
            script->wish[n][i] = phase == 0 || (kind == 3 && phase == 1 + i % gap) ? PIPELINE_ALL
                                 : test_random_chance(random, 30)                  ? PIPELINE_ONE
                                                                                   : PIPELINE_NOTHING;
    }
}

static uint32_t any_batch(struct test_random *random)
{
    return (uint32_t)test_random_in(random, 1, FLOW_ATTACK_BATCHES);
}

static uint8_t any_part(struct test_random *random)
{
    if (test_random_chance(random, 75))
        return test_random_chance(random, 70) ? UINT8_MAX : 0;
    return (uint8_t)test_random_in(random, 0, UINT8_MAX);
}

/* All from a batch on one batch later, or sooner. */
static void shift(struct pipeline_script *script, uint32_t n, bool back)
{
    size_t rest = FLOW_ATTACK_BATCHES - n;
    if (back) {
        memmove(script->wish[n], script->wish[n + 1], rest * sizeof script->wish[0]);
        memset(script->wish[FLOW_ATTACK_BATCHES], 0, sizeof script->wish[0]);
    } else {
        memmove(script->wish[n + 1], script->wish[n], rest * sizeof script->wish[0]);
        memset(script->wish[n], 0, sizeof script->wish[0]);
    }
}

static void vary_wishes(struct pipeline_script *script, const struct flow_attack_set *set,
                        struct test_random *random)
{
    const uint32_t n = any_batch(random), other = any_batch(random);
    const enum pipeline_wish wish = (enum pipeline_wish)test_random_in(random, 0, PIPELINE_WISHES - 1);
    switch (test_random_in(random, 0, 5)) {
    case 0:
        wish_all(script, set, n, wish);
        break;
    case 1: /* silence, in which bursts are earned back */
        for (uint32_t at = n; at < n + (other % refill(set)) + 1 && at <= FLOW_ATTACK_BATCHES; at++)
            wish_all(script, set, at, PIPELINE_NOTHING);
        break;
    case 2:
        memcpy(script->wish[n], script->wish[other], sizeof script->wish[0]);
        break;
    case 3:
        shift(script, n, other % 2 == 0);
        break;
    default:
        script->wish[n][test_random_in(random, 0, (int64_t)set->gpu.count - 1)] = (uint8_t)wish;
    }
}

static void vary(struct pipeline_script *script, const struct flow_attack_set *set,
                 struct test_random *random)
{
    const uint32_t n = any_batch(random);
    const size_t stage = (size_t)test_random_in(random, 0, PIPELINE_STAGES - 1);
    if (test_random_chance(random, 65)) {
        vary_wishes(script, set, random);
    } else if (test_random_chance(random, 50)) {
        script->took[n][stage] = any_part(random);
    } else if (test_random_chance(random, 50)) {
        const uint8_t part = any_part(random);
        for (uint32_t at = n; at <= any_batch(random) && at <= FLOW_ATTACK_BATCHES; at++)
            script->took[at][stage] = part;
    } else {
        script->late[n] = any_part(random);
    }
}

/* ---- search ---- */

static struct pipeline_result run_script(const struct flow_attack_set *set,
                                         const struct pipeline_script *script, enum pipeline_order order,
                                         uint64_t seed, struct flow_attack_found *found)
{
    struct pipeline_pattern pattern = {.arrivals = PIPELINE_SCRIPT,
                                       .order = order,
                                       .batches = FLOW_ATTACK_BATCHES,
                                       .script = script,
                                       .seed = seed};
    struct pipeline_result result;
    TEST_REQUIRE(pipeline_run(&set->gpu, &pattern, &result) == CORE_OK);
    if (result.batches == 0)
        return result;
    found->missed |= result.misses > 0;
    found->arenas |= set->arenas > 0 && result.arenas > set->arenas;
    found->latency_ppb = longer(found->latency_ppb, INT64_C(1000000000) - result.least_slack_ppb);
    for (int stage = 0; stage < PIPELINE_STAGES; stage++) {
        found->late |= result.late_ns[stage] > 0;
        found->stage_ppb[stage] = longer(found->stage_ppb[stage], result.nearest_ppb[stage]);
    }
    return result;
}

/* What a search aims at: the end of a stage, or a deadline. */
static int64_t score(const struct pipeline_result *result, size_t aim)
{
    if (result->batches == 0)
        return 0;
    return aim < PIPELINE_STAGES ? result->nearest_ppb[aim] : INT64_C(1000000000) - result->least_slack_ppb;
}

struct flow_attack_found flow_attack_run(const struct flow_attack_set *set, uint32_t steps, uint64_t seed)
{
    static _Thread_local struct pipeline_script best, next;
    struct test_random random = {seed};
    struct flow_attack_found found = {0};
    for (size_t aim = 0; aim <= PIPELINE_STAGES; aim++) {
        int64_t most = -1;
        enum pipeline_order order = PIPELINE_TURNS, best_order = order;
        for (uint32_t step = 0; step < steps / (PIPELINE_STAGES + 1); step++) {
            if (step < steps / 24) {
                begin_script(&next, set, &random);
                order = any_order(set, &random);
            } else {
                next = best;
                order = test_random_chance(&random, 5) ? any_order(set, &random) : best_order;
                for (int64_t times = test_random_in(&random, 1, 3); times > 0; times--)
                    vary(&next, set, &random);
            }
            struct pipeline_result result = run_script(set, &next, order, seed, &found);
            if (score(&result, aim) < most)
                continue;
            most = score(&result, aim);
            best = next;
            best_order = order;
        }
    }
    return found;
}
