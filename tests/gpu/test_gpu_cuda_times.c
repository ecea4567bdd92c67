/* What the CUDA device tells of a batch's times, on a card whose events are the test's own, in virtual time:
 * stages of 5 us to 10 ms, by a clock that runs apart from ours, ends that are noticed late or at once. Told
 * must be what the card did, however late that was seen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#ifdef MILLRACE_HAS_CUDA
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "gpu/device_cuda.h"
#include "gpu/pipeline.h"
#include "tests/support/random.h"

#define ARENAS     4
#define BATCHES    4000
#define SHORT_NS   (5 * CORE_NS_PER_US)
#define LONG_NS    (10 * CORE_NS_PER_MS)
#define ROUNDED_NS 20 /* what cudaEventElapsedTime loses of 100 ms, at both ends of a stage */

/* ---- the card ---- */

struct CUstream_st {
    core_ns free_ns; /* all its work is over */
};

struct CUevent_st {
    core_ns at_ns;
};

static struct {
    core_ns now_ns, begin_most_ns, late_most_ns;
    int drift_ppm; /* of the card's clock */
    struct CUstream_st streams[2 * GPU_STAGE_COUNT];
    struct CUevent_st events[2 * GPU_STAGE_COUNT * (ARENAS + 1)];
    core_ns wake_ns; /* the earliest end that the host is to be told of; NEVER */
    uint32_t calls;  /* of the runtime, launches included */
    struct test_random random;
} card;

core_ns __wrap_core_time_now_ns(void);

core_ns __wrap_core_time_now_ns(void)
{
    return card.now_ns;
}

/* Work comes to the card a little after it was asked for. */
static void stream_begin(cudaStream_t stream)
{
    const core_ns comes_ns = card.now_ns + test_random_in(&card.random, 0, card.begin_most_ns);
    stream->free_ns = core_time_max(stream->free_ns, comes_ns);
}

cudaError_t CUDARTAPI cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    card.calls++;
    stream_begin(stream);
    event->at_ns = stream->free_ns;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    card.calls++;
    stream->free_ns = core_time_max(stream->free_ns, event->at_ns);
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                                      cudaStream_t stream)
{
    (void)to, (void)from, (void)bytes, (void)kind;
    card.calls++;
    stream_begin(stream);
    stream->free_ns += test_random_log(&card.random, SHORT_NS, LONG_NS);
    return cudaSuccess;
}

int gpu_kernel_launch(enum gpu_kernel_form form, const struct gpu_batch *batch, struct CUstream_st *stream)
{
    (void)form, (void)batch;
    card.calls++;
    stream_begin(stream);
    stream->free_ns += test_random_log(&card.random, SHORT_NS, LONG_NS);
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument)
{
    (void)function, (void)argument;
    card.calls++;
    card.wake_ns = core_time_min(card.wake_ns, stream->free_ns);
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventQuery(cudaEvent_t event)
{
    card.calls++;
    return event->at_ns <= card.now_ns ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t CUDARTAPI cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    card.calls++;
    assert_true(from->at_ns <= to->at_ns && to->at_ns <= card.now_ns);
    *ms = (float)((double)(to->at_ns - from->at_ns) * (1 + card.drift_ppm * 1e-6) / 1e6);
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaGetLastError(void)
{
    return cudaSuccess;
}

const char *CUDARTAPI cudaGetErrorName(cudaError_t error)
{
    (void)error;
    return "error";
}

const char *CUDARTAPI cudaGetErrorString(cudaError_t error)
{
    (void)error;
    return "error";
}

/* ---- what has no part in it ---- */

int gpu_key_change_launch(const struct gpu_key_changes *changes, struct gpu_key *keys,
                          struct gpu_chain *chains, struct CUstream_st *stream)
{
    (void)changes, (void)keys, (void)chains, (void)stream;
    return cudaErrorUnknown;
}

core_status gpu_cuda_count(uint32_t *count, struct core_error *error)
{
    (void)count, (void)error;
    return CORE_UNSUPPORTED;
}

core_status gpu_cuda_describe(uint32_t index, struct gpu_device_facts *facts, struct core_error *error)
{
    (void)index, (void)facts, (void)error;
    return CORE_UNSUPPORTED;
}

core_status gpu_cuda_open(struct gpu_device **device, const struct gpu_device_options *options,
                          struct gpu_device_facts *facts, struct core_error *error)
{
    (void)device, (void)options, (void)facts, (void)error;
    return CORE_UNSUPPORTED;
}

void gpu_cuda_close(struct gpu_device *device)
{
    (void)device;
}

/* ---- the device on it ---- */

static const struct gpu_region region = {.shape = {.arenas = ARENAS}};
static struct gpu_device device;
static struct gpu_pipeline pipeline;

static void begin(uint32_t copy_engines, uint64_t seed)
{
    card.now_ns = CORE_NS_PER_S;
    card.wake_ns = CORE_NS_NEVER;
    card.random.state = seed;
    for (size_t i = 0; i < sizeof card.streams / sizeof *card.streams; i++)
        card.streams[i].free_ns = 0;
    device = (struct gpu_device){
        .region = &region, .takes_turns = copy_engines < 2, .ended = eventfd(0, EFD_NONBLOCK)};
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
        device.lines[stage].work = &card.streams[2 * stage];
        device.lines[stage].tell = &card.streams[2 * stage + 1];
        for (int i = 0; i <= ARENAS; i++) {
            struct CUevent_st *events = &card.events[2 * (stage * (ARENAS + 1) + i)];
            device.runs[i].marks[stage] = (struct gpu_cuda_marks){&events[0], &events[1]};
        }
    }
    gpu_pipeline_begin(&pipeline, &gpu_device_cuda, &device, copy_engines);
}

static const struct gpu_cuda_marks *marks_of(uint64_t index, int stage)
{
    return &device.runs[index % (ARENAS + 1)].marks[stage];
}

/* What the card did, by the index of the batch; read before its events are recorded anew. With two copy engines
 * a stage behind the copy up begins when its batch has come and the one before is through. */
static struct gpu_stage_time true_time(uint64_t index, int stage)
{
    const struct gpu_cuda_marks *marks = marks_of(index, stage);
    struct gpu_stage_time time = {marks->begin->at_ns, marks->end->at_ns};
    if (stage == 0 || device.takes_turns)
        return time;
    time.start_ns = marks_of(index, stage - 1)->end->at_ns;
    if (index > 0)
        time.start_ns = core_time_max(time.start_ns, marks_of(index - 1, stage)->end->at_ns);
    return time;
}

static void check_batch(const struct gpu_pipeline_batch *batch, uint64_t index)
{
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
        const struct gpu_stage_time took = true_time(index, stage), *told = &batch->times[stage];
        const core_ns took_ns = took.end_ns - took.start_ns, told_ns = told->end_ns - told->start_ns;
        const core_ns drift_ns = took_ns * labs(card.drift_ppm) / 1000000;
        assert_true(llabs(told_ns - took_ns) <= ROUNDED_NS + drift_ns);
        assert_true(llabs(told->start_ns - took.start_ns) <= batch->uncertain_ns);
        assert_true(llabs(told->end_ns - took.end_ns) <= batch->uncertain_ns);
        assert_true(stage == 0 || told->start_ns >= batch->times[stage - 1].end_ns);
    }
    assert_true(batch->times[GPU_STAGE_DOWN].end_ns <= card.now_ns);
}

