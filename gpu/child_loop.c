#include "core/log.h"
#include "core/realtime.h"
#include "core/sandbox.h"
#include "core/secret.h"
#include "gpu/aes.h"
#include "gpu/child.h"
#include "gpu/process.h"

#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#define RETRY_MS 1 /* what the device had no room for, or had not done */
#define POLL_MS  5 /* with batches under way: a device that fails may do so without telling */

static void complete(struct gpu_child *child, const struct gpu_completion *completion)
{
    /* There are more entries than batches; one that found no room would be a server that takes none. */
    if (gpu_channel_completion_put(&child->channel, completion) == CORE_OK)
        (void)!write(GPU_CHILD_SOCKET, "", 1); /* no room: enough wait to be taken */
}

static void tell_error(struct gpu_child *child, const struct core_error *error)
{
    struct gpu_completion completion = {.kind = GPU_COMPLETION_ERROR};
    snprintf(completion.text, sizeof completion.text, "%.*s", (int)sizeof completion.text - 1, error->text);
    core_log(CORE_LOG_ERROR, "gpu.device", "%s", error->text);
    complete(child, &completion);
}

static void tell_batches(struct gpu_child *child)
{
    const struct gpu_pipeline_batch *batch;
    while ((batch = gpu_pipeline_take(&child->pipeline)) != NULL) {
        struct gpu_completion completion = {.kind = GPU_COMPLETION_BATCH};
        completion.batch.number = batch->order.number;
        memcpy(completion.batch.times, batch->times, sizeof batch->times);
        completion.batch.uncertain_ns = batch->uncertain_ns;
        complete(child, &completion);
    }
}

/* ---- commands ---- */

static core_status key_set(struct gpu_child *child, uint32_t key_slot, struct core_error *error)
{
    const struct gpu_channel_key *entry = gpu_channel_command_key(&child->channel);
    struct gpu_key key;
    core_status status = gpu_key_expand(&key, entry->key, entry->key_bytes);
    if (status != CORE_OK)
        (void)core_error_set(error, status, "key slot %u: a key of %u bytes", key_slot, entry->key_bytes);
    else
        status =
            child->ops->key_set(child->device, key_slot, &key, entry->has_chain ? entry->chain : NULL, error);
    core_secret_wipe(&key, sizeof key);
    return status;
}

static core_status batch_submit(struct gpu_child *child, const struct gpu_order *order,
                                struct core_error *error)
{
    const struct gpu_channel_start *start = &child->channel.start;
    const struct gpu_room need = {.bytes = order->used_bytes, .segments = order->segment_count};
    core_status status = gpu_order_check(order, &child->region.shape, error);
    if (status == CORE_OK && !gpu_room_holds(&child->room, &need))
        status = core_error_set(error, CORE_INVALID, "batch %llu is larger than the room of its arena",
                                (unsigned long long)order->number);
    if (status == CORE_OK)
        status = gpu_pipeline_submit(&child->pipeline, order, error);
    if (start->has_emulation && start->emulation.failure == GPU_FAILURE_GARBAGE &&
        start->emulation.failure_batch == order->number)
        gpu_channel_scribble(&child->channel);
    return status == CORE_FULL ? CORE_INVALID : status; /* more than there are arenas: nothing to wait for */
}

/* ---- room ---- */

core_status gpu_child_resize(void *argument, const struct gpu_room *room, struct core_error *error)
{
    struct gpu_child *child = argument;
    const struct gpu_room from = child->region.room;
    const bool less = gpu_room_holds(&from, room);
    core_status status = less ? child->ops->resize(child->device, &from, room, error)
                              : gpu_region_resize(&child->region, room, error);
    if (status != CORE_OK)
        return status;
    if (less)
        return gpu_region_resize(&child->region, room, error);
    status = child->ops->resize(child->device, &from, room, error);
    if (status != CORE_OK)
        (void)!gpu_region_resize(&child->region, &from, NULL);
    return status;
}

