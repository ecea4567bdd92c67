#include "bench/pipeline/threads.h"

#include "perfmodel/cpu.h"

#include <stdlib.h>
#include <string.h>

#define TICK_SHARE     4 /* of in_ns: what a generator hands over late is lost of it */
#define TICK_MIN_NS    (20 * CORE_NS_PER_US)
#define TICK_MAX_NS    (250 * CORE_NS_PER_US)
#define RING_PACKETS   16384
#define STAGGER_BYTES  64 /* between buffers: at one stride the lanes would share their cache sets */
#define WORKER_FIFO    20
#define GENERATOR_FIFO 10
#define START_DELAY_NS (20 * CORE_NS_PER_MS)
#define WAIT_NS        CORE_NS_PER_MS
#define GRACE_NS       (2 * CORE_NS_PER_S)

/* splitmix64 */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static void draw_bytes(uint64_t *state, void *to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        const uint64_t value = draw(state);
        memcpy((uint8_t *)to + i, &value, bytes - i < sizeof value ? bytes - i : sizeof value);
    }
}

static core_status no_memory(struct core_error *error)
{
    return core_error_set(error, CORE_NO_MEMORY, "no memory for the streams of the bench");
}

/* ---- streams ---- */

static core_status reference_create(struct pipeline *pipeline, uint32_t index)
{
    static const EVP_CIPHER *(*const ciphers[CORE_CIPHER_COUNT])(void) = {EVP_aes_128_cbc, EVP_aes_192_cbc,
                                                                          EVP_aes_256_cbc};
    struct pipeline_stream *stream = &pipeline->streams[index];
    stream->reference = EVP_CIPHER_CTX_new();
    if (stream->reference == NULL ||
        EVP_EncryptInit_ex(stream->reference, ciphers[stream->spec->cipher - 1](), NULL,
                           pipeline->keys[index], pipeline->ivs[index]) != 1 ||
        EVP_CIPHER_CTX_set_padding(stream->reference, 0) != 1)
        return CORE_NO_MEMORY;
    return CORE_OK;
}

static core_status streams_create(struct pipeline *pipeline, struct core_error *error)
{
    const struct bench_pipeline_options *options = pipeline->options;
    const size_t count = options->input->count;
    uint64_t random = options->seed;
    core_status status = CORE_OK;

    pipeline->streams = calloc(count, sizeof *pipeline->streams);
    pipeline->keys = calloc(count, sizeof *pipeline->keys);
    pipeline->ivs = calloc(count, sizeof *pipeline->ivs);
    pipeline->source = malloc(PIPELINE_SOURCE_BYTES + 2 * (size_t)CORE_PACKET_BYTES_MAX);
    if (!pipeline->streams || !pipeline->keys || !pipeline->ivs || !pipeline->source)
        return no_memory(error);
    draw_bytes(&random, pipeline->source, PIPELINE_SOURCE_BYTES + 2 * (size_t)CORE_PACKET_BYTES_MAX);
    draw_bytes(&random, pipeline->keys, count * sizeof *pipeline->keys);
    draw_bytes(&random, pipeline->ivs, count * sizeof *pipeline->ivs);
    /* compared streams are spread over the list, which may be sorted */
    const uint64_t compared = options->compared < count ? options->compared : count;
    for (uint32_t i = 0; i < count && status == CORE_OK; i++) {
        struct pipeline_stream *stream = &pipeline->streams[i];
        stream->spec = &options->input->specs[i];
        stream->unit = options->plan->unit[i];
        stream->padded_bytes = core_stream_padded_bytes(stream->spec->padding, stream->spec->packet_bytes);
        stream->due_ns = (core_ns)(draw(&random) % (uint64_t)stream->spec->interval_ns);
        if ((i + 1) * compared / count > i * compared / count)
            status = reference_create(pipeline, i);
    }
    return status == CORE_OK ? CORE_OK : no_memory(error);
}

/* ---- workers ---- */

static void no_notice(void *argument, uint32_t producer)
{
    (void)argument; /* generators look by themselves */
    (void)producer;
}

