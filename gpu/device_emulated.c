/* A card without a card: the kernel's own source on the host, and times from a table (emulation.h).
 *
 * Each engine of the card - one or two for copies, one for kernels - is a thread with a queue, which does the
 * real work and then waits until the table's time is over: a stage takes what the table says, or its real
 * work where that is longer. A thread that wakes late delays the stages that follow, and lengthens none. A
 * copy that meets one of the other direction goes on at the contended pace as long as they overlap. Stages
 * are told as late as a card's, and by a clock of its own (emulated_tell.h).
 *
 * One lock guards all; no engine works while it holds it. */
#include "core/realtime.h"
#include "core/secret.h"
#include "gpu/card.h"
#include "gpu/device.h"
#include "gpu/emulated_tell.h"
#include "gpu/emulation.h"
#include "gpu/kernel.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define KEY_CHANGES_MAX 256 /* waiting for the kernels before them */
#define ITEMS_MAX       (2 * GPU_REGION_ARENAS_MAX + KEY_CHANGES_MAX)

enum item_kind { ITEM_UP, ITEM_KERNEL, ITEM_DOWN, ITEM_KEY }; /* the first three are enum gpu_stage */

struct item {
    enum item_kind kind;
    uint32_t index; /* of the arena, or of the key change */
};

struct engine {
    struct gpu_device *device;
    pthread_t thread;
    struct item items[ITEMS_MAX]; /* ring */
    uint64_t put, taken;
};

/* A batch on the card, by arena. */
struct run {
    struct gpu_order order;
    core_ns asked_ns; /* when its copy up was launched */
    struct gpu_card_batch *on_card;
    int done; /* stages that ended */
    struct gpu_stage_time times[GPU_STAGE_COUNT];
};

/* A copy under way. Its pace depends on whether the other direction copies too. */
struct copy {
    bool active;
    core_ns alone_ns, busy_ns;
    double left; /* of the copy, 1 to 0, at the moment at_ns */
    core_ns at_ns;
};

struct key_change {
    uint32_t key_slot;
    bool has_chain;
    struct gpu_key key;
    struct gpu_chain chain;
};

enum { ENGINE_COPY, ENGINE_KERNEL, ENGINE_COPY_DOWN, ENGINE_COUNT };

/* An emulated GPU: three engines that take their time, and the memory that they work on. */
struct gpu_device {
    const struct gpu_region *region;
    const struct gpu_emulation *emulation;
    enum gpu_kernel_form form;
    size_t bytes;               /* of the card and of changes */
    struct gpu_card card;       /* keys and chaining values are the kernel engine's alone */
    struct key_change *changes; /* ring in locked memory; an entry is the kernel engine's once it is queued */
    uint64_t changes_put, changes_done;
    struct run runs[GPU_REGION_ARENAS_MAX];
    struct engine engines[ENGINE_COUNT];
    uint32_t engine_count; /* threads that were started */
    struct copy copies[2]; /* up, down */
    struct gpu_emulated_tell tell;
    bool closing, frozen, broken;
    struct core_error why_broken;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* any of the above */
};

/* ---- time ---- */

static bool copies_meet(const struct gpu_device *device)
{
    return device->copies[0].active && device->copies[1].active;
}

static core_ns copy_pace_ns(const struct gpu_device *device, const struct copy *copy)
{
    return copies_meet(device) ? copy->busy_ns : copy->alone_ns;
}

/* Brings what is left of the copies up to now; before one begins or ends. */
static void copies_advance(struct gpu_device *device, core_ns now_ns)
{
    for (int i = 0; i < 2; i++) {
        struct copy *copy = &device->copies[i];
        if (!copy->active)
            continue;
        copy->left -= (double)(now_ns - copy->at_ns) / (double)copy_pace_ns(device, copy);
        copy->at_ns = now_ns;
    }
}

/* Waits, with the lock, until something changed or the time has come. */
static void wait_until(struct gpu_device *device, core_ns wake_ns)
{
    const struct timespec at = {.tv_sec = wake_ns / CORE_NS_PER_S, .tv_nsec = wake_ns % CORE_NS_PER_S};
    pthread_cond_timedwait(&device->changed, &device->lock, &at);
}

static void copy_begin(struct gpu_device *device, enum item_kind kind, uint64_t bytes, core_ns now_ns)
{
    const bool up = kind == ITEM_UP;
    copies_advance(device, now_ns);
    device->copies[!up] = (struct copy){
        .active = true,
        .alone_ns = 1 + gpu_emulation_copy_ns(device->emulation, up, false, bytes), /* never 0: a divisor */
        .busy_ns = 1 + gpu_emulation_copy_ns(device->emulation, up, true, bytes),
        .left = 1,
        .at_ns = now_ns,
    };
    pthread_cond_broadcast(&device->changed);
}

