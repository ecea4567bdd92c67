#include "config/yaml.h"

#include "config/file.h"
#include "config/yaml_units.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define EVENTS_MAX 1000000 /* bounds the memory of the tree */
#define DEPTH_MAX  32      /* libyaml's time grows with the square of the depth */

yaml_node_t *config_yaml_node(const struct config_yaml *yaml, int index)
{
    /* libyaml asks for a writable document but only reads it. */
    return yaml_document_get_node((yaml_document_t *)&yaml->document, index);
}

static core_status parser_problem(const struct config_yaml *yaml, const yaml_parser_t *parser,
                                  struct core_error *error)
{
    const char *problem = parser->problem ? parser->problem : "not YAML";
    size_t line = parser->problem_mark.line + 1;

    if (parser->error == YAML_MEMORY_ERROR)
        return core_error_set(error, CORE_NO_MEMORY, "%s: out of memory", yaml->name);
    if (parser->error == YAML_READER_ERROR) { /* has no mark: it is about encoding, not structure */
        line = 1;
        for (size_t i = 0; i < parser->problem_offset && i < yaml->bytes; i++)
            line += yaml->text[i] == '\n';
    }
    return core_error_set(error, CORE_INVALID, "%s:%zu: %s%s%s", yaml->name, line,
                          parser->context ? parser->context : "", parser->context ? ": " : "", problem);
}

/* What has been seen of the text. */
struct survey {
    unsigned events, documents, depth;
};

static core_status event_check(const struct config_yaml *yaml, const yaml_event_t *event,
                               struct survey *survey, struct core_error *error)
{
    const size_t line = event->start_mark.line + 1;

    if (++survey->events > EVENTS_MAX)
        return core_error_set(error, CORE_INVALID, "%s:%zu: more than %d values; split the file", yaml->name,
                              line, EVENTS_MAX);
    switch (event->type) {
    case YAML_SEQUENCE_START_EVENT:
    case YAML_MAPPING_START_EVENT:
        if (++survey->depth > DEPTH_MAX)
            return core_error_set(error, CORE_INVALID, "%s:%zu: nested more than %d deep; flatten it",
                                  yaml->name, line, DEPTH_MAX);
        return CORE_OK;
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        survey->depth--;
        return CORE_OK;
    case YAML_DOCUMENT_START_EVENT:
        if (++survey->documents > 1)
            return core_error_set(error, CORE_INVALID,
                                  "%s:%zu: a second document begins; leave one document in the file",
                                  yaml->name, line);
        return CORE_OK;
    case YAML_ALIAS_EVENT:
        return core_error_set(error, CORE_INVALID, "%s:%zu: aliases are not supported; repeat the value",
                              yaml->name, line);
    case YAML_SCALAR_EVENT:
        if (memchr(event->data.scalar.value, '\0', event->data.scalar.length))
            return core_error_set(error, CORE_INVALID, "%s:%zu: a value contains a NUL character; remove it",
                                  yaml->name, line);
        return CORE_OK;
    default:
        return CORE_OK;
    }
}

/* Goes through the events of the whole text, so that what the tree would hide is seen. */
static core_status events_check(const struct config_yaml *yaml, struct core_error *error)
{
    yaml_parser_t parser;
    core_status status = CORE_OK;
    struct survey survey = {.events = 0};
    bool more = true;

    if (!yaml_parser_initialize(&parser))
        return core_error_set(error, CORE_NO_MEMORY, "%s: out of memory", yaml->name);
    yaml_parser_set_input_string(&parser, (const unsigned char *)yaml->text, yaml->bytes);
    while (more && status == CORE_OK) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            status = parser_problem(yaml, &parser, error);
            break;
        }
        more = event.type != YAML_STREAM_END_EVENT;
        status = event_check(yaml, &event, &survey, error);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    if (status == CORE_OK && survey.documents == 0)
        status = core_error_set(error, CORE_INVALID, "%s:1: the file is empty; see the shipped examples",
                                yaml->name);
    return status;
}

static core_status tree_build(struct config_yaml *yaml, struct core_error *error)
{
    yaml_parser_t parser;
    core_status status = CORE_OK;

    if (!yaml_parser_initialize(&parser))
        return core_error_set(error, CORE_NO_MEMORY, "%s: out of memory", yaml->name);
    yaml_parser_set_input_string(&parser, (const unsigned char *)yaml->text, yaml->bytes);
    if (!yaml_parser_load(&parser, &yaml->document)) {
        status = parser_problem(yaml, &parser, error);
        memset(&yaml->document, 0, sizeof yaml->document);
    }
    yaml_parser_delete(&parser);
    return status;
}

