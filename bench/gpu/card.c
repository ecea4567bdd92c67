#include "bench/gpu/card.h"

#include "core/node.h"
#include "core/proc.h"
#include "gpu/kernel.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FIFO_PRIORITY 20
#define START_NS      (120 * CORE_NS_PER_S) /* pinning gigabytes takes seconds, waking a driver too */
#define ROOM_POLL_NS  (CORE_NS_PER_MS / 10) /* between two tries where the channel is full */
#define PATIENCE_NS   (120 * CORE_NS_PER_S) /* a bench measures; it does not watch over deadlines */

const char *bench_gpu_program_find(char *path, size_t size)
{
    static const char *const places[] = {"../gpu/millrace-gpu", "millrace-gpu", "../sbin/millrace-gpu"};
    char self[512];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);

    for (size_t i = 0; length > 0 && i < sizeof places / sizeof places[0]; i++) {
        self[length] = '\0';
        *(strrchr(self, '/') + 1) = '\0';
        if ((size_t)snprintf(path, size, "%s%s", self, places[i]) < size && access(path, X_OK) == 0)
            return path;
    }
    snprintf(path, size, "millrace-gpu");
    return path;
}

core_status bench_gpu_cards_list(const struct bench_gpu_program *program, struct gpu_listed *cards,
                                 uint32_t *count, struct core_error *why, struct core_error *error)
{
    const core_status status =
        gpu_listing_run(program->path, program->backend, NULL, cards, count, why, error);
    if (status == CORE_NOT_FOUND)
        return core_error_prefix(error, status, "give the path of millrace-gpu with --gpu-program");
    return status;
}

core_status bench_gpu_card_find(const struct bench_gpu_program *program, uint32_t index,
                                struct gpu_listed *card, struct core_error *error)
{
    struct gpu_listed *cards;
    uint32_t count = 0;

