/* A replay against a server that misbehaves on purpose: every fault must be seen, counted and told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/address.h"
#include "core/protocol.h"
#include "inputgen/replay.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define STREAMS    3
#define FAULTY     1u                  /* the stream, and */
#define FAULTY_SEQ 4u                  /* its packet, that the fault befalls */
#define BOUND_NS   (2 * CORE_NS_PER_S) /* so wide that only a deliberate delay is late */
#define TIGHT_NS   (20 * CORE_NS_PER_MS)

enum fault {
    FAULT_NONE,
    FAULT_WRONG_BYTE,
    FAULT_WRONG_LAST_BYTE,
    FAULT_SHORT,
    FAULT_LOST,
    FAULT_LOST_LAST,
    FAULT_SWAPPED,
    FAULT_REPEATED,
    FAULT_REFUSED,
    FAULT_ALL_REFUSED,
    FAULT_DELAYED,
    FAULT_MISSED,
    FAULT_READER,
    FAULT_POLICED,
    FAULT_REJECTED,
    FAULT_DISCONNECT,
    FAULT_CLOSED,
    FAULT_MISCOUNTED,
    FAULT_MUTE
};

/* ---- the server: one connection at a time, blocking ---- */

struct served {
    EVP_CIPHER_CTX *cipher;
    uint64_t packets;
};

struct fake {
    enum fault fault;
    char folder[64], path[96], address[128];
    int listener;
    pthread_t thread;
    struct served streams[STREAMS + 1];
    uint32_t opened;
    uint8_t held[4096]; /* a RESULT that waits to be overtaken */
    size_t held_bytes;
};

static bool read_whole(int socket, void *bytes, size_t count)
{
    for (size_t done = 0; done < count;) {
        ssize_t got = read(socket, (uint8_t *)bytes + done, count - done);
        if (got <= 0)
            return false;
        done += (size_t)got;
    }
    return true;
}

static bool write_whole(int socket, const void *bytes, size_t count)
{
    return send(socket, bytes, count, MSG_NOSIGNAL) == (ssize_t)count;
}

static bool answer_hello(int socket)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    struct protocol_welcome welcome = {.version = PROTOCOL_VERSION,
                                       .flags = PROTOCOL_ALLOWS_INLINE_KEY,
                                       .packet_bytes_max = 65536,
                                       .burst_packets_max = 64,
                                       .streams_max = STREAMS,
                                       .stream_buffer_bytes_max = 1 << 20,
                                       .bytes_per_key = UINT64_C(1) << 40,
                                       .interval_ns_min = CORE_INTERVAL_NS_MIN,
                                       .latency_ns_min = CORE_LATENCY_NS_MIN};
    return write_whole(socket, frame, protocol_welcome_write(frame, &welcome));
}

static bool answer_open(struct fake *fake, int socket, uint32_t request, const uint8_t *body, uint32_t bytes)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    struct protocol_open open;
    struct protocol_opened opened = {.unit = PROTOCOL_UNIT_CPU, .bound_ns = BOUND_NS, .decided_ns = 12345};
    struct protocol_refused refused = {
        .code = PROTOCOL_REFUSED_CAPACITY, .constraint = 2, .text = "the workers are full"};
    if (fake->fault == FAULT_MUTE)
        return true;
    if (protocol_open_read(PROTOCOL_VERSION, body, bytes, &open, NULL) != CORE_OK)
        return false;
    uint32_t asked = ++fake->opened;
    if (fake->fault == FAULT_ALL_REFUSED || (fake->fault == FAULT_REFUSED && asked == FAULTY))
        return write_whole(socket, frame, protocol_refused_write(PROTOCOL_VERSION, frame, request, &refused));
    memset(opened.iv, (int)asked, sizeof opened.iv);
    opened.stream = asked;
    fake->streams[asked].cipher = EVP_CIPHER_CTX_new();
    fake->streams[asked].packets = 0;
    EVP_CIPHER *method = EVP_CIPHER_fetch(NULL, core_cipher_name(open.spec.cipher), NULL);
    int done = EVP_EncryptInit_ex2(fake->streams[asked].cipher, method, open.key, opened.iv, NULL);
    EVP_CIPHER_free(method);
    EVP_CIPHER_CTX_set_padding(fake->streams[asked].cipher, 0);
    return done == 1 &&
           write_whole(socket, frame, protocol_opened_write(PROTOCOL_VERSION, frame, request, &opened));
}

