/* Children come and go: the engine's thread asks for them and sees that they have ended, early; another one,
 * of ordinary priority, starts and collects them, whoever reads in /proc meanwhile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/process.h"
#include "tests/support/gpu_rig.h"

#define KILLS 20

static pid_t engine_thread;

/* Who starts: gpu_process_start comes here (--wrap). */
static atomic_int started, started_urgently;
static atomic_bool told_late; /* long after the process is ready */

core_status __real_gpu_process_start(struct gpu_process *process, const struct gpu_process_options *options,
                                     struct core_error *error);
core_status __wrap_gpu_process_start(struct gpu_process *process, const struct gpu_process_options *options,
                                     struct core_error *error);

core_status __wrap_gpu_process_start(struct gpu_process *process, const struct gpu_process_options *options,
                                     struct core_error *error)
{
    atomic_fetch_add(&started, 1);
    if (gettid() == engine_thread || sched_getscheduler(0) != SCHED_OTHER)
        atomic_fetch_add(&started_urgently, 1);
    const core_status status = __real_gpu_process_start(process, options, error);
    if (atomic_load(&told_late))
        core_time_sleep_until(core_time_now_ns() + 300 * CORE_NS_PER_MS);
    return status;
}

/* A process whose other threads and memory take long to end. */
static atomic_bool dies_slowly;

bool __real_gpu_process_ended(const struct gpu_process *process, struct gpu_process_end *end);
bool __wrap_gpu_process_ended(const struct gpu_process *process, struct gpu_process_end *end);

bool __wrap_gpu_process_ended(const struct gpu_process *process, struct gpu_process_end *end)
{
    return !atomic_load(&dies_slowly) && __real_gpu_process_ended(process, end);
}

/* Who collects: waitpid and waitid come here (--wrap). */
static atomic_int collected;           /* by other threads */
static atomic_int collected_by_engine; /* or waited for by its thread */
static atomic_int collected_urgently;  /* by threads that are not of ordinary priority */

pid_t __real_waitpid(pid_t pid, int *status, int options);
pid_t __wrap_waitpid(pid_t pid, int *status, int options);
int __real_waitid(idtype_t type, id_t id, siginfo_t *about, int options);
int __wrap_waitid(idtype_t type, id_t id, siginfo_t *about, int options);

pid_t __wrap_waitpid(pid_t pid, int *status, int options)
{
    atomic_fetch_add(gettid() == engine_thread ? &collected_by_engine : &collected, 1);
    if (sched_getscheduler(0) != SCHED_OTHER)
        atomic_fetch_add(&collected_urgently, 1);
    return __real_waitpid(pid, status, options);
}

int __wrap_waitid(idtype_t type, id_t id, siginfo_t *about, int options)
{
    if ((options & (WNOWAIT | WNOHANG)) != (WNOWAIT | WNOHANG)) {
        atomic_fetch_add(gettid() == engine_thread ? &collected_by_engine : &collected, 1);
        if (sched_getscheduler(0) != SCHED_OTHER)
            atomic_fetch_add(&collected_urgently, 1);
    }
    return __real_waitid(type, id, about, options);
}

/* ---- one who reads ---- */

static _Atomic pid_t read_pid;
static atomic_bool reading;

static void *read_on(void *argument)
{
    static const char *const files[] = {"stat", "status", "cmdline", "sched"};
    (void)argument;
    while (atomic_load(&reading))
        for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
            char path[64], text[256];
            snprintf(path, sizeof path, "/proc/%d/%s", (int)atomic_load(&read_pid), files[i]);
            const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
            if (descriptor < 0)
                continue;
            (void)!read(descriptor, text, sizeof text);
            close(descriptor);
        }
    return NULL;
}

/* The engine's thread as the batcher is, where the system permits it. */
static void hurry(int priority)
{
    const struct sched_param parameters = {.sched_priority = priority};
    (void)sched_setscheduler(0, priority > 0 ? SCHED_FIFO : SCHED_OTHER, &parameters);
}

static void a_thread_of_ordinary_priority_starts_and_collects(void **state)
{
    (void)state;
    pthread_t reader;
    struct gpu_rig rig;
    struct gpu_crowd *crowd = gpu_crowd_open(6, 40, 120, 1 << 17, 55);
    const struct gpu_emulation card = gpu_crowd_card(2);
    pid_t ended[KILLS];
    engine_thread = gettid();
    atomic_store(&reading, true);
    assert_int_equal(pthread_create(&reader, NULL, read_on, NULL), 0);
    hurry(20);
    gpu_rig_open(&rig, crowd, &card, NULL);
    for (int i = 0; i < KILLS; i++) {
        ended[i] = gpu_engine_process(rig.engine);
        atomic_store(&read_pid, ended[i]);
        gpu_rig_go_on(&rig, 5, 40, 900);
        assert_int_equal(kill(ended[i], SIGKILL), 0);
        const struct gpu_fault fault = gpu_rig_fault(&rig, 5, 40, 900);
        assert_int_equal(fault.kind, GPU_FAULT_SIGNALLED);
        assert_int_equal(fault.code, SIGKILL);
        assert_int_equal(gpu_engine_process(rig.engine), 0);
        gpu_rig_start(&rig);
    }
    gpu_rig_close(&rig); /* ends the last one, and all are collected then */
    hurry(0);
    atomic_store(&reading, false);
    pthread_join(reader, NULL);
    assert_int_equal(atomic_load(&collected_by_engine), 0);
    assert_int_equal(atomic_load(&collected_urgently), 0);
    assert_int_equal(atomic_load(&collected), KILLS + 1);
    assert_int_equal(atomic_load(&started), KILLS + 1);
    assert_int_equal(atomic_load(&started_urgently), 0);
    for (int i = 0; i < KILLS; i++)
        assert_true(kill(ended[i], 0) != 0 && errno == ESRCH);
}

