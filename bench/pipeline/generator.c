#include "bench/pipeline/threads.h"
#include "gpu/payload.h"

#include <string.h>
#include <sys/prctl.h>

#define BEHIND_NS   CORE_NS_PER_MS
#define COLLECT_MAX 256

/* The cookie of a packet in an arena: its stream, and when it was due. */
#define COOKIE_TIME_BITS 44

static uint64_t cookie_make(uint32_t stream, core_ns due_ns)
{
    return (uint64_t)stream << COOKIE_TIME_BITS | (uint64_t)due_ns;
}

static void cookie_read(uint64_t cookie, uint32_t *stream, core_ns *due_ns)
{
    *stream = (uint32_t)(cookie >> COOKIE_TIME_BITS);
    *due_ns = (core_ns)(cookie & ((UINT64_C(1) << COOKIE_TIME_BITS) - 1));
}

/* ---- what came back ---- */

static bool is_right(struct pipeline_generator *generator, struct pipeline_stream *stream, uint32_t index,
                     const uint8_t *result)
{
    const uint8_t *payload = pipeline_payload(generator->pipeline, index, stream->finished);
    int written = 0;
    return EVP_EncryptUpdate(stream->reference, generator->expected, &written, payload,
                             (int)stream->padded_bytes) == 1 &&
           memcmp(generator->expected, result, stream->padded_bytes) == 0;
}

/* finished_ns and due_ns: since the start. */
static void account(struct pipeline_generator *generator, struct bench_pipeline_tally *tally, uint32_t index,
                    core_ns due_ns, core_ns finished_ns, const uint8_t *result)
{
    struct pipeline_stream *stream = &generator->pipeline->streams[index];
    const core_ns slack_ns = due_ns + stream->spec->latency_ns - finished_ns;

    tally->packets++;
    tally->bytes += stream->spec->packet_bytes;
    tally->missed += slack_ns < 0;
    if (slack_ns < tally->least_slack_ns)
        tally->least_slack_ns = slack_ns;
    if (finished_ns > tally->last_ns)
        tally->last_ns = finished_ns;
    core_histogram_record(tally->latency, finished_ns - due_ns);
    if (stream->reference != NULL) {
        tally->compared++;
        tally->wrong += !is_right(generator, stream, index, result);
    }
    stream->finished++;
    generator->outstanding--;
}

static void batch_take(struct pipeline_generator *generator, struct pipeline_gpu *gpu,
                       const struct pipeline_done *done, core_ns start_ns)
{
    struct gpu_record_list records = gpu_arena_records(gpu->arenas, generator->index, done->batch);
    const uint8_t *output = gpu_arena_output(gpu->arenas, done->batch);

    for (const struct gpu_record *record; (record = gpu_record_next(&records)) != NULL;) {
        uint32_t stream;
        core_ns due_ns;
        cookie_read(record->cookie, &stream, &due_ns);
        account(generator, &generator->gpu, stream, due_ns, done->seen_ns - start_ns,
                output + record->offset_bytes);
    }
    /* it holds its part: there is no other reason to refuse */
    (void)!gpu_arena_release(gpu->arenas, generator->index, done->batch);
}

static void batches_take(struct pipeline_generator *generator, core_ns start_ns)
{
    for (uint32_t g = 0; g < generator->pipeline->gpus; g++) {
        struct pipeline_mail *mail = &generator->mail[g];
        const uint64_t put = atomic_load_explicit(&mail->put, memory_order_acquire); /* the entries before */
        for (; mail->taken < put; mail->taken++)
            batch_take(generator, &generator->pipeline->gpu[g],
                       &mail->done[mail->taken % GPU_REGION_ARENAS_MAX], start_ns);
    }
}

static void packets_take(struct pipeline_generator *generator, core_ns start_ns)
{
    struct cpu_packet *packets[COLLECT_MAX];
    struct pipeline *pipeline = generator->pipeline;

    for (uint32_t w = 0; w < pipeline->workers; w++) {
        uint32_t count;
        do {
            count = cpu_worker_poll(pipeline->worker[w], generator->index, packets, COLLECT_MAX);
            for (uint32_t i = 0; i < count; i++) {
                struct pipeline_packet *packet = (struct pipeline_packet *)packets[i];
                struct pipeline_stream *stream = &pipeline->streams[packet->stream];
                account(generator, &generator->cpu, packet->stream, packet->due_ns,
                        packet->cpu.finished_ns - start_ns, packet->cpu.data);
                packet->next_free = stream->free;
                stream->free = packet;
            }
        } while (count == COLLECT_MAX);
    }
}

/* ---- what is sent ---- */

static bool gpu_send(struct pipeline_generator *generator, uint32_t index, core_ns start_ns)
{
    struct pipeline *pipeline = generator->pipeline;
    struct pipeline_stream *stream = &pipeline->streams[index];
    struct gpu_arenas *arenas = pipeline->gpu[partition_unit_gpu(pipeline->workers, stream->unit)].arenas;
    const struct gpu_packet packet = {.eligible_ns = start_ns + stream->due_ns,
                                      .after_batch = stream->last_batch,
                                      .bytes = stream->padded_bytes,
                                      .slot = stream->slot,
                                      .cookie = cookie_make(index, stream->due_ns)};
    struct gpu_place place;
    core_status status;

    do {
        status = gpu_arena_reserve(arenas, generator->index, &packet, &place);
        if (status != CORE_OK)
            break;
        if (pipeline->options->copied || stream->reference != NULL)
            gpu_payload_write(place.input, pipeline_payload(pipeline, index, stream->sent),
                              stream->padded_bytes);
        status = gpu_arena_commit(arenas, generator->index, &packet, &place);
    } while (status == CORE_CLOSED);
    if (status == CORE_OK)
        stream->last_batch = place.batch;
    else
        generator->gpu.refused++;
    return status == CORE_OK;
}

