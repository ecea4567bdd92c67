#include "tests/support/admission.h"

#include <stdlib.h>
#include <string.h>

#include "partition/admission/internal.h"
#include "partition/admission/unit_worker.h"
#include "partition/check/check.h"
#include "perfmodel/demand.h"
#include "tests/support/check_failover.h"
#include "tests/support/require.h"
#include "tests/support/standing_plan.h"

#define MS CORE_NS_PER_MS

_Noreturn static void fail(const char *why)
{
    fprintf(stderr, "%s\n", why);
    abort();
}

struct admission *test_admission_of(const struct config_profile *profile, uint32_t workers, uint32_t io)
{
    struct admission *made = NULL;
    struct core_error error = {{0}};
    if (admission_create(&made, profile, workers, io, &error) != CORE_OK)
        fail(error.text);
    return made;
}

struct admission_placement test_admission_query(const struct admission *admission,
                                                const struct core_stream_spec *spec, bool with_offer)
{
    struct admission_placement placement;
    struct core_error error = {{0}};
    if (admission_query(admission, spec, 0, with_offer, &placement, &error) != CORE_OK)
        fail(error.text);
    return placement;
}

struct admission_placement test_admission_admit(struct admission *admission,
                                                const struct core_stream_spec *spec, uint64_t handle)
{
    struct admission_placement placement;
    struct core_error error = {{0}};
    if (admission_admit(admission, spec, 0, handle, &placement, &error) != CORE_OK)
        fail(error.text);
    return placement;
}

/* ---- what must hold at any time ---- */

/* The load of a GPU, added up anew. */
static struct perfmodel_flow_load load_of(const struct admission *admission, uint32_t unit)
{
    struct perfmodel_flow_load sum = {0};
    for (size_t n = 0; n < admission_streams(admission); n++) {
        struct admission_stream stream = admission_stream_at(admission, n);
        struct perfmodel_flow_load load = partition_demand_of(&stream.spec, admission->profile).load;
        if (stream.unit == unit)
            perfmodel_flow_load_add(&sum, &load);
    }
    return sum;
}

/* Of what comes to it at a loss. */
static struct perfmodel_flow_load backups_of(const struct admission *admission, uint32_t unit, uint32_t lost)
{
    struct perfmodel_flow_load sum = {0};
    for (size_t n = 0; n < admission_streams(admission); n++) {
        struct admission_stream stream = admission_stream_at(admission, n);
        if (stream.backup_unit != unit || stream.unit != admission->worker_count + lost)
            continue;
        struct perfmodel_flow_load load = partition_demand_of(&stream.backup_spec, admission->profile).load;
        perfmodel_flow_load_add(&sum, &load);
    }
    return sum;
}

static bool same_load(const struct perfmodel_flow_load *a, const struct perfmodel_flow_load *b)
{
    return a->streams == b->streams && a->burst_bytes == b->burst_bytes && a->rate == b->rate &&
           a->job_burst_bytes == b->job_burst_bytes && a->job_rate == b->job_rate &&
           a->unit_bytes == b->unit_bytes && a->shortest_ns == b->shortest_ns;
}

static void expect_gpu(const struct admission *admission, uint32_t g)
{
    const struct partition_gpu *gpu = admission->gpu[g];
    struct perfmodel_flow_load load = load_of(admission, admission->worker_count + g);
    TEST_REQUIRE(same_load(&load, &gpu->own.load)); /* no trace of who left */
    TEST_REQUIRE((load.streams == 0 && partition_gpu_backups(gpu) == 0) == (gpu->unit.period_ns == 0));
    if (load.streams > 0)
        TEST_REQUIRE(perfmodel_flow_judge(gpu->card, &load, gpu->unit.period_ns).memory_bytes <=
                     gpu->unit.memory_bytes);
    for (uint32_t lost = 0; lost < admission->gpus; lost++) {
        struct perfmodel_flow_load held = backups_of(admission, admission->worker_count + g, lost);
        if (gpu->backups[lost] == NULL)
            TEST_REQUIRE(held.streams == 0);
        else
            TEST_REQUIRE(same_load(&held, &gpu->backups[lost]->load));
    }
}

