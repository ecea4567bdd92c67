#include "server/stream/stream.h"

#include "core/secret.h"
#include "server/stream/io_thread.h"
#include "server/stream/pattern.h"

#include <stdlib.h>
#include <string.h>

#define SLOT_HEADER_BYTES (PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES)
#define SPARE_BYTES_MAX   2048u
#define CACHE_LINE        64u
#define STAGGER_LINES     7u
#define PACKETS_MAX       (UINT32_C(1) << 31) /* from so many on they are too many */
#define HOT_STRIDE        (33u * CACHE_LINE)  /* of a packet as long as what Ethernet carries */

/* Distance of packets, each with its slot behind: whole cache lines, and never a multiple of 4 KiB, which would put the
 * streams of a burst into the same cache sets. */
static uint64_t packet_stride(const struct core_stream_spec *spec)
{
    uint64_t bytes = SLOT_HEADER_BYTES + (spec->unit == CORE_UNIT_MESSAGE ? CORE_BLOCK_BYTES : 0u) +
                     (uint64_t)core_stream_padded_bytes(spec->padding, spec->packet_bytes) +
                     core_stream_tag_bytes(spec) + sizeof(struct server_packet);
    bytes = (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    return bytes % 4096 == 0 ? bytes + CACHE_LINE : bytes;
}

/* Packet i of a block: just before its slot. */
static struct server_packet *packet_at(const struct server_block *block, uint32_t i)
{
    return (struct server_packet *)(block->slots + i * block->stride) - 1;
}

uint32_t server_stream_queue_packets(const struct core_stream_spec *spec, uint32_t backlog_packets)
{
    return backlog_packets + (packet_stride(spec) <= SPARE_BYTES_MAX ? 1 : 0);
}

uint32_t server_stream_gpu_packets(const struct core_stream_spec *spec)
{
    uint64_t packets = spec->burst_packets + (uint64_t)((spec->latency_ns - 1) / spec->interval_ns) + 1;
    return packets < PACKETS_MAX ? (uint32_t)packets : PACKETS_MAX;
}

uint64_t server_stream_buffer_bytes(const struct core_stream_spec *spec, uint32_t queue_packets)
{
    if (queue_packets >= PACKETS_MAX)
        return UINT64_MAX;
    return queue_packets * packet_stride(spec) + (STAGGER_LINES + 1) * CACHE_LINE;
}

core_status server_stream_create(struct server_stream **stream, const struct core_stream_spec *spec,
                                 struct server_block *block)
{
    struct server_stream *fresh = aligned_alloc(alignof(struct server_stream), sizeof *fresh);
    if (fresh == NULL)
        return CORE_NO_MEMORY;
    *fresh = (struct server_stream){.spec = *spec,
                                    .state = SERVER_STREAM_OPEN,
                                    .message.number = spec->first_unit,
                                    .account.slack_minimum_ns = CORE_NS_NEVER};
    server_stream_adopt(fresh, block);
    *stream = fresh;
    return CORE_OK;
}

/* ---- blocks ---- */

/* bytes: at most so many, with all that a stagger may take. */
static struct server_block *create(uint64_t bytes, uint64_t stride, uint32_t packets, uint32_t stagger)
{
    uint32_t lines = stagger % STAGGER_LINES; /* the most that it may be is charged for, this much is taken */
    uint64_t room_bytes = bytes - (STAGGER_LINES - 1 - lines) * CACHE_LINE;
    struct server_block *block = malloc(sizeof *block + room_bytes);
    if (block == NULL)
        return NULL;
    uintptr_t slots = (uintptr_t)(block + 1) + sizeof(struct server_packet);
    slots = (slots + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE + lines * CACHE_LINE;
    *block = (struct server_block){.bytes = bytes,
                                   .room_bytes = room_bytes,
                                   .slots = (uint8_t *)slots,
                                   .stride = stride,
                                   .count = packets};
    for (uint32_t i = 0; i < packets; i++) {
        struct server_packet *packet = packet_at(block, i);
        *packet = (struct server_packet){.block = block, .next = i > 0 ? packet_at(block, i - 1) : NULL};
        packet->output = (struct server_output){.frame = (uint8_t *)(packet + 1), .is_packet = true};
    }
    return block;
}

struct server_block *server_block_create(const struct core_stream_spec *spec, uint32_t packets,
                                         uint32_t stagger)
{
    return create(server_stream_buffer_bytes(spec, packets), packet_stride(spec), packets, stagger);
}

uint64_t server_blocks_bytes(const struct server_block *blocks)
{
    uint64_t bytes = 0;

    for (; blocks != NULL; blocks = blocks->next)
        bytes += blocks->bytes;
    return bytes;
}

void server_blocks_destroy(struct server_block *blocks)
{
    while (blocks != NULL) {
        struct server_block *block = blocks;
        blocks = block->next;
        core_secret_wipe(block + 1, block->room_bytes); /* of packets that were never encrypted */
        free(block);
    }
}

void server_stream_adopt(struct server_stream *stream, struct server_block *block)
{
    block->next = stream->memory.blocks;
    stream->memory.blocks = block;
    stream->memory.packets += block->count;
    packet_at(block, 0)->next = stream->memory.free; /* they are linked from the last one to the first */
    stream->memory.free = packet_at(block, block->count - 1);
}

void server_stream_retire(struct server_stream *stream)
{
    for (struct server_block *block = stream->memory.blocks; block != NULL; block = block->next)
        block->retired = true;
    stream->memory.leaving = stream->memory.busy;
    stream->memory.first = stream->queue.next_sequence;
    stream->memory.free = NULL;
    stream->memory.packets = 0;
}

struct server_block *server_stream_shed(struct server_stream *stream)
{
    struct server_block **link = &stream->memory.blocks, *block, *shed = NULL;

    while (stream->memory.leaving == 0 && (block = *link) != NULL) {
        if (!block->retired) {
            link = &block->next;
            continue;
        }
        *link = block->next;
        block->next = shed;
        shed = block;
    }
    return shed;
}

bool server_stream_sheds(const struct server_stream *stream)
{
    const struct server_block *block = stream->memory.blocks;
    while (block != NULL && !block->retired)
        block = block->next;
    return block != NULL;
}

/* ---- shared slots ---- */

core_status server_hot_slots_create(struct server_hot_slots *hot)
{
    hot->block = create(SERVER_HOT_SLOTS * HOT_STRIDE + (STAGGER_LINES + 1) * CACHE_LINE, HOT_STRIDE,
                        SERVER_HOT_SLOTS, 0);
    if (hot->block == NULL)
        return CORE_NO_MEMORY;
    for (uint32_t i = 0; i < SERVER_HOT_SLOTS; i++)
        packet_at(hot->block, i)->hot = true;
    hot->free = packet_at(hot->block, SERVER_HOT_SLOTS - 1);
    return CORE_OK;
}

void server_hot_slots_destroy(struct server_hot_slots *hot)
{
    server_blocks_destroy(hot->block);
    *hot = (struct server_hot_slots){0};
}

void server_stream_share(struct server_stream *stream, struct server_hot_slots *hot)
{
    stream->memory.hot = packet_stride(&stream->spec) <= HOT_STRIDE ? hot : NULL;
}

static struct server_packet *take_slot(struct server_stream *stream)
{
    struct server_stream_memory *memory = &stream->memory;
    struct server_packet **free = &memory->free;

    if (memory->busy - memory->leaving >= memory->packets)
        return NULL;
    if (server_stream_shares(stream) && !stream->client->lags)
        free = &memory->hot->free;
    struct server_packet *packet = *free;
    *free = packet->next;
    memory->busy++;
    return packet;
}

/* Of a packet that is all ciphertext it may be left. */
static void wipe_plaintext(struct server_packet *packet)
{
    const bool is_encrypted = packet->stream->spec.direction == CORE_DIRECTION_ENCRYPT &&
                              packet->status == PROTOCOL_RESULT_OK && packet->cpu.done_bytes > 0 &&
                              packet->cpu.done_bytes == packet->cpu.bytes &&
                              server_packet_clear_bytes(packet) == 0;
    const size_t room_bytes = HOT_STRIDE - sizeof *packet - SLOT_HEADER_BYTES;
    const size_t bytes = (size_t)packet->bytes + CORE_BLOCK_BYTES;

    if (!is_encrypted && packet->cpu.data == server_packet_payload(packet))
        core_secret_wipe(packet->output.frame + SLOT_HEADER_BYTES, bytes < room_bytes ? bytes : room_bytes);
}

static void give_slot(struct server_stream *stream, struct server_packet *packet)
{
    struct server_stream_memory *memory = &stream->memory;
    const bool leaves = memory->leaving > 0 && (int32_t)(packet->sequence - memory->first) < 0;

    memory->busy--;
    memory->leaving -= leaves ? 1 : 0;
    if (packet->hot)
        wipe_plaintext(packet);
    else if (leaves)
        return; /* its block is retired */
    struct server_packet **free = packet->hot ? &memory->hot->free : &memory->free;
    packet->next = *free;
    *free = packet;
}

/* ---- life ---- */

static uint32_t keys_of(const struct core_stream_spec *spec)
{
    return spec->unit == CORE_UNIT_MESSAGE ? SERVER_STREAM_KEYS : 1;
}

_Static_assert(SERVER_KEY_BYTES % _Alignof(struct server_mac) == 0, "what is behind the keys is aligned");

size_t server_stream_secret_bytes(const struct cpu_engine_ops *ops, const struct core_stream_spec *spec)
{
    return cpu_stream_bytes(ops, keys_of(spec)) + (size_t)SERVER_KEY_BYTES * keys_of(spec) +
           (spec->mac != CORE_MAC_NONE ? sizeof(struct server_mac) : 0);
}

static void arm_mac(struct server_stream *stream, const uint8_t id[CORE_MAC_BYTES])
{
    if (stream->spec.mac == CORE_MAC_NONE)
        return;
    stream->mac = (struct server_mac *)server_stream_key(stream, SERVER_STREAM_KEYS); /* behind the keys */
    stream->mac->number = stream->spec.first_unit;
    memcpy(stream->mac->id, id, CORE_MAC_BYTES);
    server_mac_key_set(stream, 0);
}

core_status server_stream_arm(struct server_stream *stream, const struct cpu_engine_ops *ops,
                              struct cpu_engine *engine, const struct perfmodel_cpu_task *task, core_ns in_ns,
                              const uint8_t *key, const uint8_t iv[CORE_BLOCK_BYTES],
                              const uint8_t mac_id[CORE_MAC_BYTES])
{
    const size_t secret_bytes = server_stream_secret_bytes(ops, &stream->spec);
    stream->cpu = core_secret_alloc(secret_bytes);
    if (stream->cpu == NULL)
        return CORE_NO_MEMORY;
    const struct cpu_stream_options options = {.cipher = stream->spec.cipher,
                                               .direction = stream->spec.direction,
                                               .records = stream->spec.records,
                                               .piece_bytes = task->piece_bytes,
                                               .piece_deadline_ns = task->deadline_ns};
    core_status status = cpu_stream_init(stream->cpu, ops, engine, &options, key, iv);
    if (status != CORE_OK) {
        core_secret_free(stream->cpu, secret_bytes);
        stream->cpu = NULL;
        return status;
    }
    memcpy(stream->message.iv, iv, CORE_BLOCK_BYTES);
    stream->keys.bytes = (uint8_t *)stream->cpu + cpu_stream_bytes(ops, keys_of(&stream->spec));
    stream->keys.held = 1;
    memcpy(server_stream_key(stream, 0), key, core_cipher_key_bytes(stream->spec.cipher));
    arm_mac(stream, mac_id);
    stream->in_ns = in_ns;
    server_policer_init(&stream->policer, &stream->spec, 0);
    server_pacer_init(&stream->pace, &stream->spec, task->spacing_ns);
    return CORE_OK;
}

struct server_block *server_stream_take_blocks(struct server_stream *stream)
{
    struct server_block *blocks = stream->memory.blocks;

    stream->memory.blocks = NULL;
    stream->memory.free = NULL;
    return blocks;
}

void server_stream_destroy(struct server_stream *stream, const struct cpu_engine_ops *ops)
{
    if (stream->cpu != NULL) {
        cpu_stream_wipe(stream->cpu, ops);
        core_secret_free(stream->cpu, server_stream_secret_bytes(ops, &stream->spec));
    }
    server_blocks_destroy(stream->memory.blocks);
    free(stream);
}

struct server_packet *server_stream_take(struct server_stream *stream, uint32_t sequence, uint32_t bytes,
                                         uint8_t flags)
{
    struct server_packet *packet = take_slot(stream);
    if (packet == NULL)
        return NULL;
    packet->stream = stream;
    packet->cpu.stream = stream->cpu;
    packet->next = NULL;
    packet->cpu.data = server_packet_payload(packet);
    packet->output.payload = packet->cpu.data;
    packet->cpu.done_bytes = 0;
    packet->sequence = sequence;
    packet->bytes = bytes;
    packet->flags = flags & (PROTOCOL_DATA_FIRST | PROTOCOL_DATA_LAST);
    server_message_receive(stream, packet);
    packet->status = PROTOCOL_RESULT_OK;
    packet->ready = packet->policed = packet->diverted = packet->keyed = packet->sorted = packet->forged =
        packet->tagged = packet->output.counted = false;
    return packet;
}

void server_stream_give(struct server_stream *stream, struct server_packet *packet)
{
    give_slot(stream, packet);
    if (packet->keyed && --stream->keys.packets[packet->cpu.key] == 0)
        server_rekey_step(stream);
}

static void append_to_delivery(struct server_stream *stream, struct server_packet *packet)
{
    if (stream->queue.tail == NULL)
        stream->queue.head = packet;
    else
        stream->queue.tail->next = packet;
    stream->queue.tail = packet;
}

/* Polices it and sets its times. What was eligible before we read it was not held back by its contract. */
static void set_times(struct server_stream *stream, struct server_packet *packet,
                      const struct server_arrival *arrival)
{
    struct server_policer_times times = server_policer_unseen(&stream->policer, arrival->counted_ns,
                                                              arrival->counted_ns - arrival->earliest_ns);

    packet->eligible_ns = times.eligible_ns;
    packet->unseen_ns = times.unseen_ns;
    packet->deadline_ns = times.eligible_ns - times.unseen_ns + stream->spec.latency_ns;
    packet->policed = stream->early = times.eligible_ns > arrival->read_ns;
    packet->held = arrival->held;
    packet->arrival_ns = packet->policed ? arrival->counted_ns : times.eligible_ns;
}

static void pad(struct server_packet *packet)
{
    uint32_t padding = server_packet_padding_bytes(packet);
    memset(server_packet_payload(packet) + server_packet_plain_bytes(packet), (int)padding, padding);
}

bool server_stream_accept(struct server_stream *stream, struct server_packet *packet,
                          const struct server_arrival *arrival, uint64_t bytes_per_key)
{
    stream->queue.accepted++;
    set_times(stream, packet, arrival);
    packet->status = server_message_accept(stream, packet, bytes_per_key);
    packet->cpu.key = stream->keys.current;
    packet->keyed = true;
    stream->keys.packets[packet->cpu.key]++;
    append_to_delivery(stream, packet);
    if (packet->status != PROTOCOL_RESULT_OK) {
        packet->cpu.finished_ns = arrival->read_ns;
        packet->ready = true;
        return false;
    }
    stream->account.key_bytes += packet->cpu.bytes;
    server_mac_judge(packet);
    server_pattern_sort(packet);
    if (packet->cpu.data == server_packet_payload(packet))
        pad(packet);
    return true;
}

struct server_packet *server_stream_next_ready(struct server_stream *stream)
{
    struct server_packet *packet = stream->queue.head;
    if (packet == NULL || !packet->ready)
        return NULL;
    stream->queue.head = packet->next;
    if (stream->queue.head == NULL)
        stream->queue.tail = NULL;
    packet->next = NULL;
    server_pattern_restore(packet);
    server_mac_deliver(packet);
    return packet;
}

void server_stream_account_slack(struct server_stream_account *account, core_ns slack_ns, core_ns latency_ns)
{
    int class = SERVER_SLACK_CLASSES - 1;

    while (class > 1 && slack_ns < latency_ns >> (SERVER_SLACK_CLASSES - class))
        class --;
    if (slack_ns < 0)
        class = 0;
    if (++account->slack[class] != UINT32_MAX)
        return;
    for (class = 0; class < SERVER_SLACK_CLASSES; class ++)
        account->slack[class] /= 2;
}

/* A message's IV is told where nobody but the server knows it. */
static bool tells_iv(const struct server_packet *packet)
{
    return packet->status == PROTOCOL_RESULT_OK && packet->cpu.begins_unit &&
           packet->stream->spec.iv == CORE_IV_RANDOM;
}

struct protocol_result server_packet_stamp(struct server_packet *packet, core_ns now_ns, core_ns blocked_ns)
{
    struct protocol_result result = {.status = packet->status};
    uint32_t bytes = 0;

    if (packet->status == PROTOCOL_RESULT_OK) {
        core_ns waited_us = (packet->eligible_ns - packet->arrival_ns) / CORE_NS_PER_US;
        result.waited_us = waited_us > UINT32_MAX ? UINT32_MAX : (uint32_t)waited_us;
        core_ns from_ns = packet->eligible_ns - packet->unseen_ns;
        result.latency_ns = now_ns > from_ns ? now_ns - from_ns : 0;
        if (packet->policed || packet->held)
            result.flags |= PROTOCOL_RESULT_POLICED;
        if (packet->diverted && packet->stream->version >= 2)
            result.flags |= PROTOCOL_RESULT_FAULT;
        if (now_ns <= packet->deadline_ns)
            result.flags |= PROTOCOL_RESULT_MET;
        else if (packet->cpu.finished_ns <= packet->deadline_ns && blocked_ns <= packet->deadline_ns)
            result.flags |= PROTOCOL_RESULT_MET | PROTOCOL_RESULT_READER;
        bytes = packet->cpu.bytes + server_packet_clear_bytes(packet) + (packet->tagged ? CORE_MAC_BYTES : 0);
    }
    const uint32_t iv_bytes = tells_iv(packet) ? CORE_BLOCK_BYTES : 0;
    result.flags |= iv_bytes > 0 ? PROTOCOL_RESULT_HAS_IV : 0;
    protocol_result_write(packet->output.frame, packet->stream->id, packet->sequence, &result,
                          iv_bytes + bytes);
    packet->output.frame_bytes = (uint16_t)(SLOT_HEADER_BYTES + iv_bytes);
    packet->output.payload_bytes = bytes;
    return result;
}

void server_packet_keep(struct server_packet *packet)
{
    if (!server_packet_borrows(packet))
        return;
    memcpy(server_packet_payload(packet), packet->output.payload, packet->cpu.bytes);
    packet->output.payload = server_packet_payload(packet);
}

void server_packet_fill(struct server_packet *packet)
{
    uint8_t *slot = server_packet_payload(packet);

    if (packet->cpu.data == slot)
        return;
    memcpy(slot, packet->cpu.data, server_packet_plain_bytes(packet));
    packet->cpu.data = slot;
    pad(packet);
}

static const struct server_memory_ops memory_ops = {
    .create = server_block_create, .bytes = server_blocks_bytes, .destroy = server_blocks_destroy};

const struct server_planner_stream_ops server_stream_ops = {.memory = &memory_ops,
                                                            .gpu_packets = server_stream_gpu_packets,
                                                            .queue_packets = server_stream_queue_packets,
                                                            .buffer_bytes = server_stream_buffer_bytes,
                                                            .create_binding = server_gpu_binding_create,
                                                            .destroy_binding = server_gpu_binding_destroy,
                                                            .migrate = server_migration_receive};
