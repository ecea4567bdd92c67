/* The engine when the child fails, in each way there is: the right fault, the unfinished batches in order, a
 * restart after which results are right again. And the other way round: the server's end ends the child. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/gpu_rig.h"
#include "tests/support/require.h"

#define FAILS_AT 5

/* Runs batches until the card fails at FAILS_AT, restarts the child and runs more. */
static struct gpu_fault fail_and_go_on(uint32_t failure, uint32_t engines,
                                       const struct gpu_engine_options *changes)
{
    struct gpu_crowd *crowd = gpu_crowd_open(5, 20, 60, 1 << 16, 100 + failure);
    struct gpu_emulation card = gpu_crowd_card(engines);
    card.failure = failure;
    card.failure_batch = FAILS_AT;
    struct gpu_engine_options options = gpu_crowd_options(crowd, &card);
    if (changes->hang_periods > 0) {
        options.hang_periods = changes->hang_periods;
        options.hang_least_ns = 0;
    }
    if (changes->silence_ns > 0)
        options.silence_ns = changes->silence_ns;
    struct gpu_rig rig;
    gpu_rig_open(&rig, crowd, &card, &options);
    const struct gpu_fault fault = gpu_rig_fault(&rig, 3, 20, 400);
    assert_true(fault.gone);
    assert_true(fault.unfinished >= 1 && fault.unfinished <= 3);
    assert_true(rig.submitted >= FAILS_AT);
    if (changes->hang_periods > 0)
        assert_true(core_time_now_ns() - rig.back_ns >= GPU_RIG_PERIOD_NS * changes->hang_periods);
    gpu_rig_start(&rig);
    for (int batch = 0; batch < 10; batch++)
        gpu_rig_go_on(&rig, 4, 20, 400);
    gpu_rig_take_all(&rig);
    gpu_rig_close(&rig);
    return fault;
}

