/* Small GPUs, gone through to the end: whatever a rule accepts (perfmodel/flow.h, perfmodel/gpu.h), no stage
 * of no batch is later than its bound, in any state that the card can reach.
 *
 * This knows no formula of a bound. A few streams of whole packets and a card whose stages take whole units
 * of time are followed from one closing to the next: each stream a bucket of tokens, which is its contract;
 * the batches on their way; the copy engines and the kernel with what is left of their work. From each state
 * everything is tried: any number of packets that the buckets let through, early or late; a closing in time
 * or as late as may be; a kernel as long as it may be, or none; copies of the two directions in turns, or in
 * any order where the bound does not ask for turns; another period from here on. A state seen before is not
 * followed again, so that the search ends, and what it has seen is everything, for ever.
 *
 * MILLRACE_SMALL_GPUS: so many of each kind instead of the default; MILLRACE_SMALL_SEED: from this one on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "perfmodel/flow.h"
#include "tests/support/gpu.h"
#include "tests/support/share.h"

#define GPUS_DEFAULT TEST_SHARE(60)

#define UNIT_NS 100000 /* much more than any rounding */
#define STREAMS 2
#define BATCHES 12
#define STATES  (1 << 17)
#define BUCKETS (4 * STATES)
#define NOTHING UINT8_MAX

enum stage { UP, KERNEL, DOWN, STAGES, CLOSED_NOW };
enum engine { FIRST, SECOND, SM, ENGINES }; /* one copy engine: the first is for both directions */

/* ---- small GPUs ---- */

struct stream {
    int packet, burst, interval; /* in packets of one block, and in units of time */
};

struct small {
    uint32_t engines;
    struct stream stream[STREAMS];
    int count;
    int start[STAGES], per_block[STAGES]; /* of a stage, in units */
    int late;                             /* how late a batch may be closed */
    int period[2];                        /* the second from some batch on; the same: there is no other */
    bool turns;
    core_ns end_ns[2][STAGES]; /* the promise for batches of either period */
};

static int stage_units(const struct small *small, enum stage stage, int blocks)
{
    return small->start[stage] + small->per_block[stage] * blocks;
}

/* ---- states ---- */

struct batch {
    uint8_t age, blocks, stage, period;
};

struct state {
    struct batch batch[BATCHES]; /* the oldest first */
    uint8_t count;
    uint8_t tokens[STREAMS]; /* of a bucket, in units of time */
    uint8_t at[ENGINES];     /* the batch that an engine has, or NOTHING, */
    uint8_t left[ENGINES];   /* and for how long */
    uint8_t last_up, period;
};

struct search {
    const struct small *small;
    struct state *states; /* in the order in which they were found */
    uint32_t *bucket;     /* of a state's number, plus one */
    uint32_t count;
    bool full, broken;
    double nearest; /* the greatest part of a promise that was needed */
};

static uint64_t hash_of(const struct state *state)
{
    const unsigned char *byte = (const unsigned char *)state;
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < sizeof *state; i++)
        hash = (hash ^ byte[i]) * UINT64_C(1099511628211);
    return hash ^ hash >> 29;
}

static void find_state(struct search *search, const struct state *state)
{
    uint64_t at = hash_of(state) % BUCKETS;
    for (; search->bucket[at] != 0; at = (at + 1) % BUCKETS)
        if (memcmp(&search->states[search->bucket[at] - 1], state, sizeof *state) == 0)
            return;
    if (search->count == STATES) {
        search->full = true;
        return;
    }
    search->states[search->count++] = *state;
    search->bucket[at] = search->count;
}

/* ---- a period ---- */

static uint8_t first_in(const struct state *state, enum stage stage)
{
    for (uint8_t n = 0; n < state->count; n++)
        if (state->batch[n].stage == stage)
            return n;
    return NOTHING;
}

static enum engine engine_of(const struct small *small, enum stage stage)
{
    if (stage == KERNEL)
        return SM;
    return stage == DOWN && small->engines > 1 ? SECOND : FIRST;
}

