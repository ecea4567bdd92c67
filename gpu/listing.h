/* The cards of this machine, as `millrace-gpu --list` shows them: one line for each, in the order in which the
 * driver numbers them.
 *
 *   INDEX \t NAME \t BYTES bytes \t N SMs \t N copy engines \t driver VERSION \t UUID \t PCI
 *
 * The program that lists and the child that serves (gpu/process.h) have the same environment, the caller's, so
 * that both find the same driver and the same cards. An index is good for the moment of the list only: a card
 * that falls off its bus shifts the others. What holds is the UUID, and by that a child is given its card. */
#ifndef MILLRACE_GPU_LISTING_H
#define MILLRACE_GPU_LISTING_H

#include "gpu/device.h"

#include <stdbool.h>
#include <stdio.h>

#define GPU_LISTING_MAX       64
#define GPU_LISTING_INDEX_MAX 1023

struct gpu_listed {
    uint32_t index;
    struct gpu_device_facts facts; /* `kernel` is empty */
};

/* Runs `program --backend BACKEND --list`, for 30 s at most; a driver that wakes up takes seconds. `visible`
 * is the UUID of the only card to look for, as of a MIG instance that is not shown by itself; NULL: all.
 * *count: how many of `cards`, which has room for GPU_LISTING_MAX, are filled in. None is no error; *why says
 * then in the program's own words why there is none. CORE_NOT_FOUND: it can not be run. CORE_SYSTEM: it
 * failed. Waits, and allocates. */
CORE_CHECKED core_status gpu_listing_run(const char *program, const char *backend, const char *visible,
                                         struct gpu_listed *cards, uint32_t *count, struct core_error *why,
                                         struct core_error *error);

/* Reads a line, up to its end or that of the text. False: it is not of a card. Pure. */
bool gpu_listing_parse(const char *line, struct gpu_listed *card);

/* Writes the line of a card. */
void gpu_listing_print(const struct gpu_listed *card, FILE *to);

#endif
