/* The engine of a GPU (gpu/engine.h) on the clock of virtual_threads.h, without a child: an emulated card that
 * encrypts with the kernel's own source, and takes as long as the emulation of its profile says at most, since
 * both directions of copies count as busy. It fails when the test says so.
 *
 * Arenas begin with hardly any room, and now and then get no more.
 *
 * The program is linked with --wrap for the engine's functions, TEST_VIRTUAL_WRAPS in tests/CMakeLists.txt. */
#ifndef MILLRACE_TESTS_VIRTUAL_GPU_H
#define MILLRACE_TESTS_VIRTUAL_GPU_H

#include "core/time.h"

#include <stdbool.h>
#include <stdint.h>

#define TEST_VIRTUAL_GPUS 4

/* From now on nothing comes back from the card. Its engine tells so after noticed_permille of the longest time
 * that it may take, and the child is gone lingers_ns after that: until then it writes into the arenas that it
 * had. False: the card is not in service. */
bool test_virtual_gpu_lose(uint32_t card, uint32_t noticed_permille, core_ns lingers_ns);

/* How often engines have told that a card is lost; together: while another one was not in service. */
struct test_virtual_gpu_losses {
    uint32_t all, together;
};
struct test_virtual_gpu_losses test_virtual_gpu_losses(void);

/* How often arenas were to grow. */
uint64_t test_virtual_gpu_rooms(void);

/* Whether all are in service. */
bool test_virtual_gpus_ready(void);

#endif
