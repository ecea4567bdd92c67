/* Every thread that the program starts with core_thread_start, as a coroutine of the calling thread, on a
 * clock that stands still while anything runs. A whole server runs so, unchanged, and the same sequence of
 * calls has the same outcome each time, to the nanosecond.
 *
 * A coroutine runs until it would block: in epoll_wait, poll, ppoll, sem_wait, core_time_sleep_until or the read
 * of a worker's eventfd. When all are blocked, the clock goes on to the next time that one of them, or a timerfd,
 * waits for. Nothing can be read below /proc, where figures are of another time.
 *
 * The program is linked with --wrap for each function of TEST_VIRTUAL_WRAPS in tests/CMakeLists.txt. It must
 * have one thread only, and no locks that a coroutine holds while it blocks. */
#ifndef MILLRACE_TESTS_VIRTUAL_THREADS_H
#define MILLRACE_TESTS_VIRTUAL_THREADS_H

#include "core/time.h"

#include <stdbool.h>

/* What is called whenever all are blocked, before the clock goes on; what it causes is done first. It returns
 * true if it has done anything. */
void test_virtual_rest(bool (*rest)(void));

/* Lets everything run until the clock is at until_ns and nothing more is to be done then. So does the join of
 * a thread, until that has ended. */
void test_virtual_run(core_ns until_ns);

/* Lets each that can run do so once, until it blocks again. */
void test_virtual_turn(void);

core_ns test_virtual_now_ns(void);

/* Workers begin so long after they are woken, from now on; 0: the thread that submits does their work. */
void test_virtual_delay_workers(core_ns delay_ns);

#endif