/* What the fault does to a RESULT of `bytes` in all; how many of them remain (0: it is not sent now). */
static size_t spoil(struct fake *fake, int socket, uint8_t *frame, size_t bytes)
{
    struct protocol_result result = {.status = PROTOCOL_RESULT_OK, .flags = PROTOCOL_RESULT_MET};
    uint32_t cipher_bytes = (uint32_t)(bytes - PROTOCOL_HEADER_BYTES - PROTOCOL_RESULT_BYTES);
    switch (fake->fault) {
    case FAULT_WRONG_BYTE:
        frame[PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES + 40] ^= 1;
        return bytes;
    case FAULT_WRONG_LAST_BYTE:
        frame[bytes - 1] ^= 0x80;
        return bytes;
    case FAULT_SHORT:
        protocol_result_write(frame, FAULTY, FAULTY_SEQ, &result, cipher_bytes - CORE_BLOCK_BYTES);
        return bytes - CORE_BLOCK_BYTES;
    case FAULT_LOST:
    case FAULT_LOST_LAST:
        return 0;
    case FAULT_SWAPPED:
        memcpy(fake->held, frame, bytes);
        fake->held_bytes = bytes;
        return 0;
    case FAULT_REPEATED:
        return write_whole(socket, frame, bytes) ? bytes : 0;
    case FAULT_DELAYED:
        usleep(4 * TIGHT_NS / CORE_NS_PER_US);
        return bytes;
    case FAULT_MISSED:
        result.flags = 0;
        break;
    case FAULT_READER:
        result.flags = PROTOCOL_RESULT_READER;
        break;
    case FAULT_POLICED:
        result.flags |= PROTOCOL_RESULT_POLICED;
        break;
    case FAULT_REJECTED:
        result.status = PROTOCOL_RESULT_TOO_LONG;
        protocol_result_write(frame, FAULTY, FAULTY_SEQ, &result, 0);
        return PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES;
    default:
        return bytes;
    }
    protocol_result_write(frame, FAULTY, FAULTY_SEQ, &result, cipher_bytes);
    return bytes;
}

static bool send_closed(struct fake *fake, int socket, uint32_t stream, enum protocol_close_reason reason)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    struct protocol_closed closed = {.reason = reason, .packets = fake->streams[stream].packets};
    closed.packets += fake->fault == FAULT_MISCOUNTED && stream == FAULTY;
    closed.packets -= fake->fault == FAULT_REJECTED && stream == FAULTY;
    return write_whole(socket, frame, protocol_closed_write(frame, stream, &closed));
}

static bool answer_data(struct fake *fake, int socket, const struct protocol_header *header,
                        const uint8_t *body)
{
    uint8_t frame[4096], plain[2048];
    struct protocol_result result = {
        .status = PROTOCOL_RESULT_OK, .flags = PROTOCOL_RESULT_MET, .latency_ns = 1000};
    bool faulty = header->id == FAULTY && header->sequence == FAULTY_SEQ;
    uint32_t padded = core_stream_padded_bytes(CORE_PADDING_PKCS7, header->body_bytes);
    int written;
    memcpy(plain, body, header->body_bytes);
    memset(plain + header->body_bytes, (int)(padded - header->body_bytes), padded - header->body_bytes);
    if (!faulty || fake->fault != FAULT_REJECTED)
        EVP_EncryptUpdate(fake->streams[header->id].cipher,
                          frame + PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES, &written, plain,
                          (int)padded);
    fake->streams[header->id].packets++;
    protocol_result_write(frame, header->id, header->sequence, &result, padded);
    size_t bytes = PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES + padded;
    if (faulty && fake->fault == FAULT_DISCONNECT)
        return false;
    if (faulty && fake->fault == FAULT_CLOSED)
        return send_closed(fake, socket, FAULTY, PROTOCOL_CLOSE_DRAINED);
    if (fake->fault == FAULT_CLOSED && header->id == FAULTY && header->sequence > FAULTY_SEQ)
        return true;
    if (faulty || (fake->fault == FAULT_LOST_LAST && header->id == FAULTY && header->sequence > FAULTY_SEQ))
        bytes = spoil(fake, socket, frame, bytes);
    bool sent = bytes == 0 || write_whole(socket, frame, bytes);
    if (fake->held_bytes > 0 && header->id == FAULTY && header->sequence > FAULTY_SEQ) {
        sent = sent && write_whole(socket, fake->held, fake->held_bytes);
        fake->held_bytes = 0;
    }
    return sent;
}