static void failures_are_told_apart(void **state)
{
    (void)state;
    const struct gpu_engine_options patient = {0}, short_of_periods = {.hang_periods = 1500},
                                    short_of_silence = {.silence_ns = 4 * CORE_NS_PER_S};
    static const struct {
        enum gpu_failure failure;
        enum gpu_fault_kind kind;
        int code;
        const char *text;
    } cases[] = {
        {GPU_FAILURE_ERROR, GPU_FAULT_DEVICE, 0, "batch 5: the emulated card fails on request"},
        {GPU_FAILURE_DIE, GPU_FAULT_SIGNALLED, SIGKILL, "signal 9"},
        {GPU_FAILURE_EXIT, GPU_FAULT_EXITED, 9, "exit code 9"},
        {GPU_FAILURE_HANG, GPU_FAULT_HUNG, 1500, "no batch came back in time"},
        {GPU_FAILURE_FREEZE, GPU_FAULT_HUNG, 0, "no sign of life"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint32_t engines = 1; engines <= 2; engines++) {
            const struct gpu_engine_options *changes =
                cases[i].failure == GPU_FAILURE_HANG     ? &short_of_periods
                : cases[i].failure == GPU_FAILURE_FREEZE ? &short_of_silence
                                                         : &patient;
            const struct gpu_fault fault = fail_and_go_on(cases[i].failure, engines, changes);
            assert_int_equal(fault.kind, cases[i].kind);
            assert_int_equal(fault.code, cases[i].code);
            assert_non_null(strstr(fault.text, cases[i].text));
        }
}

/* Noise over all the shared memory: some fault comes, the server goes on. */
static void noise_makes_a_fault_and_no_more(void **state)
{
    (void)state;
    const struct gpu_engine_options changes = {.silence_ns = 4 * CORE_NS_PER_S};
    for (uint32_t engines = 1; engines <= 2; engines++) {
        const struct gpu_fault fault = fail_and_go_on(GPU_FAILURE_GARBAGE, engines, &changes);
        assert_string_not_equal(gpu_fault_name(fault.kind), "unknown");
    }
}

/* A wrong bit is not the engine's to find; the caller who finds it condemns the child. */
static void a_wrong_bit_is_condemned(void **state)
{
    (void)state;
    struct gpu_crowd *crowd = gpu_crowd_open(5, 20, 60, 1 << 16, 77);
    struct gpu_emulation card = gpu_crowd_card(2);
    struct gpu_rig rig;
    struct gpu_event event;
    card.failure = GPU_FAILURE_CORRUPT;
    card.failure_batch = 1;
    gpu_rig_open(&rig, crowd, &card, NULL);
    gpu_rig_submit(&rig, 20, 400);
    assert_true(gpu_crowd_wait(rig.engine, &event));
    assert_int_equal(event.kind, GPU_EVENT_BATCH);
    const struct gpu_order order = event.batch.order;
    const uint8_t *output = gpu_region_output(&crowd->region, order.arena);
    uint32_t wrong = 0;
    for (uint64_t i = 0; i < order.used_bytes; i++)
        wrong += output[i] != crowd->expected[order.arena][i];
    assert_int_equal(wrong, 1);
    rig.back = rig.submitted;
    gpu_crowd_stand_in(crowd, &order);
    gpu_engine_condemn(rig.engine, core_time_now_ns(), "batch 1: wrong ciphertext");
    const struct gpu_fault fault = gpu_rig_fault(&rig, 1, 20, 400);
    assert_int_equal(fault.kind, GPU_FAULT_CORRUPT);
    assert_string_equal(fault.text, "batch 1: wrong ciphertext");
    assert_int_equal(fault.unfinished, 0);
    gpu_rig_start(&rig);
    gpu_rig_go_on(&rig, 4, 20, 400);
    gpu_rig_take_all(&rig);
    gpu_rig_close(&rig);
}

/* SIGKILL at any moment of the load, again and again. */
static void kills_lose_nothing(void **state)
{
    (void)state;
    struct gpu_crowd *crowd = gpu_crowd_open(6, 40, 120, 1 << 17, 55);
    const struct gpu_emulation card = gpu_crowd_card(2);
    struct gpu_rig rig;
    gpu_rig_open(&rig, crowd, &card, NULL);
    for (int round = 0; round < 10; round++) {
        for (uint64_t left = gpu_crowd_draw(crowd, 12); left > 0; left--)
            gpu_rig_go_on(&rig, 5, 40, 900);
        assert_int_equal(kill(gpu_engine_process(rig.engine), SIGKILL), 0);
        const struct gpu_fault fault = gpu_rig_fault(&rig, 5, 40, 900);
        assert_int_equal(fault.kind, GPU_FAULT_SIGNALLED);
        assert_int_equal(fault.code, SIGKILL);
        gpu_rig_start(&rig);
    }
    for (int batch = 0; batch < 20; batch++)
        gpu_rig_go_on(&rig, 5, 40, 900);
    gpu_rig_take_all(&rig);
    gpu_rig_close(&rig);
}

/* The card says no at the start, and says why. */
static void a_start_that_fails_says_why(void **state)
{
    (void)state;
    struct gpu_crowd *crowd = gpu_crowd_open(2, 4, 8, 1 << 16, 4);
    struct gpu_emulation card = gpu_crowd_card(2);
    struct gpu_engine *engine;
    struct core_error error = {""};
    struct gpu_event event;
    card.memory_bytes = 4096;
    const struct gpu_engine_options options = gpu_crowd_options(crowd, &card);
    assert_int_equal(gpu_engine_open(&engine, &options, &error), CORE_OK);
    assert_int_equal(gpu_engine_start(engine, core_time_now_ns(), &error), CORE_OK);
    assert_true(gpu_crowd_wait(engine, &event));
    assert_int_equal(event.kind, GPU_EVENT_FAULT);
    assert_int_equal(event.fault.kind, GPU_FAULT_START);
    assert_non_null(strstr(event.fault.text, "bytes on the card"));
    gpu_engine_close(engine);
    gpu_crowd_close(crowd);
}

/* Starts `program` as if it were millrace-gpu, and returns its fault. */
static struct gpu_fault start_other(const char *program, core_ns start_ns)
{
    struct gpu_crowd *crowd = gpu_crowd_open(2, 4, 8, 1 << 16, 4);
    const struct gpu_emulation card = gpu_crowd_card(2);
    struct gpu_engine *engine;
    struct core_error error = {""};
    struct gpu_event event;
    struct gpu_engine_options options = gpu_crowd_options(crowd, &card);
    options.program = program;
    options.start_ns = start_ns;
    assert_int_equal(gpu_engine_open(&engine, &options, &error), CORE_OK);
    assert_int_equal(gpu_engine_start(engine, core_time_now_ns(), &error), CORE_OK);
    assert_true(gpu_crowd_wait(engine, &event));
    assert_int_equal(event.kind, GPU_EVENT_FAULT);
    gpu_engine_close(engine);
    gpu_crowd_close(crowd);
    return event.fault;
}

static void make_script(char *path, const char *script)
{
    const int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    assert_int_equal(write(descriptor, script, strlen(script)), strlen(script));
    assert_int_equal(fchmod(descriptor, 0700), 0);
    close(descriptor);
}

static void other_programs_are_no_children(void **state)
{
    (void)state;
    char sleeper[] = "/tmp/millrace-gpu-test-XXXXXX";
    make_script(sleeper, "#!/bin/sh\nexec sleep 600\n");
    struct gpu_fault fault = start_other("/bin/false", 0);
    assert_int_equal(fault.kind, GPU_FAULT_START);
    assert_int_equal(fault.code, 1);
    fault = start_other(sleeper, 50 * CORE_NS_PER_MS);
    assert_int_equal(fault.kind, GPU_FAULT_START);
    assert_non_null(strstr(fault.text, "not ready in time"));
    assert_true(fault.gone);
    unlink(sleeper);
}

/* This program as a child: fills all that it was given, but for the memory, as far as it goes, takes from it the
 * flag that calls do not wait, and is never ready. */
static _Noreturn void be_evil(void)
{
    static const uint64_t most = UINT64_MAX - 1;
    (void)alarm(60); /* for the day on which its server does not end it */
    for (int descriptor = 3; descriptor < 16; descriptor++) {
        struct stat about;
        if (fstat(descriptor, &about) != 0 || S_ISREG(about.st_mode))
            continue;
        (void)fcntl(descriptor, F_SETFL, O_NONBLOCK);
        while (write(descriptor, &most, sizeof most) > 0)
            ;
        (void)fcntl(descriptor, F_SETFL, 0);
    }
    for (;;)
        pause();
}

static void no_child_makes_its_server_wait(void **state)
{
    (void)state;
    char self[512];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(length > 0);
    self[length] = '\0';
    const struct gpu_fault fault = start_other(self, CORE_NS_PER_S);
    assert_int_equal(fault.kind, GPU_FAULT_START);
    assert_non_null(strstr(fault.text, "not ready in time"));
}

/* A driver may take seconds to open a card. Only the start's limit counts then, not the child's silence. */
static void a_slow_start_is_no_silence(void **state)
{
    (void)state;
    struct gpu_crowd *crowd = gpu_crowd_open(5, 20, 60, 1 << 16, 21);
    const struct gpu_emulation card = gpu_crowd_card(2);
    struct gpu_engine_options options = gpu_crowd_options(crowd, &card);
    char script[512], path[] = "/tmp/millrace-gpu-test-XXXXXX";
    struct core_error error = {""};
    struct gpu_event event;
    struct gpu_rig rig = {.crowd = crowd};
    snprintf(script, sizeof script, "#!/bin/sh\nsleep 3\nexec '%s' \"$@\"\n", gpu_crowd_program());
    make_script(path, script);
    options.program = path;
    options.silence_ns = 2 * CORE_NS_PER_S;
    assert_int_equal(gpu_engine_open(&rig.engine, &options, &error), CORE_OK);
    assert_int_equal(gpu_engine_start(rig.engine, core_time_now_ns(), &error), CORE_OK);
    assert_true(gpu_crowd_wait(rig.engine, &event));
    assert_int_equal(event.kind, GPU_EVENT_READY);
    assert_int_equal(gpu_engine_poll(rig.engine, core_time_now_ns(), &event), CORE_AGAIN);
    assert_int_equal(gpu_engine_state(rig.engine), GPU_ENGINE_READY);
    gpu_crowd_hand_keys(crowd, rig.engine);
    for (int batch = 0; batch < 10; batch++)
        gpu_rig_go_on(&rig, 4, 20, 400);
    gpu_rig_take_all(&rig);
    gpu_rig_close(&rig);
    unlink(path);
}

/* Faults that follow each other keep the engine down for longer and longer, up to a limit. */
static void the_back_off_doubles(void **state)
{
    (void)state;
    struct gpu_crowd *crowd = gpu_crowd_open(2, 4, 8, 1 << 16, 4);
    const struct gpu_emulation card = gpu_crowd_card(2);
    struct gpu_engine_options options = gpu_crowd_options(crowd, &card);
    struct gpu_engine *engine;
    struct core_error error = {""};
    struct gpu_event event;
    core_ns now_ns = core_time_now_ns();
    options.program = "/bin/false";
    options.restart_first_ns = 1000 * CORE_NS_PER_S; /* in a time that the test makes */
    options.restart_max_ns = 3000 * CORE_NS_PER_S;
    options.start_ns = options.silence_ns = 100000 * CORE_NS_PER_S;
    assert_int_equal(gpu_engine_open(&engine, &options, &error), CORE_OK);
    static const int expected_s[] = {1000, 2000, 3000, 3000};
    for (size_t i = 0; i < sizeof expected_s / sizeof *expected_s; i++) {
        assert_int_equal(gpu_engine_start(engine, now_ns, &error), CORE_OK);
        while (gpu_engine_poll(engine, now_ns, &event) == CORE_AGAIN)
            (void)poll(NULL, 0, 1);
        assert_int_equal(event.kind, GPU_EVENT_FAULT);
        assert_int_equal(event.fault.restart_ns - now_ns, expected_s[i] * CORE_NS_PER_S);
        assert_int_equal(gpu_engine_start(engine, event.fault.restart_ns - 1, &error), CORE_AGAIN);
        assert_int_equal(gpu_engine_wake_ns(engine), event.fault.restart_ns);
        now_ns = event.fault.restart_ns;
    }
    gpu_engine_close(engine);
    gpu_crowd_close(crowd);
}

/* A signal to the whole process group is for the server, which needs its child for the drain, and in
 * maintenance. */
static void signals_to_the_group_do_not_end_the_child(void **state)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
    (void)state;
    struct gpu_crowd *crowd = gpu_crowd_open(5, 20, 60, 1 << 16, 33);
    const struct gpu_emulation card = gpu_crowd_card(2);
    struct gpu_rig rig;
    gpu_rig_open(&rig, crowd, &card, NULL);
    const pid_t child = gpu_engine_process(rig.engine);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        gpu_rig_go_on(&rig, 4, 20, 400);
        assert_int_equal(kill(child, signals[i]), 0);
        for (int batch = 0; batch < 10; batch++)
            gpu_rig_go_on(&rig, 4, 20, 400);
    }
    gpu_rig_take_all(&rig);
    assert_int_equal(gpu_engine_process(rig.engine), child);
    const int descriptor = (int)syscall(SYS_pidfd_open, child, 0);
    struct pollfd gone = {.fd = descriptor, .events = POLLIN};
    assert_int_equal(poll(&gone, 1, 300), 0); /* nor a while later */
    close(descriptor);
    gpu_rig_close(&rig);
}