static core_status workers_create(struct pipeline *pipeline, struct core_error *error)
{
    const struct bench_pipeline_options *options = pipeline->options;
    struct core_error not_permitted = {""};
    core_status status = options->engine->open(&pipeline->engine, error);

    pipeline->worker = calloc(pipeline->workers, sizeof(void *));
    if (pipeline->worker == NULL)
        return no_memory(error);
    for (uint32_t i = 0; i < pipeline->workers && status == CORE_OK; i++) {
        const struct cpu_worker_options worker = {
            .thread = {.name = "worker",
                       .fifo_priority = options->program.realtime ? WORKER_FIFO : 0,
                       .cpu = -1},
            .scheduler = {.ops = options->engine,
                          .burst_pieces = options->input->profile->cpu.burst_pieces,
                          .far_capacity = (uint32_t)options->input->count},
            .producers = options->generators,
            .ring_packets = RING_PACKETS,
            .notify = no_notice};
        status = cpu_worker_start(&pipeline->worker[i], &worker, &not_permitted, error);
    }
    return status;
}

static core_status cpu_stream_create(struct pipeline *pipeline, uint32_t index, struct core_error *error)
{
    const struct bench_pipeline_options *options = pipeline->options;
    struct pipeline_stream *stream = &pipeline->streams[index];
    struct perfmodel_cpu_task task;
    const size_t bytes = (cpu_stream_bytes(options->engine, 1) + 63) / 64 * 64;

    core_status status = perfmodel_cpu_task_from(stream->spec, options->input->profile, &task, error);
    if (status != CORE_OK)
        return status;
    stream->spacing_ns = task.spacing_ns;
    stream->release_ns = INT64_MIN;
    struct cpu_stream *cpu = aligned_alloc(64, bytes);
    if (cpu == NULL)
        return no_memory(error);
    memset(cpu, 0, bytes);
    const struct cpu_stream_options how = {.cipher = stream->spec->cipher,
                                           .piece_bytes = task.piece_bytes,
                                           .piece_deadline_ns = task.deadline_ns};
    status = cpu_stream_init(cpu, options->engine, pipeline->engine, &how, pipeline->keys[index],
                             pipeline->ivs[index]);
    if (status != CORE_OK) {
        free(cpu);
        return core_error_set(error, status, "a key for engine %s: %s", options->engine->name,
                              core_status_text(status));
    }
    stream->cpu = cpu;
    return CORE_OK;
}

/* Twice what may be inside while promises are kept: a generator looks only now and then. */
static uint32_t packets_needed(const struct pipeline *pipeline, const struct pipeline_stream *stream)
{
    return 2 + 2 * perfmodel_cpu_backlog_packets(stream->spec, pipeline->options->input->profile) +
           (uint32_t)(pipeline->tick_ns / stream->spec->interval_ns);
}

static size_t packet_stride(const struct pipeline_stream *stream)
{
    return (sizeof(struct pipeline_packet) + stream->padded_bytes + 63) / 64 * 64 + STAGGER_BYTES;
}

/* All packets of all streams on workers lie in one block. */
static core_status cpu_streams_create(struct pipeline *pipeline, struct core_error *error)
{
    const size_t count = pipeline->options->input->count;
    core_status status = CORE_OK;
    size_t bytes = 1, at = 0;

    for (uint32_t i = 0; i < count; i++)
        if (!partition_unit_is_gpu(pipeline->workers, pipeline->streams[i].unit))
            bytes += packets_needed(pipeline, &pipeline->streams[i]) * packet_stride(&pipeline->streams[i]);
    uint8_t *memory = pipeline->packet_memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (memory == NULL)
        return no_memory(error);
    for (uint32_t i = 0; i < count && status == CORE_OK; i++) {
        struct pipeline_stream *stream = &pipeline->streams[i];
        if (partition_unit_is_gpu(pipeline->workers, stream->unit))
            continue;
        status = cpu_stream_create(pipeline, i, error);
        for (uint32_t left = packets_needed(pipeline, stream); left > 0; left--) {
            struct pipeline_packet *packet = (struct pipeline_packet *)(memory + at);
            *packet = (struct pipeline_packet){.stream = i, .next_free = stream->free};
            packet->cpu.stream = stream->cpu;
            packet->cpu.data = (uint8_t *)(packet + 1);
            stream->free = packet;
            at += packet_stride(stream);
        }
    }
    return status;
}