static core_status resize_begin(struct gpu_child *child, const struct gpu_room *room,
                                struct core_error *error)
{
    const struct gpu_room most = gpu_room_most(&child->region.shape);
    if (child->resizing || !gpu_room_holds(&most, room) ||
        (!gpu_room_holds(room, &child->room) && !gpu_room_holds(&child->room, room)))
        return core_error_set(error, CORE_INVALID, "room for %llu bytes and %u packets is not possible",
                              (unsigned long long)room->bytes, room->segments);
    child->resizing = true;
    child->next_room = *room;
    gpu_resizer_ask(child->resizer, room);
    return CORE_OK;
}

static void resize_end(struct gpu_child *child)
{
    struct gpu_completion completion = {.kind = GPU_COMPLETION_ROOM};
    struct core_error error = {""};
    const core_status status = gpu_resizer_done(child->resizer, &error);
    if (status == CORE_AGAIN)
        return;
    child->resizing = false;
    if (status == CORE_OK) {
        child->room = child->next_room;
        child->ops->set_room(child->device, &child->room);
    } else
        snprintf(completion.text, sizeof completion.text, "%.*s", (int)sizeof completion.text - 1,
                 error.text);
    complete(child, &completion);
}

/* CORE_AGAIN or CORE_FULL: not now. */
static core_status command_run(struct gpu_child *child, const struct gpu_command *command, bool *stopping,
                               struct core_error *error)
{
    switch ((enum gpu_command_kind)command->kind) {
    case GPU_COMMAND_BATCH:
        return batch_submit(child, &command->order, error);
    case GPU_COMMAND_KEY_SET:
    case GPU_COMMAND_KEY_CLEAR:
        if (!gpu_pipeline_keys_may_change(&child->pipeline))
            return CORE_AGAIN;
        if (command->kind == GPU_COMMAND_KEY_CLEAR)
            return child->ops->key_clear(child->device, command->key_slot, error);
        return key_set(child, command->key_slot, error);
    case GPU_COMMAND_ROOM:
        return resize_begin(child, &command->room, error);
    case GPU_COMMAND_STOP:
        *stopping = true;
        return CORE_OK;
    }
    return core_error_set(error, CORE_INVALID, "unknown command %u", command->kind);
}

/* Runs what waits, in order; *blocked: there is something to be tried again. */
static core_status commands_run(struct gpu_child *child, bool *stopping, bool *blocked,
                                struct core_error *error)
{
    const struct gpu_command *next;
    core_status status = CORE_OK;
    *blocked = false;
    while (!*stopping && !*blocked && (next = gpu_channel_command_peek(&child->channel)) != NULL) {
        const struct gpu_command command = *next;
        status = command_run(child, &command, stopping, error);
        *blocked = status == CORE_AGAIN || status == CORE_FULL;
        if (!*blocked)
            gpu_channel_command_take(&child->channel);
        if (status != CORE_OK && !*blocked)
            return status;
    }
    status = child->ops->keys_start(child->device, error);
    *blocked |= status == CORE_AGAIN;
    return status == CORE_AGAIN ? CORE_OK : status;
}

/* ---- the loop ---- */

/* Sleeps until there is something to do. Returns whether the watch asks to stop. */
static bool sleep_until_woken(struct gpu_child *child, bool blocked)
{
    struct pollfd ready[] = {
        {.fd = GPU_CHILD_SOCKET, .events = POLLIN},
        {.fd = child->ops->descriptor(child->device), .events = POLLIN},
        {.fd = child->stop, .events = POLLIN},
        {.fd = child->resized, .events = POLLIN},
    };
    const core_ns beat_ms = child->channel.start.beat_ns / CORE_NS_PER_MS;
    char wakes[GPU_PROCESS_WAKES];
    uint64_t resized;
    int wait_ms = beat_ms > 1000 ? 1000 : (int)beat_ms;
    if (gpu_pipeline_under_way(&child->pipeline) > 0 && wait_ms > POLL_MS)
        wait_ms = POLL_MS;
    if (blocked || wait_ms < RETRY_MS)
        wait_ms = RETRY_MS;
    (void)poll(ready, sizeof ready / sizeof *ready, wait_ms);
    if (ready[0].revents & POLLIN)
        (void)!read(GPU_CHILD_SOCKET, wakes, sizeof wakes); /* its end is the watch's to see */
    if (ready[3].revents & POLLIN)
        (void)!read(child->resized, &resized, sizeof resized);
    return (ready[2].revents & POLLIN) != 0;
}

