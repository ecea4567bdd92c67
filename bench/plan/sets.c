#include "bench/plan/sets.h"

#include "partition/check/check.h"

#include <math.h>

#define FACTOR_FIRST 4.0
#define FACTOR_LAST  1.1

static core_ns stretched_ns(core_ns time_ns, double slowness)
{
    return (core_ns)llround(fmin((double)time_ns * slowness, 1e15));
}

core_status bench_plan_slow_down(const struct bench_plan_case *of, double slowness,
                                 struct core_stream_spec *specs, struct core_error *error)
{
    core_status status = CORE_OK;

    for (size_t i = 0; status == CORE_OK && i < of->streams; i++) {
        specs[i] = of->pool->specs[i];
        specs[i].interval_ns = stretched_ns(specs[i].interval_ns, slowness);
        specs[i].latency_ns = stretched_ns(specs[i].latency_ns, slowness);
        status = core_stream_spec_check(&specs[i], error);
    }
    return status;
}

static struct partition_plan_input input_of(const struct bench_plan_case *of,
                                            const struct core_stream_spec *specs)
{
    return (struct partition_plan_input){.specs = specs,
                                         .count = of->streams,
                                         .profile = &of->machine->profile,
                                         .workers = of->machine->workers,
                                         .paper = of->paper,
                                         .seed = of->seed};
}

core_status bench_plan_make(const struct bench_plan_case *of, const struct core_stream_spec *specs,
                            struct partition_plan **plan, struct core_error *error)
{
    const struct partition_plan_input input = input_of(of, specs);
    return partition_plan_make(of->method, &input, plan, error);
}

core_status bench_plan_check(const struct bench_plan_case *of, const struct core_stream_spec *specs,
                             const struct partition_plan *plan, struct core_error *error)
{
    const struct partition_plan_input input = input_of(of, specs);
    if (!plan->accepted || !of->method->places)
        return CORE_OK;
    const core_status status = partition_check(&input, plan, error);
    return status == CORE_OK ? CORE_OK
                             : core_error_prefix(error, status, "the plan of %zu streams by %s does not hold",
                                                 of->streams, of->method->name);
}

enum verdict { REFUSED, ACCEPTED, OUT_OF_RANGE };

static core_status ask(const struct bench_plan_case *of, double slowness, struct core_stream_spec *specs,
                       enum verdict *verdict, struct core_error *error)
{
    struct partition_plan *plan;

    *verdict = OUT_OF_RANGE;
    if (bench_plan_slow_down(of, slowness, specs, NULL) != CORE_OK)
        return CORE_OK;
    const core_status status = bench_plan_make(of, specs, &plan, error);
    if (status != CORE_OK)
        return status;
    *verdict = plan->accepted ? ACCEPTED : REFUSED;
    partition_plan_destroy(plan);
    return CORE_OK;
}

/* From one side to the other in equal factors; nothing beyond the ranges. */
static core_status walk(const struct bench_plan_case *of, struct core_stream_spec *specs, double at,
                        struct bench_plan_edge *edge, struct core_error *error)
{
    enum verdict first, verdict;
    core_status status = ask(of, at, specs, &first, error);

    for (verdict = first; status == CORE_OK && verdict == first && first != OUT_OF_RANGE;) {
        *(verdict == ACCEPTED ? &edge->accepted : &edge->refused) = at;
        at = first == ACCEPTED ? at / FACTOR_FIRST : at * FACTOR_FIRST;
        status = ask(of, at, specs, &verdict, error);
    }
    if (status == CORE_OK && verdict != OUT_OF_RANGE && verdict != first)
        *(verdict == ACCEPTED ? &edge->accepted : &edge->refused) = at;
    return status;
}

core_status bench_plan_find_edge(const struct bench_plan_case *of, double hint,
                                 struct core_stream_spec *specs, struct bench_plan_edge *edge,
                                 struct core_error *error)
{
    *edge = (struct bench_plan_edge){0};
    core_status status = walk(of, specs, hint, edge, error);

    while (status == CORE_OK && edge->accepted > 0 && edge->refused > 0 &&
           edge->accepted > edge->refused * FACTOR_LAST) {
        const double middle = sqrt(edge->accepted * edge->refused);
        enum verdict verdict;
        status = ask(of, middle, specs, &verdict, error);
        *(verdict == ACCEPTED ? &edge->accepted : &edge->refused) = middle;
    }
    return status;
}
