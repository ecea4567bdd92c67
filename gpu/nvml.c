#include "gpu/nvml.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libnvidia-ml.so.1"

/* Of the library's interface, which is stable: numbers that its header gives. */
enum { SUCCESS = 0, NOT_SUPPORTED = 3 };
enum { CLOCK_SM = 1 };
enum { SENSOR_GPU = 0 };

struct device; /* the library's */

struct gpu_nvml {
    void *library;
    bool began;
    struct device *card;
    int (*init)(void);
    int (*shutdown)(void);
    const char *(*error_text)(int result);
    int (*by_uuid)(const char *uuid, struct device **card);
    int (*parent)(struct device *instance, struct device **card); /* NULL: older than MIG */
    int (*clock)(struct device *card, int kind, unsigned *mhz);
    int (*clock_most)(struct device *card, int kind, unsigned *mhz);
    int (*reasons)(struct device *card, unsigned long long *reasons);
    int (*temperature)(struct device *card, int sensor, unsigned *celsius);
};

/* ---- the library ---- */

#define SYMBOL(name, member, needed)                                                                         \
    {                                                                                                        \
        name, offsetof(struct gpu_nvml, member), needed                                                      \
    }

static const struct symbol {
    const char *name;
    size_t offset;
    bool needed;
} symbols[] = {
    SYMBOL("nvmlInit_v2", init, true),
    SYMBOL("nvmlShutdown", shutdown, true),
    SYMBOL("nvmlErrorString", error_text, true),
    SYMBOL("nvmlDeviceGetHandleByUUID", by_uuid, true),
    SYMBOL("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", parent, false),
    SYMBOL("nvmlDeviceGetClockInfo", clock, true),
    SYMBOL("nvmlDeviceGetMaxClockInfo", clock_most, true),
    SYMBOL("nvmlDeviceGetCurrentClocksEventReasons", reasons, false),
    SYMBOL("nvmlDeviceGetTemperature", temperature, true),
};

static core_status symbols_find(struct gpu_nvml *nvml, struct core_error *error)
{
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *symbol = dlsym(nvml->library, symbols[i].name);
        if (symbol == NULL && symbols[i].needed)
            return core_error_set(error, CORE_UNSUPPORTED, "%s has no %s: no clocks and temperatures of GPUs",
                                  LIBRARY, symbols[i].name);
        memcpy((char *)nvml + symbols[i].offset, &symbol, sizeof symbol);
    }
    if (nvml->reasons == NULL) { /* its name before driver 535 */
        void *symbol = dlsym(nvml->library, "nvmlDeviceGetCurrentClocksThrottleReasons");
        memcpy(&nvml->reasons, &symbol, sizeof symbol);
    }
    return CORE_OK;
}

static core_status library_open(struct gpu_nvml *nvml, struct core_error *error)
{
    nvml->library = dlopen(LIBRARY, RTLD_LAZY | RTLD_LOCAL);
    if (nvml->library == NULL)
        return core_error_set(error, CORE_UNSUPPORTED,
                              "%s is missing: no clocks and temperatures of GPUs; it comes with the driver",
                              LIBRARY);
    core_status status = symbols_find(nvml, error);
    if (status != CORE_OK)
        return status;
    const int result = nvml->init();
    nvml->began = result == SUCCESS;
    if (nvml->began)
        return CORE_OK;
    return core_error_set(error, CORE_UNSUPPORTED, "%s: %s: no clocks and temperatures of GPUs", LIBRARY,
                          nvml->error_text(result));
}

core_status gpu_nvml_open(struct gpu_nvml **opened, const char *uuid, struct core_error *error)
{
    struct gpu_nvml *nvml = calloc(1, sizeof *nvml);
    struct device *card;
    if (nvml == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the clocks of a GPU");
    core_status status = library_open(nvml, error);
    if (status == CORE_OK) {
        const int result = nvml->by_uuid(uuid, &nvml->card);
        if (result != SUCCESS)
            status = core_error_set(error, CORE_NOT_FOUND, "%s does not know %s: %s", LIBRARY, uuid,
                                    nvml->error_text(result));
    }
    if (status != CORE_OK) {
        gpu_nvml_close(nvml);
        return status;
    }
    if (nvml->parent != NULL && nvml->parent(nvml->card, &card) == SUCCESS)
        nvml->card = card;
    *opened = nvml;
    return CORE_OK;
}

void gpu_nvml_close(struct gpu_nvml *nvml)
{
    if (nvml == NULL)
        return;
    if (nvml->began)
        (void)nvml->shutdown();
    if (nvml->library != NULL)
        (void)dlclose(nvml->library);
    free(nvml);
}

/* ---- figures ---- */

/* CORE_OK also where the card has no such figure. */
static core_status check(const struct gpu_nvml *nvml, int result, const char *what, struct core_error *error)
{
    if (result == SUCCESS || result == NOT_SUPPORTED)
        return CORE_OK;
    return core_error_set(error, CORE_SYSTEM, "the card does not tell its %s: %s", what,
                          nvml->error_text(result));
}

core_status gpu_nvml_read(struct gpu_nvml *nvml, struct gpu_nvml_health *health, struct core_error *error)
{
    unsigned mhz = 0, most_mhz = 0, celsius = 0;
    unsigned long long reasons = 0;
    core_status status = check(nvml, nvml->clock(nvml->card, CLOCK_SM, &mhz), "clock", error);
    if (status == CORE_OK)
        status = check(nvml, nvml->clock_most(nvml->card, CLOCK_SM, &most_mhz), "highest clock", error);
    if (status == CORE_OK && nvml->reasons != NULL)
        status = check(nvml, nvml->reasons(nvml->card, &reasons), "throttle reasons", error);
    if (status == CORE_OK)
        status = check(nvml, nvml->temperature(nvml->card, SENSOR_GPU, &celsius), "temperature", error);
    *health = (struct gpu_nvml_health){
        .sm_mhz = mhz, .sm_most_mhz = most_mhz, .reasons = (uint32_t)reasons, .celsius = (int32_t)celsius};
    return status;
}
