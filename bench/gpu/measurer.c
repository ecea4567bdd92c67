#include "bench/gpu/measurer.h"

#include "bench/gpu/traffic.h"
#include "core/node.h"
#include "server/gpu/batcher.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ARENAS             4
#define DEPTH              3 /* batches under way: one in each stage */
#define EDGE               3 /* batches before and behind the measured ones, so that they have neighbours */
#define SM_JOBS            1024
#define JOB_BLOCKS_LEAST   48
#define ARENA_BYTES_MAX    (UINT64_C(256) << 20)
#define ARENA_BYTES_PLAYED (UINT64_C(16) << 20) /* of emulated cards, whose memory is the host's */
#define MEMORY_SHARE       64            /* one in so many bytes of the host's, for an arena of each card */
#define PERIOD_NS          CORE_NS_PER_S /* what the watchdog counts with */
#define PATIENCE_NS        (60 * CORE_NS_PER_S)
#define POLL_NS            (50 * CORE_NS_PER_US)
#define SPACING_NS         (10 * CORE_NS_PER_MS)

struct card {
    struct gpu_region region;
    struct bench_gpu_card card;
    struct gpu_listed listed; /* of an emulated one its index alone */
    uint32_t kind;
    uint64_t submitted, back; /* batches, since the start */
    core_ns submitted_ns;
    struct gpu_nvml *nvml; /* opened when it is asked for */
};

/* The stages of a batch that came back. */
struct record {
    struct gpu_stage_time times[GPU_STAGE_COUNT];
    core_ns submitted_ns, seen_ns;
};

struct kind {
    struct bench_gpu_machine *machine;
    uint32_t index, count, first; /* first: index of a card of it */
    char with[128];               /* bench_gpu_measurer.with */
};

struct bench_gpu_machine {
    struct bench_gpu_machine_options options;
    struct card *cards;
    uint32_t card_count;
    struct kind kinds[CONFIG_PROFILE_GPU_KINDS_MAX];
    uint32_t kind_count;
    uint64_t arena_bytes;
    struct bench_gpu_shape shape; /* that the tables hold */
    struct bench_gpu_traffic *traffic;
};

/* ---- batches ---- */

static void tables_write(const struct gpu_region *region, uint32_t arena, const struct bench_gpu_shape *shape)
{
    struct gpu_job *jobs = gpu_region_jobs(region, arena);
    struct gpu_segment *segments = gpu_region_segments(region, arena);
    uint32_t offset_bytes = 0;
    for (uint32_t i = 0; i < shape->jobs; i++) {
        const uint32_t blocks = bench_gpu_shape_blocks(shape, i);
        segments[i] = (struct gpu_segment){
            .offset_bytes = offset_bytes, .length_bytes = blocks * GPU_BLOCK_BYTES, .next = GPU_SEGMENT_NONE};
        jobs[i] = (struct gpu_job){
            .key_slot = gpu_key_slot(i, 0), .chain_slot = i, .first_segment = i, .blocks = blocks};
        offset_bytes += blocks * GPU_BLOCK_BYTES;
    }
}

static void shape_set(struct bench_gpu_machine *machine, const struct bench_gpu_shape *shape)
{
    const struct bench_gpu_shape *had = &machine->shape;
    if (had->bytes == shape->bytes && had->jobs == shape->jobs && had->blocks == shape->blocks &&
        had->uneven == shape->uneven)
        return;
    machine->shape = *shape;
    for (uint32_t i = 0; i < machine->card_count; i++)
        for (uint32_t arena = 0; arena < ARENAS; arena++)
            tables_write(&machine->cards[i].region, arena, shape);
}

static core_status submit(struct card *card, const struct bench_gpu_shape *shape, struct core_error *error)
{
    const struct gpu_order order = {.number = card->submitted + 1,
                                    .arena = (uint32_t)(card->submitted % ARENAS),
                                    .job_count = shape->jobs,
                                    .segment_count = shape->jobs,
                                    .used_bytes = shape->bytes};
    const core_status status =
        bench_gpu_card_submit(&card->card, &order, PERIOD_NS, &card->submitted_ns, error);
    card->submitted += status == CORE_OK;
    return status;
}

