/* The thread of a GPU's process that asks how the card is, once a second: at no priority, beside all that has a
 * deadline, and in a process that can be ended where the driver does not answer. */
#include "core/log.h"
#include "core/realtime.h"
#include "gpu/child.h"

#include <poll.h>
#include <time.h>

#define PERIOD_MS 1000
#define GRACE_NS  (200 * CORE_NS_PER_MS) /* for an answer that is on its way */

/* Until the loop has ended, or is asked to. */
static bool wait_for_end(const struct gpu_child *child)
{
    struct pollfd ends[] = {{.fd = child->finished, .events = POLLIN}, {.fd = child->stop, .events = POLLIN}};
    return poll(ends, 2, PERIOD_MS) > 0;
}

static void *run(void *argument)
{
    struct gpu_child *child = argument;
    struct gpu_nvml *nvml = NULL;
    struct gpu_nvml_health health;
    struct core_error error = {""};
    bool told = false;
    if (gpu_nvml_open(&nvml, child->uuid, &error) != CORE_OK) {
        core_log(CORE_LOG_INFO, "gpu.health", "%s", error.text);
        return NULL;
    }
    do {
        const core_status status = gpu_nvml_read(nvml, &health, &error);
        gpu_channel_health_put(&child->channel, &health);
        if (status != CORE_OK && !told)
            core_log(CORE_LOG_WARNING, "gpu.health", "%s", error.text);
        told = status != CORE_OK;
    } while (!wait_for_end(child));
    gpu_nvml_close(nvml);
    return NULL;
}

core_status gpu_child_health_start(struct gpu_child *child, struct core_error *error)
{
    const struct core_thread_options options = {
        .name = "gpu-health", .cpu = -1, .stack_bytes = (size_t)1 << 20};
    if (child->uuid == NULL)
        return CORE_OK;
    const core_status status = core_thread_start(&child->health, &options, run, child, NULL, error);
    child->has_health = status == CORE_OK;
    return status;
}

bool gpu_child_health_end(const struct gpu_child *child)
{
    const core_ns until_ns = core_time_now_ns() + GRACE_NS;
    const struct timespec until = {.tv_sec = until_ns / CORE_NS_PER_S, .tv_nsec = until_ns % CORE_NS_PER_S};
    if (!child->has_health || pthread_clockjoin_np(child->health, NULL, CLOCK_MONOTONIC, &until) == 0)
        return true;
    (void)pthread_detach(child->health); /* nobody joins it any more */
    return false;
}
