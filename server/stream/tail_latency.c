#include "server/stream/tail_latency.h"

#include "core/sequence.h"

_Static_assert(sizeof(struct server_tail_latency_packet) % sizeof(uint64_t) == 0, "whole words");
_Static_assert(SERVER_TAIL_LATENCY_WORDS <= CORE_SEQUENCE_WORDS, "a record of the sequence lock");

void server_tail_latency_init(struct server_tail_latency *worst)
{
    *worst = (struct server_tail_latency){.limit_ns = CORE_NS_NEVER};
    for (uint32_t i = 0; i < SERVER_TAIL_LATENCY_PACKETS; i++)
        worst->slack_ns[i] = CORE_NS_NEVER;
}

void server_tail_latency_enter(struct server_tail_latency *worst,
                               const struct server_tail_latency_packet *packet)
{
    uint32_t loosest = 0;

    core_sequence_write(&worst->places[worst->loosest].changes, worst->places[worst->loosest].words, packet,
                        SERVER_TAIL_LATENCY_WORDS);
    worst->slack_ns[worst->loosest] = packet->slack_ns;
    for (uint32_t i = 1; i < SERVER_TAIL_LATENCY_PACKETS; i++)
        if (worst->slack_ns[i] > worst->slack_ns[loosest])
            loosest = i;
    worst->loosest = loosest;
    worst->limit_ns = worst->slack_ns[loosest];
}

/* Puts it where it belongs, and pushes out the last one of a full list. */
static uint32_t insert(struct server_tail_latency_packet *list, uint32_t count,
                       const struct server_tail_latency_packet *packet)
{
    uint32_t at = count < SERVER_TAIL_LATENCY_PACKETS ? count : SERVER_TAIL_LATENCY_PACKETS - 1;

    if (count == SERVER_TAIL_LATENCY_PACKETS && packet->slack_ns >= list[at].slack_ns)
        return count;
    for (; at > 0 && packet->slack_ns < list[at - 1].slack_ns; at--)
        list[at] = list[at - 1];
    list[at] = *packet;
    return count < SERVER_TAIL_LATENCY_PACKETS ? count + 1 : count;
}

uint32_t server_tail_latency_join(const struct server_tail_latency *worst,
                                  struct server_tail_latency_packet *list, uint32_t count)
{
    struct server_tail_latency_packet packet;

    for (uint32_t i = 0; i < SERVER_TAIL_LATENCY_PACKETS; i++)
        if (core_sequence_read(&worst->places[i].changes, worst->places[i].words, &packet,
                               SERVER_TAIL_LATENCY_WORDS))
            count = insert(list, count, &packet);
    return count;
}
