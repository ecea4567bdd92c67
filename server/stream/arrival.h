/* When packets arrive. A packet arrives when its last byte is in the socket, not when the I/O thread reads
 * it; the time that the thread is delayed (work for others, a blocking call, a core that it does not get, a
 * stopped process) counts as the server's. Sockets do not tell: a Unix socket never does, and TCP can tell
 * only when the last segment of a read came (SO_TIMESTAMPING), which may be long after the packets before
 * it. So the thread keeps the latest time at which it knows that bytes had not come yet:
 *
 *     earliest <= true arrival <= read
 *
 * **Turns.** A turn begins when the thread asks for the sockets that have something (it *enters*), and is
 * *awake* when it is told. Sockets that were not named had nothing at that look (all that are ready are
 * named: server/net/poller.h), so what a turn reads came after the look of the turn before: `since`. If the
 * thread had to sleep, all sockets were empty when it entered, and what woke it came when it woke. After a
 * turn, or a rest, that was long enough to matter the thread looks without sleeping first: only if that look
 * finds nothing may it sleep, so it is never taken for asleep while something waited.
 *
 * **Late awake.** It can not know how long it was ready and had no core, or was stopped, while it seemed to
 * sleep. But with a timer that is due by `due` it is late for certain if it is awake after that; then all
 * that it reads counts from when it entered. The timer is set so that the thread never sleeps longer than
 * server_polls_beat_ns, which so is, with SERVER_POLLS_SLACK_NS, the most that can be hidden: a delay that
 * begins and ends between two beats.
 *
 * **Sockets.** One that was read until it was empty has its own, later time: that of the read. One that a
 * read did not empty keeps the time of the bytes that were left, and each read that takes them all goes on to
 * the next mark.
 *
 * **Pauses.** A connection is not read while its streams have no room for more. Where the sender has kept its
 * contracts that is our delay from the start. Where it was too early, it is from the deadline of the packet
 * that must go first, and where it does not take its results it is not; what has waited for that reason is
 * *held*, and its RESULT says so (PROTOCOL_RESULT_POLICED).
 *
 * **Deadlines** count from `earliest`: MET is then what a client beside the server sees, too. **Contracts**
 * count `counted`: the time of the read as long as the turn was as short as promises reckon with (in_ns and
 * the rest), because eligible times that are spread over true arrivals but handed over together would be a
 * burst that admission has not seen; so too what waited in a pause, however long: a stream whose GPU is lost
 * may cause that, and what its connection has brought for others must not come to their units at once, where
 * streams of other connections keep their promises. `earliest` where the thread itself was late: what it finds
 * has been in the socket for as long as it was away, and a stream that conforms must not be held back for our
 * delay (server/stream/policer.h says why neither way gives a client credit).
 *
 * The rest (server/net/io.h) is one of the delays that `earliest` counts. Packets may so meet it twice,
 * before they are read and before their result is written; perfmodel_io_rest_ns, which admission has taken
 * off every deadline, is both.
 *
 * Pure; owned by the I/O thread. Times of the monotonic clock, which must not run backwards. */
#ifndef MILLRACE_SERVER_STREAM_ARRIVAL_H
#define MILLRACE_SERVER_STREAM_ARRIVAL_H

#include "core/time.h"

#include <stdbool.h>
#include <stddef.h>

/* After so short a turn the thread may sleep at once. */
#define SERVER_POLLS_SHORT_NS (100 * CORE_NS_PER_US)
#define SERVER_POLLS_AWAKE_NS (20 * CORE_NS_PER_US)  /* a look that takes longer has slept */
#define SERVER_POLLS_SLACK_NS (200 * CORE_NS_PER_US) /* timers may wake it so much late */
#define SERVER_POLLS_LATE_NS  CORE_NS_PER_MS         /* a turn that is shorter is never late */

/* What is known of the bytes that are consumed now. */
struct server_arrival {
    core_ns earliest_ns; /* <= counted_ns */
    core_ns counted_ns;  /* <= read_ns; does not run backwards on a connection */
    core_ns read_ns;
    bool held; /* it may have waited before earliest_ns, behind what its sender brought too early */
};

/* ---- turns ---- */

struct server_polls {
    core_ns polled_ns;  /* what was not found at the last look came after it */
    core_ns since_ns;   /* what this turn reads came after this */
    core_ns entered_ns; /* this turn: when the thread began to ask for sockets */
    core_ns due_ns;     /* this turn: when a timer wakes it; CORE_NS_NEVER: no timer */
    bool waits;         /* this turn: it may sleep */
    bool awake;
    core_ns owed_ns;  /* since when the thread was wanted, or at work, for certain: what it may have hidden
                         before a beat is not held against the machine */
    core_ns ended_ns; /* of the last turn */
};

void server_polls_init(struct server_polls *turns, core_ns now_ns);

/* Must the thread look before it sleeps? */
bool server_polls_first(const struct server_polls *turns, core_ns now_ns);

/* It asks now. */
void server_polls_enter(struct server_polls *turns, core_ns now_ns, core_ns due_ns, bool waits);

/* It has been told: at the first handler of a turn. */
void server_polls_wake(struct server_polls *turns, core_ns now_ns);

/* A look that did not wait has found nothing. */
void server_polls_found_nothing(struct server_polls *turns);

/* Since when what the turn takes counts: the thread was wanted or at work, and no turn before has it. */
core_ns server_polls_from_ns(const struct server_polls *turns);

/* The turn has ended, and what it brought is on its way. Returns for how long the thread was wanted or at
 * work until then, without what the turn before has counted already. */
core_ns server_polls_end(struct server_polls *turns, core_ns now_ns);

/* The longest sleep while the shortest latency bound of the thread's streams is this: an eighth, 0.5 to
 * 10 ms. */
core_ns server_polls_beat_ns(core_ns latency_ns);

/* ---- sockets ---- */

/* All zero but empty_ns: a new one. */
struct server_socket_clock {
    core_ns empty_ns; /* all bytes in the socket came after this */
    core_ns mark_ns;  /* the bytes behind the next old_bytes came after this */
    core_ns again_ns; /* end of the last pause: contracts count from this at the earliest */
    size_t old_bytes;
    bool left;         /* the last read has not emptied it */
    size_t held_bytes; /* the next so many have waited behind what their sender brought too early */
};

/* What a read at read_ns brings, in a turn whose bytes came after since_ns. allowed_ns: how long a turn may
 * take before it counts as late. */
void server_arrival_read(struct server_arrival *arrival, const struct server_socket_clock *clock,
                         core_ns since_ns, core_ns read_ns, core_ns allowed_ns);

/* That read took got_bytes; so many bytes are left behind them. */
void server_arrival_took(struct server_socket_clock *clock, const struct server_arrival *arrival,
                         size_t got_bytes, size_t left_bytes);

/* What was read before a pause is consumed at now_ns: it came after from_ns, or now if that is earlier, and
 * contracts count it from now. */
void server_arrival_since(struct server_arrival *arrival, core_ns from_ns, core_ns now_ns, bool held);

/* The socket was not read until now_ns: the left_bytes in it came after from_ns, or now if that is earlier. */
void server_arrival_goes_on(struct server_socket_clock *clock, core_ns from_ns, core_ns now_ns,
                            size_t left_bytes, bool held);

#endif
