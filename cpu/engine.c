#include "cpu/engine.h"

#include "core/time.h"

#include <stdlib.h>
#include <string.h>

const struct cpu_engine_ops *const cpu_engines[] = {&cpu_engine_ipsec_mb, &cpu_engine_openssl, NULL};

#define TRIAL_STREAMS 32
#define TRIAL_BYTES   1408 /* 1400 bytes, padded */
#define TRIAL_STRIDE  1472 /* staggers the buffers: lanes at one stride would share their cache sets */
#define TRIAL_NS      (3 * CORE_NS_PER_MS)

static size_t align64(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

/* Nanoseconds of the fastest burst over independent streams; CORE_NS_NEVER if the engine fails. */
static core_ns trial_run(const struct cpu_engine_ops *ops, struct cpu_engine *engine, uint8_t *keys,
                         uint8_t *data)
{
    struct cpu_piece pieces[TRIAL_STREAMS];
    uint8_t chains[TRIAL_STREAMS][CORE_BLOCK_BYTES] = {{0}};
    for (uint32_t i = 0; i < TRIAL_STREAMS; i++) {
        uint8_t *buffer = data + (size_t)i * TRIAL_STRIDE;
        pieces[i] = (struct cpu_piece){.source = buffer,
                                       .target = buffer,
                                       .bytes = TRIAL_BYTES,
                                       .chain = chains[i],
                                       .key = keys + i * align64(ops->key_state_bytes)};
    }
    core_ns best_ns = CORE_NS_NEVER;
    core_ns start_ns = core_time_now_ns();
    core_ns now_ns = start_ns;
    while (now_ns - start_ns < TRIAL_NS) {
        core_ns before_ns = now_ns;
        if (ops->encrypt(engine, CORE_CIPHER_AES_128_CBC, pieces, TRIAL_STREAMS) != CORE_OK) {
            return CORE_NS_NEVER;
        }
        now_ns = core_time_now_ns();
        best_ns = now_ns - before_ns < best_ns ? now_ns - before_ns : best_ns;
    }
    return best_ns;
}

/* Opens the engine and runs it on keys that guard nothing. */
static core_ns trial_measure(const struct cpu_engine_ops *ops)
{
    struct cpu_engine *engine;
    if (ops->open(&engine, NULL) != CORE_OK) {
        return CORE_NS_NEVER;
    }
    core_ns best_ns = CORE_NS_NEVER;
    size_t key_bytes = align64(ops->key_state_bytes);
    uint8_t *keys = aligned_alloc(64, TRIAL_STREAMS * key_bytes);
    uint8_t *data = calloc(TRIAL_STREAMS, TRIAL_STRIDE);
    uint32_t ready = 0;
    if (keys != NULL && data != NULL) {
        uint8_t key[16] = {0};
        for (; ready < TRIAL_STREAMS; ready++) {
            key[0] = (uint8_t)ready;
            if (ops->key_set(engine, keys + ready * key_bytes, CORE_CIPHER_AES_128_CBC, key) != CORE_OK) {
                break;
            }
        }
        if (ready == TRIAL_STREAMS) {
            best_ns = trial_run(ops, engine, keys, data);
        }
    }
    while (ready > 0) {
        ops->key_wipe(keys + --ready * key_bytes);
    }
    free(data);
    free(keys);
    ops->close(engine);
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
    if (fastest == NULL) {
        core_error_set(error, CORE_UNSUPPORTED, "no AES-CBC engine works on this machine");
    }
    return fastest;
}

const struct cpu_engine_ops *cpu_engine_find(const char *name, struct core_error *error)
{
    if (strcmp(name, "auto") == 0) {
        return find_fastest(error);
    }
    for (const struct cpu_engine_ops *const *row = cpu_engines; *row != NULL; row++) {
        if (strcmp(name, (*row)->name) == 0) {
            return *row;
        }
    }
    core_error_set(error, CORE_NOT_FOUND, "no engine \"%s\": auto, ipsec-mb and openssl are known", name);
    return NULL;
}
