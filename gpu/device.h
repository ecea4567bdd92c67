/* A GPU as the child process drives it: a table of functions per kind of device, `cuda` and `emulated`.
 *
 * A batch goes through three stages: its tables and payload are copied up, the kernel encrypts them, the
 * ciphertext is copied down. The device runs the stages of a kind in the order in which they were launched,
 * one at a time, and a stage of a batch only after the batch's stage before it. Stages of different kinds
 * overlap as far as the card permits. Which stage is launched when is the pipeline's business (pipeline.h).
 *
 * Keys change between kernels: key_set and key_clear take effect after all kernels that were launched before
 * and before all that are launched later. They need not be started at once, but may wait for one another, up
 * to the next kernel or keys_start.
 *
 * All calls come from one thread, the child's. Nothing is
 * allocated after open. */
#ifndef MILLRACE_GPU_DEVICE_H
#define MILLRACE_GPU_DEVICE_H

#include "core/status.h"
#include "core/time.h"
#include "gpu/copy_limits.h"
#include "gpu/region.h"

#include <stddef.h>
#include <stdint.h>

struct gpu_emulation;

#define GPU_UUID_BYTES 48
#define GPU_PCI_BYTES  24

/* What a card is. Fixed width: it goes through shared memory. Texts end with 0. */
struct gpu_device_facts {
    char name[96];
    char driver[32]; /* version of the driver; "emulated" */
    char kernel[32]; /* which form of the kernel it runs */
    /* Which card it is, as nvidia-smi writes it: "GPU-..." or, of an instance (MIG), "MIG-...", and where on
     * the bus: "0000:3b:00.0". Both empty: emulated. */
    char uuid[GPU_UUID_BYTES], pci[GPU_PCI_BYTES];
    uint64_t memory_bytes;
    uint32_t sms;
    uint32_t copy_engines; /* 1: copies of both directions take turns; 2 or more: they run side by side */
};

/* A closed batch to be run: which arena of the region it fills, and how much of it is used. */
struct gpu_order {
    uint64_t number; /* 1, 2, ...: rising; gaps are allowed */
    uint32_t arena;  /* not one of a batch that is under way */
    uint32_t job_count, segment_count;
    uint32_t reserved;
    uint64_t used_bytes; /* of input and of output, from the arena's start; multiple of 16 */
};

enum gpu_stage { GPU_STAGE_UP, GPU_STAGE_KERNEL, GPU_STAGE_DOWN, GPU_STAGE_COUNT };

/* When a stage of a batch ran, on CLOCK_MONOTONIC. */
struct gpu_stage_time {
    core_ns start_ns, end_ns;
};

/* All times of a batch are told with its last end, from one base: how long a stage took is what the card
 * measured, whenever its end was noticed. Where the base lies on our clock may be uncertain: each moment was
 * within uncertain_ns of where it is told. None is told that lies in the future. */
struct gpu_stage_end {
    uint64_t number; /* of the batch */
    enum gpu_stage stage;
    struct gpu_stage_time times[GPU_STAGE_COUNT]; /* with DOWN */
    core_ns uncertain_ns;                         /* with DOWN; 0 or more */
};

struct gpu_device_options {
    uint32_t index;                        /* which card, as the driver numbers them now */
    const char *uuid;                      /* which it must be; NULL: any */
    const struct gpu_region *region;       /* stays mapped until close; everything is sized by its shape, and
                                              what is copied from or to lies in its room */
    const struct gpu_emulation *emulation; /* of the emulated device; else NULL */
    int fifo_priority;                     /* for threads that keep time; 0: the default policy */
    uint32_t kernel_forms; /* bit f: enum gpu_kernel_form f may be used, the fastest is; 0: all */
};

struct gpu_device;

struct gpu_device_ops {
    const char *name;

    /* How many cards there are. CORE_UNSUPPORTED, with what is missing, where there can be none. */
    core_status (*count)(uint32_t *count, struct core_error *error);
    core_status (*describe)(uint32_t index, struct gpu_device_facts *facts, struct core_error *error);

    /* gpu_copy_limits_run, from the inside, with no device open; NULL: there is nothing to measure. */
    core_status (*copies)(uint32_t index, uint64_t bytes, struct gpu_copy_limits limits[GPU_COPY_PAGES],
                          uint32_t *count, struct core_error *error);

    core_status (*open)(struct gpu_device **device, const struct gpu_device_options *options,
                        struct gpu_device_facts *facts, struct core_error *error);
    /* Waits for what runs, overwrites all keys and chaining values, frees everything. */
    void (*close)(struct gpu_device *device);

    /* Readable when poll() has something to tell, which clears it. Errors may come without: poll now and
     * then too. */
    int (*descriptor)(const struct gpu_device *device);

    /* CORE_FULL: try again when a kernel ended. Both values of the stream's chain slot become `chain`; NULL:
     * they stay. */
    core_status (*key_set)(struct gpu_device *device, uint32_t key_slot, const struct gpu_key *key,
                           const uint8_t *chain, struct core_error *error);
    /* Overwrites the key with zeros. */
    core_status (*key_clear)(struct gpu_device *device, uint32_t key_slot, struct core_error *error);

    /* Starts the changes of keys that wait, but not while earlier ones are under way. CORE_AGAIN: there are
     * some of these or those; call again soon. */
    core_status (*keys_start)(struct gpu_device *device, struct core_error *error);

    /* Two steps of a change of the region's room, from less to more or from more to less; both are mapped, and
     * no batch under way or launched meanwhile uses more than the lesser one.
     * resize: the one call from another thread than the child's loop, for what takes long: makes what there is
     * more fit for copies, or gives it back. Not CORE_OK: nothing has changed.
     * set_room: then, in the loop: batches may use so much from now on. */
    core_status (*resize)(struct gpu_device *device, const struct gpu_room *from, const struct gpu_room *to,
                          struct core_error *error);
    void (*set_room)(struct gpu_device *device, const struct gpu_room *room);

    /* Queues a stage. A batch is under way from its UP to the end of its DOWN. */
    core_status (*launch)(struct gpu_device *device, enum gpu_stage stage, const struct gpu_order *order,
                          struct core_error *error);

    /* CORE_OK: *end is a stage that ended: DOWN, and where the card has one copy engine UP and KERNEL too.
     * Each is told once, those of a kind in order. CORE_AGAIN: none. Else the device is broken and says why;
     * it can only be closed. */
    core_status (*poll)(struct gpu_device *device, struct gpu_stage_end *end, struct core_error *error);
};

/* CORE_INVALID with the reason unless a batch of this region can be so. */
CORE_CHECKED core_status gpu_order_check(const struct gpu_order *order, const struct gpu_region_shape *shape,
                                         struct core_error *error);

/* The tables. cuda is there only with MILLRACE_CUDA. */
extern const struct gpu_device_ops gpu_device_emulated;
extern const struct gpu_device_ops gpu_device_cuda;

#endif