/* Nor before it ignores them: they come while a program is at work that does not, and waits. (Not sh:
 * dash lets all signals through.) */
static void signals_to_the_group_do_not_end_a_start(void **state)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
    char path[] = "/tmp/millrace-gpu-XXXXXX";
    (void)state;
    make_script(path, "#!/bin/bash\nsleep 0.3\nexec " MILLRACE_BINARY_DIR "/gpu/millrace-gpu \"$@\"\n");
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct gpu_crowd *crowd = gpu_crowd_open(2, 4, 8, 1 << 16, 4);
        const struct gpu_emulation card = gpu_crowd_card(2);
        struct gpu_engine_options options = gpu_crowd_options(crowd, &card);
        struct gpu_engine *engine;
        struct core_error error = {""};
        struct gpu_event event;
        options.program = path;
        assert_int_equal(gpu_engine_open(&engine, &options, &error), CORE_OK);
        assert_int_equal(gpu_engine_start(engine, core_time_now_ns(), &error), CORE_OK);
        while (gpu_engine_process(engine) == 0)
            assert_int_equal(gpu_engine_poll(engine, core_time_now_ns(), &event), CORE_AGAIN);
        assert_int_equal(kill(gpu_engine_process(engine), signals[i]), 0);
        assert_true(gpu_crowd_wait(engine, &event));
        assert_int_equal(event.kind, GPU_EVENT_READY);
        gpu_engine_close(engine);
        gpu_crowd_close(crowd);
    }
    unlink(path);
}