/* CORE_AGAIN: none until then. */
static core_status take_back(struct card *card, core_ns until_ns, struct record *record,
                             struct core_error *error)
{
    struct gpu_event event;
    const core_status status = bench_gpu_card_next(&card->card, until_ns, &event, &record->seen_ns, error);
    if (status != CORE_OK)
        return status;
    memcpy(record->times, event.batch.times, sizeof record->times);
    record->submitted_ns = card->submitted_ns; /* that of this batch where it was alone */
    card->back++;
    return CORE_OK;
}

static core_ns length_ns(const struct gpu_stage_time *time)
{
    return time->end_ns - time->start_ns;
}

static struct bench_gpu_timing timing_of(const struct record *record)
{
    struct bench_gpu_timing timing = {.start_ns = record->times[GPU_STAGE_UP].start_ns - record->submitted_ns,
                                      .tell_ns = record->seen_ns - record->times[GPU_STAGE_DOWN].end_ns};
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++)
        timing.stage_ns[stage] = length_ns(&record->times[stage]);
    return timing;
}

/* ---- alone ---- */

static void sleep_until(core_ns until_ns)
{
    const struct timespec until = {.tv_sec = until_ns / CORE_NS_PER_S, .tv_nsec = until_ns % CORE_NS_PER_S};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {
    }
}

static core_status measure_alone(struct card *card, const struct bench_gpu_shape *shape, core_ns spacing_ns,
                                 uint32_t count, struct bench_gpu_timing *timings, struct core_error *error)
{
    core_status status = CORE_OK;
    core_ns next_ns = core_time_now_ns();
    for (uint32_t i = 0; i < count && status == CORE_OK; i++) {
        struct record record;
        next_ns += spacing_ns;
        sleep_until(next_ns);
        status = submit(card, shape, error);
        if (status == CORE_OK)
            status = take_back(card, core_time_now_ns() + PATIENCE_NS, &record, error);
        if (status == CORE_AGAIN)
            status = core_error_set(error, CORE_TIMEOUT, "the card does not answer");
        if (status == CORE_OK)
            timings[i] = timing_of(&record);
    }
    return status;
}

/* ---- together ---- */

/* The share of `one` during which a stage of that kind ran. */
static double overlap(const struct gpu_stage_time *one, const struct record *records, uint32_t count,
                      enum gpu_stage stage)
{
    core_ns both_ns = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct gpu_stage_time *other = &records[i].times[stage];
        const core_ns from_ns = core_time_max(one->start_ns, other->start_ns);
        const core_ns to_ns = core_time_min(one->end_ns, other->end_ns);
        both_ns += to_ns > from_ns ? to_ns - from_ns : 0;
    }
    const core_ns all_ns = length_ns(one) > 0 ? length_ns(one) : 1;
    return both_ns < all_ns ? (double)both_ns / (double)all_ns : 1;
}

/* Keeps all cards busy until `measured` has brought back `total` batches; then lets all finish. */
static core_status stream(struct bench_gpu_machine *machine, struct card *measured,
                          const struct bench_gpu_shape *shape, uint32_t total, struct record *records,
                          struct core_error *error)
{
    const core_ns until_ns = core_time_now_ns() + PATIENCE_NS;
    uint32_t taken = 0, busy = 1;
    core_status status = CORE_OK;

    while (status == CORE_OK && busy > 0) {
        if (core_time_now_ns() > until_ns)
            return core_error_set(error, CORE_TIMEOUT, "the cards do not answer");
        busy = 0;
        for (uint32_t i = 0; i < machine->card_count && status == CORE_OK; i++) {
            struct card *card = &machine->cards[i];
            struct record other;
            while (status == CORE_OK && taken < total && card->submitted - card->back < DEPTH)
                status = submit(card, shape, error);
            struct record *record = card == measured && taken < total ? &records[taken] : &other;
            if (status == CORE_OK)
                status = take_back(card, core_time_now_ns() + POLL_NS / machine->card_count, record, error);
            taken += status == CORE_OK && record != &other;
            status = status == CORE_AGAIN ? CORE_OK : status;
            busy += card->submitted > card->back || taken < total;
        }
    }
    return status;
}

