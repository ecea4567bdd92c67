#include "server/turns.h"

#include <stddef.h>

static void queue(struct server_turns *turns, enum server_turns_line line, struct server_asker *asker)
{
    asker->next[line] = NULL;
    if (turns->first[line] == NULL)
        turns->first[line] = asker;
    else
        turns->last[line]->next[line] = asker;
    turns->last[line] = asker;
}

void server_turns_add(struct server_turns *turns, enum server_turns_line line, struct server_asker *asker,
                      struct server_message *message)
{
    bool waits = asker->first[line] != NULL;

    message->next = NULL;
    if (waits)
        asker->last[line]->next = message;
    else
        asker->first[line] = message;
    asker->last[line] = message;
    if (!waits)
        queue(turns, line, asker);
}

/* Nothing of the asker is touched afterwards if this was its last request: answered, it may be freed. */
struct server_message *server_turns_take(struct server_turns *turns)
{
    enum server_turns_line line =
        turns->first[SERVER_TURNS_DECIDE] != NULL ? SERVER_TURNS_DECIDE : SERVER_TURNS_EXPLAIN;
    struct server_asker *asker = turns->first[line];

    if (asker == NULL)
        return NULL;
    struct server_message *message = asker->first[line];
    turns->first[line] = asker->next[line];
    asker->first[line] = message->next;
    if (message->next != NULL)
        queue(turns, line, asker);
    return message;
}

bool server_turns_wait(const struct server_turns *turns)
{
    return turns->first[SERVER_TURNS_DECIDE] != NULL || turns->first[SERVER_TURNS_EXPLAIN] != NULL;
}

bool server_turns_others(const struct server_turns *turns, const struct server_asker *asker)
{
    const struct server_asker *first = turns->first[SERVER_TURNS_DECIDE];
    return first != NULL && (first != asker || first->next[SERVER_TURNS_DECIDE] != NULL);
}