static void add_task(struct perfmodel_demand *demand, const struct core_stream_spec *spec,
                     const struct config_profile *profile)
{
    struct perfmodel_cpu_task task;
    TEST_REQUIRE(perfmodel_cpu_task_from(spec, profile, &task, NULL) == CORE_OK);
    perfmodel_demand_add(demand, &task);
}

static void expect_demand(const struct perfmodel_demand *demand, const struct perfmodel_demand *anew)
{
    TEST_REQUIRE(perfmodel_demand_streams(demand) == perfmodel_demand_streams(anew));
    TEST_REQUIRE(perfmodel_demand_utilisation_ppb(demand) == perfmodel_demand_utilisation_ppb(anew));
    TEST_REQUIRE(perfmodel_demand_headroom_ppb(demand, NULL) == perfmodel_demand_headroom_ppb(anew, NULL));
    TEST_REQUIRE(perfmodel_demand_test(demand, NULL).accepted);
}

/* Its streams and those that come at the loss of a GPU, added up anew. */
static void expect_case(const struct admission *admission, uint32_t w, uint32_t lost,
                        const struct perfmodel_demand *own)
{
    const struct perfmodel_demand *demand = partition_worker_scenario(admission->unit[w], lost);
    struct perfmodel_demand *anew;
    size_t backups = 0;
    TEST_REQUIRE(perfmodel_demand_copy(own, &anew) == CORE_OK);
    for (size_t n = 0; n < admission_streams(admission); n++) {
        struct admission_stream stream = admission_stream_at(admission, n);
        if (stream.backup_unit != w || stream.unit != admission->worker_count + lost)
            continue;
        add_task(anew, &stream.backup_spec, admission->profile);
        backups++;
    }
    TEST_REQUIRE((demand != NULL) == (backups > 0));
    if (demand != NULL)
        expect_demand(demand, anew);
    perfmodel_demand_destroy(anew);
}

static void expect_worker(const struct admission *admission, uint32_t w)
{
    struct perfmodel_demand *anew;
    TEST_REQUIRE(perfmodel_demand_create(&anew, admission->profile) == CORE_OK);
    for (size_t n = 0; n < admission_streams(admission); n++) {
        struct admission_stream stream = admission_stream_at(admission, n);
        if (stream.unit == w)
            add_task(anew, &stream.spec, admission->profile);
    }
    struct admission_worker load = admission_worker_at(admission, w);
    TEST_REQUIRE(load.streams == perfmodel_demand_streams(anew));
    TEST_REQUIRE(load.utilisation_ppb == perfmodel_demand_utilisation_ppb(anew));
    TEST_REQUIRE(load.headroom_ppb == perfmodel_demand_headroom_ppb(anew, NULL));
    for (uint32_t lost = 0; lost < admission->gpus; lost++)
        expect_case(admission, w, lost, anew);
    perfmodel_demand_destroy(anew);
}

/* The certificate, by the independent checker. */
static void expect_certified(const struct admission *admission)
{
    size_t count = admission_streams(admission);
    struct core_stream_spec *specs = malloc((count + 1) * sizeof *specs);
    TEST_REQUIRE(specs != NULL);
    struct partition_plan_input input = {
        .specs = specs, .count = count, .profile = admission->profile, .workers = admission->worker_count};
    struct partition_plan *plan = test_admission_plan(admission);
    struct core_error error = {{0}};
    for (size_t n = 0; n < input.count; n++)
        specs[n] = admission_stream_at(admission, n).spec;
    if (!plan->accepted)
        fail(plan->reason);
    if (partition_check(&input, plan, &error) != CORE_OK)
        fail(error.text);
    for (uint32_t g = 0; g < plan->gpus; g++) {
        TEST_REQUIRE(plan->gpu[g].period_ns == admission->gpu[g]->unit.period_ns ||
                     plan->gpu[g].streams == 0);
        /* Admission judges in the long run; by the rule of whole batches, where it holds as well, a plan of the
         * same streams may be told with a longer latency, and an arena more. */
        TEST_REQUIRE(plan->gpu[g].rule == PARTITION_PLAN_BATCH ||
                     plan->gpu[g].memory_bytes <= admission->gpu[g]->unit.memory_bytes);
    }
    partition_plan_destroy(plan);
    free(specs);
}

