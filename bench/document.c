#include "bench/document.h"

#include <stdio.h>

core_status bench_document_print(json_t *document, struct core_error *error)
{
    if (document == NULL)
        return core_error_set(error, CORE_INVALID, "names in a JSON document must be UTF-8");
    const int failed = json_dumpf(document, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(document);
    if (failed != 0 || fflush(stdout) != 0)
        return core_error_set(error, CORE_SYSTEM, "standard output can not be written");
    return CORE_OK;
}

json_t *bench_document_samples(struct bench_samples *samples)
{
    static const char *const names[] = {"min", "q1", "median", "q3", "max"};
    if (samples->count == 0)
        return json_null();
    json_t *object = json_object();
    for (int at = 0; at < 5; at++)
        (void)json_object_set_new(object, names[at], json_real(bench_samples_percentile(samples, 25 * at)));
    return object;
}
