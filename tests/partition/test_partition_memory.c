/* No memory for a decision: an allocation of a plan, an admission, a change, a replan, a copy and a certificate
 * fails once, or all from there on. The answer is CORE_NO_MEMORY with a sentence, or what it is with memory;
 * what stood before stands as it was; no block is left behind; and asked again, all is as if nothing had
 * happened. The allocator takes the place of the real one by the linker (--wrap in CMakeLists.txt). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "partition/certificate.h"
#include "partition/check/check.h"
#include "tests/support/admission.h"
#include "tests/support/plan_sets.h"

#define MACHINES 2
#define STREAMS  60 /* that are asked for before */
#define POINTS   50 /* of more allocations in a question so many fail, others for each machine */
#define NEVER    INT64_MAX

/* ---- the allocator ---- */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *block, size_t bytes);
void *__real_reallocarray(void *block, size_t count, size_t bytes);
char *__real_strdup(const char *text);
void __real_free(void *block);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *block, size_t bytes);
void *__wrap_reallocarray(void *block, size_t count, size_t bytes);
char *__wrap_strdup(const char *text);
void __wrap_free(void *block);

static int64_t calls, first_failing = NEVER, failing; /* so many from this call on fail */
static int64_t blocks;                                /* that are allocated */

static bool fails(void)
{
    if (first_failing == NEVER)
        return false;
    const int64_t call = calls++;
    return call >= first_failing && call - first_failing < failing;
}

static void *counted(void *block)
{
    blocks += block != NULL;
    return block;
}

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : counted(__real_malloc(bytes));
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : counted(__real_calloc(count, bytes));
}

void *__wrap_realloc(void *block, size_t bytes)
{
    void *grown = fails() ? NULL : __real_realloc(block, bytes);
    blocks += block == NULL && grown != NULL;
    return grown;
}

void *__wrap_reallocarray(void *block, size_t count, size_t bytes)
{
    void *grown = fails() ? NULL : __real_reallocarray(block, count, bytes);
    blocks += block == NULL && grown != NULL;
    return grown;
}

char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : counted(__real_strdup(text));
}

void __wrap_free(void *block)
{
    blocks -= block != NULL;
    __real_free(block);
}

/* ---- what is asked ---- */

/* An admission state and a request; what came of it. */
struct question {
    struct admission *admission;
    const struct test_plan_set *set;
    struct core_stream_spec spec;
    struct core_error error;
    char answer[512]; /* equal answers are equal texts */
};

static void tell_placement(struct question *question, const struct admission_placement *placement)
{
    snprintf(question->answer, sizeof question->answer, "%d %u %lld %u %lld %lld %lld %s",
             placement->accepted, placement->unit, (long long)placement->bound_ns, placement->backup_unit,
             (long long)placement->backup_bound_ns, (long long)placement->offer.interval_ns,
             (long long)placement->offer.latency_ns, placement->accepted ? "" : placement->reason);
}

static core_status ask_query(struct question *question)
{
    struct admission_placement placement;
    const core_status status =
        admission_query(question->admission, &question->spec, 0, true, &placement, &question->error);
    if (status == CORE_OK)
        tell_placement(question, &placement);
    return status;
}

static core_status ask_admit(struct question *question)
{
    struct admission_placement placement;
    const core_status status =
        admission_admit(question->admission, &question->spec, 0, 99, &placement, &question->error);
    if (status == CORE_OK)
        tell_placement(question, &placement);
    return status;
}

/* The contract of a stream: the request's. */
static core_status change(struct question *question, size_t n)
{
    struct admission_placement placement;
    if (admission_streams(question->admission) == 0)
        return CORE_OK;
    const struct admission_stream stream =
        admission_stream_at(question->admission, n % admission_streams(question->admission));
    struct core_stream_spec spec = stream.contract;
    spec.interval_ns = question->spec.interval_ns;
    spec.latency_ns = question->spec.latency_ns;
    spec.burst_packets = question->spec.burst_packets;
    const core_status status =
        admission_change(question->admission, stream.stream, &spec, &placement, &question->error);
    if (status == CORE_OK)
        tell_placement(question, &placement);
    return status;
}