/* ---- GPUs ---- */

static const struct config_profile_gpu *kind_of(const struct pipeline *pipeline, uint32_t g)
{
    return &pipeline->options->input->profile->gpus[pipeline->options->plan->gpu[g].kind];
}

static core_status gpus_create(struct pipeline *pipeline, struct core_error *error)
{
    core_status status = CORE_OK;
    pipeline->gpu = calloc(pipeline->gpus + 1, sizeof *pipeline->gpu);
    if (pipeline->gpu == NULL)
        return no_memory(error);
    for (uint32_t g = 0; g < pipeline->gpus && status == CORE_OK; g++) {
        struct pipeline_gpu *gpu = &pipeline->gpu[g];
        const struct partition_plan_gpu *plan = &pipeline->options->plan->gpu[g];
        *gpu = (struct pipeline_gpu){
            .pipeline = pipeline, .index = g, .plan = plan, .kind = kind_of(pipeline, g)};
        gpu->busy = pipeline->gpus > 1 || gpu->kind->copy_engines > 1;
        gpu->slots = calloc(plan->streams + 1, sizeof *gpu->slots);
        if (gpu->slots == NULL)
            return no_memory(error);
        for (uint32_t i = 0; i < pipeline->options->input->count; i++)
            if (pipeline->streams[i].unit == partition_unit_of_gpu(pipeline->workers, g)) {
                pipeline->streams[i].slot = gpu->slot_count;
                gpu->slots[gpu->slot_count++] = i;
            }
        if (gpu->slot_count > 0)
            status = pipeline_gpu_create(gpu, error);
    }
    return status;
}

/* ---- generators ---- */

static core_status tally_init(struct bench_pipeline_tally *tally)
{
    *tally = (struct bench_pipeline_tally){.least_slack_ns = CORE_NS_NEVER};
    tally->latency = malloc(sizeof *tally->latency);
    if (tally->latency == NULL)
        return CORE_NO_MEMORY;
    core_histogram_init(tally->latency);
    return CORE_OK;
}

static core_status generators_create(struct pipeline *pipeline, struct core_error *error)
{
    const uint32_t count = pipeline->options->generators;
    const uint32_t streams = (uint32_t)pipeline->options->input->count;
    pipeline->generator = calloc(count, sizeof *pipeline->generator);
    if (pipeline->generator == NULL)
        return no_memory(error);
    for (uint32_t g = 0; g < count; g++) {
        struct pipeline_generator *generator = &pipeline->generator[g];
        generator->pipeline = pipeline;
        generator->index = g;
        generator->streams = calloc(streams / count + 1, sizeof *generator->streams);
        generator->mail = calloc(pipeline->gpus + 1, sizeof *generator->mail);
        generator->expected = malloc(CORE_PACKET_BYTES_MAX + CORE_BLOCK_BYTES);
        if (!generator->streams || !generator->mail || !generator->expected ||
            tally_init(&generator->cpu) != CORE_OK || tally_init(&generator->gpu) != CORE_OK)
            return no_memory(error);
        for (uint32_t i = g; i < streams; i += count)
            generator->streams[generator->count++] = i;
    }
    return CORE_OK;
}

/* ---- running ---- */

static core_status batchers_start(struct pipeline *pipeline, struct core_error *error)
{
    uint32_t cards = 0;
    for (uint32_t g = 0; g < pipeline->gpus; g++) {
        struct pipeline_gpu *gpu = &pipeline->gpu[g];
        const struct core_thread_options thread = {.name = "batcher",
                                                   .fifo_priority =
                                                       pipeline->options->program.realtime ? WORKER_FIFO : 0,
                                                   .cpu = -1};
        if (gpu->arenas == NULL)
            continue;
        const core_status status =
            core_thread_start(&gpu->thread, &thread, pipeline_batcher_main, gpu, NULL, error);
        if (status != CORE_OK)
            return status;
        gpu->started = true;
        cards++;
    }
    while (atomic_load(&pipeline->cards_ready) < cards && !atomic_load(&pipeline->failed))
        core_time_sleep_until(core_time_now_ns() + WAIT_NS);
    return CORE_OK; /* what failed is told when the threads have ended */
}

