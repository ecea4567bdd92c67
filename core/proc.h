/* The small files in which the kernel tells of processes, processors, nodes and groups (/proc, /sys): their
 * text, and the figures in it. In a container they may come from another program, and are read as any input.
 * Reading may block: not for real-time threads. All else is pure: any thread. */
#ifndef MILLRACE_CORE_PROC_H
#define MILLRACE_CORE_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CORE_PROC_FIGURE_MAX (INT64_MAX / 2) /* two can be added */

/* The beginning of a file, up to size - 1 bytes, as text. False, and an empty text: there is nothing. */
bool core_proc_read(const char *path, char *text, size_t size);

/* The index-th word of the text's first line, from 1, which is a number, times `unit`, which is positive. -1:
 * there is none, or it is beyond CORE_PROC_FIGURE_MAX. */
int64_t core_proc_figure(const char *text, unsigned index, int64_t unit);

/* Whether the number is in a list such as "0-3,8,10-11" (of cores, or of nodes). */
bool core_proc_list_has(const char *list, unsigned number);

/* Of the stat file of a process or thread what is behind its name, which may hold anything: the third field
 * and those after it. "": there is nothing. */
const char *core_proc_stat(const char *text);

/* The first model name in /proc/cpuinfo; "unknown processor". */
void core_proc_processor(const char *cpuinfo, char *text, size_t size);

/* The path of the process's group (cgroup version 2) in /proc/self/cgroup: "/a/b". False: there is none, or it
 * is too long. */
bool core_proc_group(const char *membership, char *group, size_t size);

/* Thousandths of a core that a group's cpu.max allows, at least 1; UINT_MAX: no limit. */
unsigned core_proc_quota(const char *cpu_max);

#endif
