#include "server/stream.h"

#include "core/secret.h"

#include <stdlib.h>
#include <string.h>

#define SLOT_HEADER_BYTES (PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES)
#define QUEUE_SPARE_BYTES 2048u
#define CACHE_LINE        64u
#define STAGGER_LINES     7u

/* Distance of slots: whole cache lines, and never a multiple of 4 KiB, which would put the streams of a burst
 * into the same cache sets. */
static uint64_t slot_stride(const struct core_stream_spec *spec)
{
    uint64_t bytes =
        SLOT_HEADER_BYTES + (uint64_t)core_stream_padded_bytes(spec->padding, spec->packet_bytes);
    bytes = (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    return bytes % 4096 == 0 ? bytes + CACHE_LINE : bytes;
}

uint32_t server_stream_queue_packets(const struct core_stream_spec *spec, uint32_t backlog_packets)
{
    return backlog_packets +
           (uint32_t)(QUEUE_SPARE_BYTES / (slot_stride(spec) + sizeof(struct server_packet)));
}

uint64_t server_stream_buffer_bytes(const struct core_stream_spec *spec, uint32_t queue_packets)
{
    return queue_packets * (slot_stride(spec) + sizeof(struct server_packet)) +
           (STAGGER_LINES + 1) * CACHE_LINE;
}

core_status server_stream_create(struct server_stream **stream, const struct core_stream_spec *spec,
                                 uint32_t queue_packets, uint32_t stagger)
{
    uint32_t count = queue_packets;
    uint64_t buffer_bytes = server_stream_buffer_bytes(spec, queue_packets);
    struct server_stream *fresh = malloc(sizeof *fresh + buffer_bytes);
    if (fresh == NULL)
        return CORE_NO_MEMORY;
    *fresh = (struct server_stream){.spec = *spec,
                                    .state = SERVER_STREAM_OPEN,
                                    .queue_packets = count,
                                    .slack_minimum_ns = CORE_NS_NEVER,
                                    .buffer_bytes = buffer_bytes};
    uintptr_t slots = (uintptr_t)&fresh->packets[count];
    slots = (slots + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE + (stagger % STAGGER_LINES) * CACHE_LINE;
    for (uint32_t i = 0; i < count; i++) {
        struct server_packet *packet = &fresh->packets[i];
        *packet = (struct server_packet){.stream = fresh, .next = fresh->free};
        packet->output =
            (struct server_output){.frame = (uint8_t *)slots + i * slot_stride(spec), .is_packet = true};
        fresh->free = packet;
    }
    *stream = fresh;
    return CORE_OK;
}

core_status server_stream_arm(struct server_stream *stream, const struct cpu_engine_ops *ops,
                              struct cpu_engine *engine, const struct perfmodel_cpu_task *task, core_ns in_ns,
                              const uint8_t *key, const uint8_t iv[CORE_BLOCK_BYTES])
{
    stream->cpu = core_secret_alloc(cpu_stream_bytes(ops));
    if (stream->cpu == NULL)
        return CORE_NO_MEMORY;
    core_status status = cpu_stream_init(stream->cpu, ops, engine, stream->spec.cipher, key, iv,
                                         task->piece_bytes, task->deadline_ns);
    if (status != CORE_OK) {
        core_secret_free(stream->cpu, cpu_stream_bytes(ops));
        stream->cpu = NULL;
        return status;
    }
    stream->in_ns = in_ns;
    server_police_init(&stream->police, &stream->spec, task->spacing_ns);
    for (uint32_t i = 0; i < stream->queue_packets; i++)
        stream->packets[i].cpu.stream = stream->cpu;
    return CORE_OK;
}

void server_stream_destroy(struct server_stream *stream, const struct cpu_engine_ops *ops)
{
    if (stream->cpu != NULL) {
        cpu_stream_wipe(stream->cpu, ops);
        core_secret_free(stream->cpu, cpu_stream_bytes(ops));
    }
    core_secret_wipe(stream->packets,
                     stream->buffer_bytes); /* plaintext that was never encrypted may be there */
    free(stream);
}

struct server_packet *server_stream_take(struct server_stream *stream, uint32_t sequence, uint32_t bytes)
{
    struct server_packet *packet = stream->free;
    if (packet == NULL)
        return NULL;
    stream->free = packet->next;
    stream->busy_packets++;
    packet->next = NULL;
    packet->sequence = sequence;
    packet->bytes = bytes;
    packet->status = PROTOCOL_RESULT_OK;
    packet->ready = packet->policed = packet->output.counted = false;
    return packet;
}

void server_stream_give(struct server_stream *stream, struct server_packet *packet)
{
    packet->next = stream->free;
    stream->free = packet;
    stream->busy_packets--;
}

static enum protocol_result_status judge(const struct server_stream *stream, uint32_t bytes,
                                         uint64_t bytes_per_key)
{
    if (bytes > stream->spec.packet_bytes)
        return PROTOCOL_RESULT_TOO_LONG;
    if (stream->spec.padding == CORE_PADDING_NONE && (bytes == 0 || bytes % CORE_BLOCK_BYTES != 0))
        return PROTOCOL_RESULT_NOT_BLOCKS;
    if (stream->key_bytes + core_stream_padded_bytes(stream->spec.padding, bytes) > bytes_per_key)
        return PROTOCOL_RESULT_KEY_SPENT;
    return PROTOCOL_RESULT_OK;
}

static void append_to_order(struct server_stream *stream, struct server_packet *packet)
{
    if (stream->order_tail == NULL)
        stream->order_head = packet;
    else
        stream->order_tail->next = packet;
    stream->order_tail = packet;
}

bool server_stream_accept(struct server_stream *stream, struct server_packet *packet, core_ns now_ns,
                          uint64_t bytes_per_key)
{
    struct server_police_times times = server_police_packet(&stream->police, now_ns);

    packet->arrival_ns = now_ns;
    packet->eligible_ns = times.eligible_ns;
    packet->deadline_ns = times.eligible_ns + stream->spec.latency_ns;
    packet->policed = times.eligible_ns > now_ns;
    packet->status = judge(stream, packet->bytes, bytes_per_key);
    append_to_order(stream, packet);
    if (packet->status != PROTOCOL_RESULT_OK) {
        packet->ready = true;
        return false;
    }
    uint8_t *payload = server_packet_payload(packet);
    uint32_t padded = core_stream_padded_bytes(stream->spec.padding, packet->bytes);
    if (stream->spec.padding == CORE_PADDING_PKCS7)
        memset(payload + packet->bytes, (int)(padded - packet->bytes), padded - packet->bytes);
    stream->key_bytes += padded;
    packet->cpu.data = payload;
    packet->cpu.bytes = padded;
    packet->cpu.done_bytes = 0;
    packet->cpu.release_ns = times.release_ns + stream->in_ns;
    return true;
}

struct server_packet *server_stream_next_ready(struct server_stream *stream)
{
    struct server_packet *packet = stream->order_head;
    if (packet == NULL || !packet->ready)
        return NULL;
    stream->order_head = packet->next;
    if (stream->order_head == NULL)
        stream->order_tail = NULL;
    packet->next = NULL;
    return packet;
}

struct protocol_result server_packet_stamp(struct server_packet *packet, core_ns now_ns, core_ns blocked_ns)
{
    struct protocol_result result = {.status = packet->status};
    uint32_t bytes = 0;

    if (packet->status == PROTOCOL_RESULT_OK) {
        core_ns waited_us = (packet->eligible_ns - packet->arrival_ns) / CORE_NS_PER_US;
        result.waited_us = waited_us > UINT32_MAX ? UINT32_MAX : (uint32_t)waited_us;
        result.latency_ns = now_ns > packet->eligible_ns ? now_ns - packet->eligible_ns : 0;
        if (packet->policed)
            result.flags |= PROTOCOL_RESULT_POLICED;
        if (now_ns <= packet->deadline_ns)
            result.flags |= PROTOCOL_RESULT_MET;
        else if (packet->cpu.finished_ns <= packet->deadline_ns && blocked_ns <= packet->deadline_ns)
            result.flags |= PROTOCOL_RESULT_MET | PROTOCOL_RESULT_READER;
        bytes = packet->cpu.bytes;
    }
    protocol_result_write(packet->output.frame, packet->stream->id, packet->sequence, &result, bytes);
    packet->output.bytes = SLOT_HEADER_BYTES + bytes;
    return result;
}
