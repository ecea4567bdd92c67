/* Any text as a line of `millrace-gpu --list`: what is read as a card could be one, and the line that we would
 * write of it reads as the same card. */
#include "gpu/listing.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_card(const struct gpu_listed *card)
{
    const struct gpu_device_facts *facts = &card->facts;
    struct gpu_listed again;
    char *line = NULL;
    size_t bytes;
    if (card->index > GPU_LISTING_INDEX_MAX || facts->name[0] == '\0' || facts->memory_bytes == 0 ||
        facts->sms == 0 || facts->copy_engines == 0)
        abort();
    FILE *file = open_memstream(&line, &bytes);
    if (file == NULL)
        abort();
    gpu_listing_print(card, file);
    if (fclose(file) != 0 || !gpu_listing_parse(line, &again) || memcmp(card, &again, sizeof again) != 0)
        abort();
    free(line);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gpu_listed card;
    char *text = malloc(size + 1); /* of its own: what is read behind its end is seen */
    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (gpu_listing_parse(text, &card))
        check_card(&card);
    free(text);
    return 0;
}