/* Returns when the copy ended: the table's time was over, and its work done. */
static core_ns copy_wait(struct gpu_device *device, enum item_kind kind, core_ns start_ns)
{
    struct copy *copy = &device->copies[kind != ITEM_UP];
    const core_ns done_ns = core_time_now_ns();
    core_ns end_ns;
    for (;;) {
        const core_ns left_ns = (core_ns)(copy->left * (double)copy_pace_ns(device, copy)) + 1;
        end_ns = core_time_max(copy->at_ns + left_ns, done_ns);
        if (end_ns < start_ns + copy->alone_ns) /* what rounding took */
            end_ns = start_ns + copy->alone_ns;
        if (device->closing || core_time_now_ns() >= end_ns)
            break;
        wait_until(device, end_ns);
    }
    end_ns = core_time_max(end_ns, copy->at_ns); /* where the other direction's change was noticed late */
    copies_advance(device, end_ns);
    copy->active = false;
    pthread_cond_broadcast(&device->changed);
    return end_ns;
}

/* ---- failures on request ---- */

static void break_device(struct gpu_device *device, const char *format, unsigned long long number,
                         const char *why)
{
    device->broken = true;
    (void)core_error_set(&device->why_broken, CORE_SYSTEM, format, number, why);
    gpu_emulated_tell_wake(&device->tell, core_time_now_ns());
}

/* How much longer the kernel of this batch is to take. */
static core_ns slower_on_request_ns(const struct gpu_emulation *emulation, uint64_t batch)
{
    bool slow = emulation->failure == GPU_FAILURE_SLOW && batch >= emulation->failure_batch &&
                batch <= emulation->failure_last;
    return slow ? emulation->failure_ns : 0;
}

/* Whether the kernel stage goes on. */
static bool fail_on_request(struct gpu_device *device, struct run *run)
{
    const struct gpu_emulation *emulation = device->emulation;
    if (emulation->failure == GPU_FAILURE_NONE || emulation->failure_batch != run->order.number)
        return true;
    switch ((enum gpu_failure)emulation->failure) {
    case GPU_FAILURE_ERROR:
        break_device(device, "batch %llu: %s", run->order.number, "the emulated card fails on request");
        return false;
    case GPU_FAILURE_HANG:
        return false;
    case GPU_FAILURE_FREEZE:
        device->frozen = true;
        return false;
    case GPU_FAILURE_DIE:
        raise(SIGKILL);
        return false;
    case GPU_FAILURE_EXIT:
        _exit(9);
    case GPU_FAILURE_CORRUPT:
        if (run->order.used_bytes > 0)
            run->on_card->batch.output[run->order.used_bytes / 2] ^= 1;
        return true;
    default:
        return true;
    }
}

/* ---- the work ---- */

static void work_up(struct gpu_device *device, struct run *run)
{
    const struct gpu_order *order = &run->order;
    const struct gpu_card_batch *to = run->on_card;
    memcpy(to->input, gpu_region_input(device->region, order->arena), order->used_bytes);
    memcpy(to->jobs, gpu_region_jobs(device->region, order->arena), order->job_count * sizeof *to->jobs);
    memcpy(to->segments, gpu_region_segments(device->region, order->arena),
           order->segment_count * sizeof *to->segments);
}

static void work_down(struct gpu_device *device, struct run *run)
{
    memcpy(gpu_region_output(device->region, run->order.arena), run->on_card->batch.output,
           run->order.used_bytes);
}

static core_status work_kernel(const struct gpu_device *device, struct run *run, struct core_error *error)
{
    struct gpu_batch *batch = &run->on_card->batch;
    batch->job_count = run->order.job_count;
    batch->segment_count = run->order.segment_count;
    const core_status status = gpu_batch_check(batch, error);
    if (status == CORE_OK)
        gpu_kernel_run_host(device->form, batch, 0, batch->job_count);
    return status;
}

static void key_change_apply(struct gpu_device *device, struct key_change *change)
{
    device->card.keys[change->key_slot] = change->key;
    if (change->has_chain)
        device->card.chains[change->key_slot / GPU_SLOT_KEYS] = change->chain;
    core_secret_wipe(change, sizeof *change);
}

/* ---- engines: with the lock held but for the work ---- */

/* An engine that is stuck stays so until the device is closed. */
static void engine_hang(struct gpu_device *device)
{
    while (!device->closing)
        pthread_cond_wait(&device->changed, &device->lock);
}