/* In a process of its own: a server with a child under load, which tells the child's number and then ends. */
static void server_that_ends(int tell, uint32_t failure, bool stopped)
{
    struct gpu_crowd *crowd = gpu_crowd_open(5, 20, 60, 1 << 16, 9);
    struct gpu_emulation card = gpu_crowd_card(2);
    struct gpu_rig rig;
    card.failure = failure;
    card.failure_batch = 2;
    gpu_rig_open(&rig, crowd, &card, NULL);
    for (int batch = 0; batch < 4; batch++)
        gpu_rig_submit(&rig, 20, 400);
    const pid_t child = gpu_engine_process(rig.engine);
    TEST_REQUIRE(!stopped || kill(child, SIGSTOP) == 0);
    TEST_REQUIRE(write(tell, &child, sizeof child) == sizeof child);
    core_time_sleep_until(core_time_now_ns() + 50 * CORE_NS_PER_MS); /* most likely it hangs by then */
    raise(SIGKILL);
}

static void the_servers_end_ends_the_child(void **state)
{
    (void)state;
    static const struct {
        enum gpu_failure failure;
        bool stopped; /* a process that can not see to its own end */
    } cases[] = {{GPU_FAILURE_NONE, false},
                 {GPU_FAILURE_HANG, false},
                 {GPU_FAILURE_FREEZE, false},
                 {GPU_FAILURE_NONE, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int ends[2], ended = 1;
        pid_t child = 0;
        assert_int_equal(pipe(ends), 0);
        const pid_t server = fork();
        if (server == 0)
            server_that_ends(ends[1], cases[i].failure, cases[i].stopped);
        assert_int_equal(read(ends[0], &child, sizeof child), sizeof child);
        const int descriptor = (int)syscall(SYS_pidfd_open, child, 0); /* -1: gone already */
        struct pollfd gone = {.fd = descriptor, .events = POLLIN};
        assert_int_equal(waitpid(server, NULL, 0), server);
        if (descriptor >= 0) {
            ended = poll(&gone, 1, 60000);
            (void)syscall(SYS_pidfd_send_signal, descriptor, SIGKILL, NULL,
                          0); /* nothing stays in any case */
            close(descriptor);
        }
        close(ends[0]);
        close(ends[1]);
        assert_int_equal(ended, 1);
    }
}

/* The server has ended before its child could ask to end with it. */
static void a_child_without_a_server_ends(void **state)
{
    (void)state;
    int pair[2], said[2], status = 0;
    char text[512] = "";
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) | pipe2(said, O_CLOEXEC), 0);
    const pid_t child = fork();
    if (child == 0) {
        if (dup2(said[1], STDERR_FILENO) == STDERR_FILENO && dup2(pair[1], 20) == 20 && dup2(20, 3) == 3 &&
            close_range(4, ~0U, 0) == 0)
            execl(gpu_crowd_program(), "millrace-gpu", "--serve", "--backend", "emulated", NULL);
        _exit(127);
    }
    close(pair[0]);
    close(pair[1]);
    close(said[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(read(said[0], text, sizeof text - 1) > 0);
    close(said[0]);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 3);
    assert_non_null(strstr(text, "the server is gone"));
}

