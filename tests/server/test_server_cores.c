/* What a thread is promised of the cores that there are, and what is said of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "server/cores.h"
#include "tests/support/gpu_server.h"

static struct server_cores chosen(const struct config_server_threads *threads, uint32_t there)
{
    struct server_cores cores;
    struct core_error error;
    assert_int_equal(server_cores_choose(threads, there, &cores, &error), CORE_OK);
    return cores;
}

static void threads_are_chosen_by_the_cores(void **state)
{
    static const struct {
        uint32_t there, io, workers, share;
    } rows[] = {{500, 1, 1, 250},   {1000, 1, 1, 500},  {1999, 1, 1, 999},    {2000, 1, 1, 1000},
                {4000, 1, 2, 1000}, {8000, 2, 4, 1000}, {64000, 16, 32, 1000}};
    const struct config_server_threads threads = {.realtime = CONFIG_REALTIME_REQUIRED};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct server_cores cores = chosen(&threads, rows[i].there);
        assert_int_equal(cores.io, rows[i].io);
        assert_int_equal(cores.workers, rows[i].workers);
        assert_int_equal(server_cores_share(&cores), rows[i].share);
    }
}

/* What a worker, and an I/O thread, is promised of a core: the largest share that any of its costs shows. */
static void promised(const struct server_cores *cores, double *worker, double *io)
{
    struct config_profile *profile = test_gpu_profile(1);
    const struct config_profile before = *profile;
    server_cores_scale(cores, profile);
    const double of_worker[] = {(double)before.cpu.per_byte_fs[0] / (double)profile->cpu.per_byte_fs[0],
                                (double)before.cpu.per_piece_ns / (double)profile->cpu.per_piece_ns,
                                (double)before.cpu.lane_ns[0] / (double)profile->cpu.lane_ns[0]};
    const double of_io[] = {(double)before.io.per_packet_ns / (double)profile->io.per_packet_ns,
                            (double)before.io.per_byte_fs / (double)profile->io.per_byte_fs};
    *worker = of_worker[0] > of_worker[1] ? of_worker[0] : of_worker[1];
    *worker = *worker > of_worker[2] ? *worker : of_worker[2];
    *io = of_io[0] > of_io[1] ? of_io[0] : of_io[1];
    config_profile_free(profile);
}

/* Whatever threads there are, on all cores or on those of threads.cores: their promises together are of no
 * more than the cores. So is what I/O threads are promised beside pinned workers, of what these leave. */
static void admission_limited_by_cores(void **state)
{
    (void)state;
    for (uint32_t there = 500; there <= 8000; there += 250)
        for (uint32_t told = 0; told <= there / 1000; told++)
            for (uint32_t io = 1; io <= 256; io *= 2)
                for (uint32_t workers = 1; workers <= 256; workers *= 2) {
                    const struct config_server_threads threads = {
                        .io = io, .workers = workers, .cores = told, .pin = true};
                    struct server_cores cores = chosen(&threads, there);
                    double all = told != 0 ? told : there / 1000.0, of_worker, of_io;
                    promised(&cores, &of_worker, &of_io);
                    assert_true(of_worker <= 1 && of_io <= 1);
                    assert_true(workers * of_worker + io * of_io <= all + 1e-9 || io + workers > 1000 * all);
                }
}

static void more_cores_than_present_without_real_time(void **state)
{
    struct config_server_threads threads = {.cores = 3, .realtime = CONFIG_REALTIME_AUTO};
    struct server_cores cores;
    struct core_error error;
    (void)state;
    assert_int_equal(server_cores_choose(&threads, 2500, &cores, &error), CORE_INVALID);
    assert_non_null(strstr(error.text, "3 are more than the 2.50"));
    threads.realtime = CONFIG_REALTIME_OFF;
    assert_int_equal(chosen(&threads, 2500).thousandths, 3000);
    threads.cores = 2;
    threads.realtime = CONFIG_REALTIME_REQUIRED;
    assert_int_equal(chosen(&threads, 2500).thousandths, 2000);
}

static void pinned_workers_leave_a_core(void **state)
{
    struct config_server_threads threads = {
        .pin = true, .io = 1, .workers = 2, .realtime = CONFIG_REALTIME_AUTO};
    struct server_cores two = chosen(&threads, 2000), three = chosen(&threads, 3000);
    (void)state;
    assert_false(server_cores_pin(&two, &threads));
    assert_true(server_cores_pin(&three, &threads));
    threads.realtime = CONFIG_REALTIME_OFF;
    assert_false(server_cores_pin(&three, &threads));
}

static void profiles_of_other_machines_are_known(void **state)
{
    static const char here[] = "AMD EPYC, 2 cores, Linux 6.18.5";
    char text[256] = "";
    (void)state;
    assert_false(server_cores_are_others("AMD EPYC, 2 cores, Linux 6.1.0", here, text, sizeof text));
    assert_true(server_cores_are_others("AMD EPYC, 4 cores, Linux 6.18.5", here, text, sizeof text));
    assert_non_null(strstr(text, "another machine (AMD EPYC, 4 cores"));
    assert_true(server_cores_are_others("assumed, one x86-64 core", here, text, sizeof text));
    assert_non_null(strstr(text, "figures are assumed"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_are_chosen_by_the_cores),
        cmocka_unit_test(admission_limited_by_cores),
        cmocka_unit_test(more_cores_than_present_without_real_time),
        cmocka_unit_test(pinned_workers_leave_a_core),
        cmocka_unit_test(profiles_of_other_machines_are_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
