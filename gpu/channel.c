#include "gpu/channel.h"

#include "core/secret.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x316c656e6e616863)
#define PAGE  4096
#define MASK  (GPU_CHANNEL_ENTRIES - 1)

/* An index counts entries since the start, modulo 2^32; each lies in a cache line of its own. */
struct gpu_channel_memory {
    uint64_t magic, bytes;                            /* set before start */
    alignas(64) _Atomic uint32_t commands_put;        /* written by the server, read by the child */
    alignas(64) _Atomic uint32_t commands_taken;      /* written by the child, read by the server */
    alignas(64) _Atomic uint32_t completions_put;     /* written by the child, read by the server */
    alignas(64) _Atomic uint32_t completions_taken;   /* written by the server, read by the child */
    alignas(64) _Atomic uint64_t server_beats;        /* written by the server, read by the child */
    alignas(64) _Atomic uint64_t child_beats;         /* written by the child, read by the server */
    alignas(64) _Atomic uint32_t sm_mhz, sm_most_mhz; /* these four: as child_beats */
    _Atomic uint32_t reasons;
    _Atomic int32_t celsius;
    struct gpu_channel_start start;                                 /* set before start */
    struct gpu_command commands[GPU_CHANNEL_ENTRIES];               /* filled by the server */
    struct gpu_completion completions[GPU_CHANNEL_ENTRIES];         /* filled by the child */
    alignas(PAGE) struct gpu_channel_key keys[GPU_CHANNEL_ENTRIES]; /* pages of their own */
    alignas(PAGE) uint8_t rows[]; /* copies, then shares, of the emulation */
};

static size_t copies_bytes(const struct gpu_channel_start *start)
{
    return start->has_emulation ? start->emulation.copy_count * sizeof(struct gpu_emulation_copy) : 0;
}

static size_t rows_bytes(const struct gpu_channel_start *start)
{
    const size_t shares = start->has_emulation ? start->emulation.share_count : 0;
    return copies_bytes(start) + shares * sizeof(struct gpu_emulation_share);
}

/* Points the emulation of this side's own `start` at this side's own rows. */
static void rows_point(struct gpu_channel *channel)
{
    channel->start.emulation.copies = channel->rows;
    channel->start.emulation.shares =
        (const void *)((const uint8_t *)channel->rows + copies_bytes(&channel->start));
}

static bool keys_protect(struct gpu_channel_memory *memory)
{
    const bool hidden = madvise(memory->keys, sizeof memory->keys, MADV_DONTDUMP) == 0;
    return mlock(memory->keys, sizeof memory->keys) == 0 && hidden;
}

static core_status memory_map(struct gpu_channel *channel, int descriptor, size_t bytes,
                              struct core_error *error)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, 0);
    if (memory == MAP_FAILED)
        return core_error_errno(error, "can not map the memory of a GPU's channel (%zu bytes)", bytes);
    channel->memory = memory;
    channel->bytes = bytes;
    channel->keys_locked = keys_protect(channel->memory);
    return CORE_OK;
}

/* ---- the server's side ---- */

