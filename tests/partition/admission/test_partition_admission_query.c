/* Standing plans with GPUs: what a query says, an admission does, offers to the nanosecond; and a plan anew
 * counts only if the new stream is admitted once its moves are made. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "partition/admission/internal.h"
#include "tests/support/admission.h"
#include "tests/support/plan_sets.h"
#include "tests/support/require.h"
#include "tests/support/share.h"

#define MACHINES TEST_SHARE(160)
#define STREAMS  60  /* of each */
#define ASKS     300 /* of an empty server */

/* ---- batches ---- */

/* Small ones, so that many a new stream finds room on a card but for its batches. */
static void random_arenas(struct admission *admission, struct test_random *random)
{
    struct partition_gpu_arenas arenas[CONFIG_PROFILE_GPU_KINDS_MAX];
    for (uint32_t kind = 0; kind < admission->profile->gpu_count; kind++)
        arenas[kind] =
            (struct partition_gpu_arenas){.count = (uint32_t)test_random_in(random, 6, 64),
                                          .slots = (uint32_t)test_random_log(random, 8, 4096),
                                          .segments = (uint32_t)test_random_log(random, 64, 65536),
                                          .bytes = (uint64_t)test_random_log(random, 1 << 16, 1 << 26),
                                          .hang_ns = CORE_NS_NEVER};
    TEST_REQUIRE(admission_set_arenas(admission, arenas) == CORE_OK);
}

/* A copy knows no arenas; this one does. */
static struct admission *copy_with_arenas(const struct admission *admission)
{
    struct admission *copy = NULL;
    TEST_REQUIRE(admission_copy(admission, &copy) == CORE_OK);
    if (admission->batches == NULL)
        return copy;
    copy->batches = calloc(admission->gpus, sizeof *copy->batches);
    TEST_REQUIRE(copy->batches != NULL);
    memcpy(copy->batches, admission->batches, admission->gpus * sizeof *copy->batches);
    return copy;
}

/* Plans of all GPUs. True: of this unit, too, if it is one. */
static bool plan_batches(struct admission *admission, uint32_t unit)
{
    struct admission_refusal words;
    bool made = true;
    for (uint32_t g = 0; admission->batches != NULL && g < admission->gpus; g++)
        if (!admission_plan_batches(admission, g, &words) && unit == admission->worker_count + g)
            made = false;
    return made;
}

/* ---- random states ---- */

struct seen {
    size_t states, taken, guaranteed, on_gpus, intervals, latencies, none, by_batches, alone, anew;
};

static void expect_same(const struct admission_placement *a, const struct admission_placement *b)
{
    assert_int_equal(a->accepted, b->accepted);
    assert_int_equal(a->unit, b->unit);
    assert_int_equal(a->bound_ns, b->bound_ns);
    assert_int_equal(a->period_ns, b->period_ns);
    assert_int_equal(a->backup_unit, b->backup_unit);
    assert_int_equal(a->constraint, b->constraint);
    assert_int_equal(a->offer.interval_ns, b->offer.interval_ns);
    assert_int_equal(a->offer.latency_ns, b->offer.latency_ns);
    assert_string_equal(a->reason, b->reason);
}

/* An admission, of which nothing is left behind but what a stream that left leaves. */
static bool opens(const struct admission *admission, const struct core_stream_spec *spec)
{
    struct admission *copy = copy_with_arenas(admission);
    bool accepted = test_admission_admit(copy, spec, 0).accepted;
    admission_destroy(copy);
    return accepted;
}

/* One value of the contract, asked for as `asked`: the offer is taken, a nanosecond less is refused, and none
 * is none. */
static bool expect_offer(const struct admission *admission, struct core_stream_spec *spec, core_ns *value_ns,
                         core_ns offer_ns, core_ns most_ns)
{
    const core_ns asked_ns = *value_ns;
    *value_ns = offer_ns > 0 ? offer_ns : most_ns;
    bool taken = test_admission_query(admission, spec, false).accepted;
    assert_int_equal(taken, offer_ns > 0);
    assert_int_equal(opens(admission, spec), taken);
    if (offer_ns > 0) {
        assert_true(offer_ns > asked_ns);
        *value_ns = offer_ns - 1;
        assert_false(test_admission_query(admission, spec, false).accepted);
        assert_false(opens(admission, spec));
    }
    *value_ns = asked_ns;
    return taken;
}

