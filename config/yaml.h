/* One YAML document: read, checked against a libcyaml schema, loaded into structs, and kept so that every
 * later complaint about a value can name its line. Private to this folder.
 *
 * Places in a document are written as paths: "limits.packet_bytes", "listeners[2].address".
 *
 * libcyaml alone is not strict enough for people: it takes "12abc" for 12, reports an unknown key at the line
 * of the key before it, and does not look past the first document. So the schema is first checked here, on
 * the tree that libyaml builds; libcyaml then does the loading, and whatever it still refuses is reported
 * from its log. Aliases, second documents, NUL characters, nesting beyond 32 and more than a million events
 * are refused: none has a use in these files. Values with units are numbers by then (config/yaml_units.h). */
#ifndef MILLRACE_CONFIG_YAML_H
#define MILLRACE_CONFIG_YAML_H

#include "core/status.h"

#include <cyaml/cyaml.h>
#include <stddef.h>
#include <stdint.h>
#include <yaml.h>

#define CONFIG_YAML_BYTES_MAX ((size_t)16 << 20)

struct config_yaml {
    char *name; /* of the file, for messages */
    char *text;
    size_t bytes;
    yaml_document_t document;
};

/* The document in a file, or in memory under the name that messages use for it. */
CORE_CHECKED core_status config_yaml_open(const char *path, struct config_yaml **yaml,
                                          struct core_error *error);
CORE_CHECKED core_status config_yaml_parse(const char *text, size_t bytes, const char *name,
                                           struct config_yaml **yaml, struct core_error *error);
void config_yaml_close(struct config_yaml *yaml); /* NULL is fine */

/* Checks and loads. *raw is never NULL on success and goes back through config_yaml_free; a pointer in it is
 * NULL where an optional key is absent. */
CORE_CHECKED core_status config_yaml_load(const struct config_yaml *yaml, const cyaml_schema_value_t *schema,
                                          void **raw, struct core_error *error);
void config_yaml_free(const cyaml_schema_value_t *schema, void *raw); /* NULL is fine */

/* The line (from 1) of the key or entry at the path; that of its nearest ancestor if it is absent. */
size_t config_yaml_line(const struct config_yaml *yaml, const char *path);

/* The value of a key in a mapping node, NULL if absent; its key node in *key (may be NULL). */
yaml_node_t *config_yaml_find(const struct config_yaml *yaml, const yaml_node_t *mapping, const char *name,
                              size_t name_bytes, yaml_node_t **key);
yaml_node_t *config_yaml_node(const struct config_yaml *yaml, int index); /* by libyaml's number */

#endif
