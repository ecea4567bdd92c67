#include "server/planner/turns.h"

#include <stddef.h>

static struct server_turns_peer *peer_of(struct server_asker *asker)
{
    return asker->peer != NULL ? asker->peer : &asker->alone;
}

static void queue_peer(struct server_turns *turns, enum server_turns_line line,
                       struct server_turns_peer *peer)
{
    peer->next[line] = NULL;
    if (turns->first[line] == NULL)
        turns->first[line] = peer;
    else
        turns->last[line]->next[line] = peer;
    turns->last[line] = peer;
}

static void queue_asker(struct server_turns_peer *peer, enum server_turns_line line,
                        struct server_asker *asker)
{
    asker->next[line] = NULL;
    if (peer->first[line] == NULL)
        peer->first[line] = asker;
    else
        peer->last[line]->next[line] = asker;
    peer->last[line] = asker;
}

void server_turns_add(struct server_turns *turns, enum server_turns_line line, struct server_asker *asker,
                      struct server_message *message)
{
    struct server_turns_peer *peer = peer_of(asker);

    message->next = NULL;
    if (asker->first[line] != NULL) {
        asker->last[line]->next = message;
        asker->last[line] = message;
        return;
    }
    asker->first[line] = asker->last[line] = message;
    if (peer->first[line] == NULL)
        queue_peer(turns, line, peer);
    queue_asker(peer, line, asker);
}

/* Nothing of the asker, nor of its peer, is touched afterwards if this was its last request: answered, both
 * may be freed. */
struct server_message *server_turns_take(struct server_turns *turns)
{
    enum server_turns_line line =
        turns->first[SERVER_TURNS_DECIDE] != NULL ? SERVER_TURNS_DECIDE : SERVER_TURNS_EXPLAIN;
    struct server_turns_peer *peer = turns->first[line];

    if (peer == NULL)
        return NULL;
    struct server_asker *asker = peer->first[line];
    struct server_message *message = asker->first[line];
    turns->first[line] = peer->next[line];
    peer->first[line] = asker->next[line];
    asker->first[line] = message->next;
    if (message->next != NULL)
        queue_asker(peer, line, asker);
    if (peer->first[line] != NULL)
        queue_peer(turns, line, peer);
    return message;
}

bool server_turns_wait(const struct server_turns *turns)
{
    return turns->first[SERVER_TURNS_DECIDE] != NULL || turns->first[SERVER_TURNS_EXPLAIN] != NULL;
}

bool server_turns_others(const struct server_turns *turns, const struct server_asker *asker)
{
    const struct server_turns_peer *peer = turns->first[SERVER_TURNS_DECIDE];
    if (peer == NULL)
        return false;
    const struct server_asker *first = peer->first[SERVER_TURNS_DECIDE];
    return first != asker || first->next[SERVER_TURNS_DECIDE] != NULL ||
           peer->next[SERVER_TURNS_DECIDE] != NULL;
}