static void expect_offers(const struct admission *admission, const struct core_stream_spec *spec,
                          const struct partition_offer *offer, struct seen *seen)
{
    struct core_stream_spec asked = *spec;
    bool interval =
        expect_offer(admission, &asked, &asked.interval_ns, offer->interval_ns, CORE_INTERVAL_NS_MAX);
    bool latency = expect_offer(admission, &asked, &asked.latency_ns, offer->latency_ns, CORE_LATENCY_NS_MAX);
    seen->intervals += interval;
    seen->latencies += latency;
    seen->none += !interval && !latency;
}

/* Refused as things stand: a plan anew admits it or it does not; where nobody can move it does not. */
static void expect_plan(const struct admission *admission, const struct core_stream_spec *spec,
                        struct seen *seen)
{
    struct admission_proposal proposal;
    struct admission *copy = NULL;
    struct core_error error;
    TEST_REQUIRE(admission_copy(admission, &copy) == CORE_OK);
    const struct partition_plan_method *method = partition_plan_method_find("rectangle");
    assert_int_equal(admission_replan(copy, method, spec, 0, &proposal, &error), CORE_OK);
    if (proposal.accepted) {
        assert_true(proposal.moves > 0); /* without any it was refused */
        (void)test_admission_make_room(copy, &proposal, spec, 0);
        seen->anew++;
    }
    free(proposal.move);
    admission_destroy(copy);
}

static void random_machine(struct test_plan_set *set, struct test_random *random)
{
    do
        test_plan_set_random(set, random);
    while (set->profile.gpu_count == 0 || set->input.count == 0);
}

static void one_newcomer(struct admission *admission, const struct core_stream_spec *spec, struct seen *seen)
{
    struct admission_placement asked = test_admission_query(admission, spec, true);
    struct admission_placement again = test_admission_query(admission, spec, true);
    seen->states++;
    expect_same(&asked, &again);
    if (!asked.accepted) {
        if (seen->states % 4 == 0)
            expect_offers(admission, spec, &asked.offer, seen);
        if (seen->states % 4 == 0 && admission->batches == NULL)
            expect_plan(admission, spec, seen);
        seen->by_batches += strstr(asked.reason, "would need room for") != NULL;
    }
    struct admission_placement opened = test_admission_admit(admission, spec, 0);
    asked.stream = opened.stream;
    expect_same(&asked, &opened);
    assert_true(plan_batches(admission, opened.unit) && plan_batches(admission, opened.backup_unit));
    seen->taken += opened.accepted;
    seen->guaranteed += opened.accepted && spec->guaranteed;
    seen->on_gpus += opened.accepted && opened.unit >= admission->worker_count;
}

/* A latency bound that is the matter, rather than the load. */
static void cancel_owner(struct core_stream_spec *spec, struct test_random *random)
{
    spec->latency_ns /= test_random_log(random, 1, 256);
    if (spec->latency_ns < CORE_LATENCY_NS_MIN)
        spec->latency_ns = CORE_LATENCY_NS_MIN;
    spec->interval_ns *= 4;
}

/* A card that is out, a unit that keeps a reserve, now and then. */
static void disturb(struct admission *admission, struct test_random *random)
{
    if (test_random_chance(random, 3)) {
        uint32_t gpu = (uint32_t)test_random_in(random, 0, admission->gpus - 1);
        admission_set_out(admission, gpu, !admission_gpu_at(admission, gpu).out);
    }
    if (test_random_chance(random, 3)) {
        uint32_t unit = (uint32_t)test_random_in(random, 0, admission->worker_count + admission->gpus - 1);
        bool keeps = admission_withheld_ppb(admission, unit) > 0;
        admission_set_withheld(admission, unit, keeps ? 0 : test_random_in(random, 1, 500000000));
    }
    if (test_random_chance(random, 25))
        test_admission_release_one(admission, random);
}

