/* One GPU as a bench uses it: the child process millrace-gpu, started and ready, on a real card or on an
 * emulated one that plays a kind of a profile. One thread. */
#ifndef MILLRACE_BENCH_GPU_CARD_H
#define MILLRACE_BENCH_GPU_CARD_H

#include "config/profile.h"
#include "gpu/engine.h"
#include "gpu/listing.h"

#include <stdbool.h>

#define BENCH_GPU_CARDS_MAX GPU_LISTING_MAX

/* Which program drives the cards, and how. */
struct bench_gpu_program {
    const char *path;      /* of millrace-gpu */
    const char *backend;   /* "cuda" or "emulated" */
    bool realtime;         /* the child's loop at real-time priority, where permitted */
    uint32_t kernel_forms; /* bit f: enum gpu_kernel_form f may be used, the fastest is; 0: all */
};

/* The millrace-gpu that was built or installed with this program; "millrace-gpu" if there is none. Returns
 * path. */
const char *bench_gpu_program_find(char *path, size_t size);

/* The cards that the program lists: gpu_listing_run. */
CORE_CHECKED core_status bench_gpu_cards_list(const struct bench_gpu_program *program,
                                              struct gpu_listed *cards, uint32_t *count,
                                              struct core_error *why, struct core_error *error);

/* The card of that index among them; of an emulated one its index alone. CORE_NOT_FOUND: there is none. */
CORE_CHECKED core_status bench_gpu_card_find(const struct bench_gpu_program *program, uint32_t index,
                                             struct gpu_listed *card, struct core_error *error);

struct bench_gpu_card {
    struct gpu_engine *engine;
    struct gpu_device_facts facts; /* what the child said when it was ready */
    struct gpu_emulation emulation;
    struct gpu_emulation_copy *copies; /* the emulation's rows */
    struct gpu_emulation_share *shares;
};

/* This thread keeps to the card's NUMA node from now on, as the server's threads for it do, with what it starts. */
void bench_gpu_card_near(const struct gpu_listed *card);

/* The set of the one form that a profile names; 0 for NULL or another name. */
uint32_t bench_gpu_kernel_forms(const char *name);

/* Starts the child of that card (of an emulated one `which` is its index alone) and waits until it is ready.
 * `emulated` (with the emulated backend, else ignored) is the
 * kind that the card plays; copies_busy: at its contended times always, as beside other cards. The region
 * outlives the card. What failed in the child is in the error. */
CORE_CHECKED core_status bench_gpu_card_start(struct bench_gpu_card *card,
                                              const struct bench_gpu_program *program,
                                              const struct gpu_listed *which, const struct gpu_region *region,
                                              const struct config_profile_gpu *emulated, bool copies_busy,
                                              struct core_error *error);

/* The child takes more of its region's room, which the region has already. No batch may be under way. */
CORE_CHECKED core_status bench_gpu_card_grow(struct bench_gpu_card *card, const struct gpu_room *room,
                                             struct core_error *error);

/* Ends the child. A card of zeros is fine. */
void bench_gpu_card_stop(struct bench_gpu_card *card);

/* Sends a key; waits while the child has no room for it. No batch may be under way. */
CORE_CHECKED core_status bench_gpu_card_key(struct bench_gpu_card *card, uint32_t slot, const uint8_t *key,
                                            uint32_t key_bytes, const uint8_t chain[GPU_BLOCK_BYTES],
                                            struct core_error *error);

/* Hands a batch over; waits while the child, busy with keys or batches, has no room for it. *submitted_ns
 * (may be NULL): when it was handed over. CORE_TIMEOUT: the child took nothing for 20 s. */
CORE_CHECKED core_status bench_gpu_card_submit(struct bench_gpu_card *card, const struct gpu_order *order,
                                               core_ns period_ns, core_ns *submitted_ns,
                                               struct core_error *error);

/* The next batch that came back (*finished_ns: when it was seen). CORE_AGAIN: none until until_ns. A fault of
 * the child is CORE_SYSTEM, with its text. */
CORE_CHECKED core_status bench_gpu_card_next(struct bench_gpu_card *card, core_ns until_ns,
                                             struct gpu_event *batch, core_ns *seen_ns,
                                             struct core_error *error);

/* CPU time that the child has used so far; 0 where the system does not tell. */
core_ns bench_gpu_card_cpu_ns(const struct bench_gpu_card *card);

#endif
