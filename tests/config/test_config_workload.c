/* Workloads: distributions and their truncation, defaults, mistakes by file and line, the shipped files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "config/workload.h"

#include <stdio.h>
#include <string.h>

static struct config_workload *parsed(const char *text)
{
    struct config_workload *workload = NULL;
    struct core_error error = {""};

    if (config_workload_parse(text, strlen(text), "w.yaml", &workload, &error) != CORE_OK)
        fail_msg("refused: %s", error.text);
    return workload;
}

#define CONSTANT "{distribution: constant, value: 3}"

static void defaults_are_as_documented(void **state)
{
    struct config_workload *workload = parsed("name: w\nclasses:\n  - name: c\n    rate_mbit_per_s: " CONSTANT
                                              "\n    deadline_ms: " CONSTANT "\n    packet_bytes: 100\n");
    const struct config_workload_class *class = &workload->classes[0];

    (void)state;
    assert_string_equal(workload->name, "w");
    assert_string_equal(workload->description, "");
    assert_int_equal(workload->streams, 1000);
    assert_true(workload->duration_s == 10);
    assert_true(workload->start_spread_s == 0);
    assert_int_equal(workload->class_count, 1);
    assert_string_equal(class->name, "c");
    assert_true(class->weight == 1);
    assert_int_equal(class->spec.packet_bytes, 100);
    assert_int_equal(class->spec.burst_packets, 2);
    assert_int_equal(class->spec.cipher, CORE_CIPHER_AES_128_CBC);
    assert_int_equal(class->spec.padding, CORE_PADDING_PKCS7);
    config_workload_free(workload);
    config_workload_free(NULL);
}

static void values_take_units(void **state)
{
    struct config_workload *workload =
        parsed("name: w\nduration_s: 1min\nstart_spread_s: 250ms\nclasses:\n"
               "  - {name: 5s, weight: 1, rate_mbit_per_s: {distribution: uniform, minimum: 500kbit/s,\n"
               "      maximum: 1Gbit/s}, deadline_ms: {distribution: constant, value: 500us}, packet_bytes: "
               "1KiB}\n");
    const struct config_workload_class *class = &workload->classes[0];

    (void)state;
    assert_true(workload->duration_s == 60);
    assert_true(workload->start_spread_s == 0.25);
    assert_string_equal(class->name, "5s");
    assert_true(class->rate_mbit_per_s.minimum == 0.5);
    assert_true(class->rate_mbit_per_s.maximum == 1000);
    assert_true(class->deadline_ms.mean == 0.5);
    assert_int_equal(class->spec.packet_bytes, 1024);
    config_workload_free(workload);
}

static void every_key_arrives(void **state)
{
    struct config_workload *workload = parsed(
        "name: w\ndescription: two classes\nstreams: 5\nduration_s: 2.5\nstart_spread_s: 0.5\nclasses:\n"
        "  - {name: a, weight: 0.25, rate_mbit_per_s: " CONSTANT ", deadline_ms: " CONSTANT
        ", packet_bytes: 160, burst_packets: 7, cipher: aes-256-cbc, padding: none}\n"
        "  - {name: b, weight: 0, rate_mbit_per_s: " CONSTANT ", deadline_ms: " CONSTANT
        ", packet_bytes: 1, cipher: aes-192-cbc, padding: pkcs7}\n");

    (void)state;
    assert_string_equal(workload->description, "two classes");
    assert_int_equal(workload->streams, 5);
    assert_true(workload->duration_s == 2.5);
    assert_true(workload->start_spread_s == 0.5);
    assert_int_equal(workload->class_count, 2);
    assert_true(workload->classes[0].weight == 0.25);
    assert_int_equal(workload->classes[0].spec.burst_packets, 7);
    assert_int_equal(workload->classes[0].spec.cipher, CORE_CIPHER_AES_256_CBC);
    assert_int_equal(workload->classes[0].spec.padding, CORE_PADDING_NONE);
    assert_true(workload->classes[1].weight == 0);
    assert_int_equal(workload->classes[1].spec.cipher, CORE_CIPHER_AES_192_CBC);
    config_workload_free(workload);
}

static void a_class_may_have_messages(void **state)
{
    struct config_workload *workload = parsed(
        "name: w\nclasses:\n"
        "  - {name: a, rate_mbit_per_s: " CONSTANT ", deadline_ms: " CONSTANT ", packet_bytes: 1408,\n"
        "     unit: message, message_packets: 9, iv: counter, first_unit: 9000000000000000000}\n"
        "  - {name: b, rate_mbit_per_s: " CONSTANT ", deadline_ms: " CONSTANT ", packet_bytes: 1316,\n"
        "     unit: message, iv: constant, padding: clear, records: ts, direction: decrypt}\n"
        "  - {name: c, rate_mbit_per_s: " CONSTANT ", deadline_ms: " CONSTANT ", packet_bytes: 100,\n"
        "     unit: message, iv: random, padding: clear, pattern: \"1:9\"}\n"
        "  - {name: d, rate_mbit_per_s: " CONSTANT ", deadline_ms: " CONSTANT ", packet_bytes: 100}\n");
    const struct config_workload_class *class = workload->classes;

    (void)state;
    assert_int_equal(class[0].spec.unit, CORE_UNIT_MESSAGE);
    assert_int_equal(class[0].message_packets, 9);
    assert_int_equal(class[0].spec.message_packets, 0);
    assert_int_equal(class[0].spec.iv, CORE_IV_COUNTER);
    assert_true(class[0].spec.first_unit == UINT64_C(9000000000000000000));
    assert_int_equal(class[0].spec.direction, CORE_DIRECTION_ENCRYPT);
    assert_int_equal(class[1].spec.iv, CORE_IV_CONSTANT);
    assert_int_equal(class[1].spec.padding, CORE_PADDING_CLEAR);
    assert_int_equal(class[1].spec.records, CORE_RECORDS_TS);
    assert_int_equal(class[1].spec.direction, CORE_DIRECTION_DECRYPT);
    assert_int_equal(class[1].message_packets, 1);
    assert_int_equal(class[1].spec.message_packets, 1);
    assert_int_equal(class[2].spec.iv, CORE_IV_RANDOM);
    assert_int_equal(class[2].spec.crypt_blocks, 1);
    assert_int_equal(class[2].spec.skip_blocks, 9);
    assert_int_equal(class[3].spec.unit, CORE_UNIT_STREAM);
    assert_int_equal(class[3].spec.iv, CORE_IV_CHAIN);
    assert_int_equal(class[3].spec.records, CORE_RECORDS_NONE);
    assert_int_equal(class[3].spec.crypt_blocks, 0);
    assert_int_equal(class[3].spec.message_packets, 0);
    config_workload_free(workload);
}

static void one_packet_is_declared_and_kept_to(void **state)
{
    struct core_stream_spec spec = {.packet_bytes = 1408,
                                    .burst_packets = 1,
                                    .interval_ns = CORE_NS_PER_MS,
                                    .latency_ns = CORE_NS_PER_S,
                                    .cipher = CORE_CIPHER_AES_128_CBC,
                                    .unit = CORE_UNIT_MESSAGE,
                                    .iv = CORE_IV_COUNTER};
    struct core_error error = {""};

    (void)state;
    config_workload_declare(&spec, 1);
    assert_int_equal(spec.message_packets, 1);
    assert_int_equal(config_workload_spec_check(&spec, 1, &error), CORE_OK);
    assert_int_equal(config_workload_spec_check(&spec, 2, &error), CORE_INVALID);
    assert_string_equal(error.text, "message_packets is 2, must be 1 where the stream declares so");
    config_workload_declare(&spec, 2);
    assert_int_equal(spec.message_packets, 0);
    assert_int_equal(config_workload_spec_check(&spec, 2, &error), CORE_OK);
    spec.unit = CORE_UNIT_STREAM;
    spec.iv = CORE_IV_CHAIN;
    config_workload_declare(&spec, 1);
    assert_int_equal(spec.message_packets, 0);
}

/* Values as the file says them, and what must come out. */
static const struct {
    const char *text;
    struct config_distribution expected;
} distributions[] = {
    {"{distribution: constant, value: 3.1}", {CONFIG_DISTRIBUTION_CONSTANT, 3.1, 0, 3.1, 3.1}},
    {"{distribution: uniform, minimum: 1, maximum: 1}", {CONFIG_DISTRIBUTION_UNIFORM, 1, 0, 1, 1}},
    {"{distribution: normal, mean: 2, sd: 1}", {CONFIG_DISTRIBUTION_NORMAL, 2, 1, 0.004, 200}},
    {"{distribution: normal, mean: 2, sd: 1, minimum: 1, maximum: 5}",
     {CONFIG_DISTRIBUTION_NORMAL, 2, 1, 1, 5}},
    {"{distribution: normal, mean: 2, sd: 1, minimum: 0.001, maximum: 500}", /* narrows, never widens */
     {CONFIG_DISTRIBUTION_NORMAL, 2, 1, 0.004, 200}},
    {"{distribution: normal, mean: 2, sd: 1, minimum: 5}", {CONFIG_DISTRIBUTION_NORMAL, 2, 1, 5, 200}},
    {"{distribution: exponential, mean: 10}", {CONFIG_DISTRIBUTION_EXPONENTIAL, 10, 10, 1, 300}},
    {"{distribution: exponential, sd: 10}", {CONFIG_DISTRIBUTION_EXPONENTIAL, 10, 10, 1, 300}},
    {"{distribution: exponential, mean: 10, sd: 10, minimum: 2, maximum: 20}",
     {CONFIG_DISTRIBUTION_EXPONENTIAL, 10, 10, 2, 20}},
};