static bool answer(struct fake *fake, int socket, const struct protocol_header *header, const uint8_t *body)
{
    switch (header->type) {
    case PROTOCOL_HELLO:
        return answer_hello(socket);
    case PROTOCOL_OPEN:
        return answer_open(fake, socket, header->id, body, header->body_bytes);
    case PROTOCOL_DATA:
        return answer_data(fake, socket, header, body);
    case PROTOCOL_CLOSE:
        return send_closed(fake, socket, header->id, PROTOCOL_CLOSE_ASKED);
    default:
        return false;
    }
}

/* Serves until the listener is shut down. */
static void *fake_run(void *argument)
{
    struct fake *fake = argument;
    int socket;
    while ((socket = accept(fake->listener, NULL, NULL)) >= 0) {
        uint8_t frame[PROTOCOL_HEADER_BYTES], body[2048];
        struct protocol_header header;
        fake->opened = 0;
        while (read_whole(socket, frame, sizeof frame) &&
               protocol_header_read(PROTOCOL_VERSION, frame, &header) == CORE_OK &&
               header.body_bytes <= sizeof body && read_whole(socket, body, header.body_bytes) &&
               answer(fake, socket, &header, body))
            ;
        close(socket);
        for (uint32_t at = 0; at <= STREAMS; at++) {
            EVP_CIPHER_CTX_free(fake->streams[at].cipher);
            fake->streams[at].cipher = NULL;
        }
    }
    return NULL;
}

static void fake_start(struct fake *fake, enum fault fault)
{
    struct core_address address;
    *fake = (struct fake){.fault = fault, .folder = "/tmp/millrace-replay-XXXXXX"};
    assert_non_null(mkdtemp(fake->folder));
    snprintf(fake->path, sizeof fake->path, "%s/socket", fake->folder);
    snprintf(fake->address, sizeof fake->address, "unix:%s", fake->path);
    assert_int_equal(core_address_parse(fake->address, &address, NULL), CORE_OK);
    assert_int_equal(core_address_listen(&address, 0600, &fake->listener, NULL, NULL), CORE_OK);
    assert_int_equal(fcntl(fake->listener, F_SETFL, 0), 0); /* accept shall block */
    assert_int_equal(pthread_create(&fake->thread, NULL, fake_run, fake), 0);
}

static void fake_stop(struct fake *fake)
{
    shutdown(fake->listener, SHUT_RDWR);
    pthread_join(fake->thread, NULL);
    close(fake->listener);
    unlink(fake->path);
    rmdir(fake->folder);
}

/* ---- the replay ---- */

/* Three streams of two classes, 10 packets each. */
static struct inputgen_stream list_streams[STREAMS];
static struct inputgen_class list_classes[] = {{"near"}, {"far"}};
static struct inputgen_streams list = {list_streams, STREAMS, list_classes, 2};

static void list_fill(core_ns interval_ns, core_ns latency_ns)
{
    for (uint32_t at = 0; at < STREAMS; at++)
        list_streams[at] = (struct inputgen_stream){
            .spec = {.packet_bytes = 100 + 200 * at,
                     .burst_packets = 2,
                     .interval_ns = interval_ns,
                     .latency_ns = latency_ns,
                     .cipher = (enum core_cipher)(1 + at % CORE_CIPHER_COUNT),
                     .padding = CORE_PADDING_PKCS7},
            .start_ns = at * CORE_NS_PER_MS,
            .stop_ns = 10 * interval_ns,
            .class_index = at > 0,
            .message_packets = 1,
        };
}

