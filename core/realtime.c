#include "core/realtime.h"

#include "core/proc.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define STACK_BYTES_DEFAULT ((size_t)256 * 1024)
#define NAME_BYTES          16 /* what the kernel keeps, terminator included */

/* Adds one refused setting to the list that a person reads. */
static void refusal_add(struct core_error *not_permitted, const char *setting, int number)
{
    if (!not_permitted)
        return;
    char reason[128];
    const size_t length = strlen(not_permitted->text);
    snprintf(not_permitted->text + length, sizeof not_permitted->text - length, "%s%s (%s)",
             length > 0 ? ", " : "", setting, strerror_r(number, reason, sizeof reason));
}

static int fifo_set(pthread_t thread, int priority)
{
    const struct sched_param parameters = {.sched_priority = priority};
    return pthread_setschedparam(thread, SCHED_FIFO, &parameters);
}

/* A thread that a real-time thread starts begins as one. To give that up needs no right. */
static void default_policy_set(pthread_t thread)
{
    const struct sched_param parameters = {.sched_priority = 0};
    struct sched_param inherited;
    int policy;
    if (pthread_getschedparam(thread, &policy, &inherited) == 0 &&
        (policy == SCHED_FIFO || policy == SCHED_RR))
        (void)pthread_setschedparam(thread, SCHED_OTHER, &parameters);
}

void core_thread_priority_take(int fifo_priority)
{
    if (fifo_priority == 0)
        default_policy_set(pthread_self());
    else
        (void)fifo_set(pthread_self(), fifo_priority);
}

static int cpu_pin(pthread_t thread, int cpu)
{
    if (cpu >= CPU_SETSIZE)
        return EINVAL;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    return pthread_setaffinity_np(thread, sizeof one, &one);
}

/* What a starting thread must know; lives on the starter's stack until the thread says `taken`. */
struct start {
    const struct core_thread_options *options;
    struct core_error *not_permitted;
    void *(*run)(void *);
    void *argument;
    sem_t taken;
};

/* The thread sets itself up, so that not one instruction of `run` comes before its settings. */
static void self_set_up(const struct core_thread_options *options, struct core_error *not_permitted)
{
    const pthread_t self = pthread_self();
    char setting[64], name[NAME_BYTES];
    int number;
    if (options->name) {
        snprintf(name, sizeof name, "%s", options->name);
        pthread_setname_np(self, name);
    }
    if (options->cpu >= 0 && (number = cpu_pin(self, options->cpu)) != 0) {
        snprintf(setting, sizeof setting, "pinning to core %d", options->cpu);
        refusal_add(not_permitted, setting, number);
    }
    if (options->fifo_priority == 0)
        default_policy_set(self);
    else if ((number = fifo_set(self, options->fifo_priority)) != 0) {
        snprintf(setting, sizeof setting, "SCHED_FIFO priority %d", options->fifo_priority);
        refusal_add(not_permitted, setting, number);
    }
}

static void *thread_main(void *start_pointer)
{
    struct start *start = start_pointer;
    void *(*run)(void *) = start->run;
    void *argument = start->argument;
    self_set_up(start->options, start->not_permitted);
    sem_post(&start->taken);
    return run(argument);
}

static size_t stack_bytes_valid(size_t stack_bytes)
{
    if (stack_bytes == 0)
        return STACK_BYTES_DEFAULT;
    return stack_bytes < (size_t)PTHREAD_STACK_MIN ? (size_t)PTHREAD_STACK_MIN : stack_bytes;
}

core_status core_thread_start(pthread_t *thread, const struct core_thread_options *options,
                              void *(*run)(void *), void *argument, struct core_error *not_permitted,
                              struct core_error *error)
{
    struct start start = {
        .options = options, .not_permitted = not_permitted, .run = run, .argument = argument};
    const char *name = options->name ? options->name : "unnamed";
    core_status status = CORE_OK;
    pthread_attr_t attributes;
    if (not_permitted)
        not_permitted->text[0] = '\0';
    sem_init(&start.taken, 0, 0);
    pthread_attr_init(&attributes);
    errno = pthread_attr_setstacksize(&attributes, stack_bytes_valid(options->stack_bytes));
    if (errno == 0)
        errno = pthread_create(thread, &attributes, thread_main, &start);
    if (errno != 0) {
        status = core_error_errno(error, "can not start thread %s", name);
        goto destroy;
    }
    while (sem_wait(&start.taken) != 0)
        ; /* interrupted by a signal: `start` is still in use */
destroy:
    pthread_attr_destroy(&attributes);
    sem_destroy(&start.taken);
    return status;
}

void core_mutex_init(pthread_mutex_t *mutex)
{
    pthread_mutexattr_t inherits;
    pthread_mutexattr_init(&inherits);
    pthread_mutexattr_setprotocol(&inherits, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(mutex, &inherits);
    pthread_mutexattr_destroy(&inherits);
}

core_status core_memory_lock(struct core_error *error)
{
    /* With the limit left low, MCL_FUTURE would make later allocations fail instead. */
    struct rlimit limit = {0, 0};
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_MEMLOCK, &limit); /* raising up to the hard limit needs no right */
    }
    if (mlockall(MCL_CURRENT | MCL_FUTURE) == 0)
        return CORE_OK;
    (void)core_error_errno(error,
                           "memory is not locked, so paging may delay deadlines: raise RLIMIT_MEMLOCK (now "
                           "%llu bytes; LimitMEMLOCK=infinity under systemd) or grant CAP_IPC_LOCK",
                           (unsigned long long)limit.rlim_cur);
    return CORE_DENIED;
}

unsigned core_cpu_count(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    const int count = CPU_COUNT(&set);
    return count > 0 ? (unsigned)count : 1;
}

int core_cpu_number(unsigned index)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return -1;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET((size_t)cpu, &set) && index-- == 0)
            return cpu;
    return -1;
}

unsigned core_cpu_quota(const char *membership, const char *root)
{
    char text[2 * PATH_MAX], group[PATH_MAX], path[2 * PATH_MAX];
    unsigned least = UINT_MAX;
    if (!core_proc_read(membership, text, sizeof text) || !core_proc_group(text, group, sizeof group))
        return UINT_MAX;
    for (char *end = group + strlen(group); end != NULL; end = strrchr(group, '/')) {
        *end = '\0';
        snprintf(path, sizeof path, "%.2000s%s/cpu.max", root, group);
        unsigned quota = core_proc_read(path, text, sizeof text) ? core_proc_quota(text) : UINT_MAX;
        least = quota < least ? quota : least;
    }
    return least;
}

unsigned core_cpu_thousandths(void)
{
    unsigned cores = 1000 * core_cpu_count(), quota = core_cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    return quota < cores ? quota : cores;
}
