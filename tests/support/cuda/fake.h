/* A CUDA runtime without a card, for tests of everything above it: a thread for each stream, which works late
 * and in no order but the one that events make, on memory that looks like a card's. What a driver may do, it
 * does at its worst:
 *   - a copy reads its source when it runs, and fills what it will write with rubbish when it is queued;
 *   - asynchronous copies are between memory that was registered at once and the card's, or the process ends;
 *   - streams do not wait for the default stream, nor for each other but by events;
 *   - events keep the card's time, not the time at which somebody looks;
 *   - host functions come late, on a thread that may call nothing;
 *   - calls fail, once or from then on, and work fails behind the calls.
 * Kernels run as they are written (cuda_runtime.h, grid.h).
 *
 * A program with this runtime is told by the environment variable MILLRACE_FAKE_CUDA what the card is like:
 * words of the form name=value, as in "engines=1 late_us=300 fail=cudaEventRecord:1000".
 *
 *   driver=0      there is no driver            cards=N     how many there are (1)
 *   version=N     of the driver (13020)         sms=N       of a card (4)
 *   engines=N     for copies (2)                memory_mb=N of a card (1024)
 *   open_ms=N     a context takes so long       lazy_ms=N   so does the first launch of each kernel
 *   mig=1         it is a part of a card
 *   late_us=N     each operation begins up to so much late (0)
 *   busy_us=N     each copy and kernel takes up to so much longer (0)
 *   mb_per_s=N    what a copy takes at least (0: as fast as the host copies)
 *   fail=CALL:N   the N-th call of that function fails, of any with "any"; a call that releases something
 *                 fails and releases it
 *   fault=WORK:N  the N-th "copy" or "kernel" breaks the context: nothing is done from then on, and each call
 *                 fails
 *   sticky=1      so it is after `fail`, too
 *   seed=N        of what is random
 *   tell=1        the most asynchronous copies of a stream between two events are told, as they become more
 *
 * Any thread may call.
 *
 * With the word clock=1 there are no threads and no time but the card's own, which stands still until a call
 * waits, or the test lets it pass: copies and kernels take 1 us to busy_us then, events are to the ns, and
 * cudaEventElapsedTime counts them by a clock that runs drift_ppm=N too fast. For tests with one thread, whose
 * core_time_now_ns is cuda_fake_now_ns (--wrap). */
#ifndef MILLRACE_TESTS_CUDA_FAKE_H
#define MILLRACE_TESTS_CUDA_FAKE_H

#include "core/time.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

/* Begins anew with these words, as if the process had just started. Nothing of before is in use. */
void cuda_fake_begin(const char *words);

/* From now on every call fails, and no work is done. */
void cuda_fake_break(void);

/* No operation begins from now on; or they go on. */
void cuda_fake_hold(bool hold);

/* What has been so since the beginning. */
uint64_t cuda_fake_calls(void);    /* of all functions that can fail */
uint64_t cuda_fake_launches(void); /* of kernels */
uint32_t cuda_fake_kernels(void);  /* how many different ones were launched */
int64_t cuda_fake_live(void);      /* streams, events, memory, registrations: not released */
bool cuda_fake_was_wiped(void);    /* the card's memory was all zero when it was freed last */

/* The clock: now; some time passes; it passes until a host function has been called (false: none comes). */
core_ns cuda_fake_now_ns(void);
void cuda_fake_advance(core_ns ns);
bool cuda_fake_advance_to_call(void);

/* When the event was recorded last; CORE_NS_NEVER: it is not over. */
core_ns cuda_fake_event_ns(cudaEvent_t event);

#endif
