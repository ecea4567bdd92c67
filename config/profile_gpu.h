/* The GPU part of a profile: schema, checks, copies, YAML. Private to this folder. */
#ifndef MILLRACE_CONFIG_PROFILE_GPU_H
#define MILLRACE_CONFIG_PROFILE_GPU_H

#include "config/profile.h"
#include "config/report.h"

#include <cyaml/cyaml.h>
#include <stdio.h>

#define CONFIG_PROFILE_TEXT_BYTES_MAX 1024 /* of a name or description */

extern const cyaml_schema_value_t config_profile_gpu_schema; /* of struct config_profile_gpu */

/* Only what the saved file can carry: YAML admits printable characters of UTF-8. In profile.c. */
void config_profile_text_check(struct config_report *report, const char *path, const char *text);

/* pinned_bytes, and every kind of card. */
void config_profile_gpus_check(struct config_report *report, const struct config_profile *profile);

/* Replaces copy->gpus and copy->gpu_count, which are taken for another's, by copies of the profile's. On
 * failure they hold what was copied, to be freed. */
CORE_CHECKED core_status config_profile_gpus_copy(const struct config_profile *profile,
                                                  struct config_profile *copy);
void config_profile_gpus_free(struct config_profile *profile); /* without GPUs: nothing */

/* workers, pinned_bytes and gpus as YAML. In profile_save_gpu.c. */
void config_profile_gpus_write(FILE *file, const struct config_profile *profile);

/* One line: the key, and the text in double quotes, so that it can not be taken for anything else. In
 * profile_save.c. */
void config_profile_text_write(FILE *file, const char *key, const char *text);

#endif
