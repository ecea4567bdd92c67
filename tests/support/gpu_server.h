/* A server with an emulated GPU: the card of config/profiles/emulated-small.yaml, driven by the millrace-gpu
 * of this build. */
#ifndef MILLRACE_TESTS_GPU_SERVER_H
#define MILLRACE_TESTS_GPU_SERVER_H

#include "tests/support/server.h"

#include <sys/types.h>

/* The profile with I/O threads that cost next to nothing and workers that take `cost` times as long as they
 * do: with much of it nearly everything that a GPU can do goes there. Margins are 2 ms, as tests run on busy
 * machines. To be freed. */
struct config_profile *test_gpu_profile(int64_t cost);

/* Starts it with `cards` cards; `gpus` is put into the configuration's gpus, as "audit: 1"; `yaml` as for
 * test_server_start. */
void test_gpu_server_start(struct test_server *server, const char *gpus, const char *yaml,
                           const struct config_profile *profile);

/* Process of a card's child by the server's own account; 0: none now. */
pid_t test_gpu_process(const struct test_server *server, uint32_t gpu);

/* Waits until the card is in service and its child is not `before`. */
void test_gpu_await_up(const struct test_server *server, uint32_t gpu, pid_t before);

#endif