static void a_child_that_is_ready_before_it_is_known_serves(void **state)
{
    (void)state;
    struct gpu_rig rig;
    struct gpu_crowd *crowd = gpu_crowd_open(5, 20, 60, 1 << 16, 9);
    const struct gpu_emulation card = gpu_crowd_card(2);
    atomic_store(&told_late, true);
    gpu_rig_open(&rig, crowd, &card, NULL);
    atomic_store(&told_late, false);
    assert_true(gpu_engine_process(rig.engine) > 0);
    gpu_rig_go_on(&rig, 5, 20, 400);
    gpu_rig_take_all(&rig);
    gpu_rig_close(&rig);
}

/* No watchdog would see it in less than 20 s. The fault is told before the child is gone, and a new one is
 * started only then. */
static void a_child_that_takes_long_to_end_is_noticed_before(void **state)
{
    (void)state;
    struct gpu_rig rig;
    struct gpu_crowd *crowd = gpu_crowd_open(5, 20, 60, 1 << 16, 9);
    const struct gpu_emulation card = gpu_crowd_card(2);
    struct gpu_engine_options options = gpu_crowd_options(crowd, &card);
    struct core_error error = {""};
    options.kill_ns = CORE_NS_PER_MS;
    gpu_rig_open(&rig, crowd, &card, &options);
    gpu_rig_go_on(&rig, 5, 20, 400);
    atomic_store(&dies_slowly, true);
    assert_int_equal(kill(gpu_engine_process(rig.engine), SIGKILL), 0);
    const struct gpu_fault fault = gpu_rig_fault(&rig, 5, 20, 400);
    assert_int_equal(fault.kind, GPU_FAULT_SIGNALLED);
    assert_int_equal(fault.code, 0);
    assert_false(fault.gone);
    assert_int_equal(gpu_engine_start(rig.engine, fault.restart_ns, &error), CORE_AGAIN);
    atomic_store(&dies_slowly, false);
    gpu_rig_start(&rig);
    gpu_rig_go_on(&rig, 5, 20, 400);
    gpu_rig_take_all(&rig);
    gpu_rig_close(&rig);
}

/* The descriptor of one that has ended stays readable until it is collected: nobody is to be woken by it. */
static void the_descriptor_is_quiet_after_an_end(void **state)
{
    (void)state;
    struct gpu_rig rig;
    struct gpu_crowd *crowd = gpu_crowd_open(5, 20, 60, 1 << 16, 9);
    const struct gpu_emulation card = gpu_crowd_card(2);
    struct gpu_event event;
    gpu_rig_open(&rig, crowd, &card, NULL);
    assert_int_equal(kill(gpu_engine_process(rig.engine), SIGKILL), 0);
    (void)gpu_rig_fault(&rig, 1, 20, 400);
    assert_int_equal(gpu_engine_poll(rig.engine, core_time_now_ns(), &event), CORE_AGAIN);
    struct pollfd woken = {.fd = gpu_engine_descriptor(rig.engine), .events = POLLIN};
    assert_int_equal(poll(&woken, 1, 0), 0);
    gpu_rig_close(&rig);
}

/* Not by the number of a descriptor that there never was. */
static void descriptors_that_lack_are_named(void **state)
{
    (void)state;
    struct gpu_crowd *crowd = gpu_crowd_open(2, 4, 8, 1 << 16, 4);
    const struct gpu_emulation card = gpu_crowd_card(2);
    const struct gpu_engine_options options = gpu_crowd_options(crowd, &card);
    struct gpu_engine *engine;
    struct core_error error = {""};
    struct gpu_event event;
    struct rlimit before, few;
    assert_int_equal(gpu_engine_open(&engine, &options, &error), CORE_OK);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = 16; /* room for the socket, and for two of three that the child is to have */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    const core_status status = gpu_engine_start(engine, core_time_now_ns(), &error);
    const bool told = gpu_crowd_wait(engine, &event);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(status, CORE_OK);
    assert_true(told);
    assert_int_equal(event.kind, GPU_EVENT_FAULT);
    assert_int_equal(event.fault.kind, GPU_FAULT_START);
    assert_true(event.fault.gone);
    assert_non_null(strstr(event.fault.text, "Too many open files"));
    gpu_engine_close(engine);
    gpu_crowd_close(crowd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_of_ordinary_priority_starts_and_collects),
        cmocka_unit_test(a_child_that_is_ready_before_it_is_known_serves),
        cmocka_unit_test(a_child_that_takes_long_to_end_is_noticed_before),
        cmocka_unit_test(the_descriptor_is_quiet_after_an_end),
        cmocka_unit_test(descriptors_that_lack_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
