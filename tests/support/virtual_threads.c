#include "tests/support/virtual_threads.h"

#include "core/realtime.h"
#include "cpu/worker.h"
#include "tests/support/require.h"

#include <poll.h>
#include <semaphore.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define THREADS_MAX 20
#define TIMERS_MAX  8
#define STACK_BYTES ((size_t)1 << 20)
#define START_NS    (1000 * CORE_NS_PER_S)

/* Between two looks at a semaphore. */
#define SEMAPHORE_NS (100 * CORE_NS_PER_US)

int __real_epoll_wait(int descriptor, struct epoll_event *events, int most, int timeout_ms);
int __real_poll(struct pollfd *ready, nfds_t count, int timeout_ms);
ssize_t __real_read(int descriptor, void *buffer, size_t bytes);
int __real_close(int descriptor);
bool __real_cpu_worker_serve(struct cpu_worker *worker, uint32_t producer);
int __wrap_epoll_wait(int descriptor, struct epoll_event *events, int most, int timeout_ms);
int __real_ppoll(struct pollfd *ready, nfds_t count, const struct timespec *timeout, const sigset_t *mask);
int __wrap_poll(struct pollfd *ready, nfds_t count, int timeout_ms);
int __wrap_ppoll(struct pollfd *ready, nfds_t count, const struct timespec *timeout, const sigset_t *mask);
ssize_t __wrap_read(int descriptor, void *buffer, size_t bytes);
int __wrap_close(int descriptor);
bool __wrap_cpu_worker_serve(struct cpu_worker *worker, uint32_t producer);
int __wrap_timerfd_create(int clock, int flags);
int __wrap_timerfd_settime(int descriptor, int flags, const struct itimerspec *to, struct itimerspec *from);
core_ns __wrap_core_time_now_ns(void);
void __wrap_core_time_sleep_until(core_ns wake_ns);
core_status __wrap_core_thread_start(pthread_t *thread, const struct core_thread_options *options,
                                     void *(*run)(void *), void *argument, struct core_error *not_permitted,
                                     struct core_error *error);
int __wrap_sem_wait(sem_t *semaphore);
int __wrap_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_getcpuclockid(pthread_t thread, clockid_t *clock);
bool __wrap_core_proc_read(const char *path, char *text, size_t size);

enum state { FREE, ALIVE, ENDED };

struct coroutine {
    enum state state;
    bool is_worker;
    ucontext_t context;
    void *stack;
    void *(*run)(void *);
    void *argument;
    int descriptor;  /* it waits for this to be readable; -1: for the time alone */
    int watched;     /* what the watcher has of it; -1: nothing */
    core_ns wake_ns; /* and no longer than until then */
};

struct timer {
    int descriptor;              /* an eventfd, which has something to read once the time has come */
    core_ns due_ns, interval_ns; /* NEVER: not set; 0: once */
    bool fired;                  /* its descriptor may be readable */
};

static struct coroutine coroutines[THREADS_MAX], *running;
static ucontext_t scheduler;
static int watcher = -1; /* an epoll of what coroutines wait for, by their numbers */
static struct timer timers[TIMERS_MAX];
static size_t timer_count;
static bool (*rests)(void);
static core_ns clock_ns = START_NS, worker_delay_ns;

/* ---- coroutines ---- */

static void begin(void)
{
    running->run(running->argument);
    running->state = ENDED;
}

/* A function of its own: getcontext may come back a second time, and must find nothing changed. */
static void enter_at_begin(struct coroutine *coroutine)
{
    getcontext(&coroutine->context);
    coroutine->context.uc_stack = (stack_t){.ss_sp = coroutine->stack, .ss_size = STACK_BYTES};
    coroutine->context.uc_link = &scheduler;
    makecontext(&coroutine->context, begin, 0);
}

core_status __wrap_core_thread_start(pthread_t *thread, const struct core_thread_options *options,
                                     void *(*run)(void *), void *argument, struct core_error *not_permitted,
                                     struct core_error *error)
{
    struct coroutine *fresh = coroutines;
    (void)error;
    while (fresh->state != FREE)
        TEST_REQUIRE(++fresh < coroutines + THREADS_MAX);
    if (not_permitted != NULL)
        not_permitted->text[0] = '\0';
    void *stack = fresh->stack;
    if (stack == NULL)
        stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TEST_REQUIRE(stack != MAP_FAILED);
    *fresh = (struct coroutine){.state = ALIVE,
                                .is_worker = strncmp(options->name, "worker", 6) == 0 ||
                                             strcmp(options->name, "standby") == 0 ||
                                             strcmp(options->name, "gpu-memory") == 0,
                                .stack = stack,
                                .run = run,
                                .argument = argument,
                                .descriptor = -1,
                                .watched = -1};
    enter_at_begin(fresh);
    memcpy(thread, &fresh, sizeof fresh);
    return CORE_OK;
}

