/* test_gpu_launch on the runtime without a card (support/cuda/fake.h), where each barrier, exchange and look-up
 * in shared memory is watched. */
#include <stdlib.h>

#define MILLRACE_HAS_CUDA
#define BLOCKS_MAX 100
#define SET_UP()   setenv("MILLRACE_FAKE_CUDA", "sms=1", 1) /* blocks of every size */

#include "tests/gpu/test_gpu_launch.c" /* NOLINT(bugprone-suspicious-include): the same test */