static void distributions_are_truncated_by_the_papers_rule(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof distributions / sizeof distributions[0]; i++) {
        char text[512];
        snprintf(
            text, sizeof text,
            "name: w\nclasses:\n  - {name: c, packet_bytes: 100, rate_mbit_per_s: %s, deadline_ms: %s}\n",
            distributions[i].text, CONSTANT);
        struct config_workload *workload = parsed(text);
        const struct config_distribution *got = &workload->classes[0].rate_mbit_per_s;
        const struct config_distribution *expected = &distributions[i].expected;
        if (got->kind != expected->kind)
            fail_msg("case %zu: kind %d", i, got->kind);
        assert_float_equal(got->mean, expected->mean, 1e-6);
        assert_float_equal(got->sd, expected->sd, 1e-6);
        assert_float_equal(got->minimum, expected->minimum, 1e-6);
        assert_float_equal(got->maximum, expected->maximum, 1e-4);
        config_workload_free(workload);
    }
}

/* One line each, put where the name says. */
static const struct {
    const char *top, *rate, *class; /* NULL: the good one */
    const char *message;
} mistakes[] = {
    {"name: a b", NULL, NULL, "w.yaml:1: name: 'a b' has more than letters"},
    {"streams: 0", NULL, NULL, "w.yaml:1: streams: 0 is out of range"},
    {"streams: 1000001", NULL, NULL, "w.yaml:1: streams: 1000001 is out of range"},
    {"duration_s: 0", NULL, NULL, "w.yaml:1: duration_s: 0 is out of range"},
    {"duration_s: 86401", NULL, NULL, "w.yaml:1: duration_s: 86401 is out of range"},
    {"duration_s: nan", NULL, NULL, "w.yaml:1: duration_s: is not a number"},
    {"duration_s: .inf", NULL, NULL, "w.yaml:1: duration_s: is not a number"},
    {"duration_s: infinity", NULL, NULL, "w.yaml:1: duration_s: is not a number"},
    {"duration_s: 1e999", NULL, NULL, "w.yaml:1: duration_s: is too large a number"},
    {"duration_s: 0x10", NULL, NULL, "w.yaml:1: duration_s: is not a number"},
    {"duration_s: 10 parsec", NULL, NULL, "w.yaml:1: duration_s: is not a number"},
    {"start_spread_s: -1", NULL, NULL, "w.yaml:1: start_spread_s: -1 is out of range"},
    {"start_spread_s: 10", NULL, NULL, "w.yaml:1: start_spread_s: must be below duration_s"},
    {"rate: 3", NULL, NULL, "w.yaml:1: unknown key 'rate'"},
    {NULL, "3.1", NULL, "w.yaml:5: classes[0].rate_mbit_per_s: must be made of"},
    {NULL, "{mean: 3}", NULL, "w.yaml:5: classes[0].rate_mbit_per_s: the key 'distribution' is missing"},
    {NULL, "{distribution: pareto}", NULL, "w.yaml:5: classes[0].rate_mbit_per_s.distribution: is none of:"},
    {NULL, "{distribution: constant}", NULL, "w.yaml:5: classes[0].rate_mbit_per_s: needs 'value'"},
    {NULL, "{distribution: constant, value: 0}", NULL,
     "w.yaml:5: classes[0].rate_mbit_per_s.value: 0 is out"},
    {NULL, "{distribution: constant, value: -1}", NULL, "w.yaml:5: classes[0].rate_mbit_per_s.value: -1 is"},
    {NULL, "{distribution: constant, value: 1, sd: 1}", NULL,
     "w.yaml:5: classes[0].rate_mbit_per_s.sd: means"},
    {NULL, "{distribution: uniform, minimum: 1}", NULL,
     "w.yaml:5: classes[0].rate_mbit_per_s: needs 'maximum'"},
    {NULL, "{distribution: uniform, minimum: 2, maximum: 1}", NULL,
     "w.yaml:5: classes[0].rate_mbit_per_s: minimum is above maximum"},
    {NULL, "{distribution: uniform, minimum: 1, maximum: 2, mean: 1}", NULL,
     "w.yaml:5: classes[0].rate_mbit_per_s.mean: means nothing"},
    {NULL, "{distribution: normal, mean: 1}", NULL, "w.yaml:5: classes[0].rate_mbit_per_s: needs 'sd'"},
    {NULL, "{distribution: normal, sd: 1}", NULL, "w.yaml:5: classes[0].rate_mbit_per_s: needs 'mean'"},
    {NULL, "{distribution: normal, mean: 1, sd: 0}", NULL,
     "w.yaml:5: classes[0].rate_mbit_per_s.sd: 0 is out"},
    {NULL, "{distribution: normal, mean: 1, sd: nan}", NULL,
     "w.yaml:5: classes[0].rate_mbit_per_s.sd: is not a"},
    {NULL, "{distribution: normal, mean: 1, sd: 1, minimum: 3, maximum: 2}", NULL,
     "w.yaml:5: classes[0].rate_mbit_per_s: nothing lies between 3 and 2"},
    {NULL, "{distribution: normal, mean: 1, sd: 0.001, minimum: 2}", NULL,
     "w.yaml:5: classes[0].rate_mbit_per_s: hardly any draw lies between 2 and 100"},
    {NULL, "{distribution: normal, mean: 1, sd: 0.001, maximum: 0.5}", NULL,
     "w.yaml:5: classes[0].rate_mbit_per_s: hardly any draw lies between 0.002 and 0.5"},
    {NULL, "{distribution: exponential}", NULL, "w.yaml:5: classes[0].rate_mbit_per_s: needs 'mean'"},
    {NULL, "{distribution: exponential, mean: 1, sd: 2}", NULL,
     "w.yaml:5: classes[0].rate_mbit_per_s: mean and sd of an exponential distribution are equal"},
    {NULL, "{distribution: exponential, mean: 1, minimum: 20}", NULL,
     "w.yaml:5: classes[0].rate_mbit_per_s: hardly any draw"},
    {NULL, NULL, "weight: -1", "w.yaml:6: classes[0].weight: -1 is out of range"},
    {NULL, NULL, "weight: 0", "w.yaml:2: classes: all weights are zero"},
    {NULL, NULL, "packet_bytes: 0", "w.yaml:6: classes[0].packet_bytes: 0 is out of range"},
    {NULL, NULL, "packet_bytes: 1048577", "w.yaml:6: classes[0].packet_bytes: 1048577 is out of range"},
    {NULL, NULL, "packet_bytes: -1", "w.yaml:6: classes[0].packet_bytes: must not be negative"},
    {NULL, NULL, "burst_packets: 0", "w.yaml:6: classes[0].burst_packets: 0 is out of range"},
    {NULL, NULL, "burst_packets: 65537", "w.yaml:6: classes[0].burst_packets: 65537 is out of range"},
    {NULL, NULL, "cipher: aes-128-gcm", "w.yaml:6: classes[0].cipher: is none of: aes-128-cbc"},
    {NULL, NULL, "padding: zero", "w.yaml:6: classes[0].padding: is none of: none, pkcs7"},
    {NULL, NULL, "padding: none",
     "w.yaml:7: classes[0].packet_bytes: must be a multiple of 16 without padding"},
    {NULL, NULL, "padding: clear", "w.yaml:3: classes[0]: padding is clear, which a stream of unit message"},
    {NULL, NULL, "unit: packet", "w.yaml:6: classes[0].unit: is none of: stream, message"},
    {NULL, NULL, "iv: nonce", "w.yaml:6: classes[0].iv: is none of: chain, constant"},
    {NULL, NULL, "iv: random", "w.yaml:3: classes[0]: iv is random, which a stream of unit message can"},
    {NULL, NULL, "first_unit: 1", "w.yaml:3: classes[0]: first_unit is 1, must be 0 with iv chain"},
    {NULL, NULL, "first_unit: -1", "w.yaml:6: classes[0].first_unit: must not be negative"},
    {NULL, NULL, "message_packets: 2", "w.yaml:3: classes[0]: message_packets is 2, must be 1 with unit"},
    {NULL, NULL, "unit: message\n    message_packets: 0",
     "w.yaml:3: classes[0]: message_packets is 0, must be 1 to 1000000"},
    {NULL, NULL, "unit: message\n    message_packets: 1000001",
     "w.yaml:3: classes[0]: message_packets is 1000001, must be 1 to 1000000"},
    {NULL, NULL, "pattern: 1/9", "w.yaml:6: classes[0].pattern: must be blocks that are encrypted"},
    {NULL, NULL, "pattern: 1:9", "w.yaml:3: classes[0]: there is a pattern, which a stream of unit message"},
    {NULL, NULL, "direction: back", "w.yaml:6: classes[0].direction: is none of: encrypt, decrypt"},
    {NULL, NULL, "direction: decrypt", "w.yaml:3: classes[0]: padding is pkcs7, which is for encryption"},
    {NULL, NULL, "records: rtp", "w.yaml:6: classes[0].records: is none of: none, ts"},
    {NULL, NULL, "records: ts", "w.yaml:3: classes[0]: records are ts, which go with unit message"},
    {NULL, NULL, "deadline_ms: " CONSTANT, "w.yaml:6: classes[0].deadline_ms: is given twice"},
};