/* Until STOP (with all batches through), or the watch asks, or something fails. */
static core_status serve(struct gpu_child *child, struct core_error *error)
{
    bool stopping = false, blocked = false;
    for (;;) {
        const bool asked = sleep_until_woken(child, blocked);
        core_status status = gpu_pipeline_step(&child->pipeline, error);
        tell_batches(child);
        if (child->resizing)
            resize_end(child);
        if (status == CORE_OK)
            status = commands_run(child, &stopping, &blocked, error);
        gpu_channel_beat(&child->channel, false);
        if (status != CORE_OK || asked || (stopping && gpu_pipeline_under_way(&child->pipeline) == 0))
            return status;
    }
}

static void tell_ready(struct gpu_child *child, const struct gpu_device_facts *facts)
{
    struct gpu_completion completion = {
        .kind = GPU_COMPLETION_READY, .thread = (int32_t)gettid(), .facts = *facts};
    struct core_error error = {""};
    if (!child->channel.keys_locked)
        core_log(CORE_LOG_WARNING, "gpu.memory", "the channel's keys are not locked: raise RLIMIT_MEMLOCK");
    if (core_memory_lock(&error) != CORE_OK)
        core_log(CORE_LOG_WARNING, "gpu.memory", "%s", error.text);
    complete(child, &completion);
}

static core_status device_open(struct gpu_child *child, struct gpu_device_facts *facts,
                               struct core_error *error)
{
    const struct gpu_channel_start *start = &child->channel.start;
    const struct gpu_device_options options = {
        .index = child->index,
        .uuid = child->uuid,
        .region = &child->region,
        .emulation = start->has_emulation ? &start->emulation : NULL,
        .fifo_priority = start->fifo_priority,
        .kernel_forms = start->kernel_forms,
    };
    return child->ops->open(&child->device, &options, facts, error);
}

/* All threads are there, and the device is open. */
static core_status sandbox_enter(const struct gpu_child *child, struct core_error *error)
{
    const struct gpu_channel_start *start = &child->channel.start;
    const enum core_sandbox_mode mode = start->sandbox;
    const core_status status =
        core_sandbox_enter(start->has_emulation ? CORE_SANDBOX_CARD : CORE_SANDBOX_CARD_DRIVER, mode, error);
    if (status == CORE_OK || mode == CORE_SANDBOX_REQUIRED)
        return status;
    core_log(CORE_LOG_WARNING, "gpu.sandbox", "%s", error->text);
    return CORE_OK;
}

void *gpu_child_loop(void *argument)
{
    struct gpu_child *child = argument;
    struct core_error error = {""};
    struct gpu_device_facts facts;
    const uint64_t one = 1;
    child->room = child->region.room; /* the resizer has not begun */
    core_status status = device_open(child, &facts, &error);
    if (status == CORE_OK)
        status = sandbox_enter(child, &error);
    child->status = status == CORE_OK ? GPU_EXIT_STOPPED : GPU_EXIT_START;
    if (status == CORE_OK) {
        gpu_pipeline_begin(&child->pipeline, child->ops, child->device, facts.copy_engines);
        tell_ready(child, &facts);
        status = serve(child, &error);
        if (status != CORE_OK)
            child->status = GPU_EXIT_DEVICE;
    }
    if (status != CORE_OK)
        tell_error(child, &error);
    gpu_resizer_stop(child->resizer);
    if (child->device != NULL)
        child->ops->close(child->device);
    (void)!write(child->finished, &one, sizeof one);
    return NULL;
}
