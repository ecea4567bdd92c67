#include "config/report.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

struct config_path config_path(const char *format, ...)
{
    struct config_path path;
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(path.text, sizeof path.text, format, arguments);
    va_end(arguments);
    return path;
}

void config_report_invalid(struct config_report *report, const char *path, const char *format, ...)
{
    char text[384];
    va_list arguments;

    if (report->status != CORE_OK)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (report->yaml)
        report->status = core_error_set(report->error, CORE_INVALID, "%s:%zu: %s: %s", report->yaml->name,
                                        config_yaml_line(report->yaml, path), path, text);
    else
        report->status = core_error_set(report->error, CORE_INVALID, "%s: %s", path, text);
}

void config_report_no_memory(struct config_report *report)
{
    if (report->status == CORE_OK)
        report->status = core_error_set(report->error, CORE_NO_MEMORY, "out of memory");
}

void config_report_range(struct config_report *report, const char *path, int64_t value, int64_t low,
                         int64_t high)
{
    if (value < low || value > high)
        config_report_invalid(report, path, "%" PRId64 " is out of range; give %" PRId64 " to %" PRId64,
                              value, low, high);
}

int64_t config_report_integer(struct config_report *report, const char *path, const int64_t *given,
                              int64_t fallback, int64_t low, int64_t high)
{
    if (!given)
        return fallback;
    config_report_range(report, path, *given, low, high);
    return *given >= low && *given <= high ? *given : fallback;
}

double config_report_number(struct config_report *report, const char *path, const double *given,
                            double fallback, double low, double high)
{
    if (!given)
        return fallback;
    if (*given >= low && *given <= high) /* not so for NaN */
        return *given;
    config_report_invalid(report, path, "%g is out of range; give %g to %g", *given, low, high);
    return fallback;
}