/* Line 1 is the top line, line 5 the rate, line 6 a further line of the class. */
static void mistake_text(size_t i, char *text, size_t size)
{
    const char *top = mistakes[i].top ? mistakes[i].top : "#";
    const char *class = mistakes[i].class ? mistakes[i].class : "#";

    snprintf(text, size,
             "%s\nclasses:\n  - name: c\n    deadline_ms: %s\n    rate_mbit_per_s: %s\n    %s\n%s%s", top,
             CONSTANT, mistakes[i].rate ? mistakes[i].rate : CONSTANT, class,
             strncmp(class, "packet", 6) == 0 ? "" : "    packet_bytes: 100\n",
             strncmp(top, "name", 4) == 0 ? "" : "name: w\n");
}

static void mistakes_are_named_with_file_and_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        struct config_workload *workload = NULL;
        struct core_error error = {""};
        char text[1024];
        mistake_text(i, text, sizeof text);
        const core_status status = config_workload_parse(text, strlen(text), "w.yaml", &workload, &error);
        if (status != CORE_INVALID ||
            strncmp(error.text, mistakes[i].message, strlen(mistakes[i].message)) != 0)
            fail_msg("case %zu: status %d, \"%s\", expected \"%s\"", i, status, error.text,
                     mistakes[i].message);
        assert_null(workload);
    }
}

