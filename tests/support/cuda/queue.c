#include "tests/support/cuda/runtime.h"

#include "tests/support/require.h"

#include <string.h>

pthread_mutex_t cuda_fake_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t cuda_fake_recorded = PTHREAD_COND_INITIALIZER;
cudaError_t cuda_fake_broken;
_Thread_local bool cuda_fake_in_host_function;

static struct CUstream_st *streams;
static struct CUstream_st *default_stream;
static pthread_mutex_t engines[] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};
static bool held;
static bool called;   /* a host function; with the virtual clock alone */
static uint64_t made; /* streams */

void cuda_fake_broken_set(cudaError_t error)
{
    cuda_fake_broken = error;
    pthread_cond_broadcast(&cuda_fake_recorded);
}

cudaError_t cuda_fake_state(void)
{
    pthread_mutex_lock(&cuda_fake_lock);
    const cudaError_t state = cuda_fake_broken;
    pthread_mutex_unlock(&cuda_fake_lock);
    return state;
}

/* ---- work ---- */

void cuda_fake_sleep(core_ns ns)
{
    if (cuda_fake_options.clock)
        cuda_fake_advance(ns);
    else if (ns > 0)
        core_time_sleep_until(core_time_now_ns() + ns);
}

void cuda_fake_await(pthread_cond_t *condition)
{
    if (cuda_fake_options.clock)
        TEST_REQUIRE(cuda_fake_clock_step(streams, CORE_NS_NEVER));
    else
        pthread_cond_wait(condition, &cuda_fake_lock);
}

/* Of work: the virtual clock has it in the operation's times. */
static void last(core_ns ns)
{
    if (!cuda_fake_options.clock)
        cuda_fake_sleep(ns);
}

/* What a copy or a kernel takes beside what it does. */
static void be_busy(struct CUstream_st *stream)
{
    last(test_random_in(&stream->random, 0, cuda_fake_options.busy_us * CORE_NS_PER_US));
}

/* Copies of a direction, or of both where there is one engine, take turns. */
static void copy(struct CUstream_st *stream, const struct cuda_fake_operation *operation)
{
    pthread_mutex_t *engine = &engines[cuda_fake_options.engines > 1 && operation->up];
    const size_t rate = (size_t)cuda_fake_options.mb_per_s;
    pthread_mutex_lock(engine);
    memcpy(operation->to, operation->staged != NULL ? operation->staged : operation->from, operation->bytes);
    if (rate > 0)
        last((core_ns)(operation->bytes * 1000 / rate));
    be_busy(stream);
    pthread_mutex_unlock(engine);
}

static void host_function(const struct cuda_fake_operation *operation)
{
    cuda_fake_in_host_function = true;
    operation->function(operation->argument);
    cuda_fake_in_host_function = false;
    if (cuda_fake_options.clock)
        called = true;
}

static void work(struct CUstream_st *stream, const struct cuda_fake_operation *operation)
{
    switch (operation->work) {
    case CUDA_FAKE_COPY:
        copy(stream, operation);
        break;
    case CUDA_FAKE_SET:
        memset(operation->to, operation->value, operation->bytes);
        break;
    case CUDA_FAKE_KERNEL:
        cuda_fake_grid_run(&operation->kernel);
        be_busy(stream);
        break;
    case CUDA_FAKE_HOST:
        host_function(operation);
        break;
    case CUDA_FAKE_RECORD:
    case CUDA_FAKE_WAIT:
        break;
    }
}

/* Whether this is the operation that breaks the context. With the lock. */
static bool is_fault(enum cuda_fake_work work)
{
    if (work == CUDA_FAKE_COPY && strcmp(cuda_fake_options.fault, "copy") == 0)
        return ++cuda_fake_counts.copies_begun == cuda_fake_options.fault_at;
    if (work == CUDA_FAKE_KERNEL && strcmp(cuda_fake_options.fault, "kernel") == 0)
        return ++cuda_fake_counts.kernels_begun == cuda_fake_options.fault_at;
    return false;
}

/* With the lock, which is left while it works. */
static void operation_run(struct CUstream_st *stream, const struct cuda_fake_operation *operation)
{
    if (is_fault(operation->work))
        cuda_fake_broken_set(cudaErrorIllegalAddress);
    if (cuda_fake_broken != cudaSuccess)
        return;
    if (operation->work == CUDA_FAKE_RECORD) {
        operation->event->done = operation->turn;
        operation->event->time_ns = cuda_fake_now_ns();
        pthread_cond_broadcast(&cuda_fake_recorded);
    } else if (operation->work == CUDA_FAKE_WAIT) {
        while (operation->event->done < operation->turn && cuda_fake_broken == cudaSuccess)
            pthread_cond_wait(&cuda_fake_recorded, &cuda_fake_lock);
    } else {
        pthread_mutex_unlock(&cuda_fake_lock);
        last(test_random_in(&stream->random, 0, cuda_fake_options.late_us * CORE_NS_PER_US));
        work(stream, operation);
        pthread_mutex_lock(&cuda_fake_lock);
    }
}

/* ---- streams ---- */

