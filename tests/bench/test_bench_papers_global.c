/* The simulator of global scheduling with a lock: schedules by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/papers/global.h"

static int64_t release(void *context, size_t task, size_t job)
{
    const int64_t *releases = context;
    return job == 0 ? releases[task] : INT64_MAX;
}

static void check(const struct papers_global *global, int64_t *releases, const int64_t *responses)
{
    const struct papers_job_source source = {.context = releases, .release = release};
    struct papers_global_result result;

    papers_global_run(global, &source, 1000, &result);
    assert_false(result.overflowed);
    for (size_t t = 0; t < global->count; t++)
        assert_int_equal(result.response[t], responses[t]);
}

/* Dhall's effect: two short jobs of early deadlines, and a long one that then has no processor to itself. */
static void test_deadlines_first(void **state)
{
    (void)state;
    const struct papers_global global = {
        .m = 2,
        .count = 3,
        .tasks = {{.point = 10, .before = 2}, {.point = 10, .before = 2}, {.point = 11, .before = 10}}};
    check(&global, (int64_t[]){0, 0, 0}, (int64_t[]){2, 2, 12});
}

/* One processor. The last holds the lock when the first asks for it: it runs before the one in between. */
static void test_holder_inherits(void **state)
{
    (void)state;
    const struct papers_global global = {.m = 1,
                                         .count = 3,
                                         .tasks = {{.point = 10, .before = 1, .section_cpu = 2},
                                                   {.point = 20, .before = 5},
                                                   {.point = 100, .before = 1, .section_cpu = 4}}};
    /* 0-1 and 1-2 the last; 2-3 the first, which waits then; 3-6 the rest of the section; 6-8 the first. */
    check(&global, (int64_t[]){2, 2, 0}, (int64_t[]){6, 11, 6});
}

/* Who uses the GPU leaves its processor to others. */
static void test_gpu_suspends(void **state)
{
    (void)state;
    const struct papers_global global = {
        .m = 1,
        .count = 2,
        .tasks = {{.point = 10, .section_cpu = 2, .section_gpu = 5}, {.point = 20, .before = 5}}};
    check(&global, (int64_t[]){0, 0}, (int64_t[]){7, 6});
}

/* Four ask in turn, on two processors: first come first served, or two in the queue and the others by priority. */
static void test_orders_of_the_lock(void **state)
{
    (void)state;
    struct papers_global global = {.m = 2,
                                   .count = 4,
                                   .tasks = {{.point = 10, .section_gpu = 10},
                                             {.point = 40, .section_gpu = 10},
                                             {.point = 30, .section_gpu = 10},
                                             {.point = 20, .section_gpu = 10}}};
    int64_t releases[] = {0, 1, 2, 3};
    check(&global, releases, (int64_t[]){10, 19, 28, 37});
    global.lock = PAPERS_LOCK_OMLP;
    check(&global, releases, (int64_t[]){10, 19, 38, 27});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deadlines_first),
        cmocka_unit_test(test_holder_inherits),
        cmocka_unit_test(test_gpu_suspends),
        cmocka_unit_test(test_orders_of_the_lock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
