#include "gpu/child.h"

#include <stdio.h>

static void facts_print(uint32_t index, const struct gpu_device_facts *facts)
{
    printf("%u\t%s\t%llu bytes\t%u SMs\t%u copy engines\tdriver %s\n", index, facts->name,
           (unsigned long long)facts->memory_bytes, facts->sms, facts->copy_engines, facts->driver);
}

int gpu_child_list(const struct gpu_device_ops *ops)
{
    struct core_error error = {""};
    struct gpu_device_facts facts;
    uint32_t count = 0;
    core_status status = ops->count(&count, &error);
    if (status == CORE_UNSUPPORTED || (status == CORE_OK && count == 0)) {
        printf("none\n");
        fprintf(stderr, "millrace-gpu: no device for backend %s: %s\n", ops->name,
                status == CORE_OK ? "the driver shows none" : error.text);
        return GPU_EXIT_STOPPED;
    }
    for (uint32_t i = 0; i < count && status == CORE_OK; i++) {
        status = ops->describe(i, &facts, &error);
        if (status == CORE_OK)
            facts_print(i, &facts);
    }
    if (status == CORE_OK)
        return GPU_EXIT_STOPPED;
    fprintf(stderr, "millrace-gpu: %s\n", error.text);
    return GPU_EXIT_DEVICE;
}