static core_status generators_start(struct pipeline *pipeline, struct core_error *error)
{
    const struct core_thread_options thread = {.name = "generator",
                                               .fifo_priority =
                                                   pipeline->options->program.realtime ? GENERATOR_FIFO : 0,
                                               .cpu = -1};
    atomic_store(&pipeline->generators_run, pipeline->options->generators);
    atomic_store(&pipeline->start_ns, core_time_now_ns() + START_DELAY_NS);
    for (uint32_t g = 0; g < pipeline->options->generators; g++) {
        struct pipeline_generator *generator = &pipeline->generator[g];
        const core_status status =
            core_thread_start(&generator->thread, &thread, pipeline_generator_main, generator, NULL, error);
        if (status != CORE_OK)
            return status;
        generator->started = true;
    }
    return CORE_OK;
}

/* Waits for all threads; what one of the batchers says goes before. */
static core_status threads_join(struct pipeline *pipeline, core_status status, struct core_error *error)
{
    if (status != CORE_OK)
        atomic_store(&pipeline->failed, true);
    for (uint32_t g = 0; g < pipeline->options->generators && pipeline->generator != NULL; g++)
        if (pipeline->generator[g].started)
            pthread_join(pipeline->generator[g].thread, NULL);
    for (uint32_t g = 0; g < pipeline->gpus && pipeline->gpu != NULL; g++) {
        if (!pipeline->gpu[g].started)
            continue;
        pthread_join(pipeline->gpu[g].thread, NULL);
        if (status == CORE_OK && pipeline->gpu[g].status != CORE_OK)
            status =
                core_error_set(error, pipeline->gpu[g].status, "GPU %u: %s", g, pipeline->gpu[g].error.text);
    }
    return status;
}

/* ---- results ---- */

static void tally_add(struct bench_pipeline_tally *sum, const struct bench_pipeline_tally *one)
{
    sum->packets += one->packets;
    sum->bytes += one->bytes;
    sum->missed += one->missed;
    sum->compared += one->compared;
    sum->wrong += one->wrong;
    sum->refused += one->refused;
    if (one->least_slack_ns < sum->least_slack_ns)
        sum->least_slack_ns = one->least_slack_ns;
    if (one->last_ns > sum->last_ns)
        sum->last_ns = one->last_ns;
    core_histogram_merge(sum->latency, one->latency);
}

static core_status conclude(struct pipeline *pipeline, struct bench_pipeline_result *result,
                            struct core_error *error)
{
    result->gpus = pipeline->gpus;
    result->workers = pipeline->workers;
    result->generators = pipeline->options->generators;
    result->gpu_results = calloc(pipeline->gpus + 1, sizeof *result->gpu_results);
    result->generator_cpu_ns = calloc(result->generators, sizeof *result->generator_cpu_ns);
    result->worker_cpu_ns = calloc(result->workers, sizeof *result->worker_cpu_ns);
    if (!result->gpu_results || !result->generator_cpu_ns || !result->worker_cpu_ns ||
        tally_init(&result->cpu) != CORE_OK || tally_init(&result->gpu) != CORE_OK)
        return no_memory(error);
    for (uint32_t g = 0; g < result->generators; g++) {
        const struct pipeline_generator *generator = &pipeline->generator[g];
        tally_add(&result->cpu, &generator->cpu);
        tally_add(&result->gpu, &generator->gpu);
        result->started_late_packets += generator->behind;
        result->generator_cpu_ns[g] = generator->cpu_ns;
    }
    for (uint32_t g = 0; g < pipeline->gpus; g++) {
        result->gpu_results[g].plan = pipeline->gpu[g].plan;
        if (pipeline->gpu[g].arenas == NULL)
            continue;
        pipeline_gpu_conclude(&pipeline->gpu[g]);
        result->gpu_results[g] = pipeline->gpu[g].result;
    }
    for (uint32_t w = 0; w < pipeline->workers; w++)
        result->worker_cpu_ns[w] = cpu_worker_cpu_time_ns(pipeline->worker[w]);
    result->elapsed_ns =
        result->cpu.last_ns > result->gpu.last_ns ? result->cpu.last_ns : result->gpu.last_ns;
    return CORE_OK;
}

