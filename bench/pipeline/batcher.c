#include "bench/pipeline/threads.h"
#include "core/node.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#define MODEL_NS     (8 * CORE_NS_PER_MS)
#define LEAD_NS      CORE_NS_PER_MS /* a batch is opened so long before it begins */
#define ARENAS_SPARE 3              /* one is open beside the one that closes; generators look now and then */
#define ARENAS_LEAST 6
#define SPARE_SHARE  16 /* of bytes and segments: for packets that come late to their batch */
#define SAMPLES_MAX  2000000

double bench_pipeline_copy_limit(const struct config_profile_gpu *kind)
{
    const struct config_profile_copy *row = &kind->copies[kind->copy_count - 1];
    const core_ns up_ns = row->up_busy_ns, down_ns = row->down_busy_ns;
    const core_ns both_ns = kind->copy_engines < 2 ? up_ns + down_ns : core_time_max(up_ns, down_ns);
    return (double)row->bytes * 1e9 / (double)both_ns;
}

/* ---- creation ---- */

static uint64_t packets_of(const struct pipeline_gpu *gpu, uint32_t slot)
{
    const struct core_stream_spec *spec = gpu->pipeline->streams[gpu->slots[slot]].spec;
    return spec->burst_packets + (uint64_t)(gpu->plan->period_ns / spec->interval_ns);
}

static uint32_t arenas_needed(const struct pipeline_gpu *gpu)
{
    const uint32_t needed = ARENAS_SPARE + gpu->plan->arenas;
    return needed < ARENAS_LEAST            ? ARENAS_LEAST
           : needed > GPU_REGION_ARENAS_MAX ? GPU_REGION_ARENAS_MAX
                                            : needed;
}

static struct gpu_arena_options arena_options(const struct pipeline_gpu *gpu)
{
    uint64_t packets = 0, bytes = 0;
    for (uint32_t slot = 0; slot < gpu->slot_count; slot++) {
        packets += packets_of(gpu, slot);
        bytes += packets_of(gpu, slot) * gpu->pipeline->streams[gpu->slots[slot]].padded_bytes;
    }
    packets += packets / SPARE_SHARE + gpu->slot_count;
    bytes += bytes / SPARE_SHARE + CORE_PACKET_BYTES_MAX;
    return (struct gpu_arena_options){
        .writers = gpu->pipeline->options->generators,
        .shape = {.arenas = arenas_needed(gpu),
                  .slots = gpu->slot_count,
                  .segments =
                      (uint32_t)(packets < GPU_REGION_SEGMENTS_MAX ? packets : GPU_REGION_SEGMENTS_MAX),
                  .arena_bytes = bytes / 4096 * 4096}};
}

static core_status samples_create(struct pipeline_gpu *gpu)
{
    const core_ns batches = gpu->pipeline->options->duration_ns / gpu->plan->period_ns + 1000;
    const uint32_t room = (uint32_t)(batches < SAMPLES_MAX ? batches : SAMPLES_MAX);
    core_status status = bench_samples_init(&gpu->start, room);

    for (int stage = 0; stage < GPU_STAGE_COUNT && status == CORE_OK; stage++) {
        status = bench_samples_init(&gpu->times[stage], room);
        if (status == CORE_OK)
            status = bench_samples_init(&gpu->errors[stage], room);
    }
    return status == CORE_OK ? bench_samples_init(&gpu->tell, room) : status;
}

static core_status arenas_create(void *argument, struct core_error *error)
{
    struct pipeline_gpu *gpu = argument;
    const struct gpu_arena_options options = arena_options(gpu);
    return gpu_arenas_create(&gpu->arenas, &options, error);
}

