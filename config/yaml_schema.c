/* The document against its schema: what people get wrong is found here, with the right line and a hint. */
#include "config/yaml.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct walk {
    const struct config_yaml *yaml;
    struct core_error *error;
    char path[96]; /* of the value being checked */
};

static core_status invalid(const struct walk *walk, const yaml_node_t *node, const char *text)
{
    return core_error_set(walk->error, CORE_INVALID, "%s:%zu: %s%s%s", walk->yaml->name,
                          node->start_mark.line + 1, walk->path, walk->path[0] ? ": " : "", text);
}

static core_status value_check(struct walk *walk, const cyaml_schema_value_t *schema,
                               const yaml_node_t *node);

/* The value of a scalar, or NULL if it is none or says nothing. */
static const char *scalar_text(const yaml_node_t *node)
{
    if (node->type != YAML_SCALAR_NODE)
        return NULL;
    const char *text = (const char *)node->data.scalar.value;
    if (node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
        (strcmp(text, "~") == 0 || strcmp(text, "null") == 0))
        return NULL;
    return text[0] ? text : NULL;
}

/* For CYAML_INT of 8 bytes and CYAML_UINT of any size; what needs the 64th bit is refused. */
static core_status integer_check(const struct walk *walk, const cyaml_schema_value_t *schema,
                                 const yaml_node_t *node)
{
    const char *text = scalar_text(node);
    const bool is_unsigned = schema->type == CYAML_UINT;
    const bool is_whole = schema->data_size == sizeof(int64_t);
    const long long highest = is_whole ? INT64_MAX : (1LL << (8 * schema->data_size)) - 1;
    long long value = 0;
    char *end = NULL;

    errno = 0;
    if (text && strchr("+-0123456789", text[0]))
        value = strtoll(text, &end, 0); /* base 0, as libcyaml: 0660 is octal */
    if (!end || *end || end == text)
        return invalid(walk, node,
                       "is not a whole number; give one without a fraction, or with a unit where the key "
                       "names one (hello_ms: 5s)");
    if (is_unsigned && value < 0)
        return invalid(walk, node, "must not be negative");
    if (errno == ERANGE || value > highest)
        return invalid(walk, node, "is too large a number");
    return CORE_OK;
}

static core_status float_check(const struct walk *walk, const yaml_node_t *node)
{
    const char *text = scalar_text(node);
    char *end = NULL;
    double value = 0;

    if (text && text[strspn(text, "+-.0123456789eE")] == '\0')
        value = strtod(text, &end);
    if (!end || *end || end == text)
        return invalid(walk, node,
                       "is not a number; give one such as 3.1, or with a unit where the key names one "
                       "(duration_s: 1min)");
    if (!isfinite(value))
        return invalid(walk, node, "is too large a number");
    return CORE_OK;
}

static core_status enum_check(const struct walk *walk, const cyaml_schema_value_t *schema,
                              const yaml_node_t *node)
{
    const char *text = scalar_text(node);
    char hint[200] = "is none of: ";

    for (uint32_t i = 0; i < schema->enumeration.count; i++) {
        const char *name = schema->enumeration.strings[i].str;
        if (text && strcmp(text, name) == 0)
            return CORE_OK;
        const size_t length = strlen(hint);
        snprintf(hint + length, sizeof hint - length, "%s%s", i ? ", " : "", name);
    }
    return invalid(walk, node, hint);
}

static core_status string_check(const struct walk *walk, const cyaml_schema_value_t *schema,
                                const yaml_node_t *node)
{
    char hint[80];
    const char *text = scalar_text(node);

    if (!text)
        return invalid(walk, node,
                       node->type == YAML_SCALAR_NODE ? "has no value; give one or leave the key out"
                                                      : "must be a single text");
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            return invalid(walk, node, "contains a control character or line break; remove it");
    if (strlen(text) > schema->string.max) {
        snprintf(hint, sizeof hint, "is too long; at most %u bytes", (unsigned)schema->string.max);
        return invalid(walk, node, hint);
    }
    return CORE_OK;
}

static core_status sequence_check(struct walk *walk, const cyaml_schema_value_t *schema,
                                  const yaml_node_t *node)
{
    const size_t length = strlen(walk->path);
    core_status status = CORE_OK;
    char hint[80];

    if (node->type != YAML_SEQUENCE_NODE)
        return invalid(walk, node, "must be a list; start each entry with '- '");
    const size_t count = (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);
    if (count < schema->sequence.min || count > schema->sequence.max) {
        snprintf(hint, sizeof hint, "has %zu entries; give %u to %u", count, (unsigned)schema->sequence.min,
                 (unsigned)schema->sequence.max);
        return invalid(walk, node, hint);
    }
    for (size_t i = 0; i < count && status == CORE_OK; i++) {
        snprintf(walk->path + length, sizeof walk->path - length, "[%zu]", i);
        status = value_check(walk, schema->sequence.entry,
                             config_yaml_node(walk->yaml, node->data.sequence.items.start[i]));
    }
    walk->path[length] = '\0';
    return status;
}

static core_status unknown_key(const struct walk *walk, const cyaml_schema_field_t *fields,
                               const yaml_node_t *key)
{
    char hint[400];

    if (key->type != YAML_SCALAR_NODE)
        return invalid(walk, key, "a key must be a plain word");
    snprintf(hint, sizeof hint, "unknown key '%.40s'; known here: ", (const char *)key->data.scalar.value);
    for (const cyaml_schema_field_t *field = fields; field->key; field++) {
        const size_t length = strlen(hint);
        snprintf(hint + length, sizeof hint - length, "%s%s", field == fields ? "" : ", ", field->key);
    }
    return invalid(walk, key, hint);
}

