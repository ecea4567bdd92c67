/* Memory for keys: locked, kept out of core dumps, wiped when freed.
 *
 * Blocks come from one stretch of memory with a guard page before and behind it, set up once by
 * core_secret_init. A block of n bytes is aligned to the power of two at or above n, or to a page. Taking and
 * freeing one takes a lock for some tens of nanoseconds, which passes priority on (core_mutex_init): I/O
 * threads use it. Any thread.
 *
 * OpenSSL keeps the secret numbers of TLS in a heap of its own, whose lock passes none on, and which is
 * therefore for threads without deadlines: those of handshakes. */
#ifndef MILLRACE_CORE_SECRET_H
#define MILLRACE_CORE_SECRET_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>

#define CORE_SECRET_BLOCK_BYTES_MIN 64 /* what the smallest block takes */

/* Reserves heap_bytes (rounded up to a power of two, at least a page) and forbids core dumps of this process
 * (PR_SET_DUMPABLE 0, RLIMIT_CORE 0). *locked says whether the system let us lock the pages: where it did
 * not, the caller tells the operator (raise RLIMIT_MEMLOCK). Call before the first allocation. The heap is
 * the process's and is set up once: later calls keep it, whatever size they ask for, and say the same. Not
 * from two threads at once. */
CORE_CHECKED core_status core_secret_init(size_t heap_bytes, bool *locked, struct core_error *error);

/* The same in a process that is not ours (core/embedded.h), where core dumps stay as they are. */
CORE_CHECKED core_status core_secret_reserve(size_t heap_bytes, bool *locked, struct core_error *error);

/* As core_secret_init for OpenSSL's. Where there is no memory for that heap's tables, OpenSSL itself aborts the process
 * (assertions of CRYPTO_secure_malloc_init), so that CORE_NO_MEMORY is of its pages alone: call it at the
 * start, where nothing is promised yet. */
CORE_CHECKED core_status core_secret_init_openssl(size_t heap_bytes, bool *locked, struct core_error *error);

/* Gives both heaps back, OpenSSL's if it was set up here and nothing is left in it, so that they may be set up
 * anew. After the last block was freed; not from two threads at once. */
void core_secret_end(void);

/* Zeroed block, or NULL when the heap is used up. Before core_secret_init it is ordinary memory, still wiped.
 */
void *core_secret_alloc(size_t bytes);
void core_secret_free(void *block, size_t bytes); /* wipes first; bytes: as asked for; NULL is fine */

/* Does the memory lie in the heap? */
bool core_secret_holds(const void *memory);

/* Overwrites memory in a way the compiler keeps. */
void core_secret_wipe(void *memory, size_t bytes);

#endif