static core_status measure_together(struct bench_gpu_machine *machine, struct card *measured,
                                    const struct bench_gpu_shape *shape, uint32_t count,
                                    struct bench_gpu_timing *timings, struct core_error *error)
{
    const uint32_t total = count + 2 * EDGE;
    struct record *records = calloc(total, sizeof *records);
    if (records == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the times of %u batches", total);
    const core_status status = stream(machine, measured, shape, total, records, error);
    for (uint32_t i = 0; i < count && status == CORE_OK; i++) {
        const struct record *record = &records[i + EDGE];
        timings[i] = timing_of(record);
        timings[i].up_overlap = overlap(&record->times[GPU_STAGE_UP], records, total, GPU_STAGE_DOWN);
        timings[i].down_overlap = overlap(&record->times[GPU_STAGE_DOWN], records, total, GPU_STAGE_UP);
    }
    free(records);
    return status;
}

/* The number-th card of the kind. */
static struct card *card_of(const struct kind *kind, uint32_t number)
{
    struct card *card = &kind->machine->cards[kind->first];
    for (; card->kind != kind->index || number > 0; card++)
        number -= card->kind == kind->index;
    return card;
}

static core_status measure(void *argument, uint32_t number, const struct bench_gpu_shape *shape,
                           const struct bench_gpu_way *way, uint32_t count, struct bench_gpu_timing *timings,
                           struct core_error *error)
{
    const struct kind *kind = argument;
    struct bench_gpu_machine *machine = kind->machine;
    struct card *card = card_of(kind, number);
    core_status status = CORE_OK;

    shape_set(machine, shape);
    if (way->traffic)
        status = bench_gpu_traffic_start(machine->traffic, error);
    if (status != CORE_OK)
        return status;
    status = way->together ? measure_together(machine, card, shape, count, timings, error)
                           : measure_alone(card, shape, way->spaced ? SPACING_NS : 0, count, timings, error);
    if (way->traffic)
        bench_gpu_traffic_stop(machine->traffic);
    return status;
}

static core_status health(void *argument, uint32_t number, struct gpu_nvml_health *seen,
                          struct core_error *why)
{
    struct card *card = card_of(argument, number);
    core_status status = CORE_OK;
    if (card->nvml == NULL)
        status = gpu_nvml_open(&card->nvml, card->card.facts.uuid, why);
    return status == CORE_OK ? gpu_nvml_read(card->nvml, seen, why) : status;
}

/* ---- opening ---- */

static uint64_t arena_bytes(const struct bench_gpu_machine_options *options, uint32_t cards)
{
    const uint64_t host_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGE_SIZE);
    const uint64_t most = options->emulated != NULL ? ARENA_BYTES_PLAYED : ARENA_BYTES_MAX;
    const uint64_t spare = host_bytes / MEMORY_SHARE / cards;
    const uint64_t bytes = options->arena_bytes > 0 ? options->arena_bytes : spare < most ? spare : most;
    return bytes / 4096 * 4096;
}

static uint32_t slots_of(const struct bench_gpu_machine *machine, uint32_t sms)
{
    const uint64_t fit = machine->arena_bytes / GPU_BLOCK_BYTES / JOB_BLOCKS_LEAST;
    const uint64_t jobs = (uint64_t)sms * SM_JOBS < fit ? (uint64_t)sms * SM_JOBS : fit;
    return jobs < 1 ? 1 : jobs < GPU_REGION_SLOTS_MAX ? (uint32_t)jobs : GPU_REGION_SLOTS_MAX;
}

