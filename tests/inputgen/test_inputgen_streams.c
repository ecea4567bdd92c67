/* Stream lists: what is drawn from a workload, and the list as a file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "inputgen/kinds.h"
#include "inputgen/shipped.h"
#include "inputgen/streams.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEADER                                                                                               \
    "stream,class,packet_bytes,interval_ns,burst_packets,latency_ns,cipher,padding,start_ns,stop_ns\n"

static struct inputgen_streams *drawn(const char *name, uint32_t count, core_ns duration_ns, uint64_t seed)
{
    struct config_workload *workload = NULL;
    struct inputgen_streams *list = NULL;
    struct core_error error = {""};

    if (inputgen_workload_open(name, &workload, &error) != CORE_OK)
        fail_msg("%s", error.text);
    if (inputgen_streams_make(workload, count, duration_ns, seed, &list, &error) != CORE_OK)
        fail_msg("%s: %s", name, error.text);
    config_workload_free(workload);
    return list;
}

/* ---- moments against theory ---- */

/* A distribution cut to [low, high]. */
struct theory {
    enum { CONSTANT, UNIFORM, NORMAL, EXPONENTIAL } kind;
    double mean, sd, low, high;
};

static double density(const struct theory *theory, double x)
{
    const double z = (x - theory->mean) / theory->sd;

    switch (theory->kind) {
    case NORMAL:
        return exp(-z * z / 2);
    case EXPONENTIAL:
        return exp(-x / theory->mean);
    default:
        return 1;
    }
}

/* Mean and standard deviation of the cut distribution, by the midpoint rule. */
static void theory_moments(const struct theory *theory, double *mean, double *sd)
{
    const double high = fmin(theory->high, theory->mean + 40 * theory->sd);
    const int steps = 200000;
    double sums[3] = {0};

    if (theory->kind == CONSTANT) {
        *mean = theory->mean;
        *sd = 0;
        return;
    }
    for (int i = 0; i < steps; i++) {
        const double x = theory->low + (i + 0.5) * (high - theory->low) / steps;
        const double weight = density(theory, x);
        sums[0] += weight;
        sums[1] += weight * x;
        sums[2] += weight * x * x;
    }
    *mean = sums[1] / sums[0];
    *sd = sqrt(sums[2] / sums[0] - *mean * *mean);
}

/* Within five standard errors (and the rounding to nanoseconds), all of them inside the bounds. */
static void sample_check(const char *what, const double *values, size_t count, const struct theory *theory)
{
    double mean, sd, sum = 0, squares = 0;

    theory_moments(theory, &mean, &sd);
    for (size_t i = 0; i < count; i++) {
        if (values[i] < theory->low * (1 - 1e-6) || values[i] > theory->high * (1 + 1e-6))
            fail_msg("%s: %g is outside [%g, %g]", what, values[i], theory->low, theory->high);
        sum += values[i] - mean;
        squares += (values[i] - mean) * (values[i] - mean);
    }
    const double n = (double)count;
    const double error = fabs(sum / n), sd_error = fabs(sqrt(squares / n) - sd);
    if (error > 5 * sd / sqrt(n) + 1e-5)
        fail_msg("%s: the mean is off by %g from %g (sd %g)", what, error, mean, sd);
    if (sd_error > 10 * sd / sqrt(n) + 1e-5)
        fail_msg("%s: the standard deviation is off by %g from %g", what, sd_error, sd);
}

static const struct {
    const char *name;
    struct theory rate, deadline;
} papers[] = {
    {"const", {CONSTANT, 3.1, 0, 3.1, 3.1}, {CONSTANT, 20.5, 0, 20.5, 20.5}},
    {"uni", {UNIFORM, 3.1, 1.7, 0.2, 6}, {UNIFORM, 20.5, 11.3, 1, 40}},
    {"norm", {NORMAL, 3.1, 1.1, 0.0062, 310}, {NORMAL, 20.5, 7.5, 0.041, 2050}},
    {"norm2", {NORMAL, 1.7, 0.9, 0.0034, 170}, {NORMAL, 11, 6.2, 0.022, 1100}},
    {"exp", {EXPONENTIAL, 1.1, 1.1, 0.11, 6}, {EXPONENTIAL, 7.1, 7.1, 1, 213}},
};

static void moments_of_the_papers_workloads_are_those_of_theory(void **state)
{
    const uint32_t count = 100000;
    double *rates = calloc(count, sizeof *rates), *deadlines = calloc(count, sizeof *deadlines);

    (void)state;
    assert_true(rates && deadlines);
    for (size_t i = 0; i < sizeof papers / sizeof papers[0]; i++) {
        struct inputgen_streams *list = drawn(papers[i].name, count, 0, 2012);
        char what[32];
        for (size_t j = 0; j < count; j++) {
            rates[j] = core_stream_rate_bits_per_s(&list->streams[j].spec) / 1e6;
            deadlines[j] = (double)list->streams[j].spec.latency_ns / 1e6;
        }
        snprintf(what, sizeof what, "%s rate", papers[i].name);
        sample_check(what, rates, count, &papers[i].rate);
        snprintf(what, sizeof what, "%s deadline", papers[i].name);
        sample_check(what, deadlines, count, &papers[i].deadline);
        inputgen_streams_free(list);
    }
    free(rates);
    free(deadlines);
}

