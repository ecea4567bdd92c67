#include "core/time.h"

#include <errno.h>
#include <time.h>

static core_ns clock_read_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * CORE_NS_PER_S + now.tv_nsec;
}

core_ns core_time_now_ns(void)
{
    return clock_read_ns(CLOCK_MONOTONIC);
}

core_ns core_time_process_cpu_ns(void)
{
    return clock_read_ns(CLOCK_PROCESS_CPUTIME_ID);
}

core_ns core_time_thread_cpu_ns(void)
{
    return clock_read_ns(CLOCK_THREAD_CPUTIME_ID);
}

void core_time_sleep_until(core_ns wake_ns)
{
    if (wake_ns <= 0)
        return; /* the monotonic clock never was there, and the kernel refuses a negative time */
    const struct timespec wake = {.tv_sec = wake_ns / CORE_NS_PER_S, .tv_nsec = wake_ns % CORE_NS_PER_S};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, NULL) == EINTR)
        ;
}
