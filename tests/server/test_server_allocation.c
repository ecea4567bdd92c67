/* The way of a packet allocates nothing: once streams are open, every malloc, calloc, realloc and free on an
 * I/O thread, a worker or a batcher fails and is held against it, while tens of thousands of packets flow.
 * The client is a process of its own. Sanitizers bring their own allocator; the test is skipped there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <execinfo.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/client.h"
#include "tests/support/gpu_server.h"
#include "tests/support/random.h"
#include "tests/support/require.h"
#include "tests/support/server.h"
#include "tests/support/stream.h"

#define STREAMS      16
#define WARM_PACKETS 5000
#define PACKETS      20000
#define FRAMES_MAX   24

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

int main(void)
{
    return 77; /* skipped */
}

#else

/* ---- the allocator, watched ---- */

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *block, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *block);

static atomic_bool armed;
static atomic_uint offences;
static void *offence[FRAMES_MAX]; /* where the first one came from */
static int offence_frames;

/* Is this an allocation that must not be? Tells where it came from, the first time. */
static bool forbidden(void)
{
    static _Thread_local bool inside;
    char name[16] = "";
    if (!atomic_load_explicit(&armed, memory_order_relaxed) || inside)
        return false;
    prctl(PR_GET_NAME, name);
    if (strncmp(name, "io-", 3) != 0 && strncmp(name, "worker-", 7) != 0 && strncmp(name, "batcher-", 8) != 0)
        return false;
    if (atomic_fetch_add(&offences, 1) == 0) {
        inside = true;
        offence_frames = backtrace(offence, FRAMES_MAX);
        inside = false;
    }
    return true;
}

static void *refuse(void)
{
    errno = ENOMEM;
    return NULL;
}

void *malloc(size_t bytes)
{
    return forbidden() ? refuse() : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    return forbidden() ? refuse() : __libc_calloc(count, bytes);
}

