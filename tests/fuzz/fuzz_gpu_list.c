/* Any text as the output of `millrace-gpu --list`: the server is told of cards whose index and name could be
 * there, each from a line of its own, and reads the same cards from a list that says just these. */
#include "config/server.h"
#include "server/gpu/gpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct list {
    FILE *file;
    unsigned cards;
};

static void write_card(void *argument, unsigned index, const char *name)
{
    struct list *list = argument;
    if (index > CONFIG_GPUS_INDEX_MAX || name[0] == '\0' || strpbrk(name, "\t\n") != NULL)
        abort();
    list->cards++;
    fprintf(list->file, "%u\t%s\n", index, name);
}

/* The cards in `text` as a list of their own, to be freed. */
static char *rewritten(const char *text, unsigned *cards)
{
    char *written = NULL;
    size_t bytes;
    struct list list = {.file = open_memstream(&written, &bytes)};
    if (list.file == NULL)
        abort();
    server_gpus_parse(text, write_card, &list);
    if (fclose(list.file) != 0)
        abort();
    *cards = list.cards;
    return written;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned cards, cards_again, lines = 1;
    char *text = malloc(size + 1); /* of its own: what is read behind its end is seen */
    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++)
        lines++;
    char *once = rewritten(text, &cards), *again = rewritten(once, &cards_again);
    if (cards > lines || cards != cards_again || strcmp(once, again) != 0)
        abort();
    free(text);
    free(once);
    free(again);
    return 0;
}
