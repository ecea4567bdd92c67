/* Values with units. A key whose name ends with a unit takes a bare number of it, or a value with a unit of
 * its own: `hello_ms: 5000` or `hello_ms: 5s`, `packet_bytes: 64KiB`, `deadline_ms: {mean: 500us}`. Private
 * to this folder. */
#ifndef MILLRACE_CONFIG_YAML_UNITS_H
#define MILLRACE_CONFIG_YAML_UNITS_H

#include "config/yaml.h"

/* The document's text with every value that has a unit of its own turned into a number of its key's unit, on
 * the same line; what is no such value stays as it is. *text is the caller's, NULL if nothing changes.
 * CORE_NO_MEMORY. */
CORE_CHECKED core_status config_yaml_units(const struct config_yaml *yaml, char **text, size_t *bytes,
                                           struct core_error *error);

#endif
