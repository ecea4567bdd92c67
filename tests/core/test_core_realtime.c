#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/realtime.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* What a thread saw of itself. */
struct seen {
    char name[16];
    int policy;
    int priority;
    int cpu_count;
    size_t stack_bytes;
};

static void *look(void *argument)
{
    struct seen *seen = argument;
    struct sched_param parameters;
    pthread_attr_t attributes;
    cpu_set_t set;
    pthread_getname_np(pthread_self(), seen->name, sizeof seen->name);
    pthread_getschedparam(pthread_self(), &seen->policy, &parameters);
    seen->priority = parameters.sched_priority;
    sched_getaffinity(0, sizeof set, &set);
    seen->cpu_count = CPU_COUNT(&set);
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstacksize(&attributes, &seen->stack_bytes);
    pthread_attr_destroy(&attributes);
    return argument;
}

static struct seen start_and_look(const struct core_thread_options *options, struct core_error *not_permitted)
{
    struct seen seen = {.name = ""};
    struct core_error error;
    pthread_t thread;
    void *returned = NULL;
    assert_int_equal(core_thread_start(&thread, options, look, &seen, not_permitted, &error), CORE_OK);
    assert_int_equal(pthread_join(thread, &returned), 0);
    assert_ptr_equal(returned, &seen);
    return seen;
}

static int allowed_cpu(void)
{
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    int cpu = 0;
    while (!CPU_ISSET((size_t)cpu, &set))
        cpu++;
    return cpu;
}

static void plain_settings_are_all_granted(void **state)
{
    (void)state;
    struct core_error not_permitted = {"old"};
    const struct core_thread_options options = {.name = "plain", .cpu = -1};
    const struct seen seen = start_and_look(&options, &not_permitted);
    assert_string_equal(not_permitted.text, "");
    assert_string_equal(seen.name, "plain");
    assert_int_equal(seen.policy, SCHED_OTHER);
    assert_int_equal(seen.cpu_count, core_cpu_count());
    assert_true(seen.stack_bytes >= 256 * 1024 && seen.stack_bytes < 1024 * 1024);
}

static void a_thread_is_pinned_and_named_shortly(void **state)
{
    (void)state;
    struct core_error not_permitted;
    const struct core_thread_options options = {.name = "a-name-of-more-than-15", .cpu = allowed_cpu()};
    const struct seen seen = start_and_look(&options, &not_permitted);
    assert_string_equal(not_permitted.text, "");
    assert_string_equal(seen.name, "a-name-of-more-");
    assert_int_equal(seen.cpu_count, 1);
}

static void a_tiny_stack_is_raised_to_the_least_possible(void **state)
{
    (void)state;
    const struct core_thread_options options = {.cpu = -1, .stack_bytes = 1};
    const struct seen seen = start_and_look(&options, NULL);
    assert_true(seen.stack_bytes >= (size_t)PTHREAD_STACK_MIN);
}

static void fifo_is_granted_or_named(void **state)
{
    (void)state;
    struct core_error not_permitted;
    const struct core_thread_options options = {.name = "fifo", .fifo_priority = 3, .cpu = -1};
    const struct seen seen = start_and_look(&options, &not_permitted);
    if (not_permitted.text[0] == '\0') {
        assert_int_equal(seen.policy, SCHED_FIFO);
        assert_int_equal(seen.priority, 3);
    } else {
        assert_int_equal(seen.policy, SCHED_OTHER);
        assert_string_equal(not_permitted.text, "SCHED_FIFO priority 3 (Operation not permitted)");
    }
}

/* Whoever starts it. */
static void the_default_policy_is_not_the_starters(void **state)
{
    (void)state;
    const struct core_thread_options options = {.cpu = -1};
    const struct sched_param urgent = {.sched_priority = 3}, ordinary = {.sched_priority = 0};
    if (pthread_setschedparam(pthread_self(), SCHED_FIFO, &urgent) != 0)
        skip();
    const struct seen seen = start_and_look(&options, NULL);
    assert_int_equal(pthread_setschedparam(pthread_self(), SCHED_OTHER, &ordinary), 0);
    assert_int_equal(seen.policy, SCHED_OTHER);
}

/* What the kernel schedules a thread of this process by: 20 and near it, or below 0 for a real-time one. */
static long priority_of(pid_t thread)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)thread);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    const char *at = strrchr(text, ')') + 1; /* behind the name, the 16th word */
    for (int word = 0; word < 15; word++)
        at = strchr(at + 1, ' ');
    return strtol(at, NULL, 10);
}

static void *take_and_let_go(void *mutex)
{
    pthread_mutex_lock(mutex);
    pthread_mutex_unlock(mutex);
    return NULL;
}

static void who_holds_a_mutex_inherits_the_waiters_priority(void **state)
{
    (void)state;
    const struct core_thread_options urgent = {.name = "urgent", .fifo_priority = 3, .cpu = -1};
    struct core_error not_permitted;
    pthread_mutex_t mutex;
    pthread_t waiter;
    core_mutex_init(&mutex);
    pthread_mutex_lock(&mutex);
    const long before = priority_of(gettid());
    assert_int_equal(core_thread_start(&waiter, &urgent, take_and_let_go, &mutex, &not_permitted, NULL),
                     CORE_OK);
    const bool permitted = not_permitted.text[0] == '\0';
    long meanwhile = before;
    for (int waited_ms = 0; permitted && meanwhile == before && waited_ms < 10000; waited_ms++) {
        usleep(1000);
        meanwhile = priority_of(gettid());
    }
    pthread_mutex_unlock(&mutex);
    pthread_join(waiter, NULL);
    pthread_mutex_destroy(&mutex);
    if (!permitted)
        skip();
    assert_int_equal(meanwhile, -1 - 3);
    assert_int_equal(priority_of(gettid()), before);
}

