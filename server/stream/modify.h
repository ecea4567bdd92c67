/* Renegotiation: another contract for an open stream (MODIFY), from the client through the planner and
 * back.
 *
 *   1. I/O thread: asks the planner.
 *   2. Planner: decides as for an OPEN, in place or on another unit, and answers.
 *   3. I/O thread: puts the contract in force at a gap between packets, sends MODIFIED, returns the change.
 *   4. Planner: keeps the reservation for the old contract until the unit has paused.
 *
 * **When it comes into force.** A worker's stream changes at a gap: none of its packets is inside the
 * worker, and its last packet was released at least a spacing ago. Packets that are eligible by then were
 * served under the old contract; packets that still wait for a token come under the new one. The policer
 * carries its bucket over (server_policer_modify): all packets that it lets through, before and after,
 * conform to the join of both contracts, which the unit has reserved (partition/admission/admission.h). So
 * do the releases: up to the gap they are s apart, behind it s', both at least the join's; and a window
 * that begins r packets into a run that began at e_i holds at most m_old <= (tau - e_i) / s - r of the old,
 * and of the new k' - used + (x - tau) / t' with used >= r + m_old - (tau - e_i) / t, which with s <= t
 * makes no more than k^ + x / t^ in all. A GPU has no spacing; there the contract can change at any time.
 *
 * A stream that has no such gap before the timeout keeps its contract. A stream has at most one change in
 * progress.
 *
 * **On another unit.** Where the stream's own unit, A, refuses, another one, B, may take the new contract:
 * then the planner has admitted the stream there as a new stream, and the change carries a migration
 * (server/stream/migration.h). The new contract comes into force with the switch, when no packet of the
 * stream is inside A, and no eligible packet waits. So A serves all packets under the old contract, and B all
 * packets under the new one, which conform to it from the first on (server_policer_modify). Neither unit
 * serves more than it has reserved: no join is needed (partition/admission/admission.h). A stream that has no
 * such moment before the timeout stays on A with its contract, and the MODIFY is refused for the reason that
 * A gave.
 *
 * **After packets were held.** A stream that migrated to another unit, B, with packets held on the way is
 * served there with a latency bound of d - b_A while packets may be late (server/stream/pace.h,
 * admission_reserve_catch_up). The return to d is a change in place, but no client asked for it, no client is
 * told, and it has no timeout: it takes place at a gap, once the lag is gone for good. The I/O thread rests
 * as for d again when all packets that may be late have left, and B reserves capacity for d alone when it
 * has paused. The migration carries what is needed.
 *
 * **Memory.** The planner sizes the packet memory for the unit that serves the contract, as for an OPEN,
 * refuses what is above the limits, and has a block made for what is missing when all else is granted.
 *
 * Everything here is called on the stream's I/O thread. Nothing is allocated but in server_modify_ask, and no
 * more than the change itself. */
#ifndef MILLRACE_SERVER_STREAM_MODIFY_H
#define MILLRACE_SERVER_STREAM_MODIFY_H

#include "server/planner/messages.h"

#include <stdbool.h>
#include <stdint.h>

struct server_stream_io;

/* Asks the planner for another contract of the stream, which has no change under way. The caller has checked
 * spec against the limits. False: there is no memory. */
bool server_modify_ask(struct server_stream *stream, uint32_t request, const struct core_stream_spec *spec,
                       core_ns now_ns);

/* Advances the stream's change: called by server_stream_advance (server/stream/advance.h), before a packet is
 * policed, and whenever something that the change waits for may have happened. */
void server_modify_step(struct server_stream *stream, core_ns now_ns);

/* The stream was migrated with held packets: restores its latency bound once it has caught up. `modify` is
 * zeroed but for its reservation, and is given back to the planner. The stream must have no other change. */
void server_modify_catch_up(struct server_stream *stream, struct server_modify *modify);

/* Does no eligible packet wait? Then the contract can change as soon as no packet is inside the unit. */
bool server_modify_may_switch(struct server_stream *stream, core_ns now_ns);

/* The migration that belongs to the change has succeeded; or (stays) has timed out. */
void server_modify_switched(struct server_stream *stream, core_ns now_ns);
void server_modify_stays(struct server_stream *stream);

/* The stream is closing: refuses the change, before CLOSED if the client can still be told. */
void server_modify_end(struct server_stream *stream);

/* Every tick: advances all changes that wait. */
void server_modify_tick(struct server_stream_io *io, core_ns now_ns);

#endif