core_status pipeline_gpu_create(struct pipeline_gpu *gpu, struct core_error *error)
{
    const struct gpu_listed *cards = gpu->pipeline->options->cards;
    const int node = cards != NULL ? core_node_of_pci("/sys", cards[gpu->index].facts.pci) : -1;
    gpu->job_bytes = calloc(gpu->slot_count, sizeof *gpu->job_bytes);
    gpu->scratch = calloc(gpu->slot_count, sizeof *gpu->scratch);
    if (gpu->job_bytes == NULL || gpu->scratch == NULL || samples_create(gpu) != CORE_OK)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the figures of a GPU");
    return core_node_run("/sys", node, arenas_create, gpu, error);
}

void pipeline_gpu_destroy(struct pipeline_gpu *gpu)
{
    gpu_arenas_destroy(gpu->arenas);
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
        bench_samples_free(&gpu->times[stage]);
        bench_samples_free(&gpu->errors[stage]);
    }
    bench_samples_free(&gpu->start);
    bench_samples_free(&gpu->tell);
    free(gpu->slots);
    free(gpu->job_bytes);
    free(gpu->scratch);
}

/* ---- the thread ---- */

static core_status card_prepare(struct pipeline_gpu *gpu)
{
    struct pipeline *pipeline = gpu->pipeline;
    const struct gpu_listed *cards = pipeline->options->cards, played = {.index = gpu->index};
    struct bench_gpu_program program = pipeline->options->program;
    if (cards != NULL)
        bench_gpu_card_near(&cards[gpu->index]);
    program.kernel_forms = bench_gpu_kernel_forms(gpu->kind->kernel); /* those that the plan was made for */
    core_status status =
        bench_gpu_card_start(&gpu->card, &program, cards != NULL ? &cards[gpu->index] : &played,
                             gpu_arenas_region(gpu->arenas), gpu->kind, pipeline->gpus > 1, &gpu->error);
    for (uint32_t slot = 0; slot < gpu->slot_count && status == CORE_OK; slot++) {
        const uint32_t stream = gpu->slots[slot];
        status = bench_gpu_card_key(&gpu->card, slot, pipeline->keys[stream],
                                    core_cipher_key_bytes(pipeline->streams[stream].spec->cipher),
                                    pipeline->ivs[stream], &gpu->error);
    }
    return status;
}

/* What the model says of this very batch. It takes time, with short periods more than there is: then not of
 * every batch. */
static struct perfmodel_stages model_of(struct pipeline_gpu *gpu, const struct gpu_arena_batch *batch)
{
    if (batch->close_ns < gpu->modelled_ns + MODEL_NS)
        return (struct perfmodel_stages){0};
    gpu->modelled_ns = batch->close_ns;
    const struct gpu_job *jobs = gpu_region_jobs(gpu_arenas_region(gpu->arenas), batch->arena);
    for (uint32_t i = 0; i < batch->job_count; i++)
        gpu->job_bytes[i] = (uint64_t)jobs[i].blocks * GPU_BLOCK_BYTES;
    return perfmodel_gpu_stages(gpu->kind, &gpu->pipeline->options->input->profile->margins, gpu->job_bytes,
                                batch->job_count, gpu->busy, gpu->scratch);
}

static core_status batch_submit(struct pipeline_gpu *gpu, const struct gpu_arena_batch *batch)
{
    const struct gpu_order order = gpu_order_of(batch);
    core_status status = bench_gpu_card_submit(&gpu->card, &order, gpu->plan->period_ns, NULL, &gpu->error);
    if (status != CORE_OK)
        return status;
    gpu->flights[gpu->flights_put++ % GPU_REGION_ARENAS_MAX] = (struct pipeline_flight){
        .number = batch->number,
        .writers = batch->writers,
        .due_ns = batch->close_ns + gpu->pipeline->in_ns,
        .model = model_of(gpu, batch)}; /* after the submit: it costs the batch no time */
    gpu->result.batches++;
    gpu->result.bytes += batch->used_bytes;
    if (batch->used_bytes > gpu->result.largest_bytes)
        gpu->result.largest_bytes = batch->used_bytes;
    return CORE_OK;
}