/* ---- making ---- */

static struct config_workload *workload_of(const char *text)
{
    struct config_workload *workload = NULL;
    struct core_error error = {""};

    if (config_workload_parse(text, strlen(text), "w.yaml", &workload, &error) != CORE_OK)
        fail_msg("%s", error.text);
    return workload;
}

static void the_interval_is_rounded(void **state)
{
    /* 1400 bytes at 3 Mbit/s: 3,733,333.3 ns; at 7: 1,600,000 ns exactly */
    static const struct {
        const char *rate;
        core_ns interval_ns;
    } cases[] = {{"3", 3733333}, {"7", 1600000}, {"6", 1866667}, {"3.1", 3612903}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[256];
        struct inputgen_streams *list;
        snprintf(text, sizeof text,
                 "name: w\nclasses: [{name: c, packet_bytes: 1400, rate_mbit_per_s: {distribution: constant, "
                 "value: %s}, deadline_ms: {distribution: constant, value: 20.5}}]\n",
                 cases[i].rate);
        struct config_workload *workload = workload_of(text);
        assert_int_equal(inputgen_streams_make(workload, 1, 0, 1, &list, NULL), CORE_OK);
        assert_int_equal(list->streams[0].spec.interval_ns, cases[i].interval_ns);
        assert_int_equal(list->streams[0].spec.latency_ns, 20500000);
        inputgen_streams_free(list);
        config_workload_free(workload);
    }
}

static void classes_get_their_shares_evenly(void **state)
{
    static const size_t expected[] = {50, 300, 300, 250, 100};
    struct inputgen_streams *list = drawn("demo", 0, 0, 7);
    size_t count[5] = {0};

    (void)state;
    assert_int_equal(list->count, 1000);
    assert_int_equal(list->class_count, 5);
    for (size_t i = 0; i < list->count; i++) {
        count[list->streams[i].class_index]++;
        for (size_t j = 0; j < 5; j++) /* any prefix has its share, too */
            assert_true(fabs((double)count[j] - (double)(i + 1) * (double)expected[j] / 1000) < 2);
    }
    for (size_t j = 0; j < 5; j++)
        assert_int_equal(count[j], expected[j]);
    inputgen_streams_free(list);
}

static void classes_without_weight_get_no_stream(void **state)
{
    const char *class = "packet_bytes: 9, rate_mbit_per_s: {distribution: constant, value: 1}, "
                        "deadline_ms: {distribution: constant, value: 1}";
    char text[512];
    struct inputgen_streams *list;

    (void)state;
    snprintf(text, sizeof text, "name: w\nclasses:\n - {name: a, weight: 0, %s}\n - {name: b, %s}\n", class,
             class);
    struct config_workload *workload = workload_of(text);
    assert_int_equal(inputgen_streams_make(workload, 100, 0, 1, &list, NULL), CORE_OK);
    for (size_t i = 0; i < list->count; i++)
        assert_int_equal(list->streams[i].class_index, 1);
    inputgen_streams_free(list);
    config_workload_free(workload);
}

static bool same_stream(const struct inputgen_stream *a, const struct inputgen_stream *b)
{
    return a->spec.packet_bytes == b->spec.packet_bytes && a->spec.burst_packets == b->spec.burst_packets &&
           a->spec.interval_ns == b->spec.interval_ns && a->spec.latency_ns == b->spec.latency_ns &&
           a->spec.cipher == b->spec.cipher && a->spec.padding == b->spec.padding &&
           a->spec.unit == b->spec.unit && a->message_packets == b->message_packets &&
           a->spec.iv == b->spec.iv && a->spec.first_unit == b->spec.first_unit &&
           a->spec.crypt_blocks == b->spec.crypt_blocks && a->spec.skip_blocks == b->spec.skip_blocks &&
           a->spec.direction == b->spec.direction && a->spec.records == b->spec.records &&
           a->spec.message_packets == b->spec.message_packets && a->start_ns == b->start_ns &&
           a->stop_ns == b->stop_ns && a->class_index == b->class_index;
}

static void a_shorter_list_is_the_beginning_of_a_longer_one(void **state)
{
    struct inputgen_streams *longer = drawn("demo", 500, 0, 9), *shorter = drawn("demo", 123, 0, 9);

    (void)state;
    assert_int_equal(shorter->count, 123);
    for (size_t i = 0; i < shorter->count; i++)
        assert_true(same_stream(&shorter->streams[i], &longer->streams[i]));
    inputgen_streams_free(longer);
    inputgen_streams_free(shorter);
}