static const struct inputgen_judgement strict;

/* What ends in the middle is to leave packets unsent, however late this process is with the others. */
static core_ns interval_of(enum fault fault)
{
    switch (fault) {
    case FAULT_CLOSED:
    case FAULT_DISCONNECT:
    case FAULT_LOST:
    case FAULT_REPEATED:
    case FAULT_SWAPPED:
        return 40 * CORE_NS_PER_MS;
    default:
        return 5 * CORE_NS_PER_MS;
    }
}

static struct inputgen_report *replay(enum fault fault, core_ns latency_ns,
                                      struct inputgen_replay_options options)
{
    struct fake fake;
    struct inputgen_report *report = NULL;
    struct core_error error = {""};
    list_fill(interval_of(fault), latency_ns);
    fake_start(&fake, fault);
    options.address = fake.address;
    options.name = "test";
    options.connections = 1;
    options.drain_ns = 100 * CORE_NS_PER_MS;
    core_status status = inputgen_replay_run(&options, &list, &report, &error);
    fake_stop(&fake);
    if (status != CORE_OK)
        fail_msg("%s", error.text);
    return report;
}

static struct inputgen_report *replay_plain(enum fault fault)
{
    /* What is lost is waited for until its bound has passed: a tighter one keeps the test short. */
    bool lossy = fault == FAULT_LOST_LAST || fault == FAULT_CLOSED;
    return replay(fault, lossy ? CORE_NS_PER_S / 2 : BOUND_NS, (struct inputgen_replay_options){.seed = 7});
}

static int judge(const struct inputgen_report *report)
{
    char sentence[512];
    return inputgen_report_judge(report, &strict, sentence, sizeof sentence);
}

static void finds_nothing_wrong_with_a_good_server(void **state)
{
    (void)state;
    struct inputgen_report *report = replay_plain(FAULT_NONE);
    assert_int_equal(judge(report), 0);
    assert_int_equal(report->all.opened, STREAMS);
    assert_int_equal(report->all.planned, 10 * STREAMS);
    assert_int_equal(report->all.sent, 10 * STREAMS);
    assert_int_equal(report->all.received, 10 * STREAMS);
    assert_int_equal(report->all.met, 10 * STREAMS);
    assert_int_equal(report->all.payload_bytes, 10 * (100 + 300 + 500));
    assert_int_equal(report->all.cipher_bytes, 10 * (112 + 304 + 512));
    assert_int_equal(report->classes[0].figures.received, 10);
    assert_int_equal(report->classes[1].figures.received, 20);
    assert_int_equal(core_histogram_total(&report->all.latency), 10 * STREAMS);
    assert_int_equal(core_histogram_total(&report->send_lateness), 10 * STREAMS);
    assert_int_equal(core_histogram_maximum_ns(&report->all.service), 1000); /* as it says */
    assert_int_equal(report->decision_max_ns, 12345);
    assert_int_equal(report->server, getpid()); /* the fake lives in our process */
    assert_true(report->latency_bound_min_ns == BOUND_NS);
    inputgen_report_free(report);
}

static void checks_lengths_phases_and_bursts(void **state)
{
    (void)state;
    struct inputgen_report *report =
        replay(FAULT_NONE, BOUND_NS,
               (struct inputgen_replay_options){
                   .seed = 8, .uniform_sizes = true, .random_phases = true, .bursts = true});
    assert_int_equal(judge(report), 0);
    assert_true(report->all.planned > 0 && report->all.planned % 2 == 0);
    assert_true(report->all.payload_bytes < report->all.received * 500);
    inputgen_report_free(report);

    report = replay(FAULT_NONE, BOUND_NS, (struct inputgen_replay_options){.scale = 2});
    assert_int_equal(judge(report), 0);
    assert_int_equal(report->all.received, 20 * STREAMS);
    inputgen_report_free(report);

    report =
        replay(FAULT_NONE, BOUND_NS, (struct inputgen_replay_options){.duration_ns = 20 * CORE_NS_PER_MS});
    assert_int_equal(judge(report), 0);
    assert_int_equal(report->all.received, 4 * STREAMS);
    inputgen_report_free(report);
}

