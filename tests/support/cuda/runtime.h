/* The inside of the runtime of fake.h. */
#ifndef MILLRACE_TESTS_CUDA_RUNTIME_INSIDE_H
#define MILLRACE_TESTS_CUDA_RUNTIME_INSIDE_H

#include "core/time.h"
#include "tests/support/cuda/fake.h"
#include "tests/support/cuda/grid.h"
#include "tests/support/random.h"

#include <pthread.h>

enum cuda_fake_work {
    CUDA_FAKE_COPY,
    CUDA_FAKE_SET,
    CUDA_FAKE_KERNEL,
    CUDA_FAKE_RECORD,
    CUDA_FAKE_WAIT,
    CUDA_FAKE_HOST
};

/* What a stream has to do. */
struct cuda_fake_operation {
    struct cuda_fake_operation *next;
    enum cuda_fake_work work;
    void *to; /* of a copy, and where zeros go */
    const void *from;
    size_t bytes;
    int value;
    bool up;
    void *staged; /* of a copy from memory that is not registered; to be freed */
    cudaEvent_t event;
    uint64_t turn;            /* which record of the event */
    core_ns due_ns, takes_ns; /* with a virtual clock: begins no earlier, and is so long */
    cudaHostFn_t function;
    void *argument;
    struct cuda_fake_kernel kernel; /* its arguments lie behind the operation */
};

struct CUevent_st {
    bool timed;
    uint64_t recorded, done; /* turns */
    core_ns time_ns;         /* of the last one that is done */
};

struct CUstream_st {
    struct CUstream_st *next; /* of all */
    pthread_t thread;
    pthread_cond_t more, idle;
    struct cuda_fake_operation *first, **end; /* the first one is under way */
    core_ns free_ns;                          /* with a virtual clock: the one before it ended */
    uint64_t copies;                          /* since the last event was queued */
    bool ending;
    struct test_random random;
};

struct cuda_fake_options {
    int64_t driver, version, cards, mig, sms, engines, memory_mb, open_ms, lazy_ms, late_us, busy_us,
        mb_per_s, clock, drift_ppm, sticky, seed, tell;
    char fail[64], fault[64];
    uint64_t fail_at, fault_at;
};

/* What has been so since the beginning (fake.h). */
struct cuda_fake_counts {
    uint64_t calls;
    int64_t live;
    bool was_wiped;
    uint64_t launches, copies_begun, kernels_begun;
    uint64_t copies_most; /* of a stream between two events */
    uint32_t kernel_count;
    const void *kernels[16]; /* that were launched */
};

/* One lock for all that follows, and for events. */
extern pthread_mutex_t cuda_fake_lock;
extern pthread_cond_t cuda_fake_recorded; /* some event, or the context is broken */
extern struct cuda_fake_options cuda_fake_options;
extern struct cuda_fake_counts cuda_fake_counts;
extern cudaError_t cuda_fake_broken; /* what each call returns; cudaSuccess: it is not */
extern _Thread_local bool cuda_fake_in_host_function;

/* With the lock: the words of the environment, where nobody has begun with others. */
void cuda_fake_configured(void);

/* With the lock: counts a call; whether it is one of those that fail. */
bool cuda_fake_is_failure(const char *name);

/* Begins a call of a function of this name: what it fails with. */
cudaError_t cuda_fake_call(const char *name);
#define CUDA_FAKE_CALL()                                                                                     \
    do {                                                                                                     \
        const cudaError_t call_error = cuda_fake_call(__func__);                                             \
        if (call_error != cudaSuccess)                                                                       \
            return call_error;                                                                               \
    } while (0)

/* The calling thread's last error is this one, if it is one. Returns it. */
cudaError_t cuda_fake_told(cudaError_t error);

void cuda_fake_count_live(int64_t more);
void cuda_fake_count_copies(cudaStream_t stream, bool event); /* one more, or an event */

/* With the lock. Wakes all who wait. */
void cuda_fake_broken_set(cudaError_t error);

/* What a call that has waited returns. */
cudaError_t cuda_fake_state(void);

/* Queues a copy of the operation. Without the lock. */
void cuda_fake_put(cudaStream_t stream, const struct cuda_fake_operation *operation);

cudaStream_t cuda_fake_stream_new(void);
void cuda_fake_stream_free(cudaStream_t stream); /* when it has done everything */
void cuda_fake_drain(cudaStream_t stream);       /* NULL: all streams */

/* With the lock, which is left meanwhile: until the condition is told of, or the virtual clock has gone on. */
void cuda_fake_await(pthread_cond_t *condition);

/* Lets so much time pass. */
void cuda_fake_sleep(core_ns ns);

/* With the lock, which is left while it works: runs the first operation of a stream. */
void cuda_fake_run_first(cudaStream_t stream);

/* The virtual clock, in clock.c. With the lock. */
void cuda_fake_clock_begin(void);
void cuda_fake_clock_pass(core_ns to_ns);

/* Gives an operation its times. */
void cuda_fake_clock_put(cudaStream_t stream, struct cuda_fake_operation *operation);

/* Runs the operation that ends next, if one ends until then. */
bool cuda_fake_clock_step(cudaStream_t streams, core_ns until_ns);

/* Without the lock: nothing is under way; the default stream ends. */
void cuda_fake_streams_end(void);

#endif
