/* The pace of a stream that migrates while its packets flow: when each packet may go to its unit, and the
 * proof that no deadline is missed. server/stream/path.h says which unit that is.
 *
 * Stream (t, k, d): any window of length D holds at most k + floor(D / t) eligible times e_i, and packet i is
 * due at e_i + d. It is on unit A, which has each packet back on its I/O thread by r_i + b_A, where r_i >=
 * e_i is when the packet was let go to A; so far r_i <= e_i + l ("lag" l: 0 unless an earlier migration left
 * one). Unit B has been asked to take it, and holds with it beside all that it has. The reservation at A
 * stays until A has paused after the last packet there, and the reservation at B is made first, so that no
 * other stream is affected.
 *
 * **Switch at an idle moment.** No packet is inside A, and no packet waits that A returned when it failed,
 * so that order and chaining value are final, and packets go to B from then on. With l = 0 their r_i = e_i
 * conform to the contract, which B was asked for. No condition.
 *
 * **Held.** From some moment on nothing more goes to A; packets wait in the stream's own queue. Let e_1 be
 * the eligible time of the first that waits. All that A has came before it: eligible by e_1, back by e_1 + l
 * + b_A. Call that moment s: s - e_1 <= l + b_A. From s on packets go to B, paced by a token bucket of the
 * same t and k, full at s:
 *
 *     a_i = max(e_i, s)      r_i = max(a_i, TAT_i - (k - 1) t)      TAT_(i+1) = max(TAT_i, a_i) + t
 *
 * with TAT_1 = s. r_i conforms to the contract (that is what a bucket does), as B was promised. And r_i <=
 * e_i + (s - e_1): the times x_i = e_i + (s - e_1) conform, being e_i shifted; a_i <= x_i; a bucket lets go
 * no later than any conforming times that are no earlier than what comes in, because TAT is monotone in them:
 * by induction TAT_i is at most that of x, and r_i = max(a_i, TAT_i - (k-1) t) <= max(x_i, TAT_i(x) - (k-1)
 * t) = x_i. So the new lag is at most l + b_A, packets are back by e_i + l + b_A + b_B, and no promise breaks
 * if B was asked for the latency that is left:
 *
 *     b_B <= d - l - b_A        (if that is not positive, packets may not be held)
 *
 * **Catching up.** The lag is gone for good from the first packet on that finds s <= e_i and TAT_i <= TAT^_i,
 * the policer's own TAT: then r_i = e_i, TAT_(i+1) <= TAT^_(i+1), and so on. All that is known here of TAT^_i
 * is that a policed packet has TAT^_i = e_i + (k - 1) t (server/stream/policer.h). For any other packet a
 * full bucket will do, TAT_i <= e_i: afterwards TAT_(i+1) = e_i + t <= TAT^_(i+1). Where nothing waits,
 * TAT <= now does, too. From then on B may be asked for d again instead of d - l - b_A.
 *
 * A switch while a lag is left is as a held one: s - e_1 <= l, without b_A if nothing was inside A.
 *
 * Workers space releases (server/stream/policer.h): rel_i = max(r_i, rel_(i-1) + s_B), beginning anew at each
 * switch: what A was given does not weigh on B.
 *
 * Pure; the server's I/O threads and the virtual-time simulator run the same code. Owned by the owner of
 * the stream's packets. */
#ifndef MILLRACE_SERVER_STREAM_PACE_H
#define MILLRACE_SERVER_STREAM_PACE_H

#include "server/stream/policer.h"

#include <stdbool.h>

struct server_pacer {
    core_ns spacing_ns;      /* of releases on the present unit; 0: none */
    core_ns next_release_ns; /* release of the previous packet + spacing */
    core_ns switched_ns;     /* s; INT64_MIN: no lag */
    core_ns theoretical_ns;  /* TAT of the next packet, while there is a lag */
    core_ns interval_ns;     /* t */
    core_ns tolerance_ns;    /* (k - 1) t */
};

/* Starts a new stream on a unit with this spacing. */
void server_pacer_init(struct server_pacer *pace, const struct core_stream_spec *spec, core_ns spacing_ns);

/* Switches to another unit. first_ns: eligible time of the first packet that waits, CORE_NS_NEVER: none
 * waits. held: that packet had to wait for A, or for the stream's own pace. */
void server_pacer_switch(struct server_pacer *pace, core_ns spacing_ns, core_ns first_ns, bool held,
                         core_ns now_ns);

/* r_i of the stream's next packet, and its release on its unit if it goes there at r_i. Change nothing. */
core_ns server_pacer_next_ns(const struct server_pacer *pace, core_ns eligible_ns);
core_ns server_pacer_release_ns(const struct server_pacer *pace, core_ns paced_ns);

/* The packet goes to its unit: returns r_i and its release. policed: the packet was early. */
struct server_policer_times server_pacer_take(struct server_pacer *pace, core_ns eligible_ns, bool policed);

/* Is the lag gone for good? nothing_waits: all packets of the stream have gone to their unit. */
bool server_pacer_caught_up(struct server_pacer *pace, bool nothing_waits, core_ns now_ns);

#endif
