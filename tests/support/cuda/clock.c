/* The virtual clock: which operation of all streams is next, and when. */
#include "tests/support/cuda/runtime.h"

#define START_NS CORE_NS_PER_S

enum engine { UP, DOWN, SMS, NONE, ENGINES = NONE };

static core_ns clock_ns, engine_free_ns[ENGINES];

core_ns cuda_fake_now_ns(void)
{
    return cuda_fake_options.clock ? clock_ns : core_time_now_ns();
}

void cuda_fake_clock_begin(void)
{
    clock_ns = START_NS;
    for (int i = 0; i < ENGINES; i++)
        engine_free_ns[i] = 0;
}

void cuda_fake_clock_pass(core_ns to_ns)
{
    clock_ns = core_time_max(clock_ns, to_ns);
}

static enum engine engine_of(const struct cuda_fake_operation *operation)
{
    if (operation->work == CUDA_FAKE_KERNEL || operation->work == CUDA_FAKE_SET)
        return SMS;
    if (operation->work != CUDA_FAKE_COPY)
        return NONE;
    return operation->up || cuda_fake_options.engines < 2 ? UP : DOWN;
}

void cuda_fake_clock_put(cudaStream_t stream, struct cuda_fake_operation *operation)
{
    const core_ns late_ns = cuda_fake_options.late_us * CORE_NS_PER_US;
    const core_ns busy_ns = cuda_fake_options.busy_us * CORE_NS_PER_US;
    operation->due_ns = clock_ns + test_random_in(&stream->random, 0, late_ns);
    if (engine_of(operation) != NONE && busy_ns > 0)
        operation->takes_ns = test_random_log(&stream->random, CORE_NS_PER_US, busy_ns);
}

/* NEVER: it waits for an event that nobody has come to yet. */
static core_ns begin_ns(const struct CUstream_st *stream, const struct cuda_fake_operation *operation)
{
    const enum engine engine = engine_of(operation);
    core_ns begin_ns = core_time_max(stream->free_ns, operation->due_ns);
    if (operation->work == CUDA_FAKE_WAIT && operation->event->done < operation->turn)
        return CORE_NS_NEVER;
    if (operation->work == CUDA_FAKE_WAIT)
        begin_ns = core_time_max(begin_ns, operation->event->time_ns);
    return engine == NONE ? begin_ns : core_time_max(begin_ns, engine_free_ns[engine]);
}

bool cuda_fake_clock_step(cudaStream_t streams, core_ns until_ns)
{
    cudaStream_t next = NULL;
    core_ns end_ns = CORE_NS_NEVER;
    for (cudaStream_t each = streams; each != NULL; each = each->next) {
        const core_ns start_ns = each->first == NULL ? CORE_NS_NEVER : begin_ns(each, each->first);
        if (start_ns == CORE_NS_NEVER || start_ns + each->first->takes_ns >= end_ns)
            continue;
        next = each;
        end_ns = start_ns + each->first->takes_ns;
    }
    if (next == NULL || end_ns > until_ns)
        return false;
    cuda_fake_clock_pass(end_ns);
    next->free_ns = end_ns;
    if (engine_of(next->first) != NONE)
        engine_free_ns[engine_of(next->first)] = end_ns;
    cuda_fake_run_first(next);
    return true;
}
