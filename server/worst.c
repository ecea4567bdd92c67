#include "server/worst.h"

#include <string.h>

#define LOOKS_MAX 100 /* at a place that is being written */

_Static_assert(sizeof(struct server_worst_packet) % sizeof(uint64_t) == 0, "whole words");

void server_worst_init(struct server_worst *worst)
{
    *worst = (struct server_worst){.limit_ns = CORE_NS_NEVER};
    for (uint32_t i = 0; i < SERVER_WORST_PACKETS; i++)
        worst->slack_ns[i] = CORE_NS_NEVER;
}

static void publish(struct server_worst_place *place, const struct server_worst_packet *packet)
{
    uint64_t words[SERVER_WORST_WORDS];
    uint32_t changes = atomic_load_explicit(&place->changes, memory_order_relaxed); /* one writer */

    memcpy(words, packet, sizeof words);
    atomic_store_explicit(&place->changes, changes + 1, memory_order_relaxed);
    /* release: who sees one of these words (acquire) sees the odd count, too */
    for (size_t i = 0; i < SERVER_WORST_WORDS; i++)
        atomic_store_explicit(&place->words[i], words[i], memory_order_release);
    /* release: all words before the even count */
    atomic_store_explicit(&place->changes, changes + 2, memory_order_release);
}

void server_worst_enter(struct server_worst *worst, const struct server_worst_packet *packet)
{
    uint32_t loosest = 0;

    publish(&worst->places[worst->loosest], packet);
    worst->slack_ns[worst->loosest] = packet->slack_ns;
    for (uint32_t i = 1; i < SERVER_WORST_PACKETS; i++)
        if (worst->slack_ns[i] > worst->slack_ns[loosest])
            loosest = i;
    worst->loosest = loosest;
    worst->limit_ns = worst->slack_ns[loosest];
}

static bool read_place(const struct server_worst_place *place, struct server_worst_packet *packet)
{
    uint64_t words[SERVER_WORST_WORDS];

    for (int looks = 0; looks < LOOKS_MAX; looks++) {
        /* acquire: the words are those of this count or later */
        uint32_t before = atomic_load_explicit(&place->changes, memory_order_acquire);
        if (before == 0)
            return false; /* empty */
        /* acquire: the count is looked at again after them; see the writer */
        for (size_t i = 0; i < SERVER_WORST_WORDS; i++)
            words[i] = atomic_load_explicit(&place->words[i], memory_order_acquire);
        if (before % 2 == 0 && atomic_load_explicit(&place->changes, memory_order_relaxed) == before) {
            memcpy(packet, words, sizeof *packet);
            return true;
        }
    }
    return false;
}

/* Puts it where it belongs, and pushes out the last one of a full list. */
static uint32_t insert(struct server_worst_packet *list, uint32_t count,
                       const struct server_worst_packet *packet)
{
    uint32_t at = count < SERVER_WORST_PACKETS ? count : SERVER_WORST_PACKETS - 1;

    if (count == SERVER_WORST_PACKETS && packet->slack_ns >= list[at].slack_ns)
        return count;
    for (; at > 0 && packet->slack_ns < list[at - 1].slack_ns; at--)
        list[at] = list[at - 1];
    list[at] = *packet;
    return count < SERVER_WORST_PACKETS ? count + 1 : count;
}

uint32_t server_worst_join(const struct server_worst *worst, struct server_worst_packet *list, uint32_t count)
{
    struct server_worst_packet packet;

    for (uint32_t i = 0; i < SERVER_WORST_PACKETS; i++)
        if (read_place(&worst->places[i], &packet))
            count = insert(list, count, &packet);
    return count;
}