/* Whoever waits for something mostly waited for it before. */
static void watch(struct coroutine *coroutine, int descriptor)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)(coroutine - coroutines)};

    if (coroutine->watched >= 0) /* it may be closed */
        (void)epoll_ctl(watcher, EPOLL_CTL_DEL, coroutine->watched, NULL);
    coroutine->watched = descriptor;
    if (watcher < 0)
        watcher = epoll_create1(EPOLL_CLOEXEC);
    TEST_REQUIRE(descriptor < 0 || epoll_ctl(watcher, EPOLL_CTL_ADD, descriptor, &event) == 0);
}

static void block(int descriptor, core_ns wake_ns)
{
    struct coroutine *self = running;
    if (descriptor >= 0 && descriptor != self->watched)
        watch(self, descriptor);
    self->descriptor = descriptor;
    self->wake_ns = wake_ns;
    swapcontext(&self->context, &scheduler);
}

/* Lets those run that can. False: none can. */
static bool run_ready(void)
{
    struct epoll_event events[THREADS_MAX];
    bool ready[THREADS_MAX] = {false}, ran = false;

    const int named = watcher < 0 ? 0 : __real_epoll_wait(watcher, events, THREADS_MAX, 0);
    for (int i = 0; i < named; i++)
        ready[events[i].data.u32] = coroutines[events[i].data.u32].descriptor >= 0;
    for (size_t i = 0; i < THREADS_MAX; i++) {
        struct coroutine *next = &coroutines[i];
        if (next->state != ALIVE || (!ready[i] && next->wake_ns > clock_ns))
            continue;
        running = next;
        swapcontext(&scheduler, &next->context);
        running = NULL;
        ran = true;
    }
    return ran;
}

/* ---- the clock ---- */

static core_ns next_ns(void)
{
    core_ns next_ns = CORE_NS_NEVER;
    for (size_t i = 0; i < THREADS_MAX; i++)
        if (coroutines[i].state == ALIVE)
            next_ns = core_time_min(next_ns, coroutines[i].wake_ns);
    for (size_t i = 0; i < timer_count; i++)
        next_ns = core_time_min(next_ns, timers[i].due_ns);
    return next_ns;
}

static void fire_timers(void)
{
    const uint64_t one = 1;
    for (size_t i = 0; i < timer_count; i++) {
        struct timer *timer = &timers[i];
        if (timer->due_ns > clock_ns)
            continue;
        timer->due_ns = timer->interval_ns > 0 ? clock_ns + timer->interval_ns : CORE_NS_NEVER;
        timer->fired = true;
        TEST_REQUIRE(write(timer->descriptor, &one, sizeof one) == sizeof one);
    }
}

void test_virtual_rest(bool (*rest)(void))
{
    rests = rest;
}

void test_virtual_run(core_ns until_ns)
{
    for (;;) {
        while (run_ready())
            ;
        if (rests != NULL && rests())
            continue;
        core_ns step_ns = next_ns();
        if (step_ns > until_ns)
            break;
        clock_ns = core_time_max(clock_ns, step_ns);
        fire_timers();
    }
    clock_ns = core_time_max(clock_ns, until_ns);
}

void test_virtual_turn(void)
{
    (void)run_ready();
}

core_ns test_virtual_now_ns(void)
{
    return clock_ns;
}

void test_virtual_delay_workers(core_ns delay_ns)
{
    worker_delay_ns = delay_ns;
}

/* ---- what the program calls ---- */

static core_ns after_ms(int timeout_ms)
{
    return timeout_ms < 0 ? CORE_NS_NEVER : clock_ns + timeout_ms * CORE_NS_PER_MS;
}

int __wrap_epoll_wait(int descriptor, struct epoll_event *events, int most, int timeout_ms)
{
    int named = __real_epoll_wait(descriptor, events, most, 0);
    if (named != 0 || timeout_ms == 0 || running == NULL)
        return named;
    block(descriptor, after_ms(timeout_ms));
    return __real_epoll_wait(descriptor, events, most, 0);
}

