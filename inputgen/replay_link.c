#include "inputgen/replay_link.h"

#include "core/protocol.h"

#include <stdio.h>
#include <stdlib.h>

void inputgen_link_free(struct inputgen_link *link)
{
    millrace_disconnect(link->millrace);
    inputgen_map_free(&link->by_id);
    inputgen_map_free(&link->by_request);
    free(link->lives);
    free(link->unsent);
}

void inputgen_link_fail(struct inputgen_link *link, const char *why)
{
    if (!link->failed)
        (void)snprintf(link->failure, sizeof link->failure, "%s", why);
    link->failed = true;
}

static core_status unsent_grow(struct inputgen_link *link)
{
    size_t capacity = link->unsent_capacity ? 2 * link->unsent_capacity : 1024;
    struct inputgen_unsent *ring = malloc(capacity * sizeof *ring);
    if (!ring)
        return CORE_NO_MEMORY;
    for (size_t at = 0; at < link->unsent_count; at++)
        ring[at] = link->unsent[(link->unsent_head + at) & (link->unsent_capacity - 1)];
    free(link->unsent);
    link->unsent = ring;
    link->unsent_head = 0;
    link->unsent_capacity = capacity;
    return CORE_OK;
}

/* Of a packet that is no message nor a part of one: none. */
static unsigned flags_of(const struct inputgen_live *live, const struct inputgen_part *part)
{
    if (live->source.spec.unit != CORE_UNIT_MESSAGE)
        return 0;
    return (part->first ? MILLRACE_DATA_FIRST : 0) | (part->last ? MILLRACE_DATA_LAST : 0);
}

core_status inputgen_link_send(struct inputgen_link *link, struct inputgen_live *live,
                               const struct inputgen_part *part, const uint8_t *packet, core_ns due_ns)
{
    struct core_error error;
    const uint32_t bytes = part->bytes;
    if (link->unsent_count == link->unsent_capacity && unsent_grow(link) != CORE_OK) {
        inputgen_link_fail(link, "out of memory");
        return CORE_NO_MEMORY;
    }
    core_status status = (core_status)millrace_data_part(link->millrace, live->id, packet, bytes,
                                                         flags_of(live, part), NULL, error.text);
    if (status == CORE_FULL)
        return status;
    if (status != CORE_OK) {
        inputgen_link_fail(link, error.text);
        return status;
    }
    link->buffered_bytes += PROTOCOL_HEADER_BYTES + bytes;
    link->batch_bytes += PROTOCOL_HEADER_BYTES + bytes;
    link->unsent[(link->unsent_head + link->unsent_count++) & (link->unsent_capacity - 1)] =
        (struct inputgen_unsent){link->buffered_bytes, due_ns, live};
    return CORE_OK;
}

void inputgen_link_control(struct inputgen_link *link, size_t before)
{
    size_t bytes = millrace_unsent_bytes(link->millrace) - before;
    link->buffered_bytes += bytes;
    link->batch_bytes += bytes;
}

void inputgen_link_flush(struct inputgen_link *link, struct core_histogram *lateness)
{
    struct core_error error;
    if (link->failed || (link->unsent_count == 0 && millrace_unsent_bytes(link->millrace) == 0))
        return;
    link->batch_bytes = 0;
    core_status status = (core_status)millrace_flush(link->millrace, error.text);
    if (status != CORE_OK && status != CORE_AGAIN) {
        inputgen_link_fail(link, error.text);
        return;
    }
    core_ns now_ns = core_time_now_ns();
    const uint64_t left = millrace_unsent_bytes(link->millrace); /* of a pool also what it sends again */
    const uint64_t taken = link->buffered_bytes > left ? link->buffered_bytes - left : 0;
    while (link->unsent_count > 0 && link->unsent[link->unsent_head].end <= taken) {
        const struct inputgen_unsent *packet = &link->unsent[link->unsent_head];
        core_ns late_ns = now_ns - packet->due_ns;
        core_histogram_record(lateness, late_ns);
        if (late_ns > packet->live->sent_late_ns)
            packet->live->sent_late_ns = late_ns;
        link->unsent_head = (link->unsent_head + 1) & (link->unsent_capacity - 1);
        link->unsent_count--;
    }
}