static void starts_are_spread_and_stops_are_the_duration(void **state)
{
    struct inputgen_streams *list = drawn("demo", 1000, 3 * CORE_NS_PER_S, 5);
    core_ns sum_ns = 0, latest_ns = 0;

    (void)state;
    for (size_t i = 0; i < list->count; i++) {
        assert_int_equal(list->streams[i].stop_ns, 3 * CORE_NS_PER_S);
        assert_in_range(list->streams[i].start_ns, 0, CORE_NS_PER_S);
        sum_ns += list->streams[i].start_ns;
        if (list->streams[i].start_ns > latest_ns)
            latest_ns = list->streams[i].start_ns;
    }
    assert_in_range(sum_ns / 1000, 450 * CORE_NS_PER_MS, 550 * CORE_NS_PER_MS);
    assert_true(latest_ns > 980 * CORE_NS_PER_MS);
    inputgen_streams_free(list);
}

static void what_can_not_be_made_is_refused_with_a_reason(void **state)
{
    struct config_workload *workload =
        workload_of("name: w\nstart_spread_s: 1\nclasses: [{name: slow, packet_bytes: 1000000, "
                    "rate_mbit_per_s: {distribution: constant, value: 0.001}, "
                    "deadline_ms: {distribution: constant, value: 20}}]\n");
    struct inputgen_streams *list = NULL;
    struct core_error error;

    (void)state;
    assert_int_equal(inputgen_streams_make(workload, 1, 0, 1, &list, &error), CORE_INVALID);
    assert_non_null(strstr(error.text, "class slow"));
    assert_int_equal(inputgen_streams_make(workload, 1000001, 0, 1, &list, &error), CORE_INVALID);
    assert_int_equal(inputgen_streams_make(workload, 1, CORE_NS_PER_S, 1, &list, &error), CORE_INVALID);
    assert_non_null(strstr(error.text, "streams start within 1 s"));
    assert_int_equal(inputgen_streams_make(workload, 1, -1, 1, &list, &error), CORE_INVALID);
    assert_int_equal(inputgen_streams_make(workload, 1, INPUTGEN_TIME_NS_MAX + 1, 1, &list, &error),
                     CORE_INVALID);
    assert_null(list);
    config_workload_free(workload);
}

/* ---- written and read back ---- */

static char *written(const struct inputgen_streams *list, size_t *bytes)
{
    char *text = NULL;
    FILE *file = open_memstream(&text, bytes);

    assert_non_null(file);
    assert_int_equal(inputgen_streams_write(list, file, NULL), CORE_OK);
    assert_int_equal(fclose(file), 0);
    return text;
}

static void expect_same_when_read_back(struct inputgen_streams *list)
{
    struct inputgen_streams *back = NULL;
    struct core_error error = {""};
    size_t bytes;
    char *text = written(list, &bytes);

    if (inputgen_streams_parse(text, bytes, "l.csv", &back, &error) != CORE_OK)
        fail_msg("%s", error.text);
    assert_int_equal(back->count, list->count);
    for (size_t i = 0; i < list->count; i++) {
        struct inputgen_stream *stream = &back->streams[i]; /* its classes are in order of appearance */
        assert_string_equal(back->classes[stream->class_index].name,
                            list->classes[list->streams[i].class_index].name);
        stream->class_index = list->streams[i].class_index;
        assert_true(same_stream(stream, &list->streams[i]));
    }
    free(text);
    inputgen_streams_free(list);
    inputgen_streams_free(back);
}

/* ---- kinds ---- */

#define DEMO_CLASSES 5

static void kinds_get_their_shares_of_every_class(void **state)
{
    struct config_workload *workload;
    struct inputgen_streams *list;
    size_t hls = 0, cissa = 0, plain = 0, whole[DEMO_CLASSES] = {0}, of_class[DEMO_CLASSES] = {0};

    (void)state;
    assert_int_equal(inputgen_workload_open("demo", &workload, NULL), CORE_OK);
    assert_int_equal(inputgen_kinds_share(workload, "hls=20,dvb-cissa=12.5", NULL), CORE_OK);
    assert_int_equal(inputgen_streams_make(workload, 8000, 0, 1, &list, NULL), CORE_OK);
    assert_int_equal(list->class_count, 3 * DEMO_CLASSES);
    for (size_t i = 0; i < list->count; i++) {
        const struct inputgen_stream *stream = &list->streams[i];
        const char *name = list->classes[stream->class_index].name;
        if (stream->spec.unit == CORE_UNIT_STREAM) {
            plain++;
            whole[stream->class_index]++;
        } else if (stream->spec.records == CORE_RECORDS_TS) {
            cissa++;
            assert_non_null(strstr(name, ".dvb-cissa"));
            assert_int_equal(stream->spec.packet_bytes, 1316);
            assert_int_equal(stream->message_packets, 1);
            assert_int_equal(stream->spec.message_packets, 1);
        } else {
            hls++;
            assert_non_null(strstr(name, ".hls"));
            assert_int_equal(stream->spec.iv, CORE_IV_COUNTER);
            assert_int_equal(stream->spec.padding, CORE_PADDING_PKCS7);
            assert_int_equal(stream->message_packets, 100);
            assert_int_equal(stream->spec.message_packets, 0);
        }
        assert_true(stream->spec.unit == CORE_UNIT_STREAM || stream->spec.cipher == CORE_CIPHER_AES_128_CBC);
        for (size_t class = 0; class < DEMO_CLASSES; class ++)
            of_class[class] +=
                strncmp(name, list->classes[class].name, strlen(list->classes[class].name)) == 0;
    }
    assert_in_range(hls, 1590, 1610);
    assert_in_range(cissa, 990, 1010);
    assert_in_range(plain, 5390, 5410);
    for (size_t class = 0; class < DEMO_CLASSES; class ++)
        assert_true(fabs((double)whole[class] - 0.675 * (double)of_class[class]) < 6);
    inputgen_streams_free(list);
    config_workload_free(workload);
}

