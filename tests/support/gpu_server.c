#include "tests/support/gpu_server.h"

#include "server/gpu/batcher.h"
#include "server/server_internal.h"
#include "tests/support/client.h"
#include "tests/support/require.h"

struct config_profile *test_gpu_profile(int64_t cost)
{
    struct config_profile *profile = NULL;
    struct core_error error = {""};
    if (config_profile_load(MILLRACE_SOURCE_DIR "/config/profiles/emulated-small.yaml", &profile, &error) !=
        CORE_OK) {
        fprintf(stderr, "%s\n", error.text);
        abort();
    }
    profile->cpu.per_piece_ns *= cost;
    for (int i = 0; i < CORE_CIPHER_COUNT; i++) {
        profile->cpu.per_byte_fs[i] *= cost;
        profile->cpu.lane_ns[i] *= cost;
        profile->io.audit_per_piece_ns[i] = 100;
        profile->io.audit_per_byte_fs[i] = 1000;
    }
    profile->io.per_packet_ns = 100;
    profile->io.per_byte_fs = 1000;
    profile->margins.in_ns = profile->margins.out_ns = 2 * CORE_NS_PER_MS;
    profile->pinned_bytes = UINT64_C(64) << 20;
    return profile;
}

void test_gpu_server_start(struct test_server *server, const char *gpus, const char *yaml,
                           const struct config_profile *profile)
{
    char text[2048];
    TEST_REQUIRE(snprintf(text, sizeof text, "gpus: {use: emulated, program: %s/gpu/millrace-gpu%s%s}\n%s",
                          MILLRACE_BINARY_DIR, gpus[0] != '\0' ? ", " : "", gpus, yaml) < (int)sizeof text);
    test_server_start(server, text, profile);
}

static const struct server_gpu_figures *figures_of(const struct test_server *server, uint32_t gpu)
{
    TEST_REQUIRE(gpu < server->server->gpu_count);
    return server_gpu_figures(server->server->gpus[gpu]);
}

pid_t test_gpu_process(const struct test_server *server, uint32_t gpu)
{
    return atomic_load(&figures_of(server, gpu)->process);
}

void test_gpu_await_up(const struct test_server *server, uint32_t gpu, pid_t before)
{
    const struct server_gpu_figures *figures = figures_of(server, gpu);
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    while (atomic_load(&figures->state) != SERVER_GPU_STATE_UP || atomic_load(&figures->process) == before) {
        TEST_REQUIRE(core_time_now_ns() < until_ns);
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    }
}
