#include "core/log.h"
#include "core/realtime.h"
#include "gpu/child.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define GRACE_MS 2000 /* for the loop, to overwrite the keys and close the device */
#define POLL_MS  250  /* how often the server's beats are looked at */

/* At the end, for what is left of the log. */
#define LOG_TIMEOUT_NS (200 * CORE_NS_PER_MS)

/* Whether the server has beaten within its time. */
struct silence {
    uint64_t beats;
    core_ns since_ns;
};

static bool server_is_silent(const struct gpu_child *child, struct silence *silence)
{
    const core_ns now_ns = core_time_now_ns(), limit_ns = child->channel.start.silence_ns;
    const uint64_t beats = gpu_channel_beats(&child->channel, true);
    if (beats != silence->beats)
        *silence = (struct silence){.beats = beats, .since_ns = now_ns};
    return limit_ns > 0 && now_ns - silence->since_ns > limit_ns;
}

enum watch_end { WATCH_LOOP_ENDED, WATCH_SERVER_GONE, WATCH_SERVER_SILENT };

static enum watch_end watch(const struct gpu_child *child)
{
    struct silence silence = {.since_ns = core_time_now_ns()};
    struct pollfd ready[] = {
        {.fd = child->finished, .events = POLLIN},
        {.fd = GPU_CHILD_SOCKET, .events = POLLRDHUP}, /* what is sent is the loop's */
    };
    for (;;) {
        (void)poll(ready, 2, POLL_MS);
        if (ready[0].revents)
            return WATCH_LOOP_ENDED;
        if (ready[1].revents)
            return WATCH_SERVER_GONE;
        if (server_is_silent(child, &silence))
            return WATCH_SERVER_SILENT;
    }
}

/* At once, as a thread is stuck in the driver. */
static void end_stuck(int code)
{
    (void)core_log_stop(LOG_TIMEOUT_NS);
    _exit(code);
}

/* Waits for the loop after asking it; a loop that is stuck in a driver is left where it is. */
static int loop_end(struct gpu_child *child, pthread_t loop, enum watch_end why)
{
    static const char *const words[] = {
        [WATCH_SERVER_GONE] = "the server is gone",
        [WATCH_SERVER_SILENT] = "the server does not respond",
    };
    struct pollfd finished = {.fd = child->finished, .events = POLLIN};
    const uint64_t one = 1;
    if (why != WATCH_LOOP_ENDED) {
        core_log(CORE_LOG_WARNING, "gpu.end", "%s; overwriting keys and ending", words[why]);
        (void)!write(child->stop, &one, sizeof one);
        if (poll(&finished, 1, GRACE_MS) <= 0)
            end_stuck(GPU_EXIT_STUCK);
    }
    pthread_join(loop, NULL);
    const int code = why == WATCH_LOOP_ENDED ? child->status : GPU_EXIT_SERVER;
    if (!gpu_child_health_end(child))
        end_stuck(code);
    return code;
}

static core_status attach(struct gpu_child *child, struct core_error *error)
{
    core_status status = gpu_channel_attach(&child->channel, GPU_CHILD_CHANNEL, error);
    return status == CORE_OK
               ? gpu_region_attach(&child->region, GPU_CHILD_REGION, &child->channel.start.room, error)
               : status;
}

static core_status descriptors_make(struct gpu_child *child, struct core_error *error)
{
    child->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    child->finished = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    child->resized = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (child->stop < 0 || child->finished < 0 || child->resized < 0)
        return core_error_errno(error, "can not make descriptors");
    return CORE_OK;
}

/* Starts the loop and watches. Returns the exit code. */
static int serve(struct gpu_child *child)
{
    struct core_error error = {""}, refused = {""};
    pthread_t loop;
    core_status status = gpu_child_begin(&error);
    if (status == CORE_OK)
        status = attach(child, &error);
    if (status == CORE_OK)
        status = gpu_child_protect(child, &error);
    if (status == CORE_OK)
        status = core_log_start(&error); /* the loop must not wait for who reads its standard error */
    if (status == CORE_OK)
        status = descriptors_make(child, &error);
    if (status == CORE_OK)
        status = gpu_child_health_start(child, &error);
    if (status == CORE_OK)
        status = gpu_resizer_start(&child->resizer, gpu_child_resize, child, child->resized, &error);
    if (status == CORE_OK) {
        const struct core_thread_options options = {.name = "gpu-loop",
                                                    .fifo_priority = child->channel.start.fifo_priority,
                                                    .cpu = -1,
                                                    .stack_bytes = (size_t)1 << 20};
        status = core_thread_start(&loop, &options, gpu_child_loop, child, &refused, &error);
    }
    core_thread_priority_take(0); /* the loop has it, the watch needs none */
    if (status != CORE_OK) {
        core_log(CORE_LOG_ERROR, "gpu.start", "%s", error.text);
        return GPU_EXIT_START;
    }
    if (refused.text[0] != '\0')
        core_log(CORE_LOG_WARNING, "gpu.realtime", "not permitted: %s", refused.text);
    return loop_end(child, loop, watch(child));
}

int gpu_child_serve(struct gpu_child *child)
{
    const int code = serve(child);
    (void)core_log_stop(LOG_TIMEOUT_NS);
    return code;
}