static void every_kind_can_be_all_streams(void **state)
{
    static const char *const names[] = {"hls", "dvb-cissa", "cbcs", "packets", "decrypt"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct config_workload *workload;
        struct inputgen_streams *list;
        char shares[32];
        snprintf(shares, sizeof shares, "%s=100", names[i]);
        assert_int_equal(inputgen_workload_open("demo", &workload, NULL), CORE_OK);
        assert_int_equal(inputgen_kinds_share(workload, shares, NULL), CORE_OK);
        assert_int_equal(inputgen_streams_make(workload, 100, 0, 1, &list, NULL), CORE_OK);
        for (size_t at = 0; at < list->count; at++) {
            assert_int_equal(list->streams[at].spec.unit, CORE_UNIT_MESSAGE);
            assert_non_null(strstr(list->classes[list->streams[at].class_index].name, names[i]));
        }
        expect_same_when_read_back(list);
        config_workload_free(workload);
    }
}

static void kinds_that_are_none_are_refused(void **state)
{
    static const struct {
        const char *shares, *message;
    } cases[] = {
        {"", "--kinds: '': give KIND=PERCENT"},
        {"hls", "--kinds: 'hls': give KIND=PERCENT"},
        {"hls=", "--kinds: 'hls=': give"},
        {"hls=0", "--kinds: 'hls=0': give"},
        {"hls=-1", "--kinds: 'hls=-1': give"},
        {"hls=nan", "--kinds: 'hls=nan': give"},
        {"hls=101", "--kinds: 'hls=101': give"},
        {"hls=1x", "--kinds: 'hls=1x': give"},
        {"hl=1", "--kinds: 'hl=1': give"},
        {"hlsx=1", "--kinds: 'hlsx=1': give"},
        {"hls=1,hls=2", "--kinds: 'hls=2': give"},
        {"hls=60,cbcs=41", "--kinds: more than 100 % of the streams"},
        {"hls=1,,cbcs=1", "--kinds: '': give KIND"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct config_workload *workload;
        struct core_error error = {""};
        assert_int_equal(inputgen_workload_open("demo", &workload, NULL), CORE_OK);
        if (inputgen_kinds_share(workload, cases[i].shares, &error) != CORE_INVALID ||
            strncmp(error.text, cases[i].message, strlen(cases[i].message)) != 0)
            fail_msg("%s: \"%s\"", cases[i].shares, error.text);
        config_workload_free(workload);
    }
    struct config_workload *workload =
        workload_of("name: w\nclasses: [{name: tiny, packet_bytes: 9, rate_mbit_per_s: {distribution: "
                    "constant, value: 1}, deadline_ms: {distribution: constant, value: 20}}]\n");
    struct core_error error = {""};
    assert_int_equal(inputgen_kinds_share(workload, "hls=50", &error), CORE_INVALID);
    assert_string_equal(error.text, "class tiny.hls: packet_bytes is 9, must be at least 16 where a message "
                                    "has more than one packet");
    config_workload_free(workload);
}

/* ---- files ---- */

static void the_same_seed_gives_the_same_file_and_another_seed_another(void **state)
{
    static const char *const names[] = {"const", "uni",   "norm",    "norm2",  "exp",
                                        "demo",  "mixed", "gigabit", "formats"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct inputgen_streams *lists[] = {drawn(names[i], 0, 0, 1), drawn(names[i], 0, 0, 1),
                                            drawn(names[i], 0, 0, 2)};
        size_t bytes[3];
        char *texts[3];
        for (size_t j = 0; j < 3; j++)
            texts[j] = written(lists[j], &bytes[j]);
        assert_int_equal(bytes[0], bytes[1]);
        assert_memory_equal(texts[0], texts[1], bytes[0]);
        if (strcmp(names[i], "const") != 0) /* there, nothing is drawn */
            assert_string_not_equal(texts[0], texts[2]);
        for (size_t j = 0; j < 3; j++) {
            free(texts[j]);
            inputgen_streams_free(lists[j]);
        }
    }
}

/* Pinned: a change here breaks every list that someone wrote down a seed for. */
static void a_seed_gives_this_list_on_every_machine(void **state)
{
    struct inputgen_streams *list = drawn("demo", 5, 0, 1);
    size_t bytes;
    char *text = written(list, &bytes);

    (void)state;
    assert_string_equal(text,
                        HEADER "0,voice,320,20000000,4,17029218,aes-128-cbc,none,520436620,10000000000\n"
                               "1,telemetry,200,53556946,4,51306288,aes-128-cbc,pkcs7,697178417,10000000000\n"
                               "2,video,1400,24724652,4,42068395,aes-256-cbc,pkcs7,932572442,10000000000\n"
                               "3,archive,16384,112433405,4,96638635,aes-192-cbc,none,669096782,10000000000\n"
                               "4,voice,320,20000000,4,15999334,aes-128-cbc,none,890542275,10000000000\n");
    free(text);
    inputgen_streams_free(list);
}

static void a_written_list_reads_back_the_same(void **state)
{
    (void)state;
    expect_same_when_read_back(drawn("demo", 300, 0, 3));
    expect_same_when_read_back(drawn("formats", 300, 0, 3));
    inputgen_streams_free(NULL);
}

#define MESSAGES                                                                                             \
    "unit,message_packets,iv,first_unit,pattern,direction,records,stream,class,packet_bytes,interval_ns,"    \
    "burst_packets,latency_ns,cipher,padding,start_ns,stop_ns\n"
#define REST(bytes, padding) ",0,c," bytes ",1000000,2,20000000,aes-128-cbc," padding ",0,1000\n"

/* By name, whatever their order; what is absent, or as without it, is not written. */
static void columns_are_found_by_name(void **state)
{
    static const struct {
        const char *text;
        struct inputgen_stream stream;
        const char *header;
    } cases[] = {
        {HEADER "0,c,1408,1000000,2,20000000,aes-128-cbc,pkcs7,0,1000\n",
         {.spec = {.padding = CORE_PADDING_PKCS7}, .message_packets = 1},
         HEADER},
        {MESSAGES "stream,1,chain,0,none,encrypt,none" REST("1408", "pkcs7"),
         {.spec = {.padding = CORE_PADDING_PKCS7}, .message_packets = 1},
         HEADER},
        {MESSAGES "message,100,counter,18446744073709551615,none,encrypt,none" REST("1408", "pkcs7"),
         {.spec = {.padding = CORE_PADDING_PKCS7,
                   .unit = CORE_UNIT_MESSAGE,
                   .iv = CORE_IV_COUNTER,
                   .first_unit = UINT64_MAX},
          .message_packets = 100},
         "stream,class,packet_bytes,interval_ns,burst_packets,latency_ns,cipher,padding,start_ns,stop_ns,"
         "unit,message_packets,iv,first_unit\n"},
        {MESSAGES "message,4,constant,0,1:9,decrypt,none" REST("1408", "clear"),
         {.spec = {.padding = CORE_PADDING_CLEAR,
                   .unit = CORE_UNIT_MESSAGE,
                   .iv = CORE_IV_CONSTANT,
                   .crypt_blocks = 1,
                   .skip_blocks = 9,
                   .direction = CORE_DIRECTION_DECRYPT},
          .message_packets = 4},
         "stream,class,packet_bytes,interval_ns,burst_packets,latency_ns,cipher,padding,start_ns,stop_ns,"
         "unit,message_packets,iv,pattern,direction\n"},
        {MESSAGES "message,1,random,0,none,encrypt,none" REST("1408", "pkcs7"),
         {.spec = {.padding = CORE_PADDING_PKCS7,
                   .unit = CORE_UNIT_MESSAGE,
                   .iv = CORE_IV_RANDOM,
                   .message_packets = 1},
          .message_packets = 1},
         "stream,class,packet_bytes,interval_ns,burst_packets,latency_ns,cipher,padding,start_ns,stop_ns,"
         "unit,iv\n"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct inputgen_stream expected = cases[i].stream;
        struct inputgen_streams *list = NULL;
        struct core_error error = {""};
        size_t bytes;
        if (inputgen_streams_parse(cases[i].text, strlen(cases[i].text), "l.csv", &list, &error) != CORE_OK)
            fail_msg("case %zu: %s", i, error.text);
        expected.spec.packet_bytes = 1408;
        expected.spec.burst_packets = 2;
        expected.spec.interval_ns = CORE_NS_PER_MS;
        expected.spec.latency_ns = 20 * CORE_NS_PER_MS;
        expected.spec.cipher = CORE_CIPHER_AES_128_CBC;
        expected.stop_ns = 1000;
        if (!same_stream(&list->streams[0], &expected))
            fail_msg("case %zu is read as something else", i);
        char *text = written(list, &bytes);
        assert_memory_equal(text, cases[i].header, strlen(cases[i].header));
        free(text);
        inputgen_streams_free(list);
    }
}

#define ROW0 "0,c,1400,1000000,2,20000000,aes-128-cbc,pkcs7,0,1000\n"

static const struct {
    const char *text, *message;
} mistakes[] = {
    {"", "l.csv:1: is no stream list: there is no column named stream"},
    {"stream,class\n", "l.csv:1: is no stream list"},
    {ROW0, "l.csv:1: is no stream list"},
    {HEADER, "l.csv:1: no streams follow"},
    {HEADER "\n", "l.csv:2: must have 10 fields"},
    {HEADER ROW0 "\n", "l.csv:3: must have 10 fields"},
    {HEADER "0,c,1400,1000000,2,20000000,aes-128-cbc,pkcs7,0\n", "l.csv:2: must have 10 fields"},
    {HEADER "0,c,1400,1000000,2,20000000,aes-128-cbc,pkcs7,0,1000,\n", "l.csv:2: must have 10 fields"},
    {HEADER "0,c,1400,1000000,2,20000000,aes-128-cbc,pkcs7,0,1000\r\n", "l.csv:2: has a character that is"},
    {HEADER ROW0 ROW0, "l.csv:3: stream: is 0, not 1; number the streams"},
    {HEADER "1,c,1400,1000000,2,20000000,aes-128-cbc,pkcs7,0,1000\n", "l.csv:2: stream: is 1, not 0"},
    {HEADER ",c,1400,1000000,2,20000000,aes-128-cbc,pkcs7,0,1000\n", "l.csv:2: stream: is not a plain"},
    {HEADER "00,c,1400,1000000,2,20000000,aes-128-cbc,pkcs7,0,1000\n", "l.csv:2: stream: is not a plain"},
    {HEADER "0,,1400,1000000,2,20000000,aes-128-cbc,pkcs7,0,1000\n", "l.csv:2: class: must be 1 to 63"},
    {HEADER "0,a b,1400,1000000,2,20000000,aes-128-cbc,pkcs7,0,1000\n", "l.csv:2: class: must be 1 to 63"},
    {HEADER "0,c,+1400,1000000,2,20000000,aes-128-cbc,pkcs7,0,1000\n",
     "l.csv:2: packet_bytes: is not a plain"},
    {HEADER "0,c, 1400,1000000,2,20000000,aes-128-cbc,pkcs7,0,1000\n",
     "l.csv:2: packet_bytes: is not a plain"},
    {HEADER "0,c,1.4e3,1000000,2,20000000,aes-128-cbc,pkcs7,0,1000\n",
     "l.csv:2: packet_bytes: is not a plain"},
    {HEADER "0,c,0,1000000,2,20000000,aes-128-cbc,pkcs7,0,1000\n",
     "l.csv:2: packet_bytes: 0 is out of range"},
    {HEADER "0,c,1048577,1000000,2,20000000,aes-128-cbc,pkcs7,0,1000\n", "l.csv:2: packet_bytes: 1048577 is"},
    {HEADER "0,c,9999999999999999999,1,2,20000000,aes-128-cbc,pkcs7,0,1\n",
     "l.csv:2: packet_bytes: 9999999999999999999 is out of range"},
    {HEADER "0,c,99999999999999999999,1,2,20000000,aes-128-cbc,pkcs7,0,1\n",
     "l.csv:2: packet_bytes: 99999999999999999999 is out of range"},
    {HEADER "0,c,1400,999,2,20000000,aes-128-cbc,pkcs7,0,1000\n",
     "l.csv:2: interval_ns: 999 is out of range"},
    {HEADER "0,c,1400,3600000000001,2,20000000,aes-128-cbc,pkcs7,0,1000\n", "l.csv:2: interval_ns: 36000000"},
    {HEADER "0,c,1400,1000000,0,20000000,aes-128-cbc,pkcs7,0,1000\n", "l.csv:2: burst_packets: 0 is out of"},
    {HEADER "0,c,1400,1000000,65537,20000000,aes-128-cbc,pkcs7,0,1000\n", "l.csv:2: burst_packets: 65537 is"},
    {HEADER "0,c,1400,1000000,2,9999,aes-128-cbc,pkcs7,0,1000\n",
     "l.csv:2: latency_ns: 9999 is out of range"},
    {HEADER "0,c,1400,1000000,2,20000000,aes,pkcs7,0,1000\n", "l.csv:2: cipher: must be aes-128-cbc"},
    {HEADER "0,c,1400,1000000,2,20000000,aes-128-cbc,zero,0,1000\n", "l.csv:2: padding: must be none, pkcs7"},
    {HEADER "0,c,1400,1000000,2,20000000,aes-128-cbc,none,0,1000\n", "l.csv:2: "},
    {HEADER "0,c,1400,1000000,2,20000000,aes-128-cbc,pkcs7,-1,1000\n", "l.csv:2: start_ns: is not a plain"},
    {HEADER "0,c,1400,1000000,2,20000000,aes-128-cbc,pkcs7,0,0\n", "l.csv:2: stop_ns: 0 is out of range"},
    {HEADER "0,c,1400,1000000,2,20000000,aes-128-cbc,pkcs7,5,5\n",
     "l.csv:2: stop_ns: must be above start_ns"},
    {HEADER "0,c,1400,1000000,2,20000000,aes-128-cbc,pkcs7,0,86400000000001\n", "l.csv:2: stop_ns: 8640000"},
    {"colour," HEADER "red," ROW0,
     "l.csv:1: is no stream list, or of a later version: there is no column 'colour'"},
    {"unit," HEADER ROW0, "l.csv:2: must have 11 fields"},
    {"class," HEADER "c," ROW0, "l.csv:1: class: is there twice"},
    {"unit,unit," HEADER, "l.csv:1: unit: is there twice"},
    {"a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a\n", "l.csv:1: is no stream list"},
    {"unit," HEADER "packet," ROW0, "l.csv:2: unit: must be stream or message"},
    {"iv," HEADER "nonce," ROW0, "l.csv:2: iv: must be chain, constant, counter, explicit or random"},
    {"iv," HEADER "counter," ROW0, "l.csv:2: iv is counter, which a stream of unit message can have alone"},
    {"direction," HEADER "both," ROW0, "l.csv:2: direction: must be encrypt or decrypt"},
    {"direction," HEADER "decrypt," ROW0, "l.csv:2: padding is pkcs7, which is for encryption only"},
    {"records," HEADER "rtp," ROW0, "l.csv:2: records: must be none or ts"},
    {"records," HEADER "ts," ROW0, "l.csv:2: records are ts, which go with unit message"},
    {"pattern," HEADER "1-9," ROW0, "l.csv:2: pattern: must be none, or blocks"},
    {"pattern," HEADER "1:16," ROW0, "l.csv:2: pattern: must be none, or blocks"},
    {"pattern," HEADER "1:9," ROW0, "l.csv:2: there is a pattern, which"},
    {"first_unit," HEADER "18446744073709551616," ROW0, "l.csv:2: first_unit: 18446744073709551616 is out"},
    {"first_unit," HEADER "7," ROW0, "l.csv:2: first_unit is 7, must be 0 with iv chain"},
    {"message_packets," HEADER "0," ROW0, "l.csv:2: message_packets: 0 is out of range"},
    {"message_packets," HEADER "2," ROW0, "l.csv:2: message_packets is 2, must be 1 with unit stream"},
    {"message_packets,iv,unit," HEADER
     "2,explicit,message,0,c,31,1000000,2,20000000,aes-128-cbc,pkcs7,0,1000\n",
     "l.csv:2: packet_bytes is 31, must be at least 32"},
};

static void mistakes_are_named_with_file_and_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        struct inputgen_streams *list = NULL;
        struct core_error error = {""};
        const core_status status =
            inputgen_streams_parse(mistakes[i].text, strlen(mistakes[i].text), "l.csv", &list, &error);
        if (status != CORE_INVALID ||
            strncmp(error.text, mistakes[i].message, strlen(mistakes[i].message)) != 0)
            fail_msg("case %zu: status %d, \"%s\", expected \"%s\"", i, status, error.text,
                     mistakes[i].message);
        assert_null(list);
    }
}