/* Nobody who is guaranteed is short, whatever GPU is lost. */
static void expect_guaranteed(const struct admission *admission)
{
    size_t count = admission_streams(admission);
    struct check_failover_promise *promise = malloc((count + 1) * sizeof *promise);
    struct core_error error = {{0}};
    TEST_REQUIRE(promise != NULL);
    for (size_t n = 0; n < count; n++) {
        struct admission_stream stream = admission_stream_at(admission, n);
        promise[n] = (struct check_failover_promise){.contract = stream.join,
                                                     .unit = stream.unit,
                                                     .backed = stream.backup_unit != ADMISSION_NONE,
                                                     .backup_unit = stream.backup_unit,
                                                     .gpu_bound_ns = stream.gpu_bound_ns,
                                                     .detection_ns = stream.detection_ns};
    }
    for (uint32_t lost = 0; lost < admission->gpus; lost++) {
        struct partition_plan *after = test_admission_plan_after(admission, lost);
        if (!after->accepted)
            fail(after->reason);
        if (check_failover(admission->profile, admission->worker_count, promise, count, lost, after,
                           &error) != CORE_OK)
            fail(error.text);
        partition_plan_destroy(after);
    }
    free(promise);
}

void test_admission_holds(const struct admission *admission)
{
    expect_certified(admission);
    if (admission->protected > 0)
        expect_guaranteed(admission);
    uint64_t pinned = 0;
    for (uint32_t g = 0; g < admission->gpus; g++) {
        expect_gpu(admission, g);
        pinned += admission->gpu[g]->unit.memory_bytes;
    }
    TEST_REQUIRE(pinned == admission->shared.pinned_bytes);
    TEST_REQUIRE(pinned <= admission->profile->pinned_bytes);
    for (uint32_t w = 0; w < admission->worker_count; w++)
        expect_worker(admission, w);
}

static void make_move(struct admission *admission, const struct admission_move *move)
{
    struct core_error error = {{0}};
    const int64_t io_ppb = admission_io_ppb(admission, 0);
    uint32_t again, none;
    TEST_REQUIRE(admission_move(admission, move->stream, move->to, move->period_ns, &again, &error) ==
                 CORE_OK);
    TEST_REQUIRE(admission->record[again].handle == move->handle);
    TEST_REQUIRE(admission_move(admission, move->stream, move->to, move->period_ns, &none, &error) ==
                 CORE_REFUSED);
    test_admission_holds(admission);
    admission_release(admission, move->stream);
    TEST_REQUIRE(admission->record[again].unit == move->to);
    TEST_REQUIRE(admission_io_ppb(admission, 0) == io_ppb);
}

uint32_t test_admission_make_room(struct admission *admission, const struct admission_proposal *proposal,
                                  const struct core_stream_spec *request, uint64_t handle)
{
    TEST_REQUIRE(proposal->accepted);
    for (size_t n = 0; n < proposal->moves; n++)
        make_move(admission, &proposal->move[n]);
    const struct admission_placement placement = test_admission_admit(admission, request, handle);
    TEST_REQUIRE(placement.accepted);
    test_admission_holds(admission);
    return placement.stream;
}

void test_admission_release_one(struct admission *admission, struct test_random *random)
{
    size_t count = admission_streams(admission);
    if (count > 0) {
        size_t n = (size_t)test_random_in(random, 0, (int64_t)count - 1);
        admission_release(admission, admission_stream_at(admission, n).stream);
    }
}

struct config_profile *test_admission_profile(void)
{
    struct config_profile *profile = NULL;
    struct core_error error = {{0}};
    if (config_profile_load(MILLRACE_SOURCE_DIR "/config/profiles/emulated-small.yaml", &profile, &error) !=
        CORE_OK)
        fail(error.text);
    return profile;
}

struct core_stream_spec test_admission_spec(core_ns interval_ns, core_ns latency_ns)
{
    return (struct core_stream_spec){.packet_bytes = 1400,
                                     .burst_packets = 1,
                                     .interval_ns = interval_ns,
                                     .latency_ns = latency_ns,
                                     .cipher = CORE_CIPHER_AES_128_CBC,
                                     .padding = CORE_PADDING_PKCS7};
}