/* A fault and the one figure that must tell of it; all others stay as they were. */
struct fault_case {
    enum fault fault;
    size_t counter; /* offset in struct inputgen_figures */
    int exit_status;
};

static void counts_each_fault_where_it_belongs(void **state)
{
    static const struct fault_case cases[] = {
        {FAULT_WRONG_BYTE, offsetof(struct inputgen_figures, mismatched), 1},
        {FAULT_WRONG_LAST_BYTE, offsetof(struct inputgen_figures, mismatched), 1},
        {FAULT_SHORT, offsetof(struct inputgen_figures, mismatched), 1},
        {FAULT_MISSED, offsetof(struct inputgen_figures, missed), 1},
        {FAULT_REJECTED, offsetof(struct inputgen_figures, rejected), 1},
        {FAULT_REFUSED, offsetof(struct inputgen_figures, refused), 1},
        {FAULT_READER, offsetof(struct inputgen_figures, reader_late), 0},
        {FAULT_POLICED, offsetof(struct inputgen_figures, policed), 0},
    };
    static const size_t counters[] = {
        offsetof(struct inputgen_figures, refused),    offsetof(struct inputgen_figures, missed),
        offsetof(struct inputgen_figures, rejected),   offsetof(struct inputgen_figures, reader_late),
        offsetof(struct inputgen_figures, policed),    offsetof(struct inputgen_figures, lost),
        offsetof(struct inputgen_figures, mismatched), offsetof(struct inputgen_figures, disordered),
        offsetof(struct inputgen_figures, late),       offsetof(struct inputgen_figures, untrue),
    };
    (void)state;
    for (size_t at = 0; at < sizeof cases / sizeof *cases; at++) {
        struct inputgen_report *report = replay_plain(cases[at].fault);
        for (size_t n = 0; n < sizeof counters / sizeof *counters; n++) {
            const uint64_t *counter = (const uint64_t *)((const uint8_t *)&report->all + counters[n]);
            /* CBC: a last block that is wrong or missing also spoils the next packet's first. */
            bool spreads = cases[at].fault == FAULT_WRONG_LAST_BYTE || cases[at].fault == FAULT_SHORT;
            uint64_t wanted = counters[n] != cases[at].counter ? 0 : spreads ? 2 : 1;
            if (*counter != wanted)
                fail_msg("fault %d, counter %zu: %d instead of %d", (int)cases[at].fault, n, (int)*counter,
                         (int)wanted);
        }
        assert_int_equal(judge(report), cases[at].exit_status);
        assert_int_equal(report->accounts_differ, 0);
        inputgen_report_free(report);
    }
}

static void sees_results_that_come_late_though_the_server_calls_them_met(void **state)
{
    (void)state;
    char sentence[512];
    struct inputgen_report *report =
        replay(FAULT_DELAYED, TIGHT_NS, (struct inputgen_replay_options){.seed = 1});
    struct inputgen_judgement server_only = {.server_only = true};
    assert_true(report->all.late >= 1);
    assert_true(report->all.untrue >= 1 && report->all.untrue <= report->all.late);
    assert_int_equal(report->all.missed, 0);
    assert_int_equal(report->all.mismatched, 0);
    assert_true(core_histogram_maximum_ns(&report->all.latency) > TIGHT_NS);
    assert_true(core_histogram_minimum_ns(&report->all.slack) < 0);
    assert_int_equal(judge(report), 1);
    assert_int_equal(inputgen_report_judge(report, &server_only, sentence, sizeof sentence), 0);
    inputgen_report_free(report);
}