/* Opens and closes what is due; *wake_ns: when there is something again. */
static core_status batches_turn(struct pipeline_gpu *gpu, core_ns *wake_ns)
{
    const struct gpu_schedule_due due =
        gpu_schedule_due(&gpu->schedule, core_time_now_ns(), LEAD_NS, gpu->pipeline->in_ns);
    core_status status = CORE_OK;

    *wake_ns = due.wake_ns;
    while (gpu_arenas_opened(gpu->arenas) < due.open_until && status == CORE_OK)
        status = gpu_arena_open(gpu->arenas,
                                gpu_schedule_close_ns(&gpu->schedule, gpu_arenas_opened(gpu->arenas) + 1));
    if (status == CORE_FULL) { /* its arena is held still: look again soon */
        *wake_ns = core_time_now_ns() + gpu->pipeline->tick_ns;
        status = CORE_OK;
    }
    while (status == CORE_OK && gpu_arenas_closed(gpu->arenas) < due.close_until) {
        struct gpu_arena_batch batch;
        status = gpu_arena_close(gpu->arenas, &batch);
        if (status == CORE_AGAIN) /* it could not be opened yet */
            return CORE_OK;
        if (status == CORE_OK && batch.job_count > 0)
            status = batch_submit(gpu, &batch);
        else if (status == CORE_OK)
            status = gpu_arena_release(gpu->arenas, GPU_ARENA_BATCHER, batch.number);
    }
    return status;
}

static double percent_off(core_ns model_ns, core_ns measured_ns)
{
    return 100.0 * ((double)model_ns / (double)(measured_ns > 0 ? measured_ns : 1) - 1);
}

static void batch_note(struct pipeline_gpu *gpu, const struct pipeline_flight *flight,
                       const struct gpu_stage_time *times, core_ns seen_ns)
{
    const core_ns model_ns[GPU_STAGE_COUNT] = {flight->model.up_ns, flight->model.kernel_ns,
                                               flight->model.down_ns};
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
        const core_ns measured_ns = times[stage].end_ns - times[stage].start_ns;
        bench_samples_add(&gpu->times[stage], (double)measured_ns);
        if (model_ns[GPU_STAGE_KERNEL] > 0)
            bench_samples_add(&gpu->errors[stage], percent_off(model_ns[stage], measured_ns));
    }
    bench_samples_add(&gpu->start, (double)(times[GPU_STAGE_UP].start_ns - flight->due_ns));
    bench_samples_add(&gpu->tell, (double)(seen_ns - times[GPU_STAGE_DOWN].end_ns));
}

static core_status batch_back(struct pipeline_gpu *gpu, const struct gpu_event *event, core_ns seen_ns)
{
    struct pipeline *pipeline = gpu->pipeline;
    const struct pipeline_flight *flight = &gpu->flights[gpu->flights_taken++ % GPU_REGION_ARENAS_MAX];

    batch_note(gpu, flight, event->batch.times, seen_ns);
    for (uint32_t i = 0; i < pipeline->options->generators; i++) {
        struct pipeline_mail *mail = &pipeline->generator[i].mail[gpu->index];
        if (!(flight->writers >> i & 1))
            continue;
        const uint64_t put = atomic_load_explicit(&mail->put, memory_order_relaxed); /* its only writer */
        mail->done[put % GPU_REGION_ARENAS_MAX] =
            (struct pipeline_done){.batch = flight->number, .seen_ns = seen_ns};
        atomic_store_explicit(&mail->put, put + 1, memory_order_release); /* the entry is written */
    }
    return gpu_arena_release(gpu->arenas, GPU_ARENA_BATCHER, flight->number);
}

static core_status run(struct pipeline_gpu *gpu)
{
    core_status status = CORE_OK;
    core_ns wake_ns = 0, seen_ns;
    struct gpu_event event;

    while (status == CORE_OK && !atomic_load(&gpu->pipeline->failed) &&
           atomic_load(&gpu->pipeline->generators_run) > 0) {
        status = batches_turn(gpu, &wake_ns);
        if (status != CORE_OK)
            return status;
        status = bench_gpu_card_next(&gpu->card, wake_ns, &event, &seen_ns, &gpu->error);
        if (status == CORE_OK)
            status = batch_back(gpu, &event, seen_ns);
        else if (status == CORE_AGAIN)
            status = CORE_OK;
    }
    return status;
}