static core_status memory_make(struct gpu_channel *channel, size_t bytes, struct core_error *error)
{
    const int descriptor = memfd_create("millrace-gpu-channel", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (descriptor < 0)
        return core_error_errno(error, "can not make the memory of a GPU's channel");
    channel->memory_descriptor = descriptor;
    if (ftruncate(descriptor, (off_t)bytes) != 0 ||
        fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return core_error_errno(error, "can not size the memory of a GPU's channel to %zu bytes", bytes);
    return memory_map(channel, descriptor, bytes, error);
}

static core_status rows_keep(struct gpu_channel *channel, const struct gpu_channel_start *start,
                             struct core_error *error)
{
    channel->start = *start;
    channel->rows = malloc(rows_bytes(start) + 1);
    if (channel->rows == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a GPU's channel");
    if (start->has_emulation) {
        const struct gpu_emulation *from = &start->emulation;
        uint8_t *rows = channel->rows;
        memcpy(rows, from->copies, copies_bytes(start));
        memcpy(rows + copies_bytes(start), from->shares, rows_bytes(start) - copies_bytes(start));
    }
    rows_point(channel);
    return CORE_OK;
}

core_status gpu_channel_create(struct gpu_channel *channel, const struct gpu_channel_start *start,
                               struct core_error *error)
{
    *channel = (struct gpu_channel){.memory_descriptor = -1};
    core_status status = rows_keep(channel, start, error);
    if (status == CORE_OK)
        status = memory_make(channel, sizeof *channel->memory + rows_bytes(start), error);
    if (status == CORE_OK)
        gpu_channel_reset(channel);
    else
        gpu_channel_destroy(channel);
    return status;
}

void gpu_channel_reset(struct gpu_channel *channel)
{
    struct gpu_channel_memory *memory = channel->memory;
    core_secret_wipe(memory, channel->bytes);
    channel->commands_at = channel->completions_at = 0;
    memory->magic = MAGIC;
    memory->bytes = channel->bytes;
    memory->start = channel->start;
    memory->start.emulation.copies = NULL;
    memory->start.emulation.shares = NULL;
    memcpy(memory->rows, channel->rows, rows_bytes(&channel->start));
}

void gpu_channel_destroy(struct gpu_channel *channel)
{
    if (channel->memory != NULL) {
        core_secret_wipe(channel->memory->keys, sizeof channel->memory->keys);
        munmap(channel->memory, channel->bytes);
    }
    if (channel->memory_descriptor >= 0)
        close(channel->memory_descriptor);
    free(channel->rows);
    *channel = (struct gpu_channel){.memory_descriptor = -1};
}

core_status gpu_channel_command_put(struct gpu_channel *channel, const struct gpu_command *command,
                                    const struct gpu_channel_key *key)
{
    struct gpu_channel_memory *memory = channel->memory;
    const uint32_t at = channel->commands_at;
    /* Acquire: what the child read of the entry, and its wiping of the key, come before our writes. */
    const uint32_t taken = atomic_load_explicit(&memory->commands_taken, memory_order_acquire);
    if (at - taken > GPU_CHANNEL_ENTRIES)
        return CORE_INVALID;
    if (at - taken == GPU_CHANNEL_ENTRIES)
        return CORE_FULL;
    memory->commands[at & MASK] = *command;
    if (key != NULL)
        memory->keys[at & MASK] = *key;
    channel->commands_at = at + 1;
    /* Release: the entry is whole before the child sees the index. */
    atomic_store_explicit(&memory->commands_put, at + 1, memory_order_release);
    return CORE_OK;
}

static void text_clean(char *text, size_t bytes)
{
    text[bytes - 1] = '\0';
    for (; *text != '\0'; text++)
        if (*text < ' ' || *text > '~')
            *text = '?';
}

static core_status completion_clean(struct gpu_completion *completion)
{
    struct gpu_device_facts *facts = &completion->facts;
    switch (completion->kind) {
    case GPU_COMPLETION_READY:
        text_clean(facts->name, sizeof facts->name);
        text_clean(facts->driver, sizeof facts->driver);
        text_clean(facts->kernel, sizeof facts->kernel);
        text_clean(facts->uuid, sizeof facts->uuid);
        text_clean(facts->pci, sizeof facts->pci);
        return facts->sms > 0 && facts->copy_engines > 0 ? CORE_OK : CORE_INVALID;
    case GPU_COMPLETION_BATCH:
        return CORE_OK;
    case GPU_COMPLETION_ROOM:
    case GPU_COMPLETION_ERROR:
        text_clean(completion->text, sizeof completion->text);
        return CORE_OK;
    default:
        return CORE_INVALID;
    }
}

core_status gpu_channel_completion_take(struct gpu_channel *channel, struct gpu_completion *completion)
{
    struct gpu_channel_memory *memory = channel->memory;
    const uint32_t at = channel->completions_at;
    /* Acquire: the entry, and the batch's output, are whole once the index says so. */
    const uint32_t put = atomic_load_explicit(&memory->completions_put, memory_order_acquire);
    if (put == at)
        return CORE_AGAIN;
    if (put - at > GPU_CHANNEL_ENTRIES)
        return CORE_INVALID;
    *completion = memory->completions[at & MASK];
    channel->completions_at = at + 1;
    /* Release: our reads come before the child may write the entry again. */
    atomic_store_explicit(&memory->completions_taken, at + 1, memory_order_release);
    return completion_clean(completion);
}

/* ---- the child's side ---- */

static core_status memory_check(struct gpu_channel *channel, struct core_error *error)
{
    const struct gpu_channel_memory *memory = channel->memory;
    channel->start = memory->start;
    const struct gpu_emulation *emulation = &channel->start.emulation;
    if (memory->magic != MAGIC || memory->bytes != channel->bytes ||
        (channel->start.has_emulation && (emulation->copy_count > GPU_EMULATION_COPIES_MAX ||
                                          emulation->share_count > GPU_EMULATION_SHARES_MAX)) ||
        channel->bytes != sizeof *memory + rows_bytes(&channel->start))
        return core_error_set(
            error, CORE_INVALID,
            "the channel has another version: millraced and millrace-gpu must be of the same installation");
    channel->rows = malloc(rows_bytes(&channel->start) + 1);
    if (channel->rows == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the channel's tables");
    memcpy(channel->rows, memory->rows, rows_bytes(&channel->start));
    rows_point(channel);
    return channel->start.has_emulation ? gpu_emulation_check(emulation, error) : CORE_OK;
}

core_status gpu_channel_attach(struct gpu_channel *channel, int memory_descriptor, struct core_error *error)
{
    struct stat status_of_memory;
    *channel = (struct gpu_channel){.memory_descriptor = -1};
    if (fstat(memory_descriptor, &status_of_memory) != 0)
        return core_error_errno(error, "can not open the channel");
    if (status_of_memory.st_size < (off_t)sizeof *channel->memory)
        return core_error_set(error, CORE_INVALID, "the channel is smaller than its header");
    core_status status = memory_map(channel, memory_descriptor, (size_t)status_of_memory.st_size, error);
    if (status == CORE_OK)
        status = memory_check(channel, error);
    if (status != CORE_OK)
        gpu_channel_detach(channel);
    return status;
}

void gpu_channel_detach(struct gpu_channel *channel)
{
    if (channel->memory != NULL)
        munmap(channel->memory, channel->bytes);
    free(channel->rows);
    *channel = (struct gpu_channel){.memory_descriptor = -1};
}

const struct gpu_command *gpu_channel_command_peek(struct gpu_channel *channel)
{
    struct gpu_channel_memory *memory = channel->memory;
    /* Acquire: the entry, its key and the batch's input are whole. */
    if (atomic_load_explicit(&memory->commands_put, memory_order_acquire) == channel->commands_at)
        return NULL;
    return &memory->commands[channel->commands_at & MASK];
}

const struct gpu_channel_key *gpu_channel_command_key(struct gpu_channel *channel)
{
    return &channel->memory->keys[channel->commands_at & MASK];
}

void gpu_channel_command_take(struct gpu_channel *channel)
{
    struct gpu_channel_memory *memory = channel->memory;
    const struct gpu_command *command = &memory->commands[channel->commands_at & MASK];
    if (command->kind == GPU_COMMAND_KEY_SET)
        core_secret_wipe(&memory->keys[channel->commands_at & MASK], sizeof memory->keys[0]);
    channel->commands_at++;
    /* Release: our reads and the wiping come before the server may write the entry again. */
    atomic_store_explicit(&memory->commands_taken, channel->commands_at, memory_order_release);
}

core_status gpu_channel_completion_put(struct gpu_channel *channel, const struct gpu_completion *completion)
{
    struct gpu_channel_memory *memory = channel->memory;
    const uint32_t at = channel->completions_at;
    /* Acquire: the server's reads of the entry come before our writes. */
    if (at - atomic_load_explicit(&memory->completions_taken, memory_order_acquire) >= GPU_CHANNEL_ENTRIES)
        return CORE_FULL;
    memory->completions[at & MASK] = *completion;
    channel->completions_at = at + 1;
    /* Release: the entry and the batch's output are whole before the server sees the index. */
    atomic_store_explicit(&memory->completions_put, at + 1, memory_order_release);
    return CORE_OK;
}

void gpu_channel_scribble(struct gpu_channel *channel)
{
    uint64_t noise = (uint64_t)getpid();
    uint8_t *bytes = (uint8_t *)channel->memory;
    for (size_t i = 0; i < channel->bytes; i++) {
        noise = noise * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        bytes[i] = (uint8_t)(noise >> 56);
    }
}

/* ---- both ---- */

/* Relaxed throughout: figures, on which nothing hangs. */
void gpu_channel_health_put(struct gpu_channel *channel, const struct gpu_nvml_health *health)
{
    struct gpu_channel_memory *memory = channel->memory;
    atomic_store_explicit(&memory->sm_mhz, health->sm_mhz, memory_order_relaxed);
    atomic_store_explicit(&memory->sm_most_mhz, health->sm_most_mhz, memory_order_relaxed);
    atomic_store_explicit(&memory->reasons, health->reasons, memory_order_relaxed);
    atomic_store_explicit(&memory->celsius, health->celsius, memory_order_relaxed);
}

struct gpu_nvml_health gpu_channel_health(const struct gpu_channel *channel)
{
    const struct gpu_channel_memory *memory = channel->memory;
    return (struct gpu_nvml_health){
        .sm_mhz = atomic_load_explicit(&memory->sm_mhz, memory_order_relaxed),
        .sm_most_mhz = atomic_load_explicit(&memory->sm_most_mhz, memory_order_relaxed),
        .reasons = atomic_load_explicit(&memory->reasons, memory_order_relaxed),
        .celsius = atomic_load_explicit(&memory->celsius, memory_order_relaxed),
    };
}

void gpu_channel_beat(struct gpu_channel *channel, bool server)
{
    _Atomic uint64_t *beats = server ? &channel->memory->server_beats : &channel->memory->child_beats;
    /* Relaxed: a count of its own, nothing hangs on it. */
    atomic_fetch_add_explicit(beats, 1, memory_order_relaxed);
}

uint64_t gpu_channel_beats(const struct gpu_channel *channel, bool server)
{
    const struct gpu_channel_memory *memory = channel->memory;
    return atomic_load_explicit(server ? &memory->server_beats : &memory->child_beats, memory_order_relaxed);
}
