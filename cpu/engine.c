#include "cpu/engine.h"

#include "core/time.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

const struct cpu_engine_ops *const cpu_engines[] = {&cpu_engine_vaes, &cpu_engine_ipsec_mb,
                                                    &cpu_engine_openssl, NULL};

#define TRIAL_STREAMS 2048 /* with their buffers more than the inner caches hold, as live streams are */
#define TRIAL_STEP    619  /* odd: visits every stream once */
#define TRIAL_BYTES   1408 /* 1400 bytes, padded */
#define TRIAL_STRIDE  1472 /* staggers the buffers: lanes at one stride would share their cache sets */
#define TRIAL_NS      (8 * CORE_NS_PER_MS)
#define TRIAL_PASSES  3 /* at least, behind one that finds the memory */

static size_t align64(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

struct trial {
    const struct cpu_engine_ops *ops;
    struct cpu_engine *engine;
    size_t key_bytes;
    uint8_t *keys, *data;
    uint8_t (*chains)[CORE_BLOCK_BYTES];
    uint32_t ready; /* streams whose key is set */
};

/* Encrypts one piece of every stream, in no order of addresses: deadlines know none. */
static core_status trial_pass(struct trial *trial)
{
    struct cpu_piece pieces[CPU_BURST_MAX];
    core_status status = CORE_OK;
    for (uint32_t stream = 0; stream < TRIAL_STREAMS && status == CORE_OK;) {
        uint32_t count = 0;
        for (; count < CPU_BURST_MAX && stream < TRIAL_STREAMS; count++, stream++) {
            uint32_t place = stream * TRIAL_STEP % TRIAL_STREAMS;
            uint8_t *buffer = trial->data + (size_t)place * TRIAL_STRIDE;
            pieces[count] = (struct cpu_piece){.source = buffer,
                                               .target = buffer,
                                               .bytes = TRIAL_BYTES,
                                               .chain = trial->chains[place],
                                               .key = trial->keys + place * trial->key_bytes};
        }
        status = trial->ops->encrypt(trial->engine, CORE_CIPHER_AES_128_CBC, pieces, count);
    }
    return status;
}

/* Nanoseconds of the fastest pass, of this thread alone; CORE_NS_NEVER if the engine fails. In the first one the
 * system gives the memory, which took ten times as long as the work on a machine whose host had to find it. */
static core_ns trial_run(struct trial *trial)
{
    core_ns best_ns = CORE_NS_NEVER;
    if (trial_pass(trial) != CORE_OK)
        return CORE_NS_NEVER;
    core_ns start_ns = core_time_thread_cpu_ns();
    core_ns now_ns = start_ns;
    for (int passes = 0; passes < TRIAL_PASSES || now_ns - start_ns < TRIAL_NS; passes++) {
        core_ns before_ns = now_ns;
        if (trial_pass(trial) != CORE_OK)
            return CORE_NS_NEVER;
        now_ns = core_time_thread_cpu_ns();
        best_ns = now_ns - before_ns < best_ns ? now_ns - before_ns : best_ns;
    }
    return best_ns;
}

/* Keys that guard nothing. */
static bool trial_keys_set(struct trial *trial)
{
    uint8_t key[16] = {0};
    for (; trial->ready < TRIAL_STREAMS; trial->ready++) {
        memcpy(key, &trial->ready, sizeof trial->ready);
        if (trial->ops->key_set(trial->engine, trial->keys + trial->ready * trial->key_bytes,
                                CORE_CIPHER_AES_128_CBC, CORE_DIRECTION_ENCRYPT, key) != CORE_OK)
            return false;
    }
    return true;
}

static core_ns trial_measure(const struct cpu_engine_ops *ops)
{
    struct trial trial = {.ops = ops, .key_bytes = align64(ops->key_state_bytes)};
    if (ops->open(&trial.engine, NULL) != CORE_OK)
        return CORE_NS_NEVER;
    core_ns best_ns = CORE_NS_NEVER;
    trial.keys = aligned_alloc(64, TRIAL_STREAMS * trial.key_bytes);
    trial.data = calloc(TRIAL_STREAMS, TRIAL_STRIDE);
    trial.chains = calloc(TRIAL_STREAMS, sizeof *trial.chains);
    if (trial.keys != NULL && trial.data != NULL && trial.chains != NULL && trial_keys_set(&trial))
        best_ns = trial_run(&trial);
    while (trial.ready > 0)
        ops->key_wipe(trial.keys + --trial.ready * trial.key_bytes);
    free(trial.chains);
    free(trial.data);
    free(trial.keys);
    ops->close(trial.engine);
    return best_ns;
}

static const struct cpu_engine_ops *find_fastest(struct core_error *error)
{
    const struct cpu_engine_ops *fastest = NULL;
    core_ns fastest_ns = CORE_NS_NEVER;
    for (const struct cpu_engine_ops *const *row = cpu_engines; *row != NULL; row++) {
        core_ns best_ns = trial_measure(*row);
        if (best_ns < fastest_ns) {
            fastest = *row;
            fastest_ns = best_ns;
        }
    }
    if (fastest == NULL)
        core_error_set(error, CORE_UNSUPPORTED, "no AES-CBC engine works on this machine");
    return fastest;
}

const struct cpu_engine_ops *cpu_engine_find(const char *name, struct core_error *error)
{
    if (strcmp(name, "auto") == 0)
        return find_fastest(error);
    for (const struct cpu_engine_ops *const *row = cpu_engines; *row != NULL; row++)
        if (strcmp(name, (*row)->name) == 0)
            return *row;
    core_error_set(error, CORE_NOT_FOUND, "no engine \"%s\": auto, vaes, ipsec-mb and openssl are known",
                   name);
    return NULL;
}
