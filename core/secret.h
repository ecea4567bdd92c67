/* Memory for keys: locked, kept out of core dumps, wiped when freed.
 *
 * Blocks come from OpenSSL's secure heap (a buddy allocator with guard pages, mlock and MADV_DONTDUMP), set
 * up once by core_secret_init. A block of n bytes is aligned to the power of two at or above n. Control path
 * only: the heap takes a lock. Any thread. */
#ifndef MILLRACE_CORE_SECRET_H
#define MILLRACE_CORE_SECRET_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>

/* Reserves heap_bytes (rounded up to a power of two) and forbids core dumps of this process
 * (PR_SET_DUMPABLE 0, RLIMIT_CORE 0). *locked says whether the system let us lock the pages: where it did
 * not, the caller tells the operator (raise RLIMIT_MEMLOCK). Call before the first allocation. The heap is
 * the process's and is set up once: later calls keep it, whatever size they ask for, and say the same. Not
 * from two threads at once. */
CORE_CHECKED core_status core_secret_init(size_t heap_bytes, bool *locked, struct core_error *error);

/* Zeroed block, or NULL when the heap is used up. Before core_secret_init it is ordinary memory, still wiped.
 */
void *core_secret_alloc(size_t bytes);
void core_secret_free(void *block, size_t bytes); /* wipes first; NULL is fine */

/* Overwrites memory in a way the compiler keeps. */
void core_secret_wipe(void *memory, size_t bytes);

#endif