static void random_states(void **state)
{
    (void)state;
    static struct test_plan_set set;
    struct test_random random = {.state = 41};
    struct seen seen = {0};
    for (int n = 0; n < MACHINES; n++) {
        random_machine(&set, &random);
        bool guaranteed = test_random_chance(&random, 50);
        struct admission *admission = test_admission_of(&set.profile, set.input.workers, 1);
        if (test_random_chance(&random, 50))
            random_arenas(admission, &random);
        for (size_t i = 0; i < set.input.count && i < STREAMS; i++) {
            set.specs[i].guaranteed = guaranteed && test_random_chance(&random, 50);
            if (test_random_chance(&random, 30))
                cancel_owner(&set.specs[i], &random);
            one_newcomer(admission, &set.specs[i], &seen);
            disturb(admission, &random);
            (void)plan_batches(admission, ADMISSION_NONE);
        }
        admission_destroy(admission);
    }
    print_message(
        "%zu states: %zu taken, %zu of them guaranteed, %zu on GPUs; offers: %zu intervals, %zu latency "
        "bounds, %zu times neither; %zu refused by batches alone; %zu admitted by moves\n",
        seen.states, seen.taken, seen.guaranteed, seen.on_gpus, seen.intervals, seen.latencies, seen.none,
        seen.by_batches, seen.anew);
    assert_true(seen.states > TEST_SHARE(5000) && seen.taken > TEST_SHARE(2000) &&
                seen.guaranteed > TEST_SHARE(300) && seen.on_gpus > TEST_SHARE(1000));
    assert_true(seen.intervals > TEST_SHARE(300) && seen.latencies > TEST_SHARE(100) &&
                seen.none > TEST_SHARE(10) && seen.by_batches > TEST_SHARE(50));
    assert_true(seen.anew > TEST_SHARE(3));
}

/* ---- contracts that were answered in two ways ---- */

/* Contracts that were found so: an OPEN was refused right behind the QUERY that was granted; and one that was
 * granted with a bound of an hour, and offered none. */
static const struct core_stream_spec found[] = {
    {9968, 1, 6071995, 5330126, CORE_CIPHER_AES_128_CBC, CORE_PADDING_NONE, .guaranteed = false},
    {4704, 6, 13462239, 8390633, CORE_CIPHER_AES_256_CBC, CORE_PADDING_NONE, .guaranteed = false},
    {3952, 1, 649244, 18574454, CORE_CIPHER_AES_256_CBC, CORE_PADDING_NONE, .guaranteed = false},
    {8656, 1, 1897009, 2508899, CORE_CIPHER_AES_256_CBC, CORE_PADDING_NONE, .guaranteed = true},
};

static struct admission *demo(struct config_profile **profile, int64_t slow)
{
    struct core_error error = {""};
    TEST_REQUIRE(config_profile_load(MILLRACE_SOURCE_DIR "/config/profiles/emulated-demo.yaml", profile,
                                     &error) == CORE_OK);
    (*profile)->cpu.per_piece_ns *= slow;
    return test_admission_of(*profile, 1, 1);
}

/* No stream is there that could move, so nothing makes room, whatever a plan says of this stream by itself:
 * its rules are a little sharper than an admission's. */
static void expect_no_room(const struct admission *admission, const struct core_stream_spec *spec,
                           struct seen *seen)
{
    const struct partition_plan_input input = {.specs = spec,
                                               .count = 1,
                                               .profile = admission->profile,
                                               .workers = admission->worker_count,
                                               .sums = true};
    struct partition_plan *plan = NULL;
    struct core_error error;
    expect_plan(admission, spec, seen);
    assert_int_equal(partition_plan_make(partition_plan_method_find("rectangle"), &input, &plan, &error),
                     CORE_OK);
    seen->alone += plan->accepted && !spec->guaranteed;
    partition_plan_destroy(plan);
}

static void ask_alone(const struct admission *admission, const struct core_stream_spec *spec,
                      struct seen *seen)
{
    struct admission_placement placement = test_admission_query(admission, spec, true);
    assert_int_equal(opens(admission, spec), placement.accepted);
    if (placement.accepted)
        return;
    expect_plan(admission, spec, seen);
    expect_offers(admission, spec, &placement.offer, seen);
    struct core_stream_spec brim = *spec; /* where the rules of a plan are the sharper ones */
    brim.interval_ns = placement.offer.interval_ns - 1;
    if (placement.offer.interval_ns > 0)
        expect_no_room(admission, &brim, seen);
    brim = *spec;
    brim.latency_ns = placement.offer.latency_ns - 1;
    if (placement.offer.latency_ns > 0)
        expect_no_room(admission, &brim, seen);
}

