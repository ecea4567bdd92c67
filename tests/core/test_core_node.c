/* Nodes of machines that are made up: what the kernel would tell of them lies below a folder of the test's. What
 * is asked of the real kernel is real: cores of this machine, and its first node. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/node.h"
#include "core/realtime.h"

#define NODES "devices/system/node"
#define CARD  "bus/pci/devices/0000:3b:00.0"

static char root[] = "/tmp/millrace-node-XXXXXX";
static const char *const folders[] = {"devices",      "devices/system",  NODES,
                                      NODES "/node0", NODES "/node1",    "bus",
                                      "bus/pci",      "bus/pci/devices", CARD};
static const char *const files[] = {NODES "/online", NODES "/node0/cpulist", NODES "/node1/cpulist",
                                    CARD "/numa_node"};

static void put(const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int begin(void **state)
{
    char path[128];
    (void)state;
    if (mkdtemp(root) == NULL)
        return -1;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(path, sizeof path, "%s/%s", root, folders[i]);
        if (mkdir(path, 0700) != 0)
            return -1;
    }
    return 0;
}

static int end(void **state)
{
    char path[128];
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", root, files[i]);
        (void)unlink(path);
    }
    for (size_t i = sizeof folders / sizeof *folders; i-- > 0;) {
        snprintf(path, sizeof path, "%s/%s", root, folders[i]);
        (void)rmdir(path);
    }
    return rmdir(root);
}

static void a_card_has_a_node(void **state)
{
    static const struct {
        const char *online, *node;
        int expected;
    } rows[] = {
        {"0-1\n", "1\n", 1},   {"0-1\n", "0\n", 0}, {"0,2\n", "2\n", 2},
        {"0-1\n", "-1\n", -1}, /* it is not told */
        {"0\n", "0\n", -1},    /* there is no other */
        {"", "0\n", -1},       {"0-1\n", "", -1},   {"0-1\n", "99999\n", -1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put(NODES "/online", rows[i].online);
        put(CARD "/numa_node", rows[i].node);
        assert_int_equal(core_node_of_pci(root, "0000:3b:00.0"), rows[i].expected);
        assert_int_equal(core_node_of_pci(root, "0000:3c:00.0"), -1);
        assert_int_equal(core_node_of_pci(root, ""), -1);
    }
    assert_int_equal(core_node_of_pci("/nonexistent", "0000:3b:00.0"), -1);
}

/* What a thread got, and one that it has started. */
struct taken {
    int node;
    core_status status;
    struct core_error error;
    int cores, first, heir_cores, policy;
    unsigned long nodes;
};

static void *inherit(void *argument)
{
    struct taken *taken = argument;
    cpu_set_t set;
    (void)!sched_getaffinity(0, sizeof set, &set);
    taken->heir_cores = CPU_COUNT(&set);
    (void)!syscall(SYS_get_mempolicy, &taken->policy, &taken->nodes, 8 * sizeof taken->nodes, NULL, 0UL);
    return NULL;
}

static void *take(void *argument)
{
    struct taken *taken = argument;
    pthread_t heir;
    cpu_set_t set;
    taken->status = core_node_take(root, taken->node, &taken->error);
    (void)!sched_getaffinity(0, sizeof set, &set);
    taken->cores = CPU_COUNT(&set);
    for (taken->first = 0; !CPU_ISSET((size_t)taken->first, &set); taken->first++)
        ;
    if (pthread_create(&heir, NULL, inherit, taken) == 0)
        pthread_join(heir, NULL);
    return NULL;
}

/* In a thread of its own, for what it takes it keeps. */
static struct taken take_in_thread(int node)
{
    struct taken taken = {.node = node};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, take, &taken), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    return taken;
}

static void a_thread_keeps_to_a_node_and_so_do_its_own(void **state)
{
    char text[32];
    (void)state;
    const int last = core_cpu_number(core_cpu_count() - 1);
    snprintf(text, sizeof text, "1023,%d\n", last);
    put(NODES "/node0/cpulist", text);
    struct taken taken = take_in_thread(0);
    if (taken.status == CORE_DENIED) { /* as in a container */
        print_message("not permitted: %s\n", taken.error.text);
        skip();
    }
    assert_int_equal(taken.status, CORE_OK);
    assert_int_equal(taken.cores, 1);
    assert_int_equal(taken.first, last);
    assert_int_equal(taken.heir_cores, 1);
    assert_int_equal(taken.policy, MPOL_PREFERRED);
    assert_int_equal(taken.nodes, 1);

    put(NODES "/node0/cpulist", "1022-1023\n"); /* none of ours */
    taken = take_in_thread(0);
    assert_int_equal(taken.status, CORE_OK);
    assert_int_equal(taken.cores, (int)core_cpu_count());
    assert_int_equal(taken.policy, MPOL_PREFERRED);
}

static core_status look(void *argument, struct core_error *error)
{
    cpu_set_t set;
    (void)!sched_getaffinity(0, sizeof set, &set);
    *(int *)argument = CPU_COUNT(&set);
    return core_error_set(error, CORE_CLOSED, "seen");
}

static void a_call_is_run_on_a_node(void **state)
{
    struct core_error error = {""};
    char text[32];
    int cores = 0;
    cpu_set_t set;
    (void)state;
    snprintf(text, sizeof text, "%d\n", core_cpu_number(0));
    put(NODES "/node1/cpulist", text);
    assert_int_equal(core_node_run(root, 1, look, &cores, &error), CORE_CLOSED);
    assert_string_equal(error.text, "seen");
    assert_int_equal(cores, 1);
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    assert_int_equal(CPU_COUNT(&set), (int)core_cpu_count()); /* of this thread */
    assert_int_equal(core_node_run(root, -1, look, &cores, &error), CORE_CLOSED);
    assert_int_equal(cores, (int)core_cpu_count());
}

static void what_is_not_permitted_is_told(void **state)
{
    char text[32];
    (void)state;
    snprintf(text, sizeof text, "%d\n", core_cpu_number(0));
    put(NODES "/node1/cpulist", text);
    struct taken taken = take_in_thread(1023); /* the kernel has no such node */
    assert_int_equal(taken.status, CORE_DENIED);
    assert_non_null(strstr(taken.error.text, "memory of node 1023 ("));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_card_has_a_node),
        cmocka_unit_test(a_thread_keeps_to_a_node_and_so_do_its_own),
        cmocka_unit_test(a_call_is_run_on_a_node),
        cmocka_unit_test(what_is_not_permitted_is_told),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
