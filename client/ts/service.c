#include "client/ts/service.h"

#include "client/ts/sockets.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEADER_BYTES   128 /* room for what RTP has around the packets, and for none of them */
#define KEPT_NS        (250 * CORE_NS_PER_MS) /* of datagrams, beside those of the bound */
#define SLOTS_MAX      (UINT32_C(1) << 15)
#define BLOCKED_NS     (500 * CORE_NS_PER_US) /* until a socket that was full is tried again */
#define HOLD(bound_ns) ((bound_ns) / 8 * 7)   /* the rest is for the timer, and the sockets */

_Static_assert(HEADER_BYTES < TS_PACKET_BYTES, "a packet beyond datagram_bytes does not fit a room");

static struct ts_slot *slot_at(const struct ts_service *service, uint32_t number)
{
    return &service->slots[number & (service->slot_count - 1)];
}

static uint8_t *room_at(const struct ts_service *service, uint32_t number)
{
    return service->rooms + (number & (service->slot_count - 1)) * service->room_bytes;
}

/* ---- what comes ---- */

static void tell_invalid(struct ts_service *service, const uint8_t *bytes)
{
    service->counts.invalid++;
    if (!service->told_invalid)
        service->stream.link->say("%s: datagrams that are no transport stream in clear, or of more than %u "
                                  "bytes, are dropped: the first one begins with %02x %02x %02x %02x",
                                  service->config->name, (unsigned)service->config->datagram_bytes, bytes[0],
                                  bytes[1], bytes[2], bytes[3]);
    service->told_invalid = true;
}

static void take(struct ts_service *service, uint32_t number, const struct ts_arrival *arrival)
{
    struct ts_slot *slot = slot_at(service, number);
    uint8_t *bytes = room_at(service, number);
    struct ts_datagram datagram;
    *slot = (struct ts_slot){.state = TS_SLOT_DROPPED, .in_ns = arrival->in_ns};
    if (arrival->bytes == SIZE_MAX || !ts_datagram_read(bytes, arrival->bytes, &datagram)) {
        tell_invalid(service, bytes);
        return;
    }
    ts_tables_read(&service->tables, bytes + datagram.offset, datagram.bytes);
    if (!service->tables.complete) {
        service->counts.early++;
        return;
    }
    if (!ts_stream_takes(&service->stream, arrival->in_ns)) {
        service->counts.away++;
        return;
    }
    slot->state = TS_SLOT_WAITING;
    slot->has_pcr = datagram.has_pcr;
    slot->bytes = (uint32_t)arrival->bytes;
    slot->offset = (uint32_t)datagram.offset;
    slot->packet_bytes = (uint32_t)datagram.bytes;
}

/* A datagram at the end of the ring, which is full: nobody will miss the newest one more than an older one. */
static unsigned receive_excess(struct ts_service *service, core_ns offset_ns)
{
    static uint8_t bytes[HEADER_BYTES];
    const struct iovec room = {.iov_base = bytes, .iov_len = sizeof bytes};
    struct ts_arrival arrival;
    unsigned count =
        ts_socket_receive(service->input, &room, 1, offset_ns, &arrival, &service->counts.overflow);
    service->counts.excess += count;
    return count;
}

static unsigned receive_batch(struct ts_service *service, core_ns offset_ns)
{
    struct iovec rooms[TS_BATCH];
    struct ts_arrival arrivals[TS_BATCH];
    uint32_t space = service->slot_count - (service->tail - service->head);
    unsigned count = space < TS_BATCH ? space : TS_BATCH;
    if (count == 0)
        return receive_excess(service, offset_ns);
    for (unsigned i = 0; i < count; i++)
        rooms[i] =
            (struct iovec){.iov_base = room_at(service, service->tail + i), .iov_len = service->room_bytes};
    count = ts_socket_receive(service->input, rooms, count, offset_ns, arrivals, &service->counts.overflow);
    for (unsigned i = 0; i < count; i++)
        take(service, service->tail++, &arrivals[i]);
    return count;
}

/* Not for ever, however much there is: the ring is full at last. */
void ts_service_receive(struct ts_service *service, core_ns offset_ns)
{
    unsigned count;
    do {
        count = receive_batch(service, offset_ns);
        ts_service_push(service);
    } while (count == TS_BATCH);
}

void ts_service_push(struct ts_service *service)
{
    for (; service->sent != service->tail; service->sent++) {
        struct ts_slot *slot = slot_at(service, service->sent);
        if (slot->state != TS_SLOT_WAITING)
            continue;
        core_status status = ts_stream_send(&service->stream, room_at(service, service->sent) + slot->offset,
                                            slot->packet_bytes, service->tables.clear, slot->in_ns);
        if (status == CORE_AGAIN)
            return;
        slot->state = status == CORE_OK ? TS_SLOT_SENT : TS_SLOT_DROPPED;
        service->counts.away += status != CORE_OK;
    }
}

/* ---- what comes back ---- */