static void start_work(const struct small *small, struct state *state, enum stage stage, int units)
{
    enum engine engine = engine_of(small, stage);
    state->at[engine] = first_in(state, stage);
    state->left[engine] = (uint8_t)units;
    if (engine == FIRST)
        state->last_up = stage == UP;
}

static void drop_batch(struct state *state, uint8_t n)
{
    state->count--;
    memmove(&state->batch[n], &state->batch[n + 1], (size_t)(state->count - n) * sizeof state->batch[0]);
    memset(&state->batch[state->count], 0, sizeof state->batch[0]);
    for (int engine = 0; engine < ENGINES; engine++)
        if (state->at[engine] != NOTHING && state->at[engine] > n)
            state->at[engine]--;
}

/* What an engine has is through, so long after the last closing. */
static void end_work(struct search *search, struct state *state, enum engine engine, int now)
{
    const uint8_t n = state->at[engine];
    struct batch *batch = &state->batch[n];
    core_ns took_ns = (core_ns)(batch->age + now - search->small->late) * UNIT_NS;
    core_ns most_ns = search->small->end_ns[batch->period][batch->stage];
    if ((double)took_ns / (double)most_ns > search->nearest)
        search->nearest = (double)took_ns / (double)most_ns;
    search->broken |= took_ns > most_ns;
    state->at[engine] = NOTHING;
    if (++batch->stage == STAGES)
        drop_batch(state, n);
}

static void go_on(struct search *search, struct state state, int now, int ready, int until);

static void go_on_with(struct search *search, const struct state *state, enum stage stage, bool none, int now,
                       int ready, int until)
{
    struct state next = *state;
    int blocks = next.batch[first_in(&next, stage)].blocks;
    start_work(search->small, &next, stage, none ? 0 : stage_units(search->small, stage, blocks));
    go_on(search, next, now, ready, until);
}

/* Begins what can begin, every way that there is, and goes on from there. False: nothing can. */
static bool begin(struct search *search, const struct state *state, int now, int ready, int until)
{
    const struct small *small = search->small;
    if (state->at[SM] == NOTHING && first_in(state, KERNEL) != NOTHING) {
        go_on_with(search, state, KERNEL, false, now, ready, until);
        go_on_with(search, state, KERNEL, true, now, ready, until);
        return true;
    }
    bool up = state->at[FIRST] == NOTHING && first_in(state, UP) != NOTHING;
    bool down = state->at[engine_of(small, DOWN)] == NOTHING && first_in(state, DOWN) != NOTHING;
    bool both = up && down && small->engines == 1;
    if (up && !(both && small->turns && state->last_up))
        go_on_with(search, state, UP, false, now, ready, until);
    if (down && !(both && small->turns && !state->last_up) && (both || !up))
        go_on_with(search, state, DOWN, false, now, ready, until);
    return up || down;
}

static void close_batch(struct search *search, const struct state *state, int stream, int blocks, int period);

/* To the next moment at which something happens; at the end of the period to all that may come then. */
static void go_on(struct search *search, struct state state, int now, int ready, int until)
{
    for (;;) {
        if (search->broken)
            return;
        for (int engine = 0; engine < ENGINES; engine++)
            if (state.at[engine] != NOTHING && state.left[engine] == 0) {
                end_work(search, &state, (enum engine)engine, now);
                engine = -1; /* what follows may take no time */
            }
        uint8_t closed = first_in(&state, CLOSED_NOW);
        if (closed != NOTHING && ready <= now)
            state.batch[closed].stage = UP;
        if (now < until && begin(search, &state, now, ready, until))
            return;
        if (now == until)
            break;
        now++;
        for (int engine = 0; engine < ENGINES; engine++)
            if (state.at[engine] != NOTHING)
                state.left[engine]--;
    }
    for (uint8_t n = 0; n < state.count; n++)
        state.batch[n].age = (uint8_t)(state.batch[n].age + until);
    for (int engine = 0; engine < ENGINES; engine++)
        state.left[engine] = state.at[engine] == NOTHING ? 0 : state.left[engine];
    close_batch(search, &state, 0, 0, until);
}

/* Packets of this stream and those after it, in the period that is over: some at its beginning, some at its
 * end, as the bucket lets them. */