/* Keys that differ: made-up ones are as good as secret ones here. */
static core_status keys_set(struct bench_gpu_machine *machine, struct card *card, uint32_t slots,
                            struct core_error *error)
{
    static const uint8_t chain[GPU_BLOCK_BYTES];
    const uint32_t bytes = core_cipher_key_bytes(machine->options.cipher);
    core_status status = CORE_OK;
    for (uint32_t slot = 0; slot < slots && status == CORE_OK; slot++) {
        uint8_t key[GPU_KEY_BYTES_MAX] = {(uint8_t)slot, (uint8_t)(slot >> 8), (uint8_t)(slot >> 16)};
        status = bench_gpu_card_key(&card->card, slot, key, bytes, chain, error);
    }
    return status;
}

/* To all of its shape, as a server's arenas grow: a batch crosses as many pieces of memory as theirs do, each
 * of which costs the child a copy. */
static core_status grow(struct card *card, struct core_error *error)
{
    struct gpu_region *region = &card->region;
    const struct gpu_room most = gpu_room_most(&region->shape);
    core_status status = CORE_OK;
    while (status == CORE_OK && !gpu_room_holds(&region->room, &most)) {
        const struct gpu_room next = server_gpu_room_next(&region->shape, &region->room);
        status = gpu_region_resize(region, &next, error);
        if (status == CORE_OK)
            status = bench_gpu_card_grow(&card->card, &next, error);
    }
    return status;
}

/* What is opened of a card. */
struct opening {
    struct bench_gpu_machine *machine;
    struct card *card;
    uint32_t sms;
    const struct config_profile_gpu *played;
};

static core_status card_open(void *argument, struct core_error *error)
{
    const struct opening *opening = argument;
    struct bench_gpu_machine *machine = opening->machine;
    struct card *card = opening->card;
    const uint32_t slots = slots_of(machine, opening->sms);
    const struct gpu_region_shape shape = {
        .arenas = ARENAS, .slots = slots, .segments = slots, .arena_bytes = machine->arena_bytes};
    const struct server_gpu_room_limits limits = server_gpu_room_limits(&shape);
    core_status status = gpu_region_create(&card->region, &shape, &limits.least, error);
    if (status == CORE_OK)
        status = bench_gpu_card_start(&card->card, &machine->options.program, &card->listed, &card->region,
                                      opening->played, false, error);
    if (status == CORE_OK)
        status = grow(card, error);
    if (status == CORE_OK)
        status = keys_set(machine, card, slots, error);
    return status == CORE_OK ? CORE_OK : core_error_prefix(error, status, "card %u", card->listed.index);
}

/* The kind of that name; a new one where there is none yet. */
static core_status kind_find(struct bench_gpu_machine *machine, const char *name, uint32_t card,
                             struct core_error *error)
{
    uint32_t kind = 0;
    while (kind < machine->kind_count &&
           strcmp(machine->cards[machine->kinds[kind].first].card.facts.name, name) != 0)
        kind++;
    if (kind == CONFIG_PROFILE_GPU_KINDS_MAX)
        return core_error_set(error, CORE_FULL, "there are cards of more than %d kinds", kind);
    if (kind == machine->kind_count)
        machine->kinds[machine->kind_count++] =
            (struct kind){.machine = machine, .index = kind, .first = card};
    machine->kinds[kind].count++;
    machine->cards[card].kind = kind;
    return CORE_OK;
}

/* The i-th card of a profile, of all kinds. */
static const struct config_profile_gpu *played_card(const struct config_profile *profile, uint32_t i)
{
    for (uint32_t kind = 0; kind < profile->gpu_count; kind++) {
        if (i < profile->gpus[kind].count)
            return &profile->gpus[kind];
        i -= profile->gpus[kind].count;
    }
    return NULL;
}