static void odd_bytes_and_long_lines_are_refused(void **state)
{
    static const char nul[] = HEADER "0,c\0,1400,1000000,2,20000000,aes-128-cbc,pkcs7,0,1000\n";
    char text[2048] = HEADER;
    struct inputgen_streams *list = NULL;
    struct core_error error;

    (void)state;
    assert_int_equal(inputgen_streams_parse(nul, sizeof nul - 1, "l.csv", &list, &error), CORE_INVALID);
    assert_non_null(strstr(error.text, "l.csv:2: has a character"));
    memset(text + strlen(HEADER), '0', 1200);
    assert_int_equal(inputgen_streams_parse(text, strlen(text), "l.csv", &list, &error), CORE_INVALID);
    assert_non_null(strstr(error.text, "l.csv:2: the line is too long"));
    assert_int_equal(inputgen_streams_read("/nonexistent/l.csv", &list, &error), CORE_SYSTEM);
    assert_int_equal(inputgen_streams_read("/", &list, &error), CORE_SYSTEM);
    assert_null(list);
}

static void a_full_disk_is_reported(void **state)
{
    struct inputgen_streams *list = drawn("demo", 1000, 0, 1);
    FILE *file = fopen("/dev/full", "w");
    struct core_error error = {""};

    (void)state;
    assert_non_null(file);
    assert_int_equal(inputgen_streams_write(list, file, &error), CORE_SYSTEM);
    assert_non_null(strstr(error.text, "No space left"));
    fclose(file);
    inputgen_streams_free(list);
}