static void close_batch(struct search *search, const struct state *state, int stream, int blocks, int period)
{
    const struct small *small = search->small;
    struct state next = *state;
    if (stream == small->count) {
        if (next.count == BATCHES) /* far more than any bound lets be */
            search->broken = true;
        else if (blocks > 0)
            next.batch[next.count++] = (struct batch){0, (uint8_t)blocks, CLOSED_NOW, next.period};
        find_state(search, &next);
        return;
    }
    const struct stream *of = &small->stream[stream];
    const int most = of->burst * of->interval;
    for (int early = 0; early * of->interval <= state->tokens[stream]; early++) {
        int tokens = state->tokens[stream] - early * of->interval + period;
        int before = tokens - 1 < most ? tokens - 1 : most; /* at the last moment */
        for (int late = 0; late * of->interval <= before; late++) {
            int left = (tokens < most ? tokens : most) - late * of->interval;
            next.tokens[stream] = (uint8_t)left;
            close_batch(search, &next, stream + 1, blocks + (early + late) * of->packet, period);
        }
    }
}

static void follow(struct search *search, const struct state *from)
{
    const struct small *small = search->small;
    for (int late = 0; late <= small->late; late += small->late > 0 ? small->late : 1)
        for (int period = from->period; period < 2; period++) {
            struct state next = *from;
            if (period > 0 && small->period[0] == small->period[1])
                continue;
            next.period = (uint8_t)period;
            go_on(search, next, 0, late, small->period[period]);
        }
}

static void search_all(struct search *search)
{
    struct state state = {.at = {NOTHING, NOTHING, NOTHING}};
    memset(search->bucket, 0, BUCKETS * sizeof *search->bucket);
    search->count = 0;
    search->full = search->broken = false;
    search->nearest = 0;
    for (int i = 0; i < search->small->count; i++)
        state.tokens[i] = (uint8_t)(search->small->stream[i].burst * search->small->stream[i].interval);
    find_state(search, &state);
    for (uint32_t n = 0; n < search->count && !search->full && !search->broken; n++) {
        state = search->states[n];
        follow(search, &state);
    }
}

/* ---- what the rules say of them ---- */

enum rule { BATCH, SUMS, CHANGE };

/* The same as the planner knows it. It points into itself: not to be copied. */
struct known {
    struct config_profile profile;
    struct test_gpu card;
    struct core_stream_spec specs[STREAMS];
    struct perfmodel_flow_load load;
};

static void know_card(struct known *known, const struct small *small)
{
    struct test_gpu *card = &known->card;
    const int *start = small->start, *each = small->per_block;
    const uint64_t bytes[] = {1, 1 << 20};
    for (int row = 0; row < 2; row++) {
        core_ns up_ns = start[UP] * UNIT_NS + each[UP] * UNIT_NS / 16 * (core_ns)bytes[row];
        core_ns down_ns = start[DOWN] * UNIT_NS + each[DOWN] * UNIT_NS / 16 * (core_ns)bytes[row];
        card->copies[row] = (struct config_profile_copy){bytes[row], up_ns, down_ns, up_ns, down_ns};
    }
    card->utilisation[0] = (struct config_profile_utilisation){1, CONFIG_PROFILE_SHARE_PPM};
    card->gpu = (struct config_profile_gpu){.count = 1,
                                            .sms = 1,
                                            .copy_engines = small->engines,
                                            .memory_bytes = (int64_t)1 << 40,
                                            .sm_bytes_per_s = INT64_C(1000000000000000),
                                            .launch_ns = start[KERNEL] * UNIT_NS,
                                            .copies = card->copies,
                                            .copy_count = 2,
                                            .utilisation = card->utilisation,
                                            .utilisation_count = 1};
    if (each[KERNEL] > 0)
        card->gpu.sm_bytes_per_s = INT64_C(16000000000) / (each[KERNEL] * UNIT_NS);
}