static void refused_settings_are_named_and_the_thread_runs(void **state)
{
    (void)state;
    static const struct {
        struct core_thread_options options;
        const char *not_permitted;
    } cases[] = {
        {{.cpu = CPU_SETSIZE - 1}, "pinning to core 1023 (Invalid argument)"},
        {{.cpu = CPU_SETSIZE}, "pinning to core 1024 (Invalid argument)"},
        {{.cpu = -1, .fifo_priority = 100}, "SCHED_FIFO priority 100 (Invalid argument)"},
        {{.cpu = CPU_SETSIZE, .fifo_priority = -1},
         "pinning to core 1024 (Invalid argument), SCHED_FIFO priority -1 (Invalid argument)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct core_error not_permitted;
        const struct seen seen = start_and_look(&cases[i].options, &not_permitted);
        assert_int_equal(seen.policy, SCHED_OTHER);
        assert_string_equal(not_permitted.text, cases[i].not_permitted);
        (void)start_and_look(&cases[i].options, NULL);
    }
}

static void a_thread_that_can_not_start_is_an_error(void **state)
{
    (void)state;
    struct core_error error, not_permitted;
    struct seen seen;
    pthread_t thread;
    const struct core_thread_options options = {.name = "giant", .cpu = -1, .stack_bytes = SIZE_MAX / 2};
    assert_int_equal(core_thread_start(&thread, &options, look, &seen, &not_permitted, &error), CORE_SYSTEM);
    assert_non_null(strstr(error.text, "giant"));
}

static void memory_is_locked_or_the_refusal_explained(void **state)
{
    (void)state;
    struct core_error error = {""};
    const core_status status = core_memory_lock(&error);
    if (status != CORE_OK) {
        assert_int_equal(status, CORE_DENIED);
        assert_non_null(strstr(error.text, "RLIMIT_MEMLOCK"));
    }
    munlockall();
}

static void cpu_count_is_what_this_process_may_use(void **state)
{
    (void)state;
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_int_equal(core_cpu_count(), CPU_COUNT(&before));
    assert_int_equal(core_cpu_number(0), allowed_cpu());
    assert_int_equal(core_cpu_number(core_cpu_count()), -1);
    const int last = core_cpu_number(core_cpu_count() - 1);
    assert_true(CPU_ISSET((size_t)last, &before));
    CPU_ZERO(&one);
    CPU_SET((size_t)last, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(core_cpu_count(), 1);
    assert_int_equal(core_cpu_number(0), last);
    assert_int_equal(core_cpu_number(1), -1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

static void write_file(const char *folder, const char *name, const char *text)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

/* A cgroup gets no more than those above it. */
static void the_least_limit_above_a_cgroup_counts(void **state)
{
    static const struct {
        const char *membership, *root, *above, *own; /* NULL: no such file */
        unsigned thousandths;
    } rows[] = {
        {"0::/a/b\n", NULL, "max 100000\n", "150000 100000\n", 1500},
        {"0::/a/b\n", NULL, "50000 100000\n", "150000 100000\n", 500},
        {"5:cpu:/x\n0::/a/b\n", "25000 50000\n", "max 100000\n", "max 100000\n", 500},
        {"0::/a/b\n", NULL, "max 100000\n", "max 100000\n", UINT_MAX},
        {"0::/\n", "300000 100000\n", NULL, NULL, 3000},
        {"0::/a/b\n", "1 1000000\n", NULL, NULL, 1},
        {"5:cpu:/a/b\n", "100 100\n", "100 100\n", "100 100\n", UINT_MAX},
        {"0::/a/b\n", "nonsense\n", "\n", "5\n", UINT_MAX},
    };
    char folder[] = "/tmp/millrace-test-XXXXXX", command[64], path[PATH_MAX];
    (void)state;
    assert_non_null(mkdtemp(folder));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(command, sizeof command, "cd %s && rm -rf * && mkdir -p a/b", folder);
        assert_int_equal(system(command), 0);
        write_file(folder, "membership", rows[i].membership);
        if (rows[i].root != NULL)
            write_file(folder, "cpu.max", rows[i].root);
        if (rows[i].above != NULL)
            write_file(folder, "a/cpu.max", rows[i].above);
        if (rows[i].own != NULL)
            write_file(folder, "a/b/cpu.max", rows[i].own);
        snprintf(path, sizeof path, "%s/membership", folder);
        assert_int_equal(core_cpu_quota(path, folder), rows[i].thousandths);
    }
    snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
    assert_int_equal(core_cpu_quota("/nonexistent", "/nonexistent"), UINT_MAX);
    assert_in_range(core_cpu_thousandths(), 1, 1000 * core_cpu_count());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_settings_are_all_granted),
        cmocka_unit_test(a_thread_is_pinned_and_named_shortly),
        cmocka_unit_test(a_tiny_stack_is_raised_to_the_least_possible),
        cmocka_unit_test(fifo_is_granted_or_named),
        cmocka_unit_test(the_default_policy_is_not_the_starters),
        cmocka_unit_test(who_holds_a_mutex_inherits_the_waiters_priority),
        cmocka_unit_test(refused_settings_are_named_and_the_thread_runs),
        cmocka_unit_test(a_thread_that_can_not_start_is_an_error),
        cmocka_unit_test(memory_is_locked_or_the_refusal_explained),
        cmocka_unit_test(cpu_count_is_what_this_process_may_use),
        cmocka_unit_test(the_least_limit_above_a_cgroup_counts),
    };
    return cmocka_run_group_tests_name("core/realtime", tests, NULL, NULL);
}