/* ---- the command ---- */

/* Runs `millrace-gen <arguments>`, keeps what it writes to standard output; returns its exit status. */
static int run(const char *arguments, char *output, size_t size)
{
    char command[512];

    snprintf(command, sizeof command, "%s/inputgen/millrace-gen %s 2>/dev/null", MILLRACE_BINARY_DIR,
             arguments);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    const size_t got = fread(output, 1, size - 1, pipe);
    output[got] = '\0';
    while (getc(pipe) != EOF)
        ;
    const int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void the_command_makes_repeatable_lists(void **state)
{
    static char first[100000], second[100000];

    (void)state;
    assert_int_equal(run("make demo --seed 11 --streams 40 --duration 2.5", first, sizeof first), 0);
    assert_int_equal(run("make " MILLRACE_SOURCE_DIR "/config/workloads/demo.yaml -s 11 -n 40 -d 2.5 -q",
                         second, sizeof second),
                     0);
    assert_string_equal(first, second);
    assert_non_null(strstr(first, ",2500000000\n"));
    assert_non_null(strstr(first, "\n39,"));
    assert_null(strstr(first, "\n40,"));
    assert_int_equal(run("make demo --seed 12 --streams 40 --duration 2.5", second, sizeof second), 0);
    assert_string_not_equal(first, second);
}

static void the_command_writes_files(void **state)
{
    char path[] = "/tmp/millrace-test-XXXXXX", arguments[128], output[64];
    struct inputgen_streams *list = NULL;
    const int descriptor = mkstemp(path);

    (void)state;
    assert_true(descriptor >= 0);
    close(descriptor);
    snprintf(arguments, sizeof arguments, "make demo --seed 1 -o %s", path);
    assert_int_equal(run(arguments, output, sizeof output), 0);
    assert_string_equal(output, "");
    assert_int_equal(inputgen_streams_read(path, &list, NULL), CORE_OK);
    assert_int_equal(list->count, 1000);
    inputgen_streams_free(list);
    unlink(path);
}

static void the_command_refuses_misuse(void **state)
{
    static const struct {
        const char *arguments;
        int status;
    } cases[] = {
        {"", 2},
        {"stir", 2},
        {"make", 2},
        {"make demo", 2},
        {"make demo --seed", 2},
        {"make demo --seed x", 2},
        {"make demo --seed -1", 2},
        {"make demo --seed 18446744073709551616", 2},
        {"make demo exp --seed 1", 2},
        {"make demo --seed 1 --kinds hls=200", 1},
        {"make demo --seed 1 --kinds hls=20,cbcs=10 -o /dev/null", 0},
        {"make demo --seed 1 --streams 0", 2},
        {"make demo --seed 1 --streams 1000001", 2},
        {"make demo --seed 1 --duration 0", 2},
        {"make demo --seed 1 --duration nan", 2},
        {"make demo --seed 1 --duration 0.5", 1}, /* its streams start within a second */
        {"make nothing --seed 1", 1},
        {"make ./nothing.yaml --seed 1", 1},
        {"make demo --seed 1 -o /nonexistent/l.csv", 1},
        {"make demo --seed 1 -o /dev/full", 1},
        {"--help", 0},
        {"--version", 0},
        {"make --help", 0},
    };
    static char output[4096];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int status = run(cases[i].arguments, output, sizeof output);
        if (status != cases[i].status)
            fail_msg("millrace-gen %s: exit status %d, not %d", cases[i].arguments, status, cases[i].status);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moments_of_the_papers_workloads_are_those_of_theory),
        cmocka_unit_test(the_interval_is_rounded),
        cmocka_unit_test(classes_get_their_shares_evenly),
        cmocka_unit_test(classes_without_weight_get_no_stream),
        cmocka_unit_test(a_shorter_list_is_the_beginning_of_a_longer_one),
        cmocka_unit_test(starts_are_spread_and_stops_are_the_duration),
        cmocka_unit_test(what_can_not_be_made_is_refused_with_a_reason),
        cmocka_unit_test(kinds_get_their_shares_of_every_class),
        cmocka_unit_test(every_kind_can_be_all_streams),
        cmocka_unit_test(kinds_that_are_none_are_refused),
        cmocka_unit_test(the_same_seed_gives_the_same_file_and_another_seed_another),
        cmocka_unit_test(a_seed_gives_this_list_on_every_machine),
        cmocka_unit_test(a_written_list_reads_back_the_same),
        cmocka_unit_test(columns_are_found_by_name),
        cmocka_unit_test(mistakes_are_named_with_file_and_line),
        cmocka_unit_test(odd_bytes_and_long_lines_are_refused),
        cmocka_unit_test(a_full_disk_is_reported),
        cmocka_unit_test(the_command_makes_repeatable_lists),
        cmocka_unit_test(the_command_writes_files),
        cmocka_unit_test(the_command_refuses_misuse),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