/* A server that lives but does not poll any more is as good as gone. */
static void a_silent_server_ends_the_child(void **state)
{
    (void)state;
    struct gpu_crowd *crowd = gpu_crowd_open(5, 20, 60, 1 << 16, 9);
    const struct gpu_emulation card = gpu_crowd_card(2);
    struct gpu_engine_options options = gpu_crowd_options(crowd, &card);
    struct gpu_rig rig;
    struct gpu_event event;
    options.silence_ns = 300 * CORE_NS_PER_MS; /* its patience is ten times that */
    gpu_rig_open(&rig, crowd, &card, &options);
    const int descriptor = (int)syscall(SYS_pidfd_open, gpu_engine_process(rig.engine), 0);
    struct pollfd gone = {.fd = descriptor, .events = POLLIN};
    assert_int_equal(poll(&gone, 1, 60000), 1);
    close(descriptor);
    assert_true(gpu_crowd_wait(rig.engine, &event));
    assert_int_equal(event.kind, GPU_EVENT_FAULT);
    assert_int_equal(event.fault.kind, GPU_FAULT_EXITED);
    assert_int_equal(event.fault.code, 5);
    gpu_rig_close(&rig);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--serve") == 0)
        be_evil();

    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failures_are_told_apart),
        cmocka_unit_test(noise_makes_a_fault_and_no_more),
        cmocka_unit_test(a_wrong_bit_is_condemned),
        cmocka_unit_test(kills_lose_nothing),
        cmocka_unit_test(a_start_that_fails_says_why),
        cmocka_unit_test(other_programs_are_no_children),
        cmocka_unit_test(no_child_makes_its_server_wait),
        cmocka_unit_test(the_back_off_doubles),
        cmocka_unit_test(the_servers_end_ends_the_child),
        cmocka_unit_test(a_child_without_a_server_ends),
        cmocka_unit_test(a_silent_server_ends_the_child),
        cmocka_unit_test(a_slow_start_is_no_silence),
        cmocka_unit_test(signals_to_the_group_do_not_end_the_child),
        cmocka_unit_test(signals_to_the_group_do_not_end_a_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
