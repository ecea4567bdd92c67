/* Churn against a server that does one thing wrong: what an interceptor makes of a good server's frames,
 * once. Each fault must be found and named; without one nothing may be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/churn_rig.h"
#include "tests/support/interceptor.h"

#include <stdlib.h>
#include <string.h>

#define SHORT_NS (700 * CORE_NS_PER_MS)

static const struct inputgen_churn_judgement patient = {.allow_missed = true};

/* What befalls the n-th frame of a type. */
struct fault {
    const char *words; /* of the verdict */
    enum protocol_type type;
    uint32_t n;
    interceptor_edit *befall; /* in place of passing it */
};

struct misdeed {
    const struct fault *fault; /* NULL: none */
    uint32_t seen;
    uint32_t ended; /* a stream that the client has been told is closed; 0: none */
};

static void pass_on(void *argument, int client, struct protocol_header *header, uint8_t *body)
{
    (void)argument;
    interceptor_pass(client, header, body);
}

static void edit(void *argument, int client, struct protocol_header *header, uint8_t *body)
{
    struct misdeed *misdeed = argument;
    const struct fault *fault = misdeed->fault;
    bool due = fault && header->type == fault->type && ++misdeed->seen == fault->n;
    if (misdeed->ended != 0 && header->id == misdeed->ended)
        return;
    (due ? fault->befall : pass_on)(misdeed, client, header, body);
}

/* ---- faults ---- */

static void change_a_byte(void *argument, int client, struct protocol_header *header, uint8_t *body)
{
    body[header->body_bytes - 1] ^= 1;
    pass_on(argument, client, header, body);
}

static void keep_back(void *argument, int client, struct protocol_header *header, uint8_t *body)
{
    (void)argument, (void)client, (void)header, (void)body;
}

static void repeat(void *argument, int client, struct protocol_header *header, uint8_t *body)
{
    pass_on(argument, client, header, body);
    pass_on(argument, client, header, body);
}

/* A RESULT that says that the packet was not encrypted. */
static void reject(void *argument, int client, struct protocol_header *header, uint8_t *body)
{
    struct protocol_result result = {.status = PROTOCOL_RESULT_TOO_LONG};
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    (void)argument, (void)body;
    protocol_result_write(frame, header->id, header->sequence, &result, 0);
    (void)fake_write(client, frame, PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES);
}

/* The stream ends, though nobody asked for it; the server's own frames about it are kept back from now on. */
static void end_the_stream(void *argument, int client, struct protocol_header *header, uint8_t *body)
{
    struct misdeed *misdeed = argument;
    struct protocol_closed closed = {.reason = PROTOCOL_CLOSE_FAILED};
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    (void)body;
    misdeed->ended = header->id;
    (void)fake_write(client, frame, protocol_closed_write(frame, header->id, &closed));
}

static void count_one_packet_more(void *argument, int client, struct protocol_header *header, uint8_t *body)
{
    struct protocol_closed closed;
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    (void)argument;
    if (protocol_closed_read(body, header->body_bytes, &closed, NULL) != CORE_OK)
        return;
    closed.packets++;
    closed.met++;
    (void)fake_write(client, frame, protocol_closed_write(frame, header->id, &closed));
}

static const struct fault faults[] = {
    {"wrong bytes", PROTOCOL_RESULT, 40, change_a_byte},
    {"wrong bytes", PROTOCOL_RESULT, 300, change_a_byte},
    {"lost", PROTOCOL_RESULT, 40, keep_back},
    {"connection failed", PROTOCOL_RESULT, 40, repeat},
    {"not encrypted", PROTOCOL_RESULT, 40, reject},
    {"ended by the server", PROTOCOL_RESULT, 40, end_the_stream},
    {"counts otherwise", PROTOCOL_CLOSED, 3, count_one_packet_more},
    {"without an answer", PROTOCOL_CLOSED, 3, keep_back},
    {"without an answer", PROTOCOL_MODIFIED, 1, keep_back}, /* of streams that stand, and of opened ones */
    {"without an answer", PROTOCOL_MODIFIED, 2, keep_back},
    {"without an answer", PROTOCOL_MODIFIED, 5, keep_back},
    {"without an answer", PROTOCOL_OPENED, CHURN_RIG_STANDING + 3, keep_back},
};

/* ---- the runs ---- */

static struct inputgen_churn_report *churn_through(struct churn_rig *rig, struct misdeed *misdeed)
{
    struct interceptor interceptor;
    interceptor_start(&interceptor, test_server_unix(&rig->server), edit, misdeed);
    rig->options.run.address = interceptor.front.address;
    struct inputgen_churn_report *report = churn_rig_run(rig);
    interceptor_join(&interceptor);
    return report;
}

static void check_good(struct churn_rig *rig)
{
    struct misdeed none = {.fault = NULL};
    struct inputgen_churn_report *report = churn_through(rig, &none);
    assert_int_equal(churn_rig_judge(report, &patient, "byte for byte right"), 0);
    inputgen_churn_report_free(report);
}

/* Where a slow machine did not come to the frame in time, in a longer run. */
static void check_fault(struct churn_rig *rig, const struct fault *fault)
{
    struct misdeed misdeed = {.fault = fault};
    rig->options.run.duration_ns = SHORT_NS;
    struct inputgen_churn_report *report = churn_through(rig, &misdeed);
    while (misdeed.seen < fault->n) {
        inputgen_churn_report_free(report);
        rig->options.run.duration_ns *= 2;
        assert_true(rig->options.run.duration_ns < 100 * SHORT_NS);
        misdeed = (struct misdeed){.fault = fault};
        report = churn_through(rig, &misdeed);
    }
    assert_int_equal(churn_rig_judge(report, &patient, fault->words), 1);
    inputgen_churn_report_free(report);
}

static void each_fault_of_a_server_is_found(void **state)
{
    struct churn_rig rig;
    (void)state;
    churn_rig_start(&rig, "");
    rig.options.run.connections = rig.options.run.threads = 1;
    rig.options.probe_max = 0;
    check_good(&rig);
    rig.options.run.drain_ns = CORE_NS_PER_S; /* what is kept back is waited for */
    rig.options.run.timeout_ms = 1000;
    for (size_t at = 0; at < sizeof faults / sizeof *faults; at++)
        check_fault(&rig, &faults[at]);
    churn_rig_stop(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_fault_of_a_server_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
