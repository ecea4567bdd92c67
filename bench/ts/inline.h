/* What `millrace ts` would cost without a server: the same sockets, and OpenSSL called for every packet on the thread
 * that has it. For comparison. */
#ifndef MILLRACE_BENCH_TS_INLINE_H
#define MILLRACE_BENCH_TS_INLINE_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

/* In a process of its own: relays the groups of bench/ts/traffic.h, each under its word number 0, until it is ended by
 * a signal. */
_Noreturn void bench_ts_inline(size_t services, uint64_t seed);

#endif
