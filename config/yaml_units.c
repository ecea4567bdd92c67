#include "config/yaml_units.h"

#include "core/value.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum quantity { DURATION, BYTES, RATE };

struct unit {
    const char *ending; /* of a key */
    enum quantity quantity;
    int64_t size; /* in ns, bytes, bit/s */
};

/* The first that fits counts. */
static const struct unit units[] = {
    {"bytes_per_key", BYTES, 1},  {"_mbit_per_s", RATE, 1000000}, {"_per_s", RATE, 0},
    {"_ns", DURATION, 1},         {"_us", DURATION, 1000},        {"_ms", DURATION, 1000000},
    {"_s", DURATION, 1000000000}, {"_bytes", BYTES, 1},           {"_kib", BYTES, 1024},
    {"_mib", BYTES, 1048576},
};

/* Copies the text from front to back, with other numbers in it. */
struct rewriting {
    const struct config_yaml *yaml;
    FILE *out;
    size_t byte, character; /* up to here it is copied; libyaml counts characters */
    bool changed;
};

static const struct unit *unit_of(const yaml_node_t *key, const struct unit *inherited)
{
    if (key->type != YAML_SCALAR_NODE)
        return inherited;
    const char *name = (const char *)key->data.scalar.value;
    const size_t length = strlen(name);

    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        const size_t ending = strlen(units[i].ending);
        if (length >= ending && strcmp(name + length - ending, units[i].ending) == 0)
            return units[i].size > 0 ? &units[i] : NULL;
    }
    return inherited;
}

static char *number_format(double value, char text[CORE_TEXT_BYTES])
{
    snprintf(text, CORE_TEXT_BYTES, "%.17g", value);
    return text;
}

/* Whole multiples of the unit stay exact. */
static char *quotient_format(int64_t value, int64_t size, char text[CORE_TEXT_BYTES])
{
    if (value % size != 0)
        return number_format((double)value / (double)size, text);
    snprintf(text, CORE_TEXT_BYTES, "%" PRId64, value / size);
    return text;
}

/* NULL: no value with a unit of its own. */
static char *convert(const char *value, const struct unit *unit, char text[CORE_TEXT_BYTES])
{
    core_ns time_ns;
    uint64_t bytes;
    double bits_per_s;

    if (value[0] == '\0' || strchr("0123456789", value[strlen(value) - 1]))
        return NULL;
    if (unit->quantity == DURATION && core_duration_parse(value, 0, &time_ns))
        return quotient_format(time_ns, unit->size, text);
    if (unit->quantity == BYTES && core_bytes_parse(value, 1, INT64_MAX, &bytes))
        return quotient_format((int64_t)bytes, unit->size, text);
    if (unit->quantity == RATE && core_rate_parse(value, 1, &bits_per_s))
        return number_format(bits_per_s / (double)unit->size, text);
    return NULL;
}

/* The byte at which a character begins, from the place up to which it is copied. */
static size_t byte_at(const struct rewriting *rewriting, size_t character)
{
    const char *text = rewriting->yaml->text;
    size_t at = rewriting->byte;

    for (size_t i = rewriting->character; i < character && at < rewriting->yaml->bytes; i++)
        do
            at++;
        while (at < rewriting->yaml->bytes && ((unsigned char)text[at] & 0xC0U) == 0x80);
    return at;
}

static void scalar_rewrite(struct rewriting *rewriting, const yaml_node_t *node, const struct unit *unit)
{
    char number[CORE_TEXT_BYTES];
    const char *value = (const char *)node->data.scalar.value, *text = rewriting->yaml->text;
    const size_t length = node->data.scalar.length;
    const size_t quote = node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE ? 0 : 1;

    if (!unit || !convert(value, unit, number))
        return;
    const size_t at = byte_at(rewriting, node->start_mark.index), end = at + length + 2 * quote;
    if (end > rewriting->yaml->bytes || memcmp(text + at + quote, value, length) != 0)
        return; /* in another encoding than UTF-8, or in several lines */
    fwrite(text + rewriting->byte, 1, at - rewriting->byte, rewriting->out);
    fputs(number, rewriting->out);
    rewriting->byte = end;
    rewriting->character = node->start_mark.index + (end - at); /* it is ASCII */
    rewriting->changed = true;
}

/* As deep as the document, which is not deep. */
static void node_rewrite(struct rewriting *rewriting, const yaml_node_t *node, const struct unit *unit)
{
    switch (node->type) {
    case YAML_SCALAR_NODE:
        scalar_rewrite(rewriting, node, unit);
        return;
    case YAML_SEQUENCE_NODE:
        for (yaml_node_item_t *item = node->data.sequence.items.start; item < node->data.sequence.items.top;
             item++)
            node_rewrite(rewriting, config_yaml_node(rewriting->yaml, *item), unit);
        return;
    case YAML_MAPPING_NODE:
        for (yaml_node_pair_t *pair = node->data.mapping.pairs.start; pair < node->data.mapping.pairs.top;
             pair++)
            node_rewrite(rewriting, config_yaml_node(rewriting->yaml, pair->value),
                         unit_of(config_yaml_node(rewriting->yaml, pair->key), unit));
        return;
    default:
        return;
    }
}

core_status config_yaml_units(const struct config_yaml *yaml, char **text, size_t *bytes,
                              struct core_error *error)
{
    static const char mark[] = "\xEF\xBB\xBF"; /* of UTF-8, which libyaml does not count */
    const bool marked = yaml->bytes >= 3 && memcmp(yaml->text, mark, 3) == 0;
    const yaml_node_t *root = yaml_document_get_root_node((yaml_document_t *)&yaml->document);
    char *made = NULL;
    struct rewriting rewriting = {.yaml = yaml, .out = open_memstream(&made, bytes), .byte = 0};

    *text = NULL;
    if (!rewriting.out)
        return core_error_set(error, CORE_NO_MEMORY, "%s: out of memory", yaml->name);
    if (marked)
        rewriting.byte = fwrite(mark, 1, 3, rewriting.out);
    if (root)
        node_rewrite(&rewriting, root, NULL);
    fwrite(yaml->text + rewriting.byte, 1, yaml->bytes - rewriting.byte, rewriting.out);
    const bool failed = ferror(rewriting.out) != 0;
    if (fclose(rewriting.out) != 0 || failed) {
        free(made);
        return core_error_set(error, CORE_NO_MEMORY, "%s: out of memory", yaml->name);
    }
    if (rewriting.changed)
        *text = made;
    else
        free(made);
    return CORE_OK;
}