static void classes_need_different_names(void **state)
{
    const char *class =
        "  - {name: a, packet_bytes: 9, rate_mbit_per_s: " CONSTANT ", deadline_ms: " CONSTANT "}\n";
    char text[512];
    struct config_workload *workload;
    struct core_error error;

    (void)state;
    snprintf(text, sizeof text, "name: w\nclasses:\n%s%s", class, class);
    assert_int_equal(config_workload_parse(text, strlen(text), "w.yaml", &workload, &error), CORE_INVALID);
    assert_string_equal(error.text,
                        "w.yaml:4: classes[1].name: is the same as that of classes[0]; rename one");
}

/* Names, and the mean load of the streams they declare. */
static const struct {
    const char *name;
    uint32_t streams;
    double mbit_per_s_low, mbit_per_s_high;
} shipped[] = {
    {"const", 200, 619, 621},         {"uni", 200, 619, 621},    {"norm", 200, 619, 621},
    {"norm2", 200, 339, 341},         {"exp", 200, 219, 221},    {"demo", 1000, 200, 300},
    {"gigabit", 2000, 999.9, 1000.1}, {"mixed", 1000, 150, 190}, {"formats", 200, 180, 220},
};

static void every_shipped_workload_loads(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shipped / sizeof shipped[0]; i++) {
        char path[512];
        struct config_workload *workload;
        struct core_error error = {""};
        double weights = 0, load = 0;
        snprintf(path, sizeof path, "%s/config/workloads/%s.yaml", MILLRACE_SOURCE_DIR, shipped[i].name);
        if (config_workload_load(path, &workload, &error) != CORE_OK)
            fail_msg("%s", error.text);
        assert_string_equal(workload->name, shipped[i].name);
        assert_int_equal(workload->streams, shipped[i].streams);
        for (size_t j = 0; j < workload->class_count; j++) {
            weights += workload->classes[j].weight;
            load += workload->classes[j].weight * workload->classes[j].rate_mbit_per_s.mean;
        }
        load *= workload->streams / weights;
        if (load < shipped[i].mbit_per_s_low || load > shipped[i].mbit_per_s_high)
            fail_msg("%s: %g Mbit/s", shipped[i].name, load);
        config_workload_free(workload);
    }
}

static void a_missing_file_is_named(void **state)
{
    struct config_workload *workload;
    struct core_error error;

    (void)state;
    assert_int_equal(config_workload_load("/nonexistent/w.yaml", &workload, &error), CORE_SYSTEM);
    assert_non_null(strstr(error.text, "/nonexistent/w.yaml: can not be opened"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_as_documented),
        cmocka_unit_test(every_key_arrives),
        cmocka_unit_test(a_class_may_have_messages),
        cmocka_unit_test(one_packet_is_declared_and_kept_to),
        cmocka_unit_test(values_take_units),
        cmocka_unit_test(distributions_are_truncated_by_the_papers_rule),
        cmocka_unit_test(mistakes_are_named_with_file_and_line),
        cmocka_unit_test(classes_need_different_names),
        cmocka_unit_test(every_shipped_workload_loads),
        cmocka_unit_test(a_missing_file_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
