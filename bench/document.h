/* What subcommands tell with --json: one document on standard output. One thread. */
#ifndef MILLRACE_BENCH_DOCUMENT_H
#define MILLRACE_BENCH_DOCUMENT_H

#include "bench/samples.h"
#include "core/status.h"

#include <jansson.h>

/* Prints the document and releases it. NULL, which jansson gives for strings that are not UTF-8 or when
 * memory is short, is CORE_INVALID. */
CORE_CHECKED core_status bench_document_print(json_t *document, struct core_error *error);

/* Least, quartiles and greatest: {"min", "q1", "median", "q3", "max"}; null while there are none. */
json_t *bench_document_samples(struct bench_samples *samples);

#endif
