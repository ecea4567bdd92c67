/* The cards of a machine, for calibration: a child each, with arenas as large as the shapes to be measured.
 * One thread. */
#ifndef MILLRACE_BENCH_GPU_MEASURER_H
#define MILLRACE_BENCH_GPU_MEASURER_H

#include "bench/gpu/calibrate.h"
#include "bench/gpu/card.h"
#include "core/stream.h"

struct bench_gpu_machine_options {
    struct bench_gpu_program program;
    const struct config_profile *emulated; /* whose cards are played, with the emulated backend; else NULL */
    uint64_t arena_bytes;                  /* payload of the largest shape; 0: what this machine can spare */
    enum core_cipher cipher;               /* of the keys; a longer key makes slower kernels */
};

struct bench_gpu_machine;

/* Finds the cards and starts them. *machine is NULL, and *why says the reason, where there is none. */
CORE_CHECKED core_status bench_gpu_machine_open(struct bench_gpu_machine **machine,
                                                const struct bench_gpu_machine_options *options,
                                                struct core_error *why, struct core_error *error);
void bench_gpu_machine_close(struct bench_gpu_machine *machine); /* NULL is fine */

/* Kinds of cards, by name. */
uint32_t bench_gpu_machine_kinds(const struct bench_gpu_machine *machine);

/* How to measure a kind; valid until the machine is closed. */
struct bench_gpu_measurer bench_gpu_machine_measurer(struct bench_gpu_machine *machine, uint32_t kind);

/* What the first card of a kind said of itself. */
const struct gpu_device_facts *bench_gpu_machine_facts(const struct bench_gpu_machine *machine,
                                                       uint32_t kind);

#endif
