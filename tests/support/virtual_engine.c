#include "tests/support/virtual_engine.h"

#include "tests/support/require.h"

__extension__ typedef __int128 wide;

#define FS_PER_NS 1000000

static const struct config_profile *used;
static wide burst_fs;

static core_status engine_open(struct cpu_engine **engine, struct core_error *error)
{
    (void)error;
    *engine = NULL;
    return CORE_OK;
}

static void engine_close(struct cpu_engine *engine)
{
    (void)engine;
}

static uint32_t engine_lanes(const struct cpu_engine *engine)
{
    (void)engine;
    return used->cpu.lanes;
}

static core_status engine_key_set(struct cpu_engine *engine, void *key_state, enum core_cipher cipher,
                                  enum core_direction direction, const uint8_t *key)
{
    (void)engine, (void)key_state, (void)cipher, (void)direction, (void)key;
    return CORE_OK;
}

static void engine_key_wipe(void *key_state)
{
    (void)key_state;
}

static core_status engine_encrypt(struct cpu_engine *engine, enum core_cipher cipher,
                                  struct cpu_piece *pieces, uint32_t count)
{
    (void)engine;
    const struct config_profile_cpu *cpu = &used->cpu;
    burst_fs += ((wide)count * cpu->per_piece_ns + cpu->lane_ns[cipher - 1]) * FS_PER_NS;
    for (uint32_t i = 0; i < count; i++) {
        TEST_REQUIRE(pieces[i].bytes >= CORE_BLOCK_BYTES && pieces[i].bytes <= cpu->piece_bytes);
        burst_fs += (wide)cpu->per_byte_fs[cipher - 1] * pieces[i].bytes;
    }
    return CORE_OK;
}

const struct cpu_engine_ops virtual_engine = {.name = "virtual",
                                              .key_state_bytes = 1,
                                              .open = engine_open,
                                              .close = engine_close,
                                              .lanes = engine_lanes,
                                              .key_set = engine_key_set,
                                              .key_wipe = engine_key_wipe,
                                              .encrypt = engine_encrypt};

void virtual_engine_use(const struct config_profile *profile)
{
    used = profile;
    burst_fs = 0;
}

core_ns virtual_engine_took_ns(void)
{
    core_ns took_ns = (core_ns)(burst_fs * (100 + used->margins.percent) / 100 / FS_PER_NS);
    burst_fs = 0;
    return took_ns;
}