static void counts_what_never_comes_back_as_lost(void **state)
{
    (void)state;
    struct inputgen_report *report = replay_plain(FAULT_LOST_LAST);
    assert_int_equal(report->all.lost, 10 - FAULTY_SEQ);
    assert_int_equal(report->all.received, 10 * STREAMS - (10 - FAULTY_SEQ));
    assert_int_equal(report->accounts_differ, 1); /* the server counts packets that it did not send */
    assert_int_equal(judge(report), 1);
    inputgen_report_free(report);
}

/* A RESULT that may not come now ends the connection: what is due on it is lost. */
static void ends_a_connection_that_breaks_the_order(void **state)
{
    static const enum fault faults[] = {FAULT_LOST, FAULT_SWAPPED, FAULT_REPEATED, FAULT_DISCONNECT};
    (void)state;
    for (size_t at = 0; at < sizeof faults / sizeof *faults; at++) {
        struct inputgen_report *report = replay_plain(faults[at]);
        assert_int_equal(report->connections_failed, 1);
        assert_true(strlen(report->connection_error) > 0);
        assert_true(report->all.sent < report->all.planned);
        assert_true(report->all.received < report->all.planned);
        assert_int_equal(judge(report), 1);
        inputgen_report_free(report);
    }
}

static void notices_a_stream_that_the_server_closes(void **state)
{
    (void)state;
    struct inputgen_report *report = replay_plain(FAULT_CLOSED);
    assert_true(report->all.sent < report->all.planned);
    assert_true(report->all.lost >= 1);
    assert_int_equal(report->connections_failed, 0);
    assert_int_equal(report->classes[1].figures.received, 20);
    assert_int_equal(judge(report), 1);
    inputgen_report_free(report);
}

static void compares_the_servers_count_with_its_own(void **state)
{
    (void)state;
    struct inputgen_report *report = replay_plain(FAULT_MISCOUNTED);
    assert_int_equal(report->accounts_differ, 1);
    assert_int_equal(judge(report), 1);
    inputgen_report_free(report);
}

static void tells_why_streams_were_refused(void **state)
{
    (void)state;
    struct inputgen_judgement lenient = {.allow_refused = true};
    char sentence[512];
    struct inputgen_report *report = replay_plain(FAULT_REFUSED);
    assert_int_equal(report->all.opened, STREAMS - 1);
    assert_int_equal(report->refusal_kinds, 1);
    assert_int_equal(report->refusals[0].streams, 1);
    assert_int_equal(report->refusals[0].code, PROTOCOL_REFUSED_CAPACITY);
    assert_int_equal(report->refusals[0].constraint, 2);
    assert_string_equal(report->refusals[0].text, "the workers are full");
    assert_int_equal(judge(report), 1);
    assert_int_equal(inputgen_report_judge(report, &lenient, sentence, sizeof sentence), 0);
    inputgen_report_free(report);

    report = replay_plain(FAULT_ALL_REFUSED);
    assert_int_equal(report->all.opened, 0);
    assert_int_equal(report->refusals[0].streams, STREAMS);
    assert_int_equal(inputgen_report_judge(report, &lenient, sentence, sizeof sentence), 1);
    assert_string_equal(sentence, "no stream was opened");
    inputgen_report_free(report);
}

static void fails_when_the_streams_can_not_be_brought_to_run(void **state)
{
    (void)state;
    struct fake fake;
    struct core_error error = {""};
    struct inputgen_report *report = NULL;
    struct inputgen_replay_options options = {.name = "test", .timeout_ms = 200, .connections = 1};
    list_fill(interval_of(FAULT_NONE), BOUND_NS);
    fake_start(&fake, FAULT_MUTE);
    options.address = fake.address;
    assert_int_equal(inputgen_replay_run(&options, &list, &report, &error), CORE_TIMEOUT);
    assert_true(strlen(error.text) > 0);
    fake_stop(&fake);
    assert_int_not_equal(inputgen_replay_run(&options, &list, &report, &error), CORE_OK); /* nobody there */

    struct inputgen_streams none = {list_streams, 0, list_classes, 2};
    assert_int_equal(inputgen_replay_run(&options, &none, &report, &error), CORE_INVALID);
    assert_null(report);
}

