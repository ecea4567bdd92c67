/* millrace-gpu, run for what it has to say: the cards that there are (gpu/listing.h), what copies reach
 * (gpu/copy_limits.h). */
#ifndef MILLRACE_GPU_ASK_H
#define MILLRACE_GPU_ASK_H

#include "core/status.h"
#include "core/time.h"

#include <stddef.h>

#define GPU_ASK_BYTES 32768 /* of an answer, at most */

struct gpu_question {
    const char *program;    /* the path of millrace-gpu, or its name on the PATH */
    char *const *arguments; /* with its name first and NULL last */
    const char *visible;    /* UUID of the only card that it may see; NULL: all */
    core_ns limit_ns;       /* it is killed then */
};

/* *answer: all that it has written, also to standard error; to be freed, also where the status is not CORE_OK.
 * CORE_NOT_FOUND: it can not be run. CORE_SYSTEM: it failed, or took too long. Waits, and allocates. */
CORE_CHECKED core_status gpu_ask(const struct gpu_question *question, char **answer,
                                 struct core_error *error);

/* The first line in which the program speaks for itself, up to its end; NULL: there is none. */
const char *gpu_ask_words(const char *answer, int *bytes);

#endif
