#include "tests/support/cuda/grid.h"

#include "tests/support/require.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

#define STACK_BYTES ((size_t)64 << 10)
#define WARPS       (CUDA_FAKE_BLOCK_THREADS / CUDA_FAKE_WARP)
#define RUBBISH     0x5c

enum state { ENDED, READY, AT_BARRIER, AT_EXCHANGE };

struct lane {
    void *stack; /* where it goes on */
    enum state state;
    uint32_t posted;
};

struct cuda_fake_index threadIdx, blockIdx, blockDim;

/* All of this, and shared memory, belong to the grid that runs. */
static pthread_mutex_t one_grid = PTHREAD_MUTEX_INITIALIZER;
static const struct cuda_fake_kernel *running;
static struct lane lanes[CUDA_FAKE_BLOCK_THREADS];
static uint32_t exchanged[WARPS][CUDA_FAKE_WARP];
static unsigned lanes_made;
static void *scheduler;

/* A pass lets each ready lane of a warp run once, from either end by turns. */
static struct {
    unsigned first, done; /* lanes of the warp that had their turn */
    bool backwards;
} pass;

/* ---- lanes ---- */

/* Leaves the stack, which *from then tells, for another one. What a function must keep of the registers goes
 * along. */
void cuda_fake_switch(void **from, void *to);
__asm__(".text\n"
        ".type cuda_fake_switch, @function\n"
        "cuda_fake_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size cuda_fake_switch, . - cuda_fake_switch\n");

/* Where the next lane of the pass goes on; NULL: there is none. */
static void *pass_next(void)
{
    while (pass.done < CUDA_FAKE_WARP) {
        const unsigned place = pass.backwards ? CUDA_FAKE_WARP - 1 - pass.done : pass.done;
        threadIdx.x = pass.first + place;
        pass.done++;
        if (lanes[threadIdx.x].state == READY)
            return lanes[threadIdx.x].stack;
    }
    return NULL;
}

static void wait_as(enum state state)
{
    struct lane *self = &lanes[threadIdx.x];
    self->state = state;
    void *next = pass_next();
    cuda_fake_switch(&self->stack, next != NULL ? next : scheduler);
}

/* A lane lives as long as the process, and has a part in one thread block after another. */
static void lane_main(void)
{
    for (;;) {
        running->call(running->of);
        wait_as(ENDED);
    }
}

/* Its first entry is as from cuda_fake_switch, with the stack as a called function finds it. */
static void lanes_make(unsigned count)
{
    for (; lanes_made < count; lanes_made++) {
        char *memory = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        TEST_REQUIRE(memory != MAP_FAILED);
        void **entry = (void **)(memory + STACK_BYTES) - 2; /* a multiple of 16 */
        void (*const begin)(void) = lane_main;
        memcpy(entry, &begin, sizeof begin);
        lanes[lanes_made].stack = entry - 6; /* and six registers */
    }
}

/* ---- what lanes wait for ---- */

void cuda_fake_barrier(void)
{
    wait_as(AT_BARRIER);
}

const uint32_t *cuda_fake_exchange(uint32_t mask, uint32_t value)
{
    TEST_REQUIRE(mask == 0xffffffff);
    lanes[threadIdx.x].posted = value;
    wait_as(AT_EXCHANGE);
    return exchanged[threadIdx.x / CUDA_FAKE_WARP];
}

uint32_t cuda_fake_shared_address(const void *generic)
{
    const char *at = generic;
    TEST_REQUIRE(at >= __start_fake_shared && at < __stop_fake_shared);
    return (uint32_t)(at - __start_fake_shared);
}

/* Whether all `count` lanes from `first` on wait so. */
static bool all_wait(unsigned first, unsigned count, enum state state)
{
    for (unsigned i = first; i < first + count; i++)
        if (lanes[i].state != state)
            return false;
    return true;
}

static void release(unsigned first, unsigned count)
{
    for (unsigned i = first; i < first + count; i++)
        lanes[i].state = READY;
}

/* ---- blocks ---- */

/* Lets each lane of a warp run to where it waits. */
static void warp_step(unsigned first)
{
    pass.first = first;
    pass.done = 0;
    pass.backwards = !pass.backwards;
    void *next = pass_next();
    if (next != NULL)
        cuda_fake_switch(&scheduler, next);
}

/* Until all its lanes have ended or wait for other warps. */
static void warp_run(unsigned first)
{
    for (;;) {
        warp_step(first);
        if (!all_wait(first, CUDA_FAKE_WARP, AT_EXCHANGE))
            return;
        for (unsigned i = 0; i < CUDA_FAKE_WARP; i++)
            exchanged[first / CUDA_FAKE_WARP][i] = lanes[first + i].posted;
        release(first, CUDA_FAKE_WARP);
    }
}

/* Lanes that wait for each other for ever, or for one that has ended, would hang a card. */
static void block_run(unsigned threads)
{
    memset(__start_fake_shared, RUBBISH, (size_t)(__stop_fake_shared - __start_fake_shared));
    release(0, threads);
    for (;;) {
        for (unsigned first = 0; first < threads; first += CUDA_FAKE_WARP)
            warp_run(first);
        if (all_wait(0, threads, ENDED))
            return;
        TEST_REQUIRE(all_wait(0, threads, AT_BARRIER));
        release(0, threads);
    }
}

void cuda_fake_grid_run(const struct cuda_fake_kernel *kernel)
{
    const unsigned threads = kernel->block_threads;
    pthread_mutex_lock(&one_grid);
    TEST_REQUIRE(threads > 0 && threads <= CUDA_FAKE_BLOCK_THREADS);
    running = kernel;
    lanes_make(threads);
    blockDim.x = threads;
    for (unsigned done = 0; done < kernel->blocks; done++) {
        blockIdx.x = kernel->blocks - 1 - done; /* nothing may hang on their order */
        block_run(threads);
    }
    pthread_mutex_unlock(&one_grid);
}