static core_status pair_check(struct walk *walk, const cyaml_schema_field_t *fields,
                              const yaml_node_t *mapping, const yaml_node_pair_t *pair)
{
    const yaml_node_t *key = config_yaml_node(walk->yaml, pair->key);
    const yaml_node_t *value = config_yaml_node(walk->yaml, pair->value);
    const cyaml_schema_field_t *field = fields;
    const size_t length = strlen(walk->path);

    while (field->key &&
           (key->type != YAML_SCALAR_NODE || strcmp(field->key, (const char *)key->data.scalar.value) != 0))
        field++;
    if (!field->key)
        return unknown_key(walk, fields, key);
    snprintf(walk->path + length, sizeof walk->path - length, "%s%s", length ? "." : "", field->key);
    core_status status = CORE_OK;
    if (config_yaml_find(walk->yaml, mapping, field->key, strlen(field->key), NULL) != value)
        status = invalid(walk, key, "is given twice; remove one");
    else
        status = value_check(walk, &field->value, value);
    walk->path[length] = '\0';
    return status;
}

static core_status mapping_check(struct walk *walk, const cyaml_schema_value_t *schema,
                                 const yaml_node_t *node)
{
    char hint[80];

    if (node->type != YAML_MAPPING_NODE)
        return invalid(walk, node, "must be made of 'key: value' lines");
    for (const yaml_node_pair_t *pair = node->data.mapping.pairs.start; pair < node->data.mapping.pairs.top;
         pair++) {
        const core_status status = pair_check(walk, schema->mapping.fields, node, pair);
        if (status != CORE_OK)
            return status;
    }
    for (const cyaml_schema_field_t *field = schema->mapping.fields; field->key; field++) {
        if ((field->value.flags & CYAML_FLAG_OPTIONAL) ||
            config_yaml_find(walk->yaml, node, field->key, strlen(field->key), NULL))
            continue;
        snprintf(hint, sizeof hint, "the key '%s' is missing; add it", field->key);
        return invalid(walk, node, hint);
    }
    return CORE_OK;
}

static core_status value_check(struct walk *walk, const cyaml_schema_value_t *schema, const yaml_node_t *node)
{
    switch (schema->type) {
    case CYAML_INT:
    case CYAML_UINT:
        return integer_check(walk, schema, node);
    case CYAML_FLOAT:
        return float_check(walk, node);
    case CYAML_ENUM:
        return enum_check(walk, schema, node);
    case CYAML_STRING:
        return string_check(walk, schema, node);
    case CYAML_MAPPING:
        return mapping_check(walk, schema, node);
    case CYAML_SEQUENCE:
        return sequence_check(walk, schema, node);
    default:
        return invalid(walk, node, "has a type that the schema check does not know");
    }
}

/* The schema is a mapping behind a pointer, made of integers, floats, strict enums, strings, mappings and
 * sequences, nothing else. */
static core_status check_document(const struct config_yaml *yaml, const cyaml_schema_value_t *schema,
                                  struct core_error *error)
{
    struct walk walk = {.yaml = yaml, .error = error};

    return value_check(&walk, schema, yaml_document_get_root_node((yaml_document_t *)&yaml->document));
}

/* What libcyaml logs about a failure: the reason, then a backtrace whose first place is the innermost. */
struct account {
    char reason[200];
    size_t line;
};

CORE_PRINTF(3, 0)
static void account_note(cyaml_log_t level, void *context, const char *format, va_list arguments)
{
    struct account *account = context;
    char text[200];

    (void)level;
    vsnprintf(text, sizeof text, format, arguments);
    const char *place = strstr(text, "(line: ");
    if (place && account->line == 0)
        account->line = strtoul(place + strlen("(line: "), NULL, 10);
    else if (!place && !account->reason[0] && !strstr(text, "Backtrace"))
        snprintf(account->reason, sizeof account->reason, "%.*s", (int)strcspn(text, "\n"), text);
}

static cyaml_config_t loader(struct account *account)
{
    return (cyaml_config_t){.log_fn = account ? account_note : NULL,
                            .log_ctx = account,
                            .log_level = CYAML_LOG_ERROR,
                            .mem_fn = cyaml_mem,
                            .flags = CYAML_CFG_NO_ALIAS};
}

core_status config_yaml_load(const struct config_yaml *yaml, const cyaml_schema_value_t *schema, void **raw,
                             struct core_error *error)
{
    struct account account = {.line = 0};
    const cyaml_config_t config = loader(&account);
    const core_status status = check_document(yaml, schema, error);

    if (status != CORE_OK)
        return status;
    void *loaded = NULL;
    const cyaml_err_t code =
        cyaml_load_data((const uint8_t *)yaml->text, yaml->bytes, &config, schema, &loaded, NULL);
    if (code == CYAML_ERR_OOM)
        return core_error_set(error, CORE_NO_MEMORY, "%s: out of memory", yaml->name);
    if (code != CYAML_OK || !loaded)
        return core_error_set(error, CORE_INVALID, "%s:%zu: %s", yaml->name, account.line ? account.line : 1,
                              account.reason[0] ? account.reason : cyaml_strerror(code));
    *raw = loaded;
    return CORE_OK;
}

void config_yaml_free(const cyaml_schema_value_t *schema, void *raw)
{
    const cyaml_config_t config = loader(NULL);

    if (raw)
        (void)cyaml_free(&config, schema, raw, 0);
}
