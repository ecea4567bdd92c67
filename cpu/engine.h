/* AES-CBC engines behind one table of functions.
 *
 * An engine encrypts or decrypts a burst of pieces, each from a different stream, and carries every stream's chaining
 * value. It is synchronous: when encrypt() returns, every piece is done. `lanes` pieces side by side cost
 * about what one costs (1 for an engine that works one stream at a time).
 *
 * An engine instance belongs to one thread. Key states may be set with one instance and used with another of
 * the same kind, so that the I/O thread that opens a stream can expand its key and a worker can use it; the
 * caller orders the two (handing the stream over through a queue does). Adding an engine: one file, one row
 * in engine.c. */
#ifndef MILLRACE_CPU_ENGINE_H
#define MILLRACE_CPU_ENGINE_H

#include "core/status.h"
#include "core/stream.h"

#include <stdalign.h>
#include <stddef.h>
#include <stdint.h>

#define CPU_BURST_MAX 128 /* most pieces in one call; IPsec-MB's IMB_MAX_BURST_SIZE */
#define CPU_PIECE_BYTES_MAX                                                                                  \
    65520 /* the longest CBC job of IPsec-MB 1.3: longer ones are silently cut there */

/* One run of whole blocks of one stream. source and target are equal or do not overlap. */
struct cpu_piece {
    const uint8_t *source;
    uint8_t *target;
    uint32_t bytes; /* multiple of 16, 16 .. CPU_PIECE_BYTES_MAX */
    uint8_t *chain; /* 16 bytes: the IV going in, the last ciphertext block coming out */
    void *key;      /* key state of the stream, from key_set() of this kind of engine */
};

struct cpu_engine; /* an instance; hidden */

struct cpu_engine_ops {
    const char *name; /* "openssl", "ipsec-mb", "vaes" */
    size_t
        key_state_bytes; /* size of a key state; the caller provides it, 64-byte aligned, in secret memory */

    /* CORE_UNSUPPORTED if this machine lacks what the engine needs. */
    CORE_CHECKED core_status (*open)(struct cpu_engine **engine, struct core_error *error);
    void (*close)(struct cpu_engine *engine);
    uint32_t (*lanes)(const struct cpu_engine *engine);

    /* Expands `key` (core_cipher_key_bytes(cipher) bytes), to encrypt with or to decrypt. Allocates; control path
     * only. */
    CORE_CHECKED core_status (*key_set)(struct cpu_engine *engine, void *key_state, enum core_cipher cipher,
                                        enum core_direction direction, const uint8_t *key);
    void (*key_wipe)(void *key_state); /* releases and overwrites */

    /* Encrypts `count` (1 .. CPU_BURST_MAX) pieces of streams with the same cipher. Allocates nothing.
     * CORE_OK, or CORE_SYSTEM if the library reports a failure (then the targets are not to be used). */
    CORE_CHECKED core_status (*encrypt)(struct cpu_engine *engine, enum core_cipher cipher,
                                        struct cpu_piece *pieces, uint32_t count);
    /* The same, with key states that decrypt: chain: the ciphertext block ahead going in, the last one coming out. */
    CORE_CHECKED core_status (*decrypt)(struct cpu_engine *engine, enum core_cipher cipher,
                                        struct cpu_piece *pieces, uint32_t count);
};

extern const struct cpu_engine_ops cpu_engine_openssl;
extern const struct cpu_engine_ops cpu_engine_ipsec_mb;
extern const struct cpu_engine_ops cpu_engine_vaes;

/* NULL-terminated, fastest expected first. */
extern const struct cpu_engine_ops *const cpu_engines[];

/* The engine called `name`; "auto" measures every engine that opens here for a few milliseconds on 1400-byte
 * pieces of more independent streams than the inner caches hold and takes the fastest. NULL with the known
 * names in error if there is none.
 */
const struct cpu_engine_ops *cpu_engine_find(const char *name, struct core_error *error);

#endif
