#include "core/node.h"

#include "core/proc.h"
#include "core/realtime.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NODES_MAX  1024 /* as many as any kernel has */
#define LIST_BYTES 4096
#define WORD_BITS  (8 * sizeof(unsigned long))

int core_node_of_pci(const char *root, const char *pci)
{
    char path[256], text[LIST_BYTES];
    unsigned nodes = 0;

    snprintf(path, sizeof path, "%s/devices/system/node/online", root);
    (void)core_proc_read(path, text, sizeof text);
    for (unsigned node = 0; node < NODES_MAX; node++)
        nodes += core_proc_list_has(text, node) ? 1 : 0;
    snprintf(path, sizeof path, "%s/bus/pci/devices/%s/numa_node", root, pci);
    if (nodes < 2 || *pci == '\0' || !core_proc_read(path, text, sizeof text))
        return -1;
    const int64_t node = core_proc_figure(text, 1, 1);
    return node < NODES_MAX ? (int)node : -1;
}

/* Of the cores that the thread may use those of the node; where it has none of them, all as before. */
static int cores_take(const char *root, int node)
{
    char path[256], text[LIST_BYTES];
    cpu_set_t may, of_node;

    snprintf(path, sizeof path, "%s/devices/system/node/node%d/cpulist", root, node);
    (void)core_proc_read(path, text, sizeof text);
    if (sched_getaffinity(0, sizeof may, &may) != 0)
        return errno;
    CPU_ZERO(&of_node);
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &may) && core_proc_list_has(text, cpu))
            CPU_SET(cpu, &of_node);
    return CPU_COUNT(&of_node) == 0 || sched_setaffinity(0, sizeof of_node, &of_node) == 0 ? 0 : errno;
}

/* Preferred and not bound: a node that is full lends from others, and nobody is killed for it. */
static int memory_take(int node)
{
    unsigned long mask[NODES_MAX / WORD_BITS] = {0};
    mask[(size_t)node / WORD_BITS] = 1UL << ((size_t)node % WORD_BITS);
    return syscall(SYS_set_mempolicy, MPOL_PREFERRED, mask, (unsigned long)NODES_MAX + 1) == 0 ? 0 : errno;
}

core_status core_node_take(const char *root, int node, struct core_error *error)
{
    const int cores = cores_take(root, node), memory = memory_take(node);
    char reason[128];

    if (cores != 0)
        return core_error_set(error, CORE_DENIED, "cores of node %d (%s)", node,
                              strerror_r(cores, reason, sizeof reason));
    if (memory != 0)
        return core_error_set(error, CORE_DENIED, "memory of node %d (%s)", node,
                              strerror_r(memory, reason, sizeof reason));
    return CORE_OK;
}

struct guest {
    const char *root;
    int node;
    core_status (*run)(void *argument, struct core_error *error);
    void *argument;
    struct core_error *error;
    core_status status;
};

static void *guest_run(void *argument)
{
    struct guest *guest = argument;
    (void)!core_node_take(guest->root, guest->node, NULL);
    guest->status = guest->run(guest->argument, guest->error);
    return NULL;
}

core_status core_node_run(const char *root, int node,
                          core_status (*run)(void *argument, struct core_error *error), void *argument,
                          struct core_error *error)
{
    const struct core_thread_options options = {.name = "node", .cpu = -1, .stack_bytes = (size_t)1 << 20};
    struct guest guest = {.root = root, .node = node, .run = run, .argument = argument, .error = error};
    pthread_t thread;

    if (node < 0)
        return run(argument, error);
    const core_status status = core_thread_start(&thread, &options, guest_run, &guest, NULL, error);
    if (status != CORE_OK)
        return status;
    pthread_join(thread, NULL);
    return guest.status;
}
