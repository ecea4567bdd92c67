/* The NUMA nodes of a machine: memory is quick for the cores and the cards of its own node, and slower for all
 * others. A card is served best by threads of its node that use memory of its node.
 *
 * What the kernel tells of nodes is read below `root`, "/sys". Reading may block: not for real-time threads. */
#ifndef MILLRACE_CORE_NODE_H
#define MILLRACE_CORE_NODE_H

#include "core/status.h"

/* The node of the device at this place of the PCI bus, as "0000:3b:00.0". -1: it is not told, or the machine
 * has one node alone. */
int core_node_of_pci(const char *root, const char *pci);

/* This thread, and the threads and processes that it starts from now on, keep to cores of the node, as far as
 * they may use any, and take their memory there while the node has some. CORE_DENIED with what the system did
 * not permit; the other half may hold. */
CORE_CHECKED core_status core_node_take(const char *root, int node, struct core_error *error);

/* Runs `run` on a thread that takes the node, as far as that is permitted, and returns what it returns. This
 * thread stays as it is. Without a node (-1) it runs `run` itself. */
CORE_CHECKED core_status core_node_run(const char *root, int node,
                                       core_status (*run)(void *argument, struct core_error *error),
                                       void *argument, struct core_error *error);

#endif