/* To the next end, and as late as the host may be. */
static void step(void)
{
    struct core_error error;
    assert_true(card.wake_ns != CORE_NS_NEVER);
    card.now_ns =
        core_time_max(card.now_ns, card.wake_ns) + test_random_log(&card.random, 1, card.late_most_ns);
    card.wake_ns = CORE_NS_NEVER;
    assert_int_equal(gpu_pipeline_step(&pipeline, &error), CORE_OK);
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) /* what was told of before and has not ended */
        for (uint64_t i = device.lines[stage].told; i < device.lines[stage].launched; i++)
            if (device.takes_turns || stage == GPU_STAGE_DOWN)
                card.wake_ns = core_time_min(card.wake_ns, true_time(i, stage).end_ns);
}

static void run_batches(uint32_t copy_engines, uint64_t seed)
{
    uint64_t submitted = 0, back = 0;
    struct core_error error;
    begin(copy_engines, seed);
    while (back < BATCHES) {
        const struct gpu_pipeline_batch *batch;
        if (submitted < BATCHES && submitted - back < ARENAS && test_random_chance(&card.random, 60)) {
            submitted++;
            const struct gpu_order order = {.number = submitted,
                                            .arena = (uint32_t)(submitted % ARENAS),
                                            .job_count = 1,
                                            .used_bytes = 16};
            assert_int_equal(gpu_pipeline_submit(&pipeline, &order, &error), CORE_OK);
        } else if (submitted > back) {
            step();
        } else {
            card.now_ns += test_random_log(&card.random, CORE_NS_PER_US, CORE_NS_PER_S);
        }
        while ((batch = gpu_pipeline_take(&pipeline)) != NULL)
            check_batch(batch, back++);
    }
    close(device.ended);
}

static void told_times_are_the_cards_own(void **state)
{
    (void)state;
    static const int drifts_ppm[] = {0, 500, -500};
    static const core_ns late_ns[] = {2, 60 * CORE_NS_PER_US, 20 * CORE_NS_PER_MS};
    for (uint32_t engines = 1; engines <= 2; engines++)
        for (int i = 0; i < 9; i++) {
            card.drift_ppm = drifts_ppm[i / 3];
            card.late_most_ns = late_ns[i % 3];
            card.begin_most_ns = 8 * CORE_NS_PER_US;
            run_batches(engines, (uint64_t)i + 1);
        }
}

/* Each takes some us of the host. */
static void a_batch_costs_few_calls(void **state)
{
    struct core_error error;
    (void)state;
    card.late_most_ns = 2;
    begin(2, 1);
    for (uint64_t number = 1; number <= 3; number++) {
        const struct gpu_order order = {
            .number = number, .job_count = 1, .segment_count = 1, .used_bytes = 16};
        card.calls = 0;
        assert_int_equal(gpu_pipeline_submit(&pipeline, &order, &error), CORE_OK);
        const uint32_t launching = card.calls;
        step();
        assert_non_null(gpu_pipeline_take(&pipeline));
        print_message("batch %u: %u calls to launch it, %u to learn of it\n", (unsigned)number, launching,
                      card.calls - launching);
        assert_int_equal(launching, 13);
        assert_int_equal(card.calls - launching, number == 1 ? 4 : 5);
    }
    close(device.ended);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(told_times_are_the_cards_own),
        cmocka_unit_test(a_batch_costs_few_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    print_message("this build has no CUDA\n");
    return 77;
}

#endif
