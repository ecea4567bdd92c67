/* A sequence lock: one thread publishes a small record, any thread reads a consistent copy, and no thread
 * waits for another. The record is an array of atomic words. A count is odd while they are being written; a
 * reader accepts its copy only if it found one even count before and after.
 *
 * The words and the count are the owner's to place; zeroed, the count says that nothing was published yet. */
#ifndef MILLRACE_CORE_SEQUENCE_H
#define MILLRACE_CORE_SEQUENCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The one writer: `record` is `count` words long, at most CORE_SEQUENCE_WORDS. */
#define CORE_SEQUENCE_WORDS 32
void core_sequence_write(_Atomic uint32_t *changes, _Atomic uint64_t *words, const void *record,
                         size_t count);

/* Any thread. False: nothing was published yet, or it was being written every time it was looked at. */
bool core_sequence_read(const _Atomic uint32_t *changes, const _Atomic uint64_t *words, void *record,
                        size_t count);

#endif