void *realloc(void *block, size_t bytes)
{
    return forbidden() ? refuse() : __libc_realloc(block, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return forbidden() ? refuse() : __libc_memalign(alignment, bytes);
}

int posix_memalign(void **block, size_t alignment, size_t bytes)
{
    *block = forbidden() ? NULL : __libc_memalign(alignment, bytes);
    return *block != NULL ? 0 : ENOMEM;
}

void free(void *block)
{
    if (block != NULL)
        (void)forbidden(); /* counted; it is freed all the same */
    __libc_free(block);
}

/* ---- the client ---- */

enum step { WARM = 'w', DONE = 'd' };

struct links {
    pid_t process;
    int to, from; /* it reads the address, then "go"; it writes its steps */
};

static void exchange(struct test_client *client, struct test_stream *const *streams,
                     struct test_random *random, uint32_t packets)
{
    uint32_t waiting = 0;
    for (uint32_t i = 0; i < packets; i++) {
        struct test_stream *stream = streams[test_random_in(random, 0, STREAMS - 1)];
        TEST_REQUIRE(test_stream_send(stream, (uint32_t)test_random_in(random, 1, 88) * 16));
        for (waiting++; waiting > 60; waiting--) /* within every stream's burst, so that none is held up */
            (void)test_streams_take(client, streams);
    }
    for (; waiting > 0; waiting--)
        (void)test_streams_take(client, streams);
}

/* What a round of the client is to do. */
struct round {
    struct core_address address;
    struct core_stream_spec spec;
    enum protocol_unit unit; /* where the streams must be */
    uint32_t warm_packets, packets;
};

_Noreturn static void run_client(int in, int out)
{
    struct test_random random = {.state = 31};
    struct test_stream *streams[STREAMS];
    struct test_client client;
    struct round round;
    char go;

    while (read(in, &round, sizeof round) == sizeof round) {
        test_client_connect(&client, &round.address, NULL);
        for (uint64_t i = 0; i < STREAMS; i++) {
            round.spec.cipher = (enum core_cipher)(1 + i % 3);
            streams[i] = test_stream_open(&client, &round.spec, i);
            TEST_REQUIRE(streams[i]->opened.unit == round.unit);
        }
        exchange(&client, streams, &random, round.warm_packets);
        TEST_REQUIRE(write(out, &(char){WARM}, 1) == 1 && read(in, &go, 1) == 1);
        exchange(&client, streams, &random, round.packets);
        TEST_REQUIRE(write(out, &(char){DONE}, 1) == 1 && read(in, &go, 1) == 1);
        for (int i = 0; i < STREAMS; i++)
            test_stream_free(streams[i]);
        test_client_close(&client);
    }
    _exit(0);
}

static struct links start_client(void)
{
    int to[2], from[2];
    TEST_REQUIRE(pipe(to) == 0 && pipe(from) == 0);
    pid_t process = fork();
    TEST_REQUIRE(process >= 0);
    if (process == 0) {
        close(to[1]);
        close(from[0]);
        run_client(to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    return (struct links){.process = process, .to = to[1], .from = from[0]};
}

static bool await(const struct links *client, enum step step)
{
    char got;
    return read(client->from, &got, 1) == 1 && got == (char)step;
}

/* ---- the test ---- */

static void packets_without_allocation(struct links *client, const struct round *round)
{
    assert_int_equal(write(client->to, round, sizeof *round), sizeof *round);
    assert_true(await(client, WARM));
    atomic_store(&armed, true);
    assert_int_equal(write(client->to, "g", 1), 1);
    bool done = await(client, DONE);
    atomic_store(&armed, false);
    if (atomic_load(&offences) > 0) {
        backtrace_symbols_fd(offence, offence_frames, STDERR_FILENO);
        fail_msg("%u calls of the allocator; the first came from here", atomic_load(&offences));
    }
    assert_true(done);
    assert_int_equal(write(client->to, "g", 1), 1);
}

static void end_client(struct links *client)
{
    int status;
    close(client->to);
    assert_int_equal(waitpid(client->process, &status, 0), client->process);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(client->from);
}

static void run_engine(const char *engine)
{
    struct round round = {
        .spec = test_spec, .unit = PROTOCOL_UNIT_CPU, .warm_packets = WARM_PACKETS, .packets = PACKETS};
    void *warm_up[1];
    struct links client = start_client(); /* before the server's threads are there */
    struct test_server server;
    char yaml[256];

    round.spec.interval_ns = 20 * CORE_NS_PER_US;
    (void)backtrace(warm_up, 1); /* its first call allocates */
    test_server_prepare(&server);
    test_server_write(&server, "keyring", TEST_KEYRING);
    snprintf(
        yaml, sizeof yaml,
        "keyring: keyring\nengine: %s\nthreads: {cores: 8, io: 2, workers: 2, realtime: off, pin: false}",
        engine);
    test_server_start(&server, yaml, &test_profile_generous);
    round.address = *test_server_unix(&server);
    packets_without_allocation(&client, &round);
    round.address = *test_server_tcp(&server);
    packets_without_allocation(&client, &round);
    end_client(&client);
    assert_int_equal(test_server_stop(&server), 0);
}

/* Through batches and back, each packet audited. */
static void with_a_gpu(void **state)
{
    struct config_profile *profile = test_gpu_profile(100000);
    struct round round = {
        .spec = test_spec, .unit = PROTOCOL_UNIT_GPU, .warm_packets = 1000, .packets = 4000};
    struct links client = start_client();
    struct test_server server = {0};
    void *warm_up[1];
    (void)state;

    round.spec.burst_packets = 8;
    round.spec.interval_ns = 4 * CORE_NS_PER_MS;
    round.spec.latency_ns = 200 * CORE_NS_PER_MS;
    (void)backtrace(warm_up, 1);
    test_gpu_server_start(&server, "audit: 1",
                          "threads: {cores: 8, io: 2, workers: 1, realtime: off, pin: false}\n", profile);
    round.address = *test_server_unix(&server);
    packets_without_allocation(&client, &round);
    end_client(&client);
    assert_int_equal(test_server_stop(&server), 0);
    config_profile_free(profile);
}

static void with_ipsec_mb(void **state)
{
    (void)state;
    run_engine("ipsec-mb");
}

static void with_openssl(void **state)
{
    (void)state;
    run_engine("openssl");
}

/* The test can fail: an allocation on a thread of that name is seen. */
static void *allocate(void *argument)
{
    (void)argument;
    prctl(PR_SET_NAME, "worker-9");
    void *volatile block = malloc(100);
    free(block);
    return block;
}

static void an_allocation_is_seen(void **state)
{
    void *block = &block;
    pthread_t thread;
    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, allocate, NULL), 0);
    assert_int_equal(pthread_join(thread, &block), 0);
    assert_int_equal(atomic_load(&offences), 0); /* not armed */
    atomic_store(&armed, true);
    assert_int_equal(pthread_create(&thread, NULL, allocate, NULL), 0);
    assert_int_equal(pthread_join(thread, &block), 0);
    atomic_store(&armed, false);
    assert_null(block);
    assert_true(atomic_exchange(&offences, 0) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_ipsec_mb),
        cmocka_unit_test(with_openssl),
        cmocka_unit_test(with_a_gpu),
        cmocka_unit_test(an_allocation_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