static core_status ask_change_first(struct question *question)
{
    return change(question, 0);
}

static core_status ask_change_last(struct question *question)
{
    return change(question, SIZE_MAX / 2);
}

/* Its first move is made. */
static core_status ask_replan(struct question *question)
{
    struct admission_proposal proposal = {0};
    uint32_t again;
    core_status status = admission_replan(question->admission, partition_plan_method_find("rectangle"),
                                          &question->spec, 0, &proposal, &question->error);
    if (status != CORE_OK)
        return status;
    snprintf(question->answer, sizeof question->answer, "%d %zu", proposal.accepted, proposal.moves);
    if (proposal.accepted && proposal.moves > 0)
        status = admission_move(question->admission, proposal.move[0].stream, proposal.move[0].to,
                                proposal.move[0].period_ns, &again, &question->error);
    free(proposal.move);
    return status;
}

static core_status ask_copy(struct question *question)
{
    struct admission *copy;
    const core_status status = admission_copy(question->admission, &copy);
    if (status != CORE_OK)
        return core_error_set(&question->error, status, "no memory"); /* it has no words of its own */
    snprintf(question->answer, sizeof question->answer, "%zu", admission_streams(copy));
    admission_destroy(copy);
    return CORE_OK;
}

static core_status ask_certificate(struct question *question, uint32_t lost)
{
    struct partition_certificate certificate;
    core_status status = partition_certify(question->admission, lost, &certificate, &question->error);
    if (status != CORE_OK)
        return status;
    snprintf(question->answer, sizeof question->answer, "%d %s", certificate.plan->accepted,
             certificate.plan->reason);
    if (certificate.plan->accepted)
        status = partition_check(&certificate.input, certificate.plan, &question->error);
    partition_certificate_free(&certificate);
    return status;
}

static core_status ask_certificate_now(struct question *question)
{
    return ask_certificate(question, ADMISSION_NONE);
}

static core_status ask_certificate_after_a_loss(struct question *question)
{
    return question->set->profile.gpu_count == 0 ? CORE_OK : ask_certificate(question, 0);
}

static core_status ask_new_machine(struct question *question)
{
    struct admission *fresh;
    const core_status status =
        admission_create(&fresh, &question->set->profile, question->set->input.workers, 2, &question->error);
    if (status != CORE_OK)
        return status;
    snprintf(question->answer, sizeof question->answer, "made");
    admission_destroy(fresh);
    return CORE_OK;
}

/* A plan of all streams by each method. */
static core_status ask_plan(struct question *question, const char *method, bool paper)
{
    struct partition_plan_input input = question->set->input;
    struct partition_plan *plan;
    input.paper = paper;
    core_status status =
        partition_plan_make(partition_plan_method_find(method), &input, &plan, &question->error);
    if (status != CORE_OK)
        return status;
    snprintf(question->answer, sizeof question->answer, "%d %s", plan->accepted, plan->reason);
    if (plan->accepted && plan->unit != NULL && !paper)
        status = partition_check(&input, plan, &question->error);
    partition_plan_destroy(plan);
    return status;
}

#define PLAN(name, method, paper)                                                                            \
    static core_status name(struct question *question)                                                       \
    {                                                                                                        \
        return ask_plan(question, method, paper);                                                            \
    }
PLAN(ask_rectangle, "rectangle", false)
PLAN(ask_rectangle_of_the_paper, "rectangle", true)
PLAN(ask_bands, "bands", false)
PLAN(ask_bound, "bound", false)
PLAN(ask_min_rate, "min-rate", false)
PLAN(ask_max_deadline, "max-deadline", false)

static const struct {
    const char *name;
    core_status (*ask)(struct question *question);
} questions[] = {
    {"query", ask_query},
    {"admit", ask_admit},
    {"change of the first", ask_change_first},
    {"change of the last", ask_change_last},
    {"replan", ask_replan},
    {"copy", ask_copy},
    {"certificate", ask_certificate_now},
    {"certificate after a loss", ask_certificate_after_a_loss},
    {"new machine", ask_new_machine},
    {"rectangle", ask_rectangle},
    {"rectangle of the paper", ask_rectangle_of_the_paper},
    {"bands", ask_bands},
    {"bound", ask_bound},
    {"min-rate", ask_min_rate},
    {"max-deadline", ask_max_deadline},
};