static core_status cards_open(struct bench_gpu_machine *machine, const struct gpu_listed *listed,
                              uint32_t count, struct core_error *error)
{
    const struct config_profile *profile = machine->options.emulated;
    core_status status = CORE_OK;

    machine->arena_bytes = arena_bytes(&machine->options, count);
    machine->cards = calloc(count, sizeof *machine->cards);
    if (machine->cards == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for %u cards", count);
    for (uint32_t i = 0; i < count && status == CORE_OK; i++) {
        const struct config_profile_gpu *played = profile != NULL ? played_card(profile, i) : NULL;
        struct card *card = &machine->cards[i];
        card->listed = played != NULL ? (struct gpu_listed){.index = i} : listed[i];
        machine->card_count++;
        struct opening opening = {.machine = machine,
                                  .card = card,
                                  .sms = played != NULL ? played->sms : listed[i].facts.sms,
                                  .played = played};
        status = core_node_run("/sys", core_node_of_pci("/sys", card->listed.facts.pci), card_open, &opening,
                               error); /* as in the server */
        if (status == CORE_OK)
            status = kind_find(machine, card->card.facts.name, i, error);
    }
    return status;
}

static uint32_t played_count(const struct config_profile *profile)
{
    uint32_t count = 0;
    for (uint32_t kind = 0; kind < profile->gpu_count; kind++)
        count += profile->gpus[kind].count;
    return count < BENCH_GPU_CARDS_MAX ? count : BENCH_GPU_CARDS_MAX;
}

core_status bench_gpu_machine_open(struct bench_gpu_machine **opened,
                                   const struct bench_gpu_machine_options *options, struct core_error *why,
                                   struct core_error *error)
{
    struct gpu_listed listed[BENCH_GPU_CARDS_MAX];
    uint32_t count = 0;
    core_status status = CORE_OK;

    *opened = NULL;
    if (options->emulated != NULL)
        count = played_count(options->emulated);
    else
        status = bench_gpu_cards_list(&options->program, listed, &count, why, error);
    if (status != CORE_OK || count == 0)
        return status;
    struct bench_gpu_machine *machine = calloc(1, sizeof *machine);
    if (machine == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory to measure cards");
    machine->options = *options;
    status = bench_gpu_traffic_open(&machine->traffic, error);
    if (status == CORE_OK)
        status = cards_open(machine, listed, count, error);
    if (status != CORE_OK)
        bench_gpu_machine_close(machine);
    else
        *opened = machine;
    return status;
}

void bench_gpu_machine_close(struct bench_gpu_machine *machine)
{
    if (machine == NULL)
        return;
    for (uint32_t i = 0; i < machine->card_count; i++) {
        bench_gpu_card_stop(&machine->cards[i].card);
        gpu_region_close(&machine->cards[i].region);
        gpu_nvml_close(machine->cards[i].nvml);
    }
    bench_gpu_traffic_close(machine->traffic);
    free(machine->cards);
    free(machine);
}

uint32_t bench_gpu_machine_kinds(const struct bench_gpu_machine *machine)
{
    return machine->kind_count;
}

const struct gpu_device_facts *bench_gpu_machine_facts(const struct bench_gpu_machine *machine, uint32_t kind)
{
    return &machine->cards[machine->kinds[kind].first].card.facts;
}

static uint64_t least_memory(const struct bench_gpu_machine *machine, uint32_t kind)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < machine->card_count; i++)
        if (machine->cards[i].kind == kind && machine->cards[i].card.facts.memory_bytes < least)
            least = machine->cards[i].card.facts.memory_bytes;
    return least;
}

struct bench_gpu_measurer bench_gpu_machine_measurer(struct bench_gpu_machine *machine, uint32_t kind)
{
    const struct gpu_device_facts *facts = bench_gpu_machine_facts(machine, kind);
    const struct card *card = &machine->cards[machine->kinds[kind].first];
    struct kind *of = &machine->kinds[kind];
    snprintf(of->with, sizeof of->with, "driver %s, kernel %s, %s", facts->driver, facts->kernel,
             core_cipher_name(machine->options.cipher));
    return (struct bench_gpu_measurer){.name = facts->name,
                                       .with = of->with,
                                       .count = machine->kinds[kind].count,
                                       .sms = facts->sms,
                                       .copy_engines = facts->copy_engines,
                                       .memory_bytes = least_memory(machine, kind),
                                       .bytes_max = machine->arena_bytes,
                                       .jobs_max = card->region.shape.slots,
                                       .others = machine->kind_count > 1,
                                       .measure = measure,
                                       .health = machine->options.emulated == NULL ? health : NULL,
                                       .argument = of};
}
