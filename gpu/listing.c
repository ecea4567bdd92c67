#include "gpu/listing.h"

#include "gpu/ask.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LIST_NS (30 * CORE_NS_PER_S)

/* ---- lines ---- */

enum { INDEX, NAME, BYTES, SMS, ENGINES, DRIVER, UUID, PCI, FIELDS };

struct field {
    const char *text;
    size_t bytes;
};

/* False: the line has fewer, or more. */
static bool fields_find(const char *line, struct field *fields)
{
    const size_t bytes = strcspn(line, "\n");
    for (size_t i = 0, at = 0; i < FIELDS; i++) {
        fields[i].text = line + at;
        fields[i].bytes = strcspn(fields[i].text, "\t\n");
        at += fields[i].bytes + 1;
        if ((i < FIELDS - 1) != (at <= bytes))
            return false;
    }
    return true;
}

/* "N WORD"; false: it is not so, or N is 0 or beyond `most`. */
static bool number_read(const struct field *field, const char *word, uint64_t most, uint64_t *value)
{
    char *end;
    if (*field->text < '0' || *field->text > '9')
        return false;
    errno = 0;
    *value = strtoull(field->text, &end, 10);
    const size_t left = field->bytes - (size_t)(end - field->text);
    return errno == 0 && *value <= most && left == strlen(word) && memcmp(end, word, left) == 0;
}

/* False: it is too long. */
static bool text_read(const struct field *field, char *to, size_t size)
{
    if (field->bytes >= size)
        return false;
    memcpy(to, field->text, field->bytes);
    to[field->bytes] = '\0';
    return true;
}

bool gpu_listing_parse(const char *line, struct gpu_listed *card)
{
    static const char driver[] = "driver ";
    struct field fields[FIELDS];
    struct gpu_device_facts *facts = &card->facts;
    uint64_t index, bytes, sms, engines;

    memset(card, 0, sizeof *card);
    if (!fields_find(line, fields) || fields[NAME].bytes == 0 ||
        !number_read(&fields[INDEX], "", GPU_LISTING_INDEX_MAX, &index) ||
        !number_read(&fields[BYTES], " bytes", UINT64_MAX, &bytes) || bytes == 0 ||
        !number_read(&fields[SMS], " SMs", UINT32_MAX, &sms) || sms == 0 ||
        !number_read(&fields[ENGINES], " copy engines", UINT32_MAX, &engines) || engines == 0 ||
        fields[DRIVER].bytes < sizeof driver - 1 ||
        memcmp(fields[DRIVER].text, driver, sizeof driver - 1) != 0)
        return false;
    fields[DRIVER].text += sizeof driver - 1;
    fields[DRIVER].bytes -= sizeof driver - 1;
    card->index = (uint32_t)index;
    facts->memory_bytes = bytes;
    facts->sms = (uint32_t)sms;
    facts->copy_engines = (uint32_t)engines;
    return text_read(&fields[NAME], facts->name, sizeof facts->name) &&
           text_read(&fields[DRIVER], facts->driver, sizeof facts->driver) &&
           text_read(&fields[UUID], facts->uuid, sizeof facts->uuid) &&
           text_read(&fields[PCI], facts->pci, sizeof facts->pci);
}

void gpu_listing_print(const struct gpu_listed *card, FILE *to)
{
    const struct gpu_device_facts *facts = &card->facts;
    fprintf(to, "%u\t%s\t%llu bytes\t%u SMs\t%u copy engines\tdriver %s\t%s\t%s\n", card->index, facts->name,
            (unsigned long long)facts->memory_bytes, facts->sms, facts->copy_engines, facts->driver,
            facts->uuid, facts->pci);
}

/* ---- the program ---- */

static uint32_t cards_read(const char *text, struct gpu_listed *cards)
{
    uint32_t count = 0;
    for (const char *line = text, *end; *line != '\0'; line = *end == '\0' ? end : end + 1) {
        end = strchrnul(line, '\n');
        count += count < GPU_LISTING_MAX && gpu_listing_parse(line, &cards[count]);
    }
    return count;
}

core_status gpu_listing_run(const char *program, const char *backend, const char *visible,
                            struct gpu_listed *cards, uint32_t *count, struct core_error *why,
                            struct core_error *error)
{
    char *const arguments[] = {"millrace-gpu", "--list", "--backend", (char *)backend, NULL};
    const struct gpu_question question = {
        .program = program, .arguments = arguments, .visible = visible, .limit_ns = LIST_NS};
    char *answer;
    int bytes = 0;

    const core_status status = gpu_ask(&question, &answer, error);
    *count = status == CORE_OK ? cards_read(answer, cards) : 0;
    if (status == CORE_OK && *count == 0) {
        const char *words = gpu_ask_words(answer, &bytes);
        (void)core_error_set(why, CORE_NOT_FOUND, "%s --list: %.*s", program, words != NULL ? bytes : 13,
                             words != NULL ? words : "shows no card");
    }
    free(answer);
    return status;
}