static void stage_end(struct gpu_device *device, struct run *run, enum item_kind kind,
                      struct gpu_stage_time time)
{
    run->times[kind] = time;
    run->done = (int)kind + 1;
    pthread_cond_broadcast(&device->changed);
    if (kind != ITEM_DOWN && device->emulation->copy_engines > 1)
        return;
    struct gpu_stage_end end = {.number = run->order.number, .stage = (enum gpu_stage)kind};
    memcpy(end.times, run->times, sizeof end.times);
    gpu_emulated_tell_put(&device->tell, &end, run->asked_ns, time.end_ns);
}

static core_ns copy_run(struct gpu_device *device, struct run *run, enum item_kind kind, core_ns start_ns)
{
    const struct gpu_order *order = &run->order;
    const uint64_t tables =
        order->job_count * sizeof(struct gpu_job) + order->segment_count * sizeof(struct gpu_segment);
    copy_begin(device, kind, order->used_bytes + (kind == ITEM_UP ? tables : 0), start_ns);
    pthread_mutex_unlock(&device->lock);
    if (kind == ITEM_UP)
        work_up(device, run);
    else
        work_down(device, run);
    pthread_mutex_lock(&device->lock);
    return copy_wait(device, kind, start_ns);
}

static core_ns kernel_run(struct gpu_device *device, struct run *run, core_ns start_ns)
{
    struct core_error error = {""};
    pthread_mutex_unlock(&device->lock);
    const core_ns end_ns =
        start_ns +
        gpu_emulation_kernel_ns(device->emulation, device->form, run->on_card->jobs, run->order.job_count) +
        slower_on_request_ns(device->emulation, run->order.number);
    const core_status status = work_kernel(device, run, &error);
    pthread_mutex_lock(&device->lock);
    if (status != CORE_OK)
        break_device(device, "batch %llu: %s", run->order.number, error.text);
    if (status != CORE_OK || !fail_on_request(device, run))
        engine_hang(device);
    const core_ns done_ns = core_time_now_ns();
    while (core_time_now_ns() < end_ns && !device->closing)
        wait_until(device, end_ns);
    return core_time_max(end_ns, done_ns);
}

static void item_run(struct gpu_device *device, const struct item *item)
{
    if (item->kind == ITEM_KEY) {
        key_change_apply(device, &device->changes[item->index]);
        device->changes_done++;
        return;
    }
    struct run *run = &device->runs[item->index];
    while (!device->closing && run->done < (int)item->kind)
        pthread_cond_wait(&device->changed, &device->lock);
    if (device->closing)
        return;
    struct gpu_stage_time time = {.start_ns = core_time_now_ns()};
    time.end_ns = item->kind == ITEM_KERNEL ? kernel_run(device, run, time.start_ns)
                                            : copy_run(device, run, item->kind, time.start_ns);
    if (!device->closing)
        stage_end(device, run, item->kind, time);
}

static void *engine_main(void *argument)
{
    struct engine *engine = argument;
    struct gpu_device *device = engine->device;
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);    /* waits end when they should, not up to 50 us later */
    if (engine == &device->engines[ENGINE_KERNEL]) { /* a thread begins with its maker's policy */
        const struct sched_param none = {0};
        (void)pthread_setschedparam(pthread_self(), SCHED_OTHER, &none);
    }
    pthread_mutex_lock(&device->lock);
    for (;;) {
        while (!device->closing && engine->taken == engine->put)
            pthread_cond_wait(&device->changed, &device->lock);
        if (device->closing)
            break;
        const struct item item = engine->items[engine->taken % ITEMS_MAX];
        item_run(device, &item);
        engine->taken++;
    }
    pthread_mutex_unlock(&device->lock);
    return NULL;
}

/* ---- opening and closing ---- */

