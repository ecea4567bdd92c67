/* The layout of a GPU's memory: the tables of keys and chaining values, and for each arena of the region a
 * batch of that size, all in one block of memory. Real and emulated GPUs use the same layout. */
#ifndef MILLRACE_GPU_CARD_H
#define MILLRACE_GPU_CARD_H

#include "gpu/region.h"

#include <stddef.h>

/* Addresses are the card's. */
struct gpu_card_batch {
    struct gpu_batch batch; /* all but job_count and segment_count */
    uint8_t *input;
    struct gpu_job *jobs;
    struct gpu_segment *segments;
};

struct gpu_card {
    uint8_t *memory;
    size_t bytes;
    struct gpu_key *keys;
    struct gpu_chain *chains;
    struct gpu_card_batch batches[GPU_REGION_ARENAS_MAX]; /* by arena */
};

/* Lays a card for this shape out in memory, and sets card->bytes. With NULL that is all that is of use. Every
 * part begins at a multiple of 256 from the start. */
void gpu_card_lay_out(struct gpu_card *card, const struct gpu_region_shape *shape, uint8_t *memory);

#endif
