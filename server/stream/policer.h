/* Policing of one stream: a token bucket in packets (GCRA), and the spacing of releases that the CPU test
 * counts on.
 *
 * For packets n = 0, 1, ... arriving at a(n), with TAT(0) = a(0):
 *     eligible(n) = max(a(n), TAT(n) - (k - 1) t)          TAT(n+1) = max(TAT(n), a(n)) + t
 *     release(n)  = max(eligible(n), release(n-1) + s)     (perfmodel/cpu.h: s = spacing_ns)
 * so that any window of length D holds at most k + floor(D / t) eligible times, and release(n) <= eligible(n)
 * + (k-1) s.
 *
 * **What was not seen.** The true arrival x(n) is not known: a(n) - u(n) <= x(n) <= a(n), u(n) being the time
 * that the packet may have waited before the I/O thread looked (server/stream/arrival.h). With the true
 * arrivals in place of a(n) the packet would be eligible at E(n), and that is not before eligible(n) -
 * unseen(n): unseen(n) = u(n) where eligible(n) = a(n); else unseen(n) = B, B = u(m) of the last packet m <=
 * n with a(m) >= TAT(m). *Proof.* TAT(n+1) <= TAT'(n+1) + B, TAT' that of the true arrivals. If a(n) >=
 * TAT(n), then TAT(n+1) = a(n) + t <= x(n) + u(n) + t <= TAT'(n+1) + u(n), and B = u(n). Else TAT(n+1) =
 * TAT(n) + t <= TAT'(n) + B + t <= TAT'(n+1) + B. So where eligible(n) = TAT(n) - (k-1) t, E(n) >= TAT'(n) -
 * (k-1) t >= eligible(n) - B. Where eligible(n) = a(n), E(n) >= x(n) >= a(n) - u(n).
 * A deadline that counts from eligible(n) - unseen(n) is so never later than the one that the client may hold
 * against us. Eligible times stay as they are: no client earns anything by it, and what admission reckons
 * with, the conformance of eligible times, is not touched. Where a(n) itself is set back, all a(n) <= x(n),
 * eligible times only become earlier, since both maxima grow with a: a stream that conforms is eligible at
 * its true arrival or before, so it never looks early; and they conform whatever the arrivals are.
 *
 * Pure; owned by the stream's I/O thread. */
#ifndef MILLRACE_SERVER_STREAM_POLICER_H
#define MILLRACE_SERVER_STREAM_POLICER_H

#include "core/stream.h"

struct server_policer {
    core_ns interval_ns;     /* t */
    core_ns spacing_ns;      /* s <= t */
    core_ns tolerance_ns;    /* (k - 1) t */
    core_ns theoretical_ns;  /* TAT of the next packet; INT64_MIN before the first */
    core_ns next_release_ns; /* release of the previous packet + s */
    core_ns unseen_ns;       /* B */
};

struct server_policer_times {
    core_ns eligible_ns; /* >= arrival */
    core_ns unseen_ns;   /* the deadline counts from eligible_ns - unseen_ns */
    core_ns release_ns;  /* >= eligible */
};

void server_policer_init(struct server_policer *policer, const struct core_stream_spec *spec,
                         core_ns spacing_ns);

/* Another contract from the next packet on, on the same unit. The bucket is carried over: with level(x) = k -
 * max(0, TAT - x) / t packets in it at x = max(now, eligible time of the last packet), the new one has
 * min(k_new, level) there, rounded down. So
 *   - all eligible times, before and after, conform to the join (least t, largest k): its bucket never has
 * less, by induction, since it is filled faster, holds more, and gives away the same;
 *   - those after conform to the new contract, from the first of them on;
 *   - eligible times do not run backwards.
 * now_ns: not before the last arrival. */
void server_policer_modify(struct server_policer *policer, const struct core_stream_spec *spec,
                           core_ns spacing_ns, core_ns now_ns);

/* arrival_ns must not run backwards from one packet to the next. */
struct server_policer_times server_policer_packet(struct server_policer *policer, core_ns arrival_ns);
/* As server_policer_packet, for a packet that may have come up to unseen_ns >= 0 before arrival_ns: u(n)
 * above. */
struct server_policer_times server_policer_unseen(struct server_policer *policer, core_ns arrival_ns,
                                                  core_ns unseen_ns);

#endif