static void know(struct known *known, const struct small *small)
{
    *known = (struct known){.profile = {.margins = {.in_ns = small->late * UNIT_NS}}};
    know_card(known, small);
    for (int i = 0; i < small->count; i++) {
        const struct stream *stream = &small->stream[i];
        known->specs[i] = (struct core_stream_spec){.packet_bytes = 16 * (uint32_t)stream->packet,
                                                    .burst_packets = (uint32_t)stream->burst,
                                                    .interval_ns = stream->interval * UNIT_NS,
                                                    .latency_ns = CORE_NS_PER_S,
                                                    .cipher = CORE_CIPHER_AES_128_CBC};
        struct perfmodel_flow_load one = perfmodel_flow_load_of(&known->specs[i], &known->profile);
        perfmodel_flow_load_add(&known->load, &one);
    }
}

static void promise(core_ns end_ns[STAGES], core_ns up_ns, core_ns kernel_ns, core_ns down_ns)
{
    end_ns[UP] = up_ns;
    end_ns[KERNEL] = up_ns + kernel_ns;
    end_ns[DOWN] = up_ns + kernel_ns + down_ns;
}

static void promise_stages(core_ns end_ns[STAGES], const struct perfmodel_stages *bounds)
{
    promise(end_ns, bounds->up_ns, bounds->kernel_ns, bounds->down_ns);
}

static struct perfmodel_stages fullest_of(const struct known *known, const struct small *small, int period)
{
    uint64_t jobs[STREAMS], scratch[STREAMS];
    for (int i = 0; i < small->count; i++)
        jobs[i] = perfmodel_gpu_job_bytes(&known->specs[i], period * UNIT_NS, false);
    if (small->count > 1 && jobs[0] < jobs[1]) {
        uint64_t job = jobs[0];
        jobs[0] = jobs[1];
        jobs[1] = job;
    }
    return perfmodel_gpu_stages(&known->card.gpu, &known->profile.margins, jobs, (size_t)small->count, false,
                                scratch);
}

/* Whether the bounds may be those of the fullest batch by itself, which counts on turns. */
static bool turns_count(const struct known *known, const struct small *small)
{
    int longer = small->period[small->period[1] > small->period[0]];
    int shorter = small->period[small->period[1] < small->period[0]];
    struct perfmodel_stages fullest = fullest_of(known, small, longer);
    return fullest.up_ns + fullest.down_ns <= shorter * UNIT_NS;
}

static bool promise_batch(struct small *small, const struct known *known)
{
    struct perfmodel_stages stages = fullest_of(known, small, small->period[0]);
    core_ns both_ns = small->engines == 1 ? stages.up_ns + stages.down_ns : 0;
    promise(small->end_ns[0], both_ns > 0 ? both_ns : stages.up_ns, stages.kernel_ns,
            both_ns > 0 ? both_ns : stages.down_ns);
    small->turns = true;
    return perfmodel_gpu_judge(&known->card.gpu, &stages, small->period[0] * UNIT_NS, CORE_NS_PER_S, false) ==
           PERFMODEL_LIMIT_NONE;
}

static bool promise_flow(struct small *small, const struct known *known)
{
    const core_ns from_ns = small->period[0] * UNIT_NS, to_ns = small->period[1] * UNIT_NS;
    struct perfmodel_flow_gpu *card;
    if (perfmodel_flow_gpu_create(&card, &known->profile, &known->card.gpu, false) != CORE_OK)
        abort();
    struct perfmodel_flow_verdict before = perfmodel_flow_judge(card, &known->load, from_ns);
    struct perfmodel_flow_verdict after = perfmodel_flow_judge(card, &known->load, to_ns);
    struct perfmodel_flow_change change = perfmodel_flow_judge_change(card, &known->load, from_ns, to_ns);
    perfmodel_flow_gpu_destroy(card);
    if (before.binding != PERFMODEL_LIMIT_NONE || after.binding != PERFMODEL_LIMIT_NONE || !change.holds)
        return false; /* there are no bounds */
    promise_stages(small->end_ns[0], &before.bounds);
    if (from_ns != to_ns) {
        promise_stages(small->end_ns[1], &change.bounds);
        if (small->engines == 1)
            promise_stages(small->end_ns[0], &change.bounds);
    }
    small->turns = turns_count(known, small);
    return true;
}

