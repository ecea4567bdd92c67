/* CUDA's functions for streams and events. */
#include "tests/support/cuda/runtime.h"

#include "tests/support/require.h"

#include <stdlib.h>

cudaError_t CUDARTAPI cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    CUDA_FAKE_CALL();
    TEST_REQUIRE(flags == cudaStreamNonBlocking);
    *stream = cuda_fake_stream_new();
    cuda_fake_count_live(1);
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaStreamDestroy(cudaStream_t stream)
{
    const cudaError_t error = cuda_fake_call(__func__);
    cuda_fake_stream_free(stream);
    cuda_fake_count_live(-1);
    return error;
}

cudaError_t CUDARTAPI cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument)
{
    CUDA_FAKE_CALL();
    TEST_REQUIRE(stream != NULL);
    cuda_fake_put(stream, &(struct cuda_fake_operation){
                              .work = CUDA_FAKE_HOST, .function = function, .argument = argument});
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    CUDA_FAKE_CALL();
    TEST_REQUIRE((flags & ~(unsigned)cudaEventDisableTiming) == 0);
    *event = calloc(1, sizeof **event);
    TEST_REQUIRE(*event != NULL);
    (*event)->timed = flags != cudaEventDisableTiming;
    cuda_fake_count_live(1);
    return cudaSuccess;
}

/* The latest turn that was recorded. */
static uint64_t event_turn(cudaEvent_t event, uint64_t more)
{
    pthread_mutex_lock(&cuda_fake_lock);
    const uint64_t turn = event->recorded += more;
    pthread_mutex_unlock(&cuda_fake_lock);
    return turn;
}

static bool event_is_done(cudaEvent_t event)
{
    pthread_mutex_lock(&cuda_fake_lock);
    const bool done = event->done == event->recorded;
    pthread_mutex_unlock(&cuda_fake_lock);
    return done;
}

static void event_await(cudaEvent_t event)
{
    pthread_mutex_lock(&cuda_fake_lock);
    const uint64_t turn = event->recorded;
    while (event->done < turn && cuda_fake_broken == cudaSuccess)
        cuda_fake_await(&cuda_fake_recorded);
    pthread_mutex_unlock(&cuda_fake_lock);
}

/* Not before all streams are done with it. */
cudaError_t CUDARTAPI cudaEventDestroy(cudaEvent_t event)
{
    const cudaError_t error = cuda_fake_call(__func__);
    cuda_fake_drain(NULL);
    free(event);
    cuda_fake_count_live(-1);
    return error;
}

cudaError_t CUDARTAPI cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    CUDA_FAKE_CALL();
    const uint64_t turn = event_turn(event, 0);
    TEST_REQUIRE(flags == cudaEventWaitDefault && stream != NULL && turn > 0);
    cuda_fake_put(stream,
                  &(struct cuda_fake_operation){.work = CUDA_FAKE_WAIT, .event = event, .turn = turn});
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    CUDA_FAKE_CALL();
    TEST_REQUIRE(stream != NULL);
    cuda_fake_count_copies(stream, true);
    cuda_fake_put(stream, &(struct cuda_fake_operation){
                              .work = CUDA_FAKE_RECORD, .event = event, .turn = event_turn(event, 1)});
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventQuery(cudaEvent_t event)
{
    CUDA_FAKE_CALL();
    return event_is_done(event) ? cudaSuccess : cuda_fake_told(cudaErrorNotReady);
}

cudaError_t CUDARTAPI cudaEventSynchronize(cudaEvent_t event)
{
    CUDA_FAKE_CALL();
    event_await(event);
    return cuda_fake_state();
}

cudaError_t CUDARTAPI cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    CUDA_FAKE_CALL();
    TEST_REQUIRE(from->timed && to->timed && event_turn(from, 0) > 0 && event_turn(to, 0) > 0);
    if (!event_is_done(from) || !event_is_done(to))
        return cuda_fake_told(cudaErrorNotReady);
    pthread_mutex_lock(&cuda_fake_lock);
    *ms = (float)((double)(to->time_ns - from->time_ns) * (1 + (double)cuda_fake_options.drift_ppm / 1e6) /
                  1e6);
    pthread_mutex_unlock(&cuda_fake_lock);
    return cudaSuccess;
}