int __wrap_poll(struct pollfd *ready, nfds_t count, int timeout_ms)
{
    int named = __real_poll(ready, count, running == NULL ? timeout_ms : 0);
    if (named != 0 || timeout_ms == 0 || running == NULL)
        return named;
    TEST_REQUIRE(count == 1 && ready->events == POLLIN);
    block(ready->fd, after_ms(timeout_ms));
    return __real_poll(ready, count, 0);
}

/* Of a batcher, which waits for its mailbox and for its card, which has no descriptor. */
int __wrap_ppoll(struct pollfd *ready, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
    const struct timespec none = {0};
    int named = __real_ppoll(ready, count, running == NULL ? timeout : &none, mask);
    if (named != 0 || running == NULL)
        return named;
    TEST_REQUIRE(count == 2 && ready[1].fd < 0);
    block(ready[0].fd, clock_ns + timeout->tv_sec * CORE_NS_PER_S + timeout->tv_nsec);
    return __real_ppoll(ready, count, &none, mask);
}

ssize_t __wrap_read(int descriptor, void *buffer, size_t bytes)
{
    if (running != NULL && running->is_worker) {
        block(descriptor, CORE_NS_NEVER);
        if (worker_delay_ns > 0)
            block(-1, clock_ns + worker_delay_ns);
    }
    return __real_read(descriptor, buffer, bytes);
}

/* Packets are inside a worker for as long as it is to take: then nobody serves it. */
bool __wrap_cpu_worker_serve(struct cpu_worker *worker, uint32_t producer)
{
    return worker_delay_ns == 0 && __real_cpu_worker_serve(worker, producer);
}

int __wrap_timerfd_create(int clock, int flags)
{
    (void)clock;
    return eventfd(0, (flags & TFD_NONBLOCK ? EFD_NONBLOCK : 0) | (flags & TFD_CLOEXEC ? EFD_CLOEXEC : 0));
}

int __wrap_timerfd_settime(int descriptor, int flags, const struct itimerspec *to, struct itimerspec *from)
{
    uint64_t expired;
    const core_ns value_ns = to->it_value.tv_sec * CORE_NS_PER_S + to->it_value.tv_nsec;
    const core_ns from_ns = flags & TFD_TIMER_ABSTIME ? 0 : clock_ns;
    size_t at = 0;
    while (at < timer_count && timers[at].descriptor != descriptor)
        at++;
    TEST_REQUIRE(at < TIMERS_MAX);
    timer_count = at == timer_count ? at + 1 : timer_count;
    if (timers[at].fired)
        (void)!__real_read(descriptor, &expired, sizeof expired);
    timers[at] =
        (struct timer){.descriptor = descriptor,
                       .due_ns = value_ns == 0 ? CORE_NS_NEVER : from_ns + value_ns,
                       .interval_ns = to->it_interval.tv_sec * CORE_NS_PER_S + to->it_interval.tv_nsec};
    (void)from;
    return 0;
}

int __wrap_close(int descriptor)
{
    for (size_t i = 0; i < timer_count; i++)
        if (timers[i].descriptor == descriptor)
            timers[i--] = timers[--timer_count];
    return __real_close(descriptor);
}

core_ns __wrap_core_time_now_ns(void)
{
    return clock_ns;
}

void __wrap_core_time_sleep_until(core_ns wake_ns)
{
    if (running != NULL && wake_ns > clock_ns)
        block(-1, wake_ns);
    else
        clock_ns = core_time_max(clock_ns, wake_ns);
}

/* Lets the others go on until the clock is at the next time that one of them waits for. */
static void run_once(void)
{
    test_virtual_run(core_time_min(next_ns(), clock_ns + CORE_NS_PER_S));
}

int __wrap_sem_wait(sem_t *semaphore)
{
    while (sem_trywait(semaphore) != 0)
        if (running == NULL)
            run_once();
        else
            block(-1, clock_ns + SEMAPHORE_NS); /* who posts it is another coroutine */
    return 0;
}

int __wrap_pthread_join(pthread_t thread, void **result)
{
    struct coroutine *ends;
    (void)result;
    memcpy(&ends, &thread, sizeof ends);
    while (ends->state != ENDED)
        run_once();
    watch(ends, -1);
    ends->state = FREE;
    return 0;
}

int __wrap_pthread_getcpuclockid(pthread_t thread, clockid_t *clock)
{
    (void)thread;
    *clock = CLOCK_PROCESS_CPUTIME_ID;
    return 0;
}

bool __wrap_core_proc_read(const char *path, char *text, size_t size)
{
    (void)path, (void)size;
    text[0] = '\0';
    return false;
}