static void generators_destroy(struct pipeline *pipeline)
{
    for (uint32_t g = 0; g < pipeline->options->generators && pipeline->generator != NULL; g++) {
        free(pipeline->generator[g].streams);
        free(pipeline->generator[g].mail);
        free(pipeline->generator[g].expected);
        free(pipeline->generator[g].cpu.latency);
        free(pipeline->generator[g].gpu.latency);
    }
    free(pipeline->generator);
}

static void destroy(struct pipeline *pipeline)
{
    for (uint32_t w = 0; w < pipeline->workers && pipeline->worker != NULL; w++)
        cpu_worker_stop(pipeline->worker[w]);
    generators_destroy(pipeline);
    for (uint32_t g = 0; g < pipeline->gpus && pipeline->gpu != NULL; g++)
        pipeline_gpu_destroy(&pipeline->gpu[g]);
    for (size_t i = 0; i < pipeline->options->input->count && pipeline->streams != NULL; i++) {
        EVP_CIPHER_CTX_free(pipeline->streams[i].reference);
        if (pipeline->streams[i].cpu != NULL)
            cpu_stream_wipe(pipeline->streams[i].cpu, pipeline->options->engine);
        free(pipeline->streams[i].cpu);
    }
    if (pipeline->engine != NULL)
        pipeline->options->engine->close(pipeline->engine);
    free(pipeline->worker);
    free(pipeline->gpu);
    free(pipeline->streams);
    free(pipeline->keys);
    free(pipeline->ivs);
    free(pipeline->source);
    free(pipeline->packet_memory);
}

static core_ns tick_of(core_ns in_ns)
{
    const core_ns tick_ns = in_ns / TICK_SHARE;
    return tick_ns < TICK_MIN_NS ? TICK_MIN_NS : core_time_min(tick_ns, TICK_MAX_NS);
}

core_status bench_pipeline_run(const struct bench_pipeline_options *options,
                               struct bench_pipeline_result *result, struct core_error *error)
{
    const struct config_profile *profile = options->input->profile;
    struct pipeline pipeline = {.options = options,
                                .workers = options->plan->workers,
                                .gpus = options->plan->gpus,
                                .in_ns = profile->margins.in_ns,
                                .grace_ns = options->grace_ns > 0 ? options->grace_ns : GRACE_NS,
                                .tick_ns = tick_of(profile->margins.in_ns)};

    *result = (struct bench_pipeline_result){0};
    core_status status = streams_create(&pipeline, error);
    if (status == CORE_OK)
        status = workers_create(&pipeline, error);
    if (status == CORE_OK)
        status = cpu_streams_create(&pipeline, error);
    if (status == CORE_OK)
        status = gpus_create(&pipeline, error);
    if (status == CORE_OK)
        status = generators_create(&pipeline, error);
    if (status == CORE_OK)
        status = batchers_start(&pipeline, error);
    if (status == CORE_OK && !atomic_load(&pipeline.failed))
        status = generators_start(&pipeline, error);
    status = threads_join(&pipeline, status, error);
    if (status == CORE_OK)
        status = conclude(&pipeline, result, error);
    destroy(&pipeline);
    if (status != CORE_OK)
        bench_pipeline_result_free(result);
    return status;
}

void bench_pipeline_result_free(struct bench_pipeline_result *result)
{
    free(result->gpu_results);
    free(result->generator_cpu_ns);
    free(result->worker_cpu_ns);
    free(result->cpu.latency);
    free(result->gpu.latency);
    *result = (struct bench_pipeline_result){0};
}