void cuda_fake_run_first(cudaStream_t stream)
{
    struct cuda_fake_operation *operation = stream->first;
    operation_run(stream, operation);
    stream->first = operation->next;
    if (stream->first == NULL) {
        stream->end = &stream->first;
        pthread_cond_broadcast(&stream->idle);
    }
    free(operation->staged);
    free(operation);
}

static void *stream_main(void *argument)
{
    struct CUstream_st *stream = argument;
    pthread_mutex_lock(&cuda_fake_lock);
    for (;;) {
        while (held || (stream->first == NULL && !stream->ending))
            pthread_cond_wait(&stream->more, &cuda_fake_lock);
        if (stream->first == NULL)
            break;
        cuda_fake_run_first(stream);
    }
    pthread_mutex_unlock(&cuda_fake_lock);
    return NULL;
}

void cuda_fake_hold(bool hold)
{
    pthread_mutex_lock(&cuda_fake_lock);
    held = hold;
    for (struct CUstream_st *each = streams; each != NULL; each = each->next)
        pthread_cond_signal(&each->more);
    pthread_mutex_unlock(&cuda_fake_lock);
}

cudaStream_t cuda_fake_stream_new(void)
{
    struct CUstream_st *stream = calloc(1, sizeof *stream);
    TEST_REQUIRE(stream != NULL);
    stream->end = &stream->first;
    pthread_cond_init(&stream->more, NULL);
    pthread_cond_init(&stream->idle, NULL);
    pthread_mutex_lock(&cuda_fake_lock);
    stream->random.state = (uint64_t)cuda_fake_options.seed + made++;
    stream->next = streams;
    streams = stream;
    pthread_mutex_unlock(&cuda_fake_lock);
    if (!cuda_fake_options.clock)
        TEST_REQUIRE(pthread_create(&stream->thread, NULL, stream_main, stream) == 0);
    return stream;
}

void cuda_fake_stream_free(cudaStream_t stream)
{
    cuda_fake_drain(stream);
    pthread_mutex_lock(&cuda_fake_lock);
    stream->ending = true;
    pthread_cond_signal(&stream->more);
    struct CUstream_st **at = &streams;
    while (*at != stream)
        at = &(*at)->next;
    *at = stream->next;
    pthread_mutex_unlock(&cuda_fake_lock);
    if (!cuda_fake_options.clock)
        pthread_join(stream->thread, NULL);
    pthread_cond_destroy(&stream->more);
    pthread_cond_destroy(&stream->idle);
    free(stream);
}

void cuda_fake_streams_end(void)
{
    if (default_stream != NULL)
        cuda_fake_stream_free(default_stream);
    default_stream = NULL;
    made = 0;
}

static cudaStream_t stream_or_default(cudaStream_t stream)
{
    if (stream == NULL && default_stream == NULL)
        default_stream = cuda_fake_stream_new();
    return stream == NULL ? default_stream : stream;
}

void cuda_fake_put(cudaStream_t stream, const struct cuda_fake_operation *operation)
{
    struct cuda_fake_operation *copy = malloc(sizeof *copy + operation->kernel.of_bytes);
    TEST_REQUIRE(copy != NULL);
    *copy = *operation;
    copy->next = NULL;
    if (operation->work == CUDA_FAKE_KERNEL)
        copy->kernel.of = memcpy(copy + 1, operation->kernel.of, operation->kernel.of_bytes);
    stream = stream_or_default(stream);
    pthread_mutex_lock(&cuda_fake_lock);
    if (cuda_fake_options.clock)
        cuda_fake_clock_put(stream, copy);
    *stream->end = copy;
    stream->end = &copy->next;
    pthread_cond_signal(&stream->more);
    pthread_mutex_unlock(&cuda_fake_lock);
}

void cuda_fake_drain(cudaStream_t stream)
{
    pthread_mutex_lock(&cuda_fake_lock);
    for (struct CUstream_st *each = streams; each != NULL; each = each->next)
        while ((stream == NULL || stream == each) && each->first != NULL)
            cuda_fake_await(&each->idle);
    pthread_mutex_unlock(&cuda_fake_lock);
}

/* ---- the virtual clock ---- */

void cuda_fake_advance(core_ns ns)
{
    pthread_mutex_lock(&cuda_fake_lock);
    const core_ns until_ns = cuda_fake_now_ns() + ns;
    while (cuda_fake_clock_step(streams, until_ns))
        ;
    cuda_fake_clock_pass(until_ns);
    pthread_mutex_unlock(&cuda_fake_lock);
}

bool cuda_fake_advance_to_call(void)
{
    pthread_mutex_lock(&cuda_fake_lock);
    called = false;
    while (!called && cuda_fake_clock_step(streams, CORE_NS_NEVER))
        ;
    pthread_mutex_unlock(&cuda_fake_lock);
    return called;
}

core_ns cuda_fake_event_ns(cudaEvent_t event)
{
    pthread_mutex_lock(&cuda_fake_lock);
    const core_ns time_ns = event->done == event->recorded ? event->time_ns : CORE_NS_NEVER;
    pthread_mutex_unlock(&cuda_fake_lock);
    return time_ns;
}
