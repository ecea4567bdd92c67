/* Clocks go forward and sleeping ends no sooner than asked; how late it ends is a matter for benches. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/time.h"

#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

static void the_monotonic_clock_never_goes_back(void **state)
{
    (void)state;
    core_ns last_ns = core_time_now_ns();
    assert_true(last_ns > 0);
    for (int i = 0; i < 10000; i++) {
        const core_ns now_ns = core_time_now_ns();
        assert_true(now_ns >= last_ns);
        last_ns = now_ns;
    }
}

static void the_clock_is_clock_monotonic_in_nanoseconds(void **state)
{
    (void)state;
    struct timespec now;
    const core_ns before_ns = core_time_now_ns();
    assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &now), 0);
    const core_ns after_ns = core_time_now_ns();
    const core_ns between_ns = now.tv_sec * CORE_NS_PER_S + now.tv_nsec;
    assert_true(before_ns <= between_ns && between_ns <= after_ns);
}

static void cpu_clocks_count_work_of_this_thread(void **state)
{
    (void)state;
    const core_ns process_ns = core_time_process_cpu_ns(), thread_ns = core_time_thread_cpu_ns();
    volatile unsigned work = 0;
    while (core_time_thread_cpu_ns() < thread_ns + CORE_NS_PER_MS)
        work++;
    assert_true(core_time_process_cpu_ns() >= process_ns + CORE_NS_PER_MS);
}

static void sleeping_uses_no_cpu_time(void **state)
{
    (void)state;
    const core_ns thread_ns = core_time_thread_cpu_ns();
    core_time_sleep_until(core_time_now_ns() + 50 * CORE_NS_PER_MS);
    assert_true(core_time_thread_cpu_ns() - thread_ns < 25 * CORE_NS_PER_MS);
}

static void sleep_ends_no_sooner_than_asked(void **state)
{
    (void)state;
    for (core_ns length_ns = 1; length_ns <= 5 * CORE_NS_PER_MS; length_ns *= 10) {
        const core_ns wake_ns = core_time_now_ns() + length_ns;
        core_time_sleep_until(wake_ns);
        assert_true(core_time_now_ns() >= wake_ns);
    }
}

static void sleep_until_the_past_returns(void **state)
{
    (void)state;
    const core_ns past_ns[] = {INT64_MIN, -1, 0, 1, core_time_now_ns() - 1};
    for (size_t i = 0; i < sizeof past_ns / sizeof past_ns[0]; i++)
        core_time_sleep_until(past_ns[i]); /* a sleep that did not return would time this test out */
}

static volatile sig_atomic_t alarms;

static void alarm_count(int signal_number)
{
    (void)signal_number;
    alarms++;
}

static void sleep_resumes_after_signals(void **state)
{
    (void)state;
    struct sigaction action, before;
    memset(&action, 0, sizeof action);
    action.sa_handler = alarm_count; /* no SA_RESTART: the sleep itself must cope */
    assert_int_equal(sigaction(SIGALRM, &action, &before), 0);
    const struct itimerval every_ms = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    assert_int_equal(setitimer(ITIMER_REAL, &every_ms, NULL), 0);
    const core_ns wake_ns = core_time_now_ns() + 20 * CORE_NS_PER_MS;
    core_time_sleep_until(wake_ns);
    const core_ns woken_ns = core_time_now_ns();
    assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
    assert_int_equal(sigaction(SIGALRM, &before, NULL), 0);
    assert_true(alarms > 0);
    assert_true(woken_ns >= wake_ns);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_monotonic_clock_never_goes_back),
        cmocka_unit_test(the_clock_is_clock_monotonic_in_nanoseconds),
        cmocka_unit_test(cpu_clocks_count_work_of_this_thread),
        cmocka_unit_test(sleeping_uses_no_cpu_time),
        cmocka_unit_test(sleep_ends_no_sooner_than_asked),
        cmocka_unit_test(sleep_until_the_past_returns),
        cmocka_unit_test(sleep_resumes_after_signals),
    };
    return cmocka_run_group_tests_name("core/time", tests, NULL, NULL);
}