/* ---- and how it may be answered ---- */

static core_status ask(size_t which, struct question *question, int64_t first, int64_t many)
{
    memset(question->answer, 0, sizeof question->answer);
    question->error.text[0] = '\0';
    calls = 0;
    failing = many;
    first_failing = first;
    const core_status status = questions[which].ask(question);
    first_failing = NEVER;
    return status;
}

/* The same question with one allocation, or all from there on, failing. False: there are not so many. */
static bool fail_at(size_t which, const struct question *asked, int64_t first, int64_t many,
                    const char *expected, size_t *refused)
{
    const int64_t before = blocks;
    struct question question = *asked;
    assert_int_equal(admission_copy(asked->admission, &question.admission), CORE_OK);
    const size_t streams = admission_streams(question.admission);
    const core_status status = ask(which, &question, first, many);
    const bool reached = calls > first;
    if (status != CORE_OK) {
        if (status != CORE_NO_MEMORY || question.error.text[0] == '\0')
            fail_msg("%s: allocation %lld: status %d, '%s'", questions[which].name, (long long)first, status,
                     question.error.text);
        (*refused)++;
        assert_int_equal(admission_streams(question.admission), streams);
        test_admission_holds(question.admission);
        assert_int_equal(ask(which, &question, NEVER, 0), CORE_OK);
    }
    if (strcmp(question.answer, expected) != 0)
        fail_msg("%s: allocation %lld: '%s' and not '%s'", questions[which].name, (long long)first,
                 question.answer, expected);
    test_admission_holds(question.admission);
    admission_destroy(question.admission);
    if (blocks != before)
        fail_msg("%s: allocation %lld leaves %lld blocks", questions[which].name, (long long)first,
                 (long long)(blocks - before));
    return reached;
}

static void ask_all(const struct question *asked, int64_t machine, size_t *refused)
{
    for (size_t which = 0; which < sizeof questions / sizeof *questions; which++) {
        struct question question = *asked;
        assert_int_equal(admission_copy(asked->admission, &question.admission), CORE_OK);
        assert_int_equal(ask(which, &question, NEVER - 1, 0), CORE_OK); /* none fails, but all are counted */
        admission_destroy(question.admission);
        const int64_t step = 1 + calls / POINTS;
        for (int64_t first = machine % step;
             fail_at(which, asked, first, 1, question.answer, &refused[which]); first += step)
            (void)fail_at(which, asked, first, NEVER, question.answer, &refused[which]);
    }
}

static void no_memory_for_a_decision(void **state)
{
    size_t refused[sizeof questions / sizeof *questions] = {0};
    (void)state;
    for (uint64_t seed = 1, machines = 0; machines < MACHINES; seed++) {
        struct test_random random = {seed};
        struct test_plan_set set;
        struct question question = {.set = &set};
        struct admission_placement placement;
        test_plan_set_random(&set, &random);
        if (set.profile.gpu_count == 0 || set.input.count <= STREAMS || set.input.paper)
            continue;
        machines++;
        set.input.count = STREAMS;
        assert_int_equal(admission_create(&question.admission, &set.profile, set.input.workers, 2, NULL),
                         CORE_OK);
        for (size_t i = 0; i < STREAMS; i++) {
            set.specs[i].guaranteed = i % 3 == 0;
            assert_int_equal(admission_admit(question.admission, &set.specs[i], 0, i, &placement, NULL),
                             CORE_OK);
            set.specs[i].guaranteed = false;
        }
        question.spec = set.specs[STREAMS];
        question.spec.guaranteed = machines % 2 == 0;
        ask_all(&question, (int64_t)machines, refused);
        admission_destroy(question.admission);
    }
    for (size_t which = 0; which < sizeof questions / sizeof *questions; which++)
        print_message("%s: %zu times refused for want of memory\n", questions[which].name, refused[which]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_memory_for_a_decision)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
