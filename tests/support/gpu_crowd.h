/* Streams for the tests of a GPU engine or device: their batches, and the expected ciphertext by OpenSSL. */
#ifndef MILLRACE_TESTS_SUPPORT_GPU_CROWD_H
#define MILLRACE_TESTS_SUPPORT_GPU_CROWD_H

#include "gpu/device.h"
#include "gpu/emulation.h"
#include "gpu/engine.h"
#include "tests/support/random.h"

struct gpu_crowd_stream {
    uint8_t key[32];
    uint32_t key_bytes;
    uint8_t chain[16]; /* after the batches made so far */
    uint32_t chain_from;
};

struct gpu_crowd {
    struct gpu_region region;
    struct gpu_crowd_stream *streams; /* as many as there are slots */
    uint8_t *expected[GPU_REGION_ARENAS_MAX];
    struct test_random random;
    uint64_t batches; /* made so far */
    uint64_t jobs;    /* in all of them */
};

/* Random keys of all three sizes, one stream a slot. */
struct gpu_crowd *gpu_crowd_open(uint32_t arenas, uint32_t slots, uint32_t segments, uint64_t arena_bytes,
                                 uint64_t seed);
void gpu_crowd_close(struct gpu_crowd *crowd);
uint64_t gpu_crowd_draw(struct gpu_crowd *crowd, uint64_t below);

/* Fills the next batch, in arena batch mod arenas, with about `jobs` of the streams, each with up to three
 * segments of up to `bytes_max`; jobs in falling order. Streams' chaining values move on. */
struct gpu_order gpu_crowd_batch(struct gpu_crowd *crowd, uint32_t jobs, uint32_t bytes_max);

/* Whether the arena's output is what it must be, to the byte; says where it is not. */
bool gpu_crowd_matches(const struct gpu_crowd *crowd, const struct gpu_order *order);

/* Puts what must come out into the arena, as a CPU would that runs the batch in the GPU's stead. */
void gpu_crowd_stand_in(struct gpu_crowd *crowd, const struct gpu_order *order);

/* Another stream in the slot: new key, new chaining value. */
void gpu_crowd_stream_renew(struct gpu_crowd *crowd, uint32_t slot);

/* Hands one key, with the chaining value as it is now. */
core_status gpu_crowd_key_hand(const struct gpu_crowd *crowd, struct gpu_engine *engine, uint32_t slot);

/* Hands all keys, and chaining values as they are now, to an engine that is ready; polls it meanwhile. */
void gpu_crowd_hand_keys(struct gpu_crowd *crowd, struct gpu_engine *engine);

/* Polls until an event comes, or for 60 s (false). */
bool gpu_crowd_wait(struct gpu_engine *engine, struct gpu_event *event);

/* A small card: two engines or one, times of some hundred microseconds for batches of some hundred KB. */
struct gpu_emulation gpu_crowd_card(uint32_t copy_engines);

/* Paths of millrace-gpu in the build, and of the one on the CUDA runtime of cuda/fake.h. */
const char *gpu_crowd_program(void);
const char *gpu_crowd_fake_program(void);

/* Options for an engine with this card, for tests: patient, so that a busy machine makes no faults. */
struct gpu_engine_options gpu_crowd_options(const struct gpu_crowd *crowd,
                                            const struct gpu_emulation *emulation);

#endif
