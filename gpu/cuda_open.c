/* Finding, opening and closing CUDA devices. */
#include "gpu/device_cuda.h"

#include "core/secret.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define DRIVER_LIBRARY "libcuda.so.1"

/* ---- what there is ---- */

core_status gpu_cuda_count(uint32_t *count, struct core_error *error)
{
    int devices = 0;
    *count = 0;
    void *driver = dlopen(DRIVER_LIBRARY, RTLD_LAZY | RTLD_LOCAL);
    if (driver == NULL)
        return core_error_set(error, CORE_UNSUPPORTED, "no NVIDIA driver (%s is missing)", DRIVER_LIBRARY);
    (void)dlclose(driver);
    const cudaError_t result = cudaGetDeviceCount(&devices);
    if (result == cudaErrorNoDevice)
        return core_error_set(error, CORE_UNSUPPORTED, "the NVIDIA driver shows no card");
    if (result == cudaErrorInsufficientDriver)
        return core_error_set(error, CORE_UNSUPPORTED, "the NVIDIA driver is older than CUDA %d.%d asks for",
                              CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    *count = (uint32_t)devices;
    return gpu_cuda_check(result, "cudaGetDeviceCount", error);
}

/* "GPU-3b2e1f00-...": the name of an instance has the word MIG in it, and its UUID is the instance's own. */
static void uuid_print(const struct cudaDeviceProp *properties, char text[GPU_UUID_BYTES])
{
    const bool instance = strstr(properties->name, " MIG ") != NULL;
    int used = snprintf(text, GPU_UUID_BYTES, "%s", instance ? "MIG" : "GPU");
    for (int i = 0; i < 16; i++)
        used += snprintf(text + used, GPU_UUID_BYTES - (size_t)used, "%s%02x",
                         i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                         (unsigned char)properties->uuid.bytes[i]);
}

/* As the kernel writes it, in /sys/bus/pci/devices. */
static core_status pci_get(uint32_t index, char text[GPU_PCI_BYTES], struct core_error *error)
{
    const core_status status = gpu_cuda_check(cudaDeviceGetPCIBusId(text, GPU_PCI_BYTES, (int)index),
                                              "cudaDeviceGetPCIBusId", error);
    for (char *at = text; status == CORE_OK && *at != '\0'; at++)
        *at = (char)tolower((unsigned char)*at);
    return status;
}

core_status gpu_cuda_describe(uint32_t index, struct gpu_device_facts *facts, struct core_error *error)
{
    struct cudaDeviceProp properties;
    char pci[GPU_PCI_BYTES] = "";
    int version = 0;
    core_status status =
        gpu_cuda_check(cudaGetDeviceProperties(&properties, (int)index), "cudaGetDeviceProperties", error);
    if (status == CORE_OK)
        status = gpu_cuda_check(cudaDriverGetVersion(&version), "cudaDriverGetVersion", error);
    if (status == CORE_OK)
        status = pci_get(index, pci, error);
    if (status != CORE_OK)
        return core_error_prefix(error, status, "card %u", index);
    *facts = (struct gpu_device_facts){
        .memory_bytes = properties.totalGlobalMem,
        .sms = (uint32_t)properties.multiProcessorCount,
        .copy_engines = properties.asyncEngineCount < 1 ? 1 : (uint32_t)properties.asyncEngineCount,
    };
    snprintf(facts->name, sizeof facts->name, "%.*s", (int)sizeof facts->name - 1, properties.name);
    snprintf(facts->driver, sizeof facts->driver, "CUDA %d.%d", version / 1000, version % 1000 / 10);
    snprintf(facts->pci, sizeof facts->pci, "%s", pci);
    uuid_print(&properties, facts->uuid);
    return CORE_OK;
}

/* ---- opening ---- */

static core_status card_make(struct gpu_device *device, struct core_error *error)
{
    struct gpu_card *card = &device->card;
    void *memory = NULL;
    gpu_card_lay_out(card, &device->region->shape, NULL);
    core_status status = gpu_cuda_check(cudaMalloc(&memory, card->bytes), "cudaMalloc", error);
    if (status != CORE_OK)
        return core_error_prefix(error, status, "the batches need %zu bytes on the card", card->bytes);
    gpu_card_lay_out(card, &device->region->shape, memory);
    return gpu_cuda_check(cudaMemset(memory, 0, card->bytes), "cudaMemset", error);
}

static core_status keys_make(struct gpu_device *device, struct core_error *error)
{
    struct gpu_cuda_keys *keys = &device->keys;
    void *ring = NULL, *on_card = NULL;
    const size_t bytes = GPU_KEY_CHANGES * sizeof *keys->ring;
    core_status status =
        gpu_cuda_check(cudaHostAlloc(&ring, bytes, cudaHostAllocMapped), "cudaHostAlloc", error);
    if (status != CORE_OK)
        return status;
    keys->ring = ring;
    status = gpu_cuda_check(cudaHostGetDevicePointer(&on_card, ring, 0), "cudaHostGetDevicePointer", error);
    keys->ring_on_card = on_card;
    for (int i = 0; i < GPU_KEY_CHANGES && status == CORE_OK; i++)
        status = gpu_cuda_check(cudaEventCreateWithFlags(&keys->made[i], cudaEventDisableTiming),
                                "cudaEventCreate", error);
    return status;
}

/* The driver loads a kernel when it first runs: that of the keys now, not beside batches. */
static core_status keys_try(struct gpu_device *device, struct core_error *error)
{
    core_status status = gpu_device_cuda.key_clear(device, 0, error);
    while (status == CORE_OK && (status = gpu_device_cuda.keys_start(device, error)) == CORE_AGAIN)
        status = gpu_cuda_check(cudaDeviceSynchronize(), "change of keys", error);
    return status;
}

/* Streams that do not wait for the default stream, and events that keep time. */
static core_status lines_make(struct gpu_device *device, struct core_error *error)
{
    cudaError_t result = cudaSuccess;
    for (int stage = 0; stage < GPU_STAGE_COUNT && result == cudaSuccess; stage++) {
        struct gpu_cuda_line *line = &device->lines[stage];
        result = cudaStreamCreateWithFlags(&line->work, cudaStreamNonBlocking);
        if (result == cudaSuccess)
            result = cudaStreamCreateWithFlags(&line->tell, cudaStreamNonBlocking);
        for (uint32_t i = 0; i <= device->region->shape.arenas && result == cudaSuccess; i++) {
            struct gpu_cuda_marks *marks = &device->runs[i].marks[stage];
            result = cudaEventCreateWithFlags(&marks->begin, cudaEventDefault);
            if (result == cudaSuccess)
                result = cudaEventCreateWithFlags(&marks->end, cudaEventDefault);
        }
    }
    return gpu_cuda_check(result, "streams and events", error);
}

/* The card's context, with threads that wait asleep: cores belong to the server. */
core_status gpu_cuda_context(uint32_t index, struct core_error *error)
{
    core_status status = gpu_cuda_check(
        cudaInitDevice((int)index, cudaDeviceScheduleBlockingSync, cudaInitDeviceFlagsAreValid),
        "cudaInitDevice", error);
    if (status == CORE_OK)
        status = gpu_cuda_check(cudaSetDevice((int)index), "cudaSetDevice", error);
    return status;
}

static core_status device_make(struct gpu_device *device, const struct gpu_device_options *options,
                               const struct gpu_device_facts *facts, struct core_error *error)
{
    core_status status = gpu_cuda_context(options->index, error);
    if (status == CORE_OK)
        status = gpu_cuda_pin(device, error);
    if (status == CORE_OK)
        status = card_make(device, error);
    if (status == CORE_OK)
        status = keys_make(device, error);
    if (status == CORE_OK)
        status = lines_make(device, error);
    if (status == CORE_OK)
        status = gpu_cuda_calibrate(device, facts->sms, options->kernel_forms, error);
    if (status == CORE_OK)
        status = keys_try(device, error);
    return status;
}

/* The facts of the card that is asked for. What the driver shows at its place may be another one. */
static core_status card_find(const struct gpu_device_options *options, struct gpu_device_facts *facts,
                             struct core_error *error)
{
    uint32_t count;
    core_status status = gpu_cuda_count(&count, error);
    if (status == CORE_OK && options->index >= count)
        status = core_error_set(error, CORE_NOT_FOUND, "there is no card %u: the driver shows %u",
                                options->index, count);
    if (status == CORE_OK)
        status = gpu_cuda_describe(options->index, facts, error);
    if (status == CORE_OK && options->uuid != NULL && strcmp(options->uuid, facts->uuid) != 0)
        status = core_error_set(error, CORE_MISMATCH, "the driver shows %s, %s, in its place", facts->uuid,
                                facts->name);
    if (status == CORE_OK || options->uuid == NULL)
        return status;
    return core_error_prefix(error, status, "%s", options->uuid);
}

core_status gpu_cuda_open(struct gpu_device **opened, const struct gpu_device_options *options,
                          struct gpu_device_facts *facts, struct core_error *error)
{
    core_status status = card_find(options, facts, error);
    if (status != CORE_OK)
        return status;
    struct gpu_device *device = calloc(1, sizeof *device);
    if (device == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a card");
    device->region = options->region;
    device->takes_turns = facts->copy_engines < 2;
    device->ended = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    status = device->ended < 0 ? core_error_errno(error, "can not make an eventfd")
                               : device_make(device, options, facts, error);
    if (status != CORE_OK) {
        gpu_cuda_close(device);
        return status;
    }
    snprintf(facts->kernel, sizeof facts->kernel, "%s", gpu_kernel_form_name(device->form));
    *opened = device;
    return CORE_OK;
}

/* ---- closing ---- */

/* Best effort from here: on a broken context every call fails, and the process ends next. */
static void lines_free(struct gpu_device *device)
{
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
        for (uint32_t i = 0; i <= device->region->shape.arenas; i++) {
            const struct gpu_cuda_marks *marks = &device->runs[i].marks[stage];
            if (marks->begin != NULL)
                (void)cudaEventDestroy(marks->begin);
            if (marks->end != NULL)
                (void)cudaEventDestroy(marks->end);
        }
        if (device->lines[stage].work != NULL)
            (void)cudaStreamDestroy(device->lines[stage].work);
        if (device->lines[stage].tell != NULL)
            (void)cudaStreamDestroy(device->lines[stage].tell);
    }
}

static void keys_free(struct gpu_cuda_keys *keys)
{
    for (int i = 0; i < GPU_KEY_CHANGES; i++)
        if (keys->made[i] != NULL)
            (void)cudaEventDestroy(keys->made[i]);
    if (keys->ring == NULL)
        return;
    core_secret_wipe(keys->ring, GPU_KEY_CHANGES * sizeof *keys->ring);
    (void)cudaFreeHost(keys->ring);
}

void gpu_cuda_close(struct gpu_device *device)
{
    (void)cudaDeviceSynchronize();
    if (device->card.memory != NULL) {
        (void)cudaMemset(device->card.memory, 0, device->card.bytes); /* keys, chaining values, payload */
        (void)cudaDeviceSynchronize();
        (void)cudaFree(device->card.memory);
    }
    keys_free(&device->keys);
    lines_free(device);
    gpu_cuda_unpin(device);
    if (device->ended >= 0)
        close(device->ended);
    free(device);
}