    *card = (struct gpu_listed){.index = index};
    if (strcmp(program->backend, "emulated") == 0)
        return CORE_OK;
    cards = calloc(GPU_LISTING_MAX, sizeof *cards);
    if (cards == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the list of cards");
    core_status status = bench_gpu_cards_list(program, cards, &count, error, error);
    if (status == CORE_OK && index >= count)
        status = count == 0 ? CORE_NOT_FOUND
                            : core_error_set(error, CORE_NOT_FOUND, "there is no card %u: %s --list shows %u",
                                             index, program->path, count);
    if (status == CORE_OK)
        *card = cards[index];
    free(cards);
    return status;
}

void bench_gpu_card_near(const struct gpu_listed *card)
{
    const int node = core_node_of_pci("/sys", card->facts.pci);
    if (node >= 0)
        (void)!core_node_take("/sys", node, NULL); /* where it is not permitted the bench measures that */
}

/* ---- a kind as an emulated card ---- */

static core_status emulation_make(struct bench_gpu_card *card, const struct config_profile_gpu *kind,
                                  bool busy, struct core_error *error)
{
    card->copies = calloc(kind->copy_count, sizeof *card->copies);
    card->shares = calloc(kind->utilisation_count, sizeof *card->shares);
    if (card->copies == NULL || card->shares == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for an emulated card");
    for (uint32_t i = 0; i < kind->copy_count; i++)
        card->copies[i] = (struct gpu_emulation_copy){.bytes = kind->copies[i].bytes,
                                                      .up_ns = kind->copies[i].up_ns,
                                                      .down_ns = kind->copies[i].down_ns,
                                                      .up_busy_ns = kind->copies[i].up_busy_ns,
                                                      .down_busy_ns = kind->copies[i].down_busy_ns};
    for (uint32_t i = 0; i < kind->utilisation_count; i++)
        card->shares[i] = (struct gpu_emulation_share){.jobs = kind->utilisation[i].jobs,
                                                       .share_ppm = kind->utilisation[i].share_ppm};
    card->emulation = (struct gpu_emulation){.memory_bytes = kind->memory_bytes,
                                             .sms = kind->sms,
                                             .copy_engines = kind->copy_engines,
                                             .sm_bytes_per_s = kind->sm_bytes_per_s,
                                             .launch_ns = kind->launch_ns,
                                             .always_busy = busy,
                                             .copies = card->copies,
                                             .shares = card->shares,
                                             .copy_count = kind->copy_count,
                                             .share_count = kind->utilisation_count};
    snprintf(card->emulation.name, sizeof card->emulation.name, "%s", kind->name);
    return CORE_OK;
}

/* ---- the child ---- */

/* Waits for an event; CORE_AGAIN: none until then. */
static core_status event_wait(struct bench_gpu_card *card, core_ns until_ns, struct gpu_event *event,
                              core_ns *seen_ns)
{
    for (;;) {
        const core_ns now_ns = core_time_now_ns();
        if (gpu_engine_poll(card->engine, now_ns, event) == CORE_OK) {
            *seen_ns = core_time_now_ns();
            return CORE_OK;
        }
        if (now_ns >= until_ns)
            return CORE_AGAIN;
        const core_ns engine_ns = gpu_engine_wake_ns(card->engine);
        const core_ns sleep_ns = core_time_min(engine_ns, until_ns) - now_ns;
        const struct timespec sleep = {.tv_sec = sleep_ns / CORE_NS_PER_S,
                                       .tv_nsec = sleep_ns % CORE_NS_PER_S};
        struct pollfd ready = {.fd = gpu_engine_descriptor(card->engine), .events = POLLIN};
        if (sleep_ns > 0)
            (void)ppoll(&ready, 1, &sleep, NULL);
    }
}

static core_status ready_wait(struct bench_gpu_card *card, struct core_error *error)
{
    struct gpu_event event;
    core_ns seen_ns;
    core_status status = gpu_engine_start(card->engine, core_time_now_ns(), error);

    if (status == CORE_OK)
        status = event_wait(card, core_time_now_ns() + START_NS, &event, &seen_ns);
    if (status == CORE_AGAIN)
        return core_error_set(error, CORE_TIMEOUT, "the GPU's process did not get ready");
    if (status == CORE_OK && event.kind == GPU_EVENT_FAULT)
        return core_error_set(error, CORE_SYSTEM, "the GPU's process did not get ready: %s",
                              event.fault.text);
    if (status == CORE_OK)
        card->facts = event.facts;
    return status;
}

core_status bench_gpu_card_grow(struct bench_gpu_card *card, const struct gpu_room *room,
                                struct core_error *error)
{
    struct gpu_event event;
    core_ns seen_ns;
    core_status status = gpu_engine_resize(card->engine, room);

    if (status != CORE_OK)
        return core_error_set(error, status, "the GPU's process is not asked for more memory: %s",
                              core_status_text(status));
    status = bench_gpu_card_next(card, core_time_now_ns() + START_NS, &event, &seen_ns, error);
    if (status == CORE_AGAIN)
        return core_error_set(error, CORE_TIMEOUT, "the GPU's process takes no more memory");
    return status == CORE_OK && event.room.text[0] != '\0'
               ? core_error_set(error, CORE_SYSTEM, "%s", event.room.text)
               : status;
}

uint32_t bench_gpu_kernel_forms(const char *name)
{
    enum gpu_kernel_form form;
    return name != NULL && gpu_kernel_form_parse(name, &form) == CORE_OK ? UINT32_C(1) << form : 0;
}

core_status bench_gpu_card_start(struct bench_gpu_card *card, const struct bench_gpu_program *program,
                                 const struct gpu_listed *which, const struct gpu_region *region,
                                 const struct config_profile_gpu *emulated, bool copies_busy,
                                 struct core_error *error)
{
    const bool is_emulated = strcmp(program->backend, "emulated") == 0;
    struct gpu_engine_options options = {.program = program->path,
                                         .backend = program->backend,
                                         .device = which->index,
                                         .uuid = is_emulated ? NULL : which->facts.uuid,
                                         .region = region,
                                         .fifo_priority = program->realtime ? FIFO_PRIORITY : 0,
                                         .kernel_forms = program->kernel_forms,
                                         .hang_least_ns = PATIENCE_NS,
                                         .start_ns = START_NS,
                                         .silence_ns = PATIENCE_NS};
    core_status status = CORE_OK;

    *card = (struct bench_gpu_card){0};
    if (is_emulated) {
        status = emulation_make(card, emulated, copies_busy, error);
        options.emulation = &card->emulation;
    }
    if (status == CORE_OK)
        status = gpu_engine_open(&card->engine, &options, error);
    if (status == CORE_OK)
        status = ready_wait(card, error);
    if (status != CORE_OK)
        bench_gpu_card_stop(card);
    return status;
}

void bench_gpu_card_stop(struct bench_gpu_card *card)
{
    gpu_engine_close(card->engine);
    free(card->copies);
    free(card->shares);
    *card = (struct bench_gpu_card){0};
}

core_status bench_gpu_card_key(struct bench_gpu_card *card, uint32_t slot, const uint8_t *key,
                               uint32_t key_bytes, const uint8_t chain[GPU_BLOCK_BYTES],
                               struct core_error *error)
{
    struct gpu_event event;
    core_ns seen_ns;
    core_status status;

    while ((status = gpu_engine_key_set(card->engine, gpu_key_slot(slot, 0), key, key_bytes, chain)) ==
           CORE_FULL) {
        const core_ns until_ns = core_time_now_ns() + ROOM_POLL_NS;
        if (event_wait(card, until_ns, &event, &seen_ns) == CORE_OK && event.kind == GPU_EVENT_FAULT)
            return core_error_set(error, CORE_SYSTEM, "the GPU's process failed: %s", event.fault.text);
    }
    return status == CORE_OK ? CORE_OK
                             : core_error_set(error, status, "the GPU does not take the key of slot %u: %s",
                                              slot, core_status_text(status));
}

core_status bench_gpu_card_submit(struct bench_gpu_card *card, const struct gpu_order *order,
                                  core_ns period_ns, core_ns *submitted_ns, struct core_error *error)
{
    static const struct timespec pause = {.tv_nsec = ROOM_POLL_NS};
    const core_ns until_ns = core_time_now_ns() + PATIENCE_NS;
    core_ns now_ns;
    core_status status;

    /* Not by event_wait: an event may be a batch that came back, and that is the caller's. */
    while (now_ns = core_time_now_ns(),
           (status = gpu_engine_submit(card->engine, order, period_ns, now_ns, error)) == CORE_FULL) {
        if (now_ns >= until_ns)
            return core_error_set(error, CORE_TIMEOUT, "the GPU's process takes no batch for %d s",
                                  (int)(PATIENCE_NS / CORE_NS_PER_S));
        (void)nanosleep(&pause, NULL);
    }
    if (submitted_ns != NULL)
        *submitted_ns = now_ns;
    return status;
}

core_status bench_gpu_card_next(struct bench_gpu_card *card, core_ns until_ns, struct gpu_event *batch,
                                core_ns *seen_ns, struct core_error *error)
{
    const core_status status = event_wait(card, until_ns, batch, seen_ns);

    if (status == CORE_OK && batch->kind == GPU_EVENT_FAULT)
        return core_error_set(error, CORE_SYSTEM, "the GPU's process failed (%s): %s",
                              gpu_fault_name(batch->fault.kind), batch->fault.text);
    return status;
}

core_ns bench_gpu_card_cpu_ns(const struct bench_gpu_card *card)
{
    char path[64], text[512];

    if (card->engine == NULL)
        return 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)gpu_engine_process(card->engine));
    (void)core_proc_read(path, text, sizeof text);
    const core_ns tick_ns = CORE_NS_PER_S / sysconf(_SC_CLK_TCK);
    const char *fields = core_proc_stat(text);
    const core_ns user_ns = core_proc_figure(fields, 12, tick_ns);
    const core_ns system_ns = core_proc_figure(fields, 13, tick_ns);
    return core_time_max(user_ns, 0) + core_time_max(system_ns, 0);
}