static void stops_when_asked_to(void **state)
{
    static atomic_bool stop = true;
    (void)state;
    struct inputgen_report *report =
        replay(FAULT_NONE, BOUND_NS, (struct inputgen_replay_options){.stop = &stop});
    assert_true(report->interrupted);
    assert_true(report->all.sent < 10 * STREAMS);
    assert_int_equal(report->all.received, report->all.sent);
    assert_int_equal(report->all.planned, report->all.sent);
    inputgen_report_free(report);
}

/* ---- the command ---- */

static int command(const char *arguments)
{
    char line[512];
    snprintf(line, sizeof line, MILLRACE_BINARY_DIR "/inputgen/millrace-gen replay %s >/dev/null 2>&1",
             arguments);
    int status = system(line);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int command_against(enum fault fault, const char *options)
{
    char csv[128], arguments[384];
    struct fake fake;
    list_fill(interval_of(FAULT_NONE), BOUND_NS);
    fake_start(&fake, fault);
    snprintf(csv, sizeof csv, "%s/list.csv", fake.folder);
    FILE *file = fopen(csv, "w");
    assert_non_null(file);
    assert_int_equal(inputgen_streams_write(&list, file, NULL), CORE_OK);
    assert_int_equal(fclose(file), 0);
    snprintf(arguments, sizeof arguments, "%s --server %s --connections 1 --timeout 300ms %s", csv,
             fake.address, options);
    int status = command(arguments);
    unlink(csv);
    fake_stop(&fake);
    return status;
}

static void command_returns_the_documented_exit_status(void **state)
{
    (void)state;
    assert_int_equal(command_against(FAULT_NONE, ""), 0);
    assert_int_equal(command_against(FAULT_NONE, "--json --hgrm /dev/null --threads 2 --bursts"), 0);
    assert_int_equal(command_against(FAULT_WRONG_BYTE, ""), 1);
    assert_int_equal(command_against(FAULT_REFUSED, ""), 1);
    assert_int_equal(command_against(FAULT_REFUSED, "--allow-refused"), 0);
    assert_int_equal(command_against(FAULT_NONE, "--hgrm /nowhere/at/all"), 1);
    assert_int_equal(command_against(FAULT_NONE, "--scale nonsense"), 2);
    assert_int_equal(command_against(FAULT_NONE, "--key-name a"), 2);
    assert_int_equal(command_against(FAULT_NONE, "--sizes odd"), 2);
    assert_int_equal(command_against(FAULT_NONE, "--streams 2"), 2);
    assert_int_equal(command_against(FAULT_MUTE, ""), 3);
    assert_int_equal(command("/nowhere/list.csv --server unix:/nowhere/socket"), 2);
    assert_int_equal(command("demo --server unix:/nowhere/socket"), 3);
    setenv("MILLRACE_SERVER", "unix:/nowhere/socket", 1); /* as millrace has it */
    assert_int_equal(command("demo"), 3);
    assert_int_equal(command("demo --connect unix:/nowhere/socket"), 2);
    assert_int_equal(command("--server unix:/nowhere/socket"), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_nothing_wrong_with_a_good_server),
        cmocka_unit_test(checks_lengths_phases_and_bursts),
        cmocka_unit_test(counts_each_fault_where_it_belongs),
        cmocka_unit_test(sees_results_that_come_late_though_the_server_calls_them_met),
        cmocka_unit_test(counts_what_never_comes_back_as_lost),
        cmocka_unit_test(ends_a_connection_that_breaks_the_order),
        cmocka_unit_test(notices_a_stream_that_the_server_closes),
        cmocka_unit_test(compares_the_servers_count_with_its_own),
        cmocka_unit_test(tells_why_streams_were_refused),
        cmocka_unit_test(fails_when_the_streams_can_not_be_brought_to_run),
        cmocka_unit_test(stops_when_asked_to),
        cmocka_unit_test(command_returns_the_documented_exit_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