/* From here on, every number is one of its key's unit. */
static core_status units_resolve(struct config_yaml *yaml, struct core_error *error)
{
    char *text;
    size_t bytes;
    const core_status status = config_yaml_units(yaml, &text, &bytes, error);

    if (status != CORE_OK || !text)
        return status;
    yaml_document_delete(&yaml->document);
    free(yaml->text);
    yaml->text = text;
    yaml->bytes = bytes;
    return tree_build(yaml, error);
}

/* Takes the text over, also on failure. */
static core_status document_create(char *text, size_t bytes, const char *name, struct config_yaml **yaml,
                                   struct core_error *error)
{
    core_status status = CORE_NO_MEMORY;
    struct config_yaml *made = calloc(1, sizeof *made);

    if (!made) {
        free(text);
        return core_error_set(error, status, "%s: out of memory", name);
    }
    made->text = text;
    made->bytes = bytes;
    made->name = strdup(name);
    if (!made->name)
        status = core_error_set(error, CORE_NO_MEMORY, "%s: out of memory", name);
    else
        status = events_check(made, error);
    if (status == CORE_OK)
        status = tree_build(made, error);
    if (status == CORE_OK)
        status = units_resolve(made, error);
    if (status != CORE_OK) {
        config_yaml_close(made);
        return status;
    }
    *yaml = made;
    return CORE_OK;
}

core_status config_yaml_open(const char *path, struct config_yaml **yaml, struct core_error *error)
{
    char *text;
    size_t bytes;
    const core_status status = config_file_read(path, CONFIG_YAML_BYTES_MAX, &text, &bytes, error);

    return status == CORE_OK ? document_create(text, bytes, path, yaml, error) : status;
}

core_status config_yaml_parse(const char *text, size_t bytes, const char *name, struct config_yaml **yaml,
                              struct core_error *error)
{
    if (bytes > CONFIG_YAML_BYTES_MAX)
        return core_error_set(error, CORE_INVALID, "%s:1: %zu bytes are too much; at most %zu are read", name,
                              bytes, CONFIG_YAML_BYTES_MAX);
    char *copy = malloc(bytes + 1);
    if (!copy)
        return core_error_set(error, CORE_NO_MEMORY, "%s: out of memory", name);
    if (bytes > 0)
        memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    return document_create(copy, bytes, name, yaml, error);
}

void config_yaml_close(struct config_yaml *yaml)
{
    if (!yaml)
        return;
    yaml_document_delete(&yaml->document);
    free(yaml->text);
    free(yaml->name);
    free(yaml);
}

yaml_node_t *config_yaml_find(const struct config_yaml *yaml, const yaml_node_t *mapping, const char *name,
                              size_t name_bytes, yaml_node_t **key)
{
    for (const yaml_node_pair_t *pair = mapping->data.mapping.pairs.start;
         pair < mapping->data.mapping.pairs.top; pair++) {
        yaml_node_t *node = config_yaml_node(yaml, pair->key);
        if (node->type != YAML_SCALAR_NODE || node->data.scalar.length != name_bytes ||
            memcmp(node->data.scalar.value, name, name_bytes) != 0)
            continue;
        if (key)
            *key = node;
        return config_yaml_node(yaml, pair->value);
    }
    return NULL;
}

/* One step of a path, "name" or "[n]", from *node; the line found is left in *line. False: no such place. */
static bool path_step(const struct config_yaml *yaml, const char **path, yaml_node_t **node, size_t *line)
{
    if (**path == '[') {
        char *end;
        const unsigned long n = strtoul(*path + 1, &end, 10);
        if ((*node)->type != YAML_SEQUENCE_NODE ||
            n >= (size_t)((*node)->data.sequence.items.top - (*node)->data.sequence.items.start))
            return false;
        *node = config_yaml_node(yaml, (*node)->data.sequence.items.start[n]);
        *line = (*node)->start_mark.line + 1;
        *path = end + (*end == ']');
    } else {
        const size_t length = strcspn(*path, ".[");
        yaml_node_t *key = NULL;
        if ((*node)->type != YAML_MAPPING_NODE)
            return false;
        yaml_node_t *value = config_yaml_find(yaml, *node, *path, length, &key);
        if (!value)
            return false;
        *node = value;
        *line = key->start_mark.line + 1;
        *path += length;
    }
    *path += **path == '.';
    return true;
}

size_t config_yaml_line(const struct config_yaml *yaml, const char *path)
{
    yaml_node_t *node = yaml_document_get_root_node((yaml_document_t *)&yaml->document);
    size_t line = node ? node->start_mark.line + 1 : 1;

    while (node && *path && path_step(yaml, &path, &node, &line))
        ;
    return line;
}