/* The card's memory, and behind it the ring of key changes. */
static core_status card_make(struct gpu_device *device, struct core_error *error)
{
    struct gpu_card *card = &device->card;
    const struct gpu_emulation *emulation = device->emulation;
    gpu_card_lay_out(card, &device->region->shape, NULL);
    if (card->bytes > emulation->memory_bytes)
        return core_error_set(
            error, CORE_NO_MEMORY,
            "the batches need %zu bytes on the card, %s has %llu: plan fewer or smaller ones", card->bytes,
            emulation->name, (unsigned long long)emulation->memory_bytes);
    device->bytes = card->bytes + KEY_CHANGES_MAX * sizeof *device->changes;
    void *memory =
        mmap(NULL, device->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
        return core_error_errno(error, "no memory for an emulated card of %zu bytes", device->bytes);
    (void)madvise(memory, device->bytes, MADV_DONTDUMP);
    gpu_card_lay_out(card, &device->region->shape, memory);
    device->changes = (void *)(card->memory + card->bytes);
    for (uint32_t i = 0; i < device->region->shape.arenas; i++)
        device->runs[i].on_card = &card->batches[i];
    return CORE_OK;
}

/* The copy engines keep time alone and get the priority; the kernel engine computes, and would starve the
 * server's threads with it: it comes after all of them, and before whatever is not real-time. */
static core_status engine_start(struct gpu_device *device, int which, int fifo_priority,
                                struct core_error *error)
{
    static const char *const names[ENGINE_COUNT] = {
        [ENGINE_COPY] = "gpu-copy-1", [ENGINE_KERNEL] = "gpu-kernel", [ENGINE_COPY_DOWN] = "gpu-copy-2"};
    struct engine *engine = &device->engines[which];
    const struct core_thread_options options = {
        .name = names[which],
        .fifo_priority = which == ENGINE_KERNEL && fifo_priority > 0 ? 1 : fifo_priority,
        .cpu = -1};
    engine->device = device;
    const core_status status = core_thread_start(&engine->thread, &options, engine_main, engine, NULL, error);
    if (status == CORE_OK)
        device->engine_count++;
    return status;
}

static void lock_init(struct gpu_device *device)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&device->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    core_mutex_init(&device->lock); /* who computes runs behind those who keep time */
}

