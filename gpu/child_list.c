#include "gpu/child.h"
#include "gpu/listing.h"

#include <stdio.h>

int gpu_child_list(const struct gpu_device_ops *ops)
{
    struct core_error error = {""};
    struct gpu_listed card;
    uint32_t count = 0;
    core_status status = ops->count(&count, &error);
    if (status == CORE_UNSUPPORTED || (status == CORE_OK && count == 0)) {
        printf("none\n");
        fprintf(stderr, "millrace-gpu: no device for backend %s: %s\n", ops->name,
                status == CORE_OK ? "the driver shows none" : error.text);
        return GPU_EXIT_STOPPED;
    }
    for (card.index = 0; card.index < count && status == CORE_OK; card.index++) {
        status = ops->describe(card.index, &card.facts, &error);
        if (status == CORE_OK)
            gpu_listing_print(&card, stdout);
    }
    if (status == CORE_OK)
        return GPU_EXIT_STOPPED;
    fprintf(stderr, "millrace-gpu: %s\n", error.text);
    return GPU_EXIT_DEVICE;
}

int gpu_child_copies(const struct gpu_device_ops *ops, uint32_t index, uint64_t bytes)
{
    struct gpu_copy_limits limits[GPU_COPY_PAGES];
    struct core_error error = {""};
    uint32_t count = 0;
    if (ops->copies == NULL)
        printf("none\n");
    else if (ops->copies(index, bytes, limits, &count, &error) == CORE_OK)
        gpu_copy_limits_print(limits, count, stdout);
    if (error.text[0] == '\0')
        return GPU_EXIT_STOPPED;
    fprintf(stderr, "millrace-gpu: %s\n", error.text);
    return GPU_EXIT_DEVICE;
}
