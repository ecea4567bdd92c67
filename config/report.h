/* Complaints about values, the first of which counts: "file:line: path: what, and what to do".
 *
 * A check runs through all its rules and reports what it does not like; report->status and report->error then
 * tell about the first problem. Private to this folder. */
#ifndef MILLRACE_CONFIG_REPORT_H
#define MILLRACE_CONFIG_REPORT_H

#include "config/yaml.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

struct config_report {
    const struct config_yaml *yaml; /* NULL: the values did not come from a file; only the path is told */
    struct core_error *error;       /* may be NULL */
    core_status status;             /* CORE_OK until the first problem */
};

/* A path put together: config_path("classes[%zu].weight", i).text */
struct config_path {
    char text[96];
};
struct config_path config_path(const char *format, ...) CORE_PRINTF(1, 2);

/* Notes a problem, unless there is one already. */
void config_report_invalid(struct config_report *report, const char *path, const char *format, ...)
    CORE_PRINTF(3, 4);
void config_report_no_memory(struct config_report *report);

/* Reports a value outside [low, high]. */
void config_report_range(struct config_report *report, const char *path, int64_t value, int64_t low,
                         int64_t high);

/* The given value; the fallback where the key is absent, or the value out of range and reported (so that
 * what is computed from it meanwhile can not overflow). */
int64_t config_report_integer(struct config_report *report, const char *path, const int64_t *given,
                              int64_t fallback, int64_t low, int64_t high);

/* The same for floating point; infinities and NaN are outside every range. */
double config_report_number(struct config_report *report, const char *path, const double *given,
                            double fallback, double low, double high);

#endif