/* Returns how many of those that were refused a plan would have had room for. */
static size_t ask_empty_server(int64_t slow)
{
    struct config_profile *profile = NULL;
    struct admission *admission = demo(&profile, slow);
    struct test_random random = {.state = 42};
    struct seen seen = {0};
    for (size_t i = 0; i < sizeof found / sizeof found[0]; i++)
        ask_alone(admission, &found[i], &seen);
    for (int i = 0; i < ASKS; i++) {
        struct core_stream_spec spec = {.packet_bytes = 16 * (uint32_t)test_random_log(&random, 10, 1000),
                                        .burst_packets = 1,
                                        .interval_ns = test_random_log(&random, 200000, 20000000),
                                        .latency_ns = test_random_log(&random, 2000000, 20000000),
                                        .cipher = (enum core_cipher)test_random_in(&random, 1, 3),
                                        .padding = CORE_PADDING_NONE};
        spec.guaranteed = test_random_chance(&random, 30);
        ask_alone(admission, &spec, &seen);
    }
    assert_int_equal(seen.anew, 0);
    admission_destroy(admission);
    config_profile_free(profile);
    return seen.alone;
}

/* On a server whose worker takes some of them, and on one where all is the card's. */
static void proposal_without_moves_admits_no_stream(void **state)
{
    (void)state;
    size_t as_it_is = ask_empty_server(1), slow = ask_empty_server(1000);
    print_message("plans of nobody moved that hold: %zu, and %zu with a slow worker\n", as_it_is, slow);
    assert_true(slow > 10);
}

/* ---- requests that make no sense ---- */

static void expect_invalid(core_status status, const struct core_error *error, const char *words)
{
    assert_int_equal(status, CORE_INVALID);
    if (strstr(error->text, words) == NULL)
        fail_msg("'%s' does not say '%s'", error->text, words);
}

static void request_that_makes_no_sense_is_refused_by_name(void **state)
{
    const struct partition_plan_method *rectangle = partition_plan_method_find("rectangle");
    struct config_profile *profile = test_admission_profile();
    struct admission *admission = test_admission_of(profile, 2, 1), *none = NULL;
    struct core_stream_spec good = test_admission_spec(4 * CORE_NS_PER_MS, 60 * CORE_NS_PER_MS), bad = good;
    struct admission_placement placement;
    struct admission_proposal proposal;
    struct core_error error;
    uint32_t again;
    (void)state;

    expect_invalid(admission_create(&none, profile, 2, 1000000, &error), &error, "1000000 I/O threads");
    bad.packet_bytes = 0;
    expect_invalid(admission_replan(admission, rectangle, &bad, 0, &proposal, &error), &error, "packet");

    placement = test_admission_admit(admission, &good, 7);
    bad = good;
    bad.padding = good.padding == CORE_PADDING_NONE ? CORE_PADDING_PKCS7 : CORE_PADDING_NONE;
    bad.packet_bytes = good.packet_bytes / 16 * 16;
    expect_invalid(admission_change(admission, placement.stream, &bad, &placement, &error), &error,
                   "padding");
    const uint32_t stream = admission_stream_at(admission, 0).stream;
    assert_int_equal(admission_move(admission, stream, 2, CORE_LATENCY_NS_MAX + 1, &again, &error),
                     CORE_REFUSED);
    assert_int_equal(admission_streams(admission), 1);
    admission_destroy(admission);
    config_profile_free(profile);
}

/* Whatever moves: the connection's I/O thread has no room for it. */
static void no_plan_helps_an_io_thread_that_is_full(void **state)
{
    struct config_profile *profile = test_admission_profile();
    profile->io.per_packet_ns = CORE_NS_PER_MS;
    struct admission *admission = test_admission_of(profile, 2, 1);
    struct core_stream_spec spec = test_admission_spec(5 * CORE_NS_PER_MS, 600 * CORE_NS_PER_MS);
    struct admission_proposal proposal = {.accepted = true};
    (void)state;
    while (test_admission_query(admission, &spec, false).accepted)
        (void)test_admission_admit(admission, &spec, 0);
    assert_int_equal(test_admission_query(admission, &spec, false).constraint, PERFMODEL_LIMIT_IO);
    assert_int_equal(
        admission_replan(admission, partition_plan_method_find("rectangle"), &spec, 0, &proposal, NULL),
        CORE_OK);
    assert_false(proposal.accepted);
    assert_int_equal(admission_worker_for(admission, &spec, 0), ADMISSION_NONE);
    admission_destroy(admission);
    config_profile_free(profile);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_states),
        cmocka_unit_test(proposal_without_moves_admits_no_stream),
        cmocka_unit_test(request_that_makes_no_sense_is_refused_by_name),
        cmocka_unit_test(no_plan_helps_an_io_thread_that_is_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
