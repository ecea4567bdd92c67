/* The metrics of a snapshot that is made up, where a live server can not be made to have it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/admin/prometheus.h"
#include "server/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct server_snapshot_unit unit = {.name = "cpu-0"};
static struct server_snapshot snapshot = {
    .engine = "openssl", .profile = "made up", .profile_doubt = "", .unit_count = 1, .units = &unit};

static int make_snapshot(void **state)
{
    (void)state;
    struct core_histogram *empty[] = {&snapshot.latency,   &snapshot.slack,    &snapshot.gpu_slack,
                                      &snapshot.admission, &snapshot.in_force, &snapshot.turn,
                                      &snapshot.batch,     &unit.slack,        &unit.lateness};
    for (size_t i = 0; i < sizeof empty / sizeof empty[0]; i++)
        core_histogram_init(empty[i]);
    memset(snapshot.refused, 0, sizeof snapshot.refused);
    return 0;
}

static void expect(const char *line)
{
    size_t bytes;
    char *text = server_metrics_text(&snapshot, &bytes);
    assert_non_null(text);
    if (strstr(text, line) == NULL)
        fail_msg("'%s' is not in:\n%s", line, text);
    free(text);
}

static void misses_make_no_sum_fall(void **state)
{
    (void)state;
    core_histogram_record(&unit.slack, 2 * CORE_NS_PER_MS);
    expect("millrace_unit_slack_seconds_sum{unit=\"cpu-0\"} 0.002\n");
    core_histogram_record(&unit.slack, -5 * CORE_NS_PER_MS);
    core_histogram_record(&unit.lateness, 5 * CORE_NS_PER_MS);
    core_histogram_merge(&snapshot.slack, &unit.slack);
    expect("millrace_unit_slack_seconds_sum{unit=\"cpu-0\"} 0.002\n");
    expect("millrace_unit_slack_seconds_bucket{unit=\"cpu-0\",le=\"0\"} 1\n");
    expect("millrace_slack_seconds_sum 0.002\n");
    expect("millrace_unit_lateness_seconds_sum{unit=\"cpu-0\"} 0.005\n");
    expect("millrace_unit_lateness_seconds_bucket{unit=\"cpu-0\",le=\"0.0025\"} 0\n");
    expect("millrace_unit_lateness_seconds_bucket{unit=\"cpu-0\",le=\"0.01\"} 1\n");
}

static void refusals_say_what_and_why(void **state)
{
    (void)state;
    snapshot.refused[SERVER_ASKED_QUERY][PROTOCOL_REFUSED_CAPACITY] = 3;
    snapshot.refused[SERVER_ASKED_MODIFY][PROTOCOL_REFUSED_BUSY] = 7;
    expect("millrace_requests_refused_total{kind=\"query\",reason=\"capacity\"} 3\n");
    expect("millrace_requests_refused_total{kind=\"modify\",reason=\"busy\"} 7\n");
    expect("millrace_requests_refused_total{kind=\"open\",reason=\"key\"} 0\n");
}

static void profile_of_another_machine_warned(void **state)
{
    (void)state;
    expect("\nmillrace_profile_doubtful 0\n");
    snapshot.profile_doubt = "its figures are assumed";
    expect("\nmillrace_profile_doubtful 1\n");
}

/* Whatever its name has in it. */
static void a_gpu_says_which_card_it_is(void **state)
{
    static struct server_snapshot_gpu gpus[2] = {
        {.card = "emulated", .uuid = "", .pci = ""},
        {.card = "A \"card\"", .uuid = "GPU-1", .pci = "0000:3b:00.0"}};
    (void)state;
    snapshot.gpus = gpus;
    snapshot.gpu_count = 2;
    expect("\nmillrace_gpu_info{gpu=\"0\",card=\"emulated\",uuid=\"\",pci=\"\"} 1\n");
    expect("\nmillrace_gpu_info{gpu=\"1\",card=\"A \\\"card\\\"\",uuid=\"GPU-1\",pci=\"0000:3b:00.0\"} 1\n");
    snapshot.gpu_count = 0;
}

static void standard_process_metrics(void **state)
{
    char line[80];
    (void)state;
    const int descriptor = dup(STDERR_FILENO);
    struct server_process before;
    server_process_poll(&snapshot.process);
    assert_true(snapshot.process.cpu_ns > 0 && snapshot.process.resident_bytes > 65536);
    assert_true(snapshot.process.open_fds < snapshot.process.max_fds);
    close(descriptor);
    before = snapshot.process;
    server_process_poll(&snapshot.process);
    assert_int_equal(snapshot.process.open_fds, before.open_fds - 1);
    snapshot.started_s = 1763856000.25;
    expect("\n# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1763856000.25\n");
    snprintf(line, sizeof line, "\nprocess_open_fds %llu\n", (unsigned long long)snapshot.process.open_fds);
    expect(line);
    expect("\nprocess_cpu_seconds_total ");
    expect("\nprocess_resident_memory_bytes ");
    expect("\nprocess_max_fds ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(misses_make_no_sum_fall, make_snapshot),
        cmocka_unit_test_setup(refusals_say_what_and_why, make_snapshot),
        cmocka_unit_test_setup(profile_of_another_machine_warned, make_snapshot),
        cmocka_unit_test_setup(a_gpu_says_which_card_it_is, make_snapshot),
        cmocka_unit_test_setup(standard_process_metrics, make_snapshot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
