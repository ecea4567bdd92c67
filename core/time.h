/* Time: one signed 64-bit count of nanoseconds on CLOCK_MONOTONIC.
 *
 * Every variable of this type ends in _ns. Pure code (perfmodel, partition, the policing and scheduling
 * logic) takes now_ns as an argument; only threads read the clock. Any thread may call these functions. */
#ifndef MILLRACE_CORE_TIME_H
#define MILLRACE_CORE_TIME_H

#include <stdint.h>

typedef int64_t core_ns;

#define CORE_NS_NEVER  INT64_MAX /* later than any time */
#define CORE_NS_PER_US INT64_C(1000)
#define CORE_NS_PER_MS INT64_C(1000000)
#define CORE_NS_PER_S  INT64_C(1000000000)

static inline core_ns core_time_max(core_ns a_ns, core_ns b_ns)
{
    return a_ns > b_ns ? a_ns : b_ns;
}

static inline core_ns core_time_min(core_ns a_ns, core_ns b_ns)
{
    return a_ns < b_ns ? a_ns : b_ns;
}

/* Now, on CLOCK_MONOTONIC. Never fails on Linux. */
core_ns core_time_now_ns(void);

/* CPU time used by the whole process, and by the calling thread. */
core_ns core_time_process_cpu_ns(void);
core_ns core_time_thread_cpu_ns(void);

/* Sleeps until the absolute monotonic time wake_ns; resumes after signals. Returns at once if it has passed.
 */
void core_time_sleep_until(core_ns wake_ns);

#endif