static void emulated_close(struct gpu_device *device)
{
    pthread_mutex_lock(&device->lock);
    device->closing = true;
    pthread_cond_broadcast(&device->changed);
    pthread_mutex_unlock(&device->lock);
    for (uint32_t i = 0; i < device->engine_count; i++)
        pthread_join(device->engines[i].thread, NULL);
    if (device->card.memory != NULL) {
        core_secret_wipe(device->card.memory, device->bytes);
        munmap(device->card.memory, device->bytes);
    }
    gpu_emulated_tell_close(&device->tell);
    pthread_cond_destroy(&device->changed);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

static void facts_fill(const struct gpu_device *device, struct gpu_device_facts *facts)
{
    const struct gpu_emulation *emulation = device->emulation;
    *facts = (struct gpu_device_facts){.memory_bytes = emulation->memory_bytes,
                                       .sms = emulation->sms,
                                       .copy_engines = emulation->copy_engines};
    snprintf(facts->name, sizeof facts->name, "%.*s", (int)sizeof emulation->name, emulation->name);
    snprintf(facts->driver, sizeof facts->driver, "emulated");
    snprintf(facts->kernel, sizeof facts->kernel, "%s", gpu_kernel_form_name(device->form));
}

static core_status emulated_open(struct gpu_device **opened, const struct gpu_device_options *options,
                                 struct gpu_device_facts *facts, struct core_error *error)
{
    if (options->emulation == NULL)
        return core_error_set(error, CORE_INVALID, "an emulated card needs a table of times");
    struct gpu_device *device = calloc(1, sizeof *device);
    if (device == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for an emulated card");
    device->emulation = options->emulation;
    /* both take the table's time: the first that is allowed */
    device->form =
        gpu_kernel_form_allowed(options->kernel_forms, GPU_KERNEL_WHOLE) ? GPU_KERNEL_WHOLE : GPU_KERNEL_QUAD;
    device->region = options->region;
    lock_init(device);
    core_status status = gpu_emulated_tell_open(&device->tell, core_time_now_ns(), error);
    if (status == CORE_OK)
        status = card_make(device, error);
    const int engines = options->emulation->copy_engines < 2 ? ENGINE_COPY_DOWN : ENGINE_COUNT;
    for (int i = 0; i < engines && status == CORE_OK; i++)
        status = engine_start(device, i, options->fifo_priority, error);
    if (status != CORE_OK) {
        emulated_close(device);
        return status;
    }
    facts_fill(device, facts);
    *opened = device;
    return CORE_OK;
}

/* ---- the child's calls ---- */

static int emulated_descriptor(const struct gpu_device *device)
{
    return device->tell.descriptor;
}

static void item_put(struct gpu_device *device, int which, enum item_kind kind, uint32_t index)
{
    struct engine *engine = &device->engines[which];
    engine->items[engine->put++ % ITEMS_MAX] = (struct item){.kind = kind, .index = index};
    pthread_cond_broadcast(&device->changed);
}

static core_status key_change_put(struct gpu_device *device, const struct key_change *change,
                                  struct core_error *error)
{
    core_status status = CORE_OK;
    const uint32_t key_slots = gpu_key_slot(device->region->shape.slots, 0);
    if (change->key_slot >= key_slots)
        return core_error_set(error, CORE_INVALID, "key slot %u of %u", change->key_slot, key_slots);
    pthread_mutex_lock(&device->lock);
    if (device->changes_put - device->changes_done == KEY_CHANGES_MAX) {
        status = CORE_FULL;
    } else {
        const uint32_t index = (uint32_t)(device->changes_put++ % KEY_CHANGES_MAX);
        device->changes[index] = *change;
        item_put(device, ENGINE_KERNEL, ITEM_KEY, index);
    }
    pthread_mutex_unlock(&device->lock);
    return status;
}

static core_status emulated_key_set(struct gpu_device *device, uint32_t key_slot, const struct gpu_key *key,
                                    const uint8_t *chain, struct core_error *error)
{
    struct key_change change = {.key_slot = key_slot, .key = *key, .has_chain = chain != NULL};
    if (chain != NULL) {
        memcpy(change.chain.value[0], chain, GPU_BLOCK_BYTES);
        memcpy(change.chain.value[1], chain, GPU_BLOCK_BYTES);
    }
    const core_status status = key_change_put(device, &change, error);
    core_secret_wipe(&change, sizeof change);
    return status;
}

static core_status emulated_key_clear(struct gpu_device *device, uint32_t key_slot, struct core_error *error)
{
    const struct key_change change = {.key_slot = key_slot};
    return key_change_put(device, &change, error);
}

/* Every change is queued at once. */
static core_status emulated_keys_start(struct gpu_device *device, struct core_error *error)
{
    (void)device, (void)error;
    return CORE_OK;
}

static core_status emulated_launch(struct gpu_device *device, enum gpu_stage stage,
                                   const struct gpu_order *order, struct core_error *error)
{
    static const int engines[GPU_STAGE_COUNT] = {ENGINE_COPY, ENGINE_KERNEL, ENGINE_COPY_DOWN};
    const bool one_engine = device->emulation->copy_engines < 2;
    const int which = one_engine && stage == GPU_STAGE_DOWN ? ENGINE_COPY : engines[stage];
    if (order->arena >= device->region->shape.arenas)
        return core_error_set(error, CORE_INVALID, "arena %u of %u", order->arena,
                              device->region->shape.arenas);
    pthread_mutex_lock(&device->lock);
    struct run *run = &device->runs[order->arena];
    if (stage == GPU_STAGE_UP) {
        run->order = *order;
        run->asked_ns = core_time_now_ns();
        run->done = 0;
    }
    item_put(device, which, (enum item_kind)stage, order->arena);
    pthread_mutex_unlock(&device->lock);
    return CORE_OK;
}

static core_status emulated_poll(struct gpu_device *device, struct gpu_stage_end *end,
                                 struct core_error *error)
{
    pthread_mutex_lock(&device->lock);
    while (device->frozen)
        pthread_cond_wait(&device->changed, &device->lock);
    const core_status status = device->broken
                                   ? core_error_set(error, CORE_SYSTEM, "%s", device->why_broken.text)
                                   : gpu_emulated_tell_take(&device->tell, core_time_now_ns(), end);
    pthread_mutex_unlock(&device->lock);
    return status;
}

static core_status emulated_count(uint32_t *count, struct core_error *error)
{
    *count = 0;
    return core_error_set(error, CORE_UNSUPPORTED, "emulated cards are described by a profile");
}

static core_status emulated_describe(uint32_t index, struct gpu_device_facts *facts, struct core_error *error)
{
    (void)index;
    (void)facts;
    return core_error_set(error, CORE_UNSUPPORTED, "emulated cards are described by a profile");
}

/* Copies take memory as it is. */
static core_status emulated_resize(struct gpu_device *device, const struct gpu_room *from,
                                   const struct gpu_room *to, struct core_error *error)
{
    (void)from;
    if (device->emulation->failure == GPU_FAILURE_PIN && to->bytes > device->emulation->failure_bytes)
        return core_error_set(error, CORE_SYSTEM, "%s can not pin more memory", device->emulation->name);
    return CORE_OK;
}

static void emulated_set_room(struct gpu_device *device, const struct gpu_room *room)
{
    (void)device;
    (void)room;
}

const struct gpu_device_ops gpu_device_emulated = {
    .name = "emulated",
    .count = emulated_count,
    .describe = emulated_describe,
    .open = emulated_open,
    .close = emulated_close,
    .descriptor = emulated_descriptor,
    .key_set = emulated_key_set,
    .key_clear = emulated_key_clear,
    .keys_start = emulated_keys_start,
    .resize = emulated_resize,
    .set_room = emulated_set_room,
    .launch = emulated_launch,
    .poll = emulated_poll,
};