static bool cpu_send(struct pipeline_generator *generator, uint32_t index, core_ns start_ns)
{
    struct pipeline *pipeline = generator->pipeline;
    struct pipeline_stream *stream = &pipeline->streams[index];
    struct pipeline_packet *packet = stream->free;

    if (packet == NULL) {
        generator->cpu.refused++;
        return false;
    }
    const core_ns release_ns = core_time_max(start_ns + stream->due_ns + pipeline->in_ns, stream->release_ns);
    packet->due_ns = stream->due_ns;
    packet->cpu.bytes = stream->padded_bytes;
    packet->cpu.done_bytes = 0;
    packet->cpu.release_ns = release_ns;
    /* encrypted in place: it must be written each time */
    memcpy(packet->cpu.data, pipeline_payload(pipeline, index, stream->sent), stream->padded_bytes);
    struct cpu_packet *submitted = &packet->cpu;
    stream->free = packet->next_free;
    if (cpu_worker_submit(pipeline->worker[stream->unit], generator->index, &submitted, 1) == 1) {
        stream->release_ns = release_ns + stream->spacing_ns;
        return true;
    }
    packet->next_free = stream->free;
    stream->free = packet;
    generator->cpu.refused++;
    return false;
}

/* The next packet of the stream, if it is due by now_ns (since the start) and before the end. Whether another
 * may be due; what finds no room is tried again next time, in order. */
static bool stream_send(struct pipeline_generator *generator, uint32_t index, core_ns now_ns,
                        core_ns start_ns)
{
    struct pipeline *pipeline = generator->pipeline;
    struct pipeline_stream *stream = &pipeline->streams[index];
    const bool on_gpu = partition_unit_is_gpu(pipeline->workers, stream->unit);

    if (stream->due_ns > now_ns || stream->due_ns >= pipeline->options->duration_ns)
        return false;
    if (!(on_gpu ? gpu_send : cpu_send)(generator, index, start_ns))
        return false;
    generator->behind += now_ns - stream->due_ns > BEHIND_NS;
    generator->outstanding++;
    stream->sent++;
    stream->due_ns += stream->spec->interval_ns;
    return stream->due_ns <= now_ns;
}

/* What is due of all streams, in turns: after a pause no stream takes the room of others with its backlog. */
static void streams_send(struct pipeline_generator *generator, core_ns now_ns, core_ns start_ns)
{
    bool more = true;
    while (more) {
        more = false;
        for (uint32_t i = 0; i < generator->count; i++)
            more |= stream_send(generator, generator->streams[i], now_ns, start_ns);
    }
}

/* How many packets of this stream were due and found no room so far. */
static uint64_t unsent(const struct pipeline *pipeline, const struct pipeline_stream *stream)
{
    const core_ns left_ns = pipeline->options->duration_ns - stream->due_ns;
    return left_ns > 0 ? (uint64_t)((left_ns - 1) / stream->spec->interval_ns) + 1 : 0;
}

/* Whether there is nothing to send any more: all is sent, or what is not has missed its deadline long ago. */
static bool ends(struct pipeline_generator *generator, core_ns now_ns)
{
    const struct pipeline *pipeline = generator->pipeline;
    const bool too_late = now_ns > pipeline->options->duration_ns + pipeline->grace_ns;
    for (uint32_t i = 0; i < generator->count; i++) {
        const struct pipeline_stream *stream = &pipeline->streams[generator->streams[i]];
        const uint64_t left = unsent(pipeline, stream);
        if (left > 0 && !too_late)
            return false;
        *(partition_unit_is_gpu(pipeline->workers, stream->unit) ? &generator->gpu.missed
                                                                 : &generator->cpu.missed) += left;
    }
    return now_ns >= pipeline->options->duration_ns;
}

void *pipeline_generator_main(void *argument)
{
    struct pipeline_generator *generator = argument;
    struct pipeline *pipeline = generator->pipeline;
    const core_ns start_ns = atomic_load(&pipeline->start_ns);
    core_ns wake_ns = start_ns;
    bool sent = false;

    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL); /* sleeps end when they should, not up to 50 us later */
    while (!atomic_load(&pipeline->failed) && !(sent && generator->outstanding == 0)) {
        core_time_sleep_until(wake_ns);
        const core_ns now_ns = core_time_now_ns() - start_ns;
        if (!sent)
            streams_send(generator, now_ns, start_ns);
        sent = sent || ends(generator, now_ns);
        batches_take(generator, start_ns);
        packets_take(generator, start_ns);
        wake_ns = core_time_max(wake_ns + pipeline->tick_ns, core_time_now_ns());
    }
    generator->cpu_ns = core_time_thread_cpu_ns();
    atomic_fetch_sub(&pipeline->generators_run, 1);
    return NULL;
}
