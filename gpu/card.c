#include "gpu/card.h"

#define ALIGN_BYTES 256

static void *carve(struct gpu_card *card, size_t bytes)
{
    uint8_t *part = card->memory == NULL ? NULL : card->memory + card->bytes;
    card->bytes += (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    return part;
}

static void batch_lay_out(struct gpu_card *card, const struct gpu_region_shape *shape,
                          struct gpu_card_batch *batch)
{
    batch->jobs = carve(card, shape->segments * sizeof *batch->jobs);
    batch->segments = carve(card, shape->segments * sizeof *batch->segments);
    batch->input = carve(card, shape->arena_bytes);
    batch->batch = (struct gpu_batch){
        .input = batch->input,
        .output = carve(card, shape->arena_bytes),
        .segments = batch->segments,
        .jobs = batch->jobs,
        .keys = card->keys,
        .chains = card->chains,
        .key_slots = GPU_SLOT_KEYS * shape->slots,
        .chain_slots = shape->slots,
        .arena_bytes = shape->arena_bytes,
    };
}

void gpu_card_lay_out(struct gpu_card *card, const struct gpu_region_shape *shape, uint8_t *memory)
{
    card->memory = memory;
    card->bytes = 0;
    card->keys = carve(card, GPU_SLOT_KEYS * shape->slots * sizeof *card->keys);
    card->chains = carve(card, shape->slots * sizeof *card->chains);
    for (uint32_t i = 0; i < shape->arenas; i++)
        batch_lay_out(card, shape, &card->batches[i]);
}