/* Keeps the child's watchdog content until all are ready. */
static core_status start_wait(struct pipeline_gpu *gpu)
{
    struct gpu_event event;
    core_ns seen_ns;
    core_status status = CORE_OK;

    atomic_fetch_add(&gpu->pipeline->cards_ready, 1);
    while (status == CORE_OK && atomic_load(&gpu->pipeline->start_ns) == 0 &&
           !atomic_load(&gpu->pipeline->failed)) {
        status = bench_gpu_card_next(&gpu->card, core_time_now_ns() + CORE_NS_PER_MS, &event, &seen_ns,
                                     &gpu->error);
        status = status == CORE_AGAIN ? CORE_OK : status;
    }
    if (status == CORE_OK && !atomic_load(&gpu->pipeline->failed))
        status =
            gpu_schedule_init(&gpu->schedule, atomic_load(&gpu->pipeline->start_ns), gpu->plan->period_ns);
    return status;
}

void *pipeline_batcher_main(void *argument)
{
    struct pipeline_gpu *gpu = argument;

    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
    gpu->status = card_prepare(gpu);
    if (gpu->status == CORE_OK)
        gpu->status = start_wait(gpu);
    const core_ns child_ns = bench_gpu_card_cpu_ns(&gpu->card), own_ns = core_time_thread_cpu_ns();
    if (gpu->status == CORE_OK)
        gpu->status = run(gpu);
    if (gpu->status != CORE_OK)
        atomic_store(&gpu->pipeline->failed, true);
    gpu->result.facts = gpu->card.facts;
    gpu->result.batcher_cpu_ns = core_time_thread_cpu_ns() - own_ns;
    gpu->result.child_cpu_ns = bench_gpu_card_cpu_ns(&gpu->card) - child_ns;
    if (gpu->status == CORE_OK)
        gpu->result.health = gpu_engine_health(gpu->card.engine);
    bench_gpu_card_stop(&gpu->card);
    return NULL;
}

/* ---- results ---- */

void pipeline_gpu_conclude(struct pipeline_gpu *gpu)
{
    const double bound_ns[GPU_STAGE_COUNT] = {(double)gpu->plan->stages.up_ns,
                                              (double)gpu->plan->stages.kernel_ns,
                                              (double)gpu->plan->stages.down_ns};
    const struct gpu_arena_counters counters = gpu_arenas_counters(gpu->arenas);
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++)
        gpu->result.stages[stage] =
            (struct bench_pipeline_stage){.median_ns = bench_samples_percentile(&gpu->times[stage], 50),
                                          .p99_ns = bench_samples_percentile(&gpu->times[stage], 99),
                                          .max_ns = bench_samples_percentile(&gpu->times[stage], 100),
                                          .bound_ns = bound_ns[stage],
                                          .error_least = bench_samples_percentile(&gpu->errors[stage], 0),
                                          .error_median = bench_samples_percentile(&gpu->errors[stage], 50),
                                          .error_most = bench_samples_percentile(&gpu->errors[stage], 100)};
    gpu->result.plan = gpu->plan;
    gpu->result.start_p99_ns = bench_samples_percentile(&gpu->start, 99);
    gpu->result.start_max_ns = bench_samples_percentile(&gpu->start, 100);
    gpu->result.tell_p99_ns = bench_samples_percentile(&gpu->tell, 99);
    gpu->result.tell_max_ns = bench_samples_percentile(&gpu->tell, 100);
    gpu->result.late = counters.late;
    gpu->result.held_up = counters.held_up;
    gpu->result.copy_limit_bytes_per_s = bench_pipeline_copy_limit(gpu->kind);
}