/* One that is busy for half of the time at least, and accepted. */
static bool small_make(struct small *small, enum rule rule, uint32_t engines, struct test_random *random)
{
    static struct known known;
    *small = (struct small){.engines = engines, .count = (int)test_random_in(random, 1, STREAMS)};
    int64_t share = 0;
    for (int i = 0; i < small->count; i++) {
        small->stream[i] =
            (struct stream){(int)test_random_in(random, 1, 3), (int)test_random_in(random, 1, 3),
                            (int)test_random_in(random, 1, 16)};
        share += 100 * small->stream[i].packet / small->stream[i].interval;
    }
    for (int stage = 0; stage < STAGES; stage++) {
        small->start[stage] = (int)test_random_in(random, 0, 2) / 2;
        small->per_block[stage] = (int)test_random_in(random, stage == KERNEL ? 0 : 1, 2);
    }
    small->period[0] = small->period[1] = (int)test_random_in(random, 2, 5);
    if (rule == CHANGE)
        small->period[1] = (int)test_random_in(random, 1, 10);
    small->late = (int)test_random_in(random, 0, 1);
    if (share * (small->per_block[UP] + (engines == 1 ? small->per_block[DOWN] : 0)) < 50 ||
        small->late >= small->period[1] || (rule == CHANGE && small->period[0] == small->period[1]))
        return false;
    know(&known, small);
    return rule == BATCH ? promise_batch(small, &known) : promise_flow(small, &known);
}

/* ---- all of it ---- */

static const struct kind {
    const char *name;
    enum rule rule;
    uint32_t engines;
} kinds[] = {
    {"two engines, a batch by itself", BATCH, 2},
    {"two engines, sums", SUMS, 2},
    {"two engines, another period", CHANGE, 2},
    {"one engine, a batch by itself", BATCH, 1},
    {"one engine, sums", SUMS, 1},
    {"one engine, another period", CHANGE, 1},
};

static int64_t environment(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoll(text, NULL, 10) : otherwise;
}

static void tell_broken(const struct small *small, const struct search *search)
{
    print_message("broken, %.3f of a bound: periods %d and %d, late %d, stages", search->nearest,
                  small->period[0], small->period[1], small->late);
    for (int stage = 0; stage < STAGES; stage++)
        print_message(" %d + %d x", small->start[stage], small->per_block[stage]);
    for (int i = 0; i < small->count; i++)
        print_message(", %d at once of %d every %d", small->stream[i].burst, small->stream[i].packet,
                      small->stream[i].interval);
    print_message("\n");
}

/* Of as many as are asked for the number that broke a bound. */
static int go_through(const struct kind *kind, struct search *search, int64_t gpus)
{
    struct test_random random = {(uint64_t)environment("MILLRACE_SMALL_SEED", 1)};
    int broken = 0, ended = 0, tight = 0;
    uint64_t states = 0;
    double nearest = 0;
    for (int64_t n = 0; n < gpus; n++) {
        struct small small;
        while (!small_make(&small, kind->rule, kind->engines, &random))
            ;
        search->small = &small;
        search_all(search);
        states += search->count;
        broken += search->broken;
        ended += !search->full;
        tight += search->nearest > 0.9;
        nearest = search->nearest > nearest ? search->nearest : nearest;
        if (search->broken)
            tell_broken(&small, search);
    }
    print_message(
        "%s: %lld cards, %d of them to the end, %llu states; %d broken, %d came within a tenth of a "
        "bound, the nearest to %.3f\n",
        kind->name, (long long)gpus, ended, (unsigned long long)states, broken, tight, nearest);
    fflush(stdout);
    assert_true(ended * 2 > gpus);
    return broken;
}

static void no_state_breaks_a_bound(void **state)
{
    (void)state;
    struct search search = {.states = malloc(STATES * sizeof *search.states),
                            .bucket = malloc(BUCKETS * sizeof *search.bucket)};
    int broken = 0;
    assert_non_null(search.states);
    assert_non_null(search.bucket);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        broken += go_through(&kinds[k], &search, environment("MILLRACE_SMALL_GPUS", GPUS_DEFAULT));
    free(search.states);
    free(search.bucket);
    assert_int_equal(broken, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_state_breaks_a_bound)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