void ts_service_done(void *owner, const uint8_t *packets, size_t bytes)
{
    struct ts_service *service = owner;
    while (service->answered != service->sent && slot_at(service, service->answered)->state != TS_SLOT_SENT)
        service->answered++;
    if (service->answered == service->sent)
        return;
    struct ts_slot *slot = slot_at(service, service->answered);
    bool is_whole = packets != NULL && bytes == slot->packet_bytes;
    slot->state = is_whole ? TS_SLOT_READY : TS_SLOT_DROPPED;
    service->counts.refused += !is_whole;
    if (is_whole)
        memcpy(room_at(service, service->answered) + slot->offset, packets, bytes);
    service->answered++;
}

void ts_service_lost(void *owner)
{
    struct ts_service *service = owner;
    for (; service->answered != service->sent; service->answered++) {
        struct ts_slot *slot = slot_at(service, service->answered);
        if (slot->state != TS_SLOT_SENT)
            continue;
        slot->state = TS_SLOT_DROPPED;
        service->counts.away++;
    }
}

/* ---- what goes ---- */

static void skip_dropped(struct ts_service *service)
{
    while (service->head != service->tail && slot_at(service, service->head)->state == TS_SLOT_DROPPED) {
        service->answered += service->answered == service->head;
        service->sent += service->sent == service->head;
        service->head++;
    }
}

static void count_sent(struct ts_service *service, const struct ts_slot *slot, core_ns out_ns)
{
    core_ns delay_ns = out_ns - slot->in_ns;
    core_histogram_record(&service->delay, delay_ns);
    if (slot->has_pcr)
        core_histogram_record(&service->pcr_delay, delay_ns);
    service->counts.late += delay_ns > service->config->bound_ns;
    service->counts.datagrams++;
    service->counts.packets += slot->packet_bytes / TS_PACKET_BYTES;
    service->counts.bytes += slot->packet_bytes;
}

/* Those that are ready, one behind the other, and due; *due_ns is that of the first one which is not yet. */
static unsigned gather(const struct ts_service *service, core_ns now_ns, struct iovec datagrams[TS_BATCH],
                       core_ns *due_ns)
{
    core_ns hold_ns = service->config->hold ? HOLD(service->config->bound_ns) : 0;
    unsigned count = 0;
    *due_ns = CORE_NS_NEVER;
    for (; count < TS_BATCH && service->head + count != service->tail; count++) {
        const struct ts_slot *slot = slot_at(service, service->head + count);
        if (slot->state != TS_SLOT_READY)
            break;
        if (slot->in_ns + hold_ns > now_ns) {
            *due_ns = slot->in_ns + hold_ns;
            break;
        }
        datagrams[count] =
            (struct iovec){.iov_base = room_at(service, service->head + count), .iov_len = slot->bytes};
    }
    return count;
}

core_ns ts_service_release(struct ts_service *service, core_ns now_ns)
{
    struct iovec datagrams[TS_BATCH];
    core_ns due_ns;
    for (;;) {
        skip_dropped(service);
        unsigned count = gather(service, now_ns, datagrams, &due_ns);
        if (count == 0)
            return due_ns;
        unsigned sent = ts_socket_send(service->output, &service->config->output, datagrams, count);
        if (sent == 0 && (errno == EAGAIN || errno == EINTR))
            return now_ns + BLOCKED_NS;
        core_ns out_ns = core_time_now_ns();
        for (unsigned i = 0; i < sent; i++)
            count_sent(service, slot_at(service, service->head + i), out_ns);
        service->counts.unsent += sent == 0;
        for (unsigned i = 0; i < (sent > 0 ? sent : 1); i++)
            slot_at(service, service->head + i)->state = TS_SLOT_DROPPED;
    }
}

/* ---- its beginning and end ---- */

static uint32_t slots_for(const struct config_ts_service *config)
{
    double kept_s = (double)(KEPT_NS + config->jitter_ns + 2 * config->bound_ns) / 1e9;
    double wanted = kept_s * config->rate_bits_per_s / 8 / config->datagram_bytes;
    uint32_t count = 2 * TS_BATCH;
    while (count < wanted && count < SLOTS_MAX)
        count *= 2;
    return count;
}

core_status ts_service_open(struct ts_service *service, const struct config_ts_service *config,
                            struct ts_link *link, struct core_error *error)
{
    *service = (struct ts_service){.config = config, .input = -1, .output = -1};
    service->slot_count = slots_for(config);
    service->room_bytes = config->datagram_bytes + HEADER_BYTES;
    service->slots = calloc(service->slot_count, sizeof *service->slots);
    service->rooms = calloc(service->slot_count, service->room_bytes);
    core_histogram_init(&service->delay);
    core_histogram_init(&service->pcr_delay);
    service->stream = (struct ts_stream){.config = config, .owner = service};
    service->stream.words = ts_words_make(config->name, config->words_file, config->words_command, link->say);
    ts_tables_open(&service->tables, config->clear_pids, config->clear_pid_count);
    if (service->slots == NULL || service->rooms == NULL || service->stream.words == NULL ||
        ts_stream_add(link, &service->stream) != CORE_OK)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for %s", config->name);
    core_status status = ts_socket_output(config, &service->output, error);
    return status ? status : ts_socket_input(config, &service->input, error);
}

void ts_service_close(struct ts_service *service)
{
    if (service->input >= 0)
        close(service->input);
    if (service->output >= 0)
        close(service->output);
    ts_tables_close(&service->tables);
    ts_words_free(service->stream.words);
    free(service->slots);
    free(service->rooms);
}
