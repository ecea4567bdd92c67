/* How a card is doing, as NVIDIA's management library tells it: its clock, what holds the clock down, and its
 * temperature. A kernel that was measured at one clock takes longer at a lower one.
 *
 * The library, libnvidia-ml.so.1, comes with the driver and is loaded by gpu_nvml_open; where it is missing,
 * nothing but these figures is. It needs no CUDA and no context on the card.
 *
 * A call may wait for the driver: some milliseconds, on a card that is broken forever. So never on a thread
 * with a deadline. One thread for each struct gpu_nvml; a process may have many. */
#ifndef MILLRACE_GPU_NVML_H
#define MILLRACE_GPU_NVML_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

struct gpu_nvml;

/* What holds the clock down: bits, as the library numbers them. */
#define GPU_NVML_IDLE     UINT32_C(0x001) /* nothing runs */
#define GPU_NVML_SETTING  UINT32_C(0x002) /* somebody set a lower clock (nvidia-smi -ac, -lgc) */
#define GPU_NVML_POWER    UINT32_C(0x004) /* the power limit */
#define GPU_NVML_HARDWARE UINT32_C(0x008) /* heat or power, to half or less */
#define GPU_NVML_SYNC     UINT32_C(0x010) /* as slow as another card of its group */
#define GPU_NVML_WARM     UINT32_C(0x020) /* heat, the driver's limit */
#define GPU_NVML_HOT      UINT32_C(0x040) /* heat, the card's own limit */
#define GPU_NVML_BRAKE    UINT32_C(0x080) /* the power supply asks for it */
#define GPU_NVML_DISPLAY  UINT32_C(0x100)
/* Those that can come and go under load: what was measured with one of them does not hold without it. */
#define GPU_NVML_THROTTLED                                                                                   \
    (GPU_NVML_POWER | GPU_NVML_HARDWARE | GPU_NVML_SYNC | GPU_NVML_WARM | GPU_NVML_HOT | GPU_NVML_BRAKE)

/* What the library does not tell of a card is 0. */
struct gpu_nvml_health {
    uint32_t sm_mhz;      /* clock of the SMs now */
    uint32_t sm_most_mhz; /* the highest that the card has */
    uint32_t reasons;     /* set of GPU_NVML_* */
    int32_t celsius;
};

/* `uuid` as struct gpu_device_facts has it; of a MIG instance it is the whole card whose health is told.
 * CORE_UNSUPPORTED: no library, or no driver for it. CORE_NOT_FOUND: it does not know the card. */
CORE_CHECKED core_status gpu_nvml_open(struct gpu_nvml **nvml, const char *uuid, struct core_error *error);

/* CORE_SYSTEM with the library's words: the card does not answer. A figure that this kind of card does not
 * have is no error. */
CORE_CHECKED core_status gpu_nvml_read(struct gpu_nvml *nvml, struct gpu_nvml_health *health,
                                       struct core_error *error);

/* NULL is fine. */
void gpu_nvml_close(struct gpu_nvml *nvml);

/* "power limit, heat (driver)"; "none". Returns text, cut off if it is too short. */
char *gpu_nvml_reasons_text(uint32_t reasons, char *text, size_t size);

#endif
