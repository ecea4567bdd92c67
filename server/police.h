/* Policing of one stream: a token bucket in packets (GCRA), and the spacing of releases that the CPU test
 * counts on.
 *
 * For packets n = 0, 1, ... arriving at a(n), with TAT(0) = a(0):
 *     eligible(n) = max(a(n), TAT(n) - (k - 1) t)          TAT(n+1) = max(TAT(n), a(n)) + t
 *     release(n)  = max(eligible(n), release(n-1) + s)     (perfmodel/cpu.h: s = spacing_ns)
 * so that any window of length D holds at most k + floor(D / t) eligible times, and release(n) <= eligible(n)
 * + (k-1) s. Pure; owned by the stream's I/O thread. */
#ifndef MILLRACE_SERVER_POLICE_H
#define MILLRACE_SERVER_POLICE_H

#include "core/stream.h"

struct server_police {
    core_ns interval_ns;     /* t */
    core_ns spacing_ns;      /* s <= t */
    core_ns tolerance_ns;    /* (k - 1) t */
    core_ns theoretical_ns;  /* TAT of the next packet; INT64_MIN before the first */
    core_ns next_release_ns; /* release of the previous packet + s */
};

struct server_police_times {
    core_ns eligible_ns; /* >= arrival; the deadline counts from here */
    core_ns release_ns;  /* >= eligible */
};

void server_police_init(struct server_police *police, const struct core_stream_spec *spec,
                        core_ns spacing_ns);

/* Another contract from the next packet on, on the same unit. The bucket is carried over: with level(x) = k -
 * max(0, TAT - x) / t packets in it at x = max(now, eligible time of the last packet), the new one has
 * min(k_new, level) there, rounded down. So
 *   - all eligible times, before and after, conform to the join (least t, largest k): its bucket never has
 * less, by induction, since it is filled faster, holds more, and gives away the same;
 *   - those after conform to the new contract, from the first of them on;
 *   - eligible times do not run backwards.
 * now_ns: not before the last arrival. */
void server_police_change(struct server_police *police, const struct core_stream_spec *spec,
                          core_ns spacing_ns, core_ns now_ns);

/* arrival_ns must not run backwards from one packet to the next. */
struct server_police_times server_police_packet(struct server_police *police, core_ns arrival_ns);

#endif
