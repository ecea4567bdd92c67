/* The list of cards, and the limits of copies: their lines, the program that prints them, and the environment
 * in which that runs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpu/copy_limits.h"
#include "gpu/listing.h"
#include "gpu/process.h"

#define UUID  "GPU-3b2e1f00-0011-2233-4455-66778899aabb"
#define FACTS "150 bytes\t132 SMs\t3 copy engines\tdriver CUDA 13.0\t" UUID "\t0000:3b:00.0"

static char program[] = "/tmp/millrace-listing-XXXXXX";

static const struct {
    const char *line;
    int index; /* -1: no card */
    const char *name;
} lines[] = {
    {"0\tNVIDIA H200\t" FACTS "\n", 0, "NVIDIA H200"},
    {"1023\tA\t" FACTS, 1023, "A"},
    {"1024\tA\t" FACTS, -1, ""},
    {"", -1, ""},
    {"none\n", -1, ""},
    {"0\n1\t2\t3\t4\t5\t6\t7\t8\n", -1, ""}, /* not beyond the line */
    {"0\tA\t1 bytes\t1 SMs\t1 copy engines\tdriver x\t\t\n", 0, "A"},
    {"0\tA\t1 bytes\t1 SMs\t1 copy engines\tdriver x\t\n", -1, ""}, /* of another version */
    {"0\tA\t1 bytes\t1 SMs\t1 copy engines\tdriver x\t\t\t\n", -1, ""},
    {"-1\tA\t" FACTS, -1, ""},
    {"+1\tA\t" FACTS, -1, ""},
    {"\tA\t" FACTS, -1, ""},
    {"99999999999999999999\tA\t" FACTS, -1, ""},
    {"0\t\t" FACTS, -1, ""},
    {"0 A\t" FACTS, -1, ""},
    {"0\tA\t0 bytes\t1 SMs\t1 copy engines\tdriver x\t\t", -1, ""},
    {"0\tA\t1 byte\t1 SMs\t1 copy engines\tdriver x\t\t", -1, ""},
    {"0\tA\t1 bytes\t4294967296 SMs\t1 copy engines\tdriver x\t\t", -1, ""},
    {"0\tA\t1 bytes\t1 SMs\t0 copy engines\tdriver x\t\t", -1, ""},
    {"0\tA\t1 bytes\t1 SMs\t1 copy engines\tpilot x\t\t", -1, ""},
    {"0\tA\t1 bytes\t1 SMs\t1 copy engines\tdriver x\t" UUID UUID "\t", -1, ""}, /* too long */
};

static void limits_are_read(void **state)
{
    static const struct {
        const char *line;
        int pages; /* -1: no kind */
    } kinds[] = {
        {"driver\t55000000000\t54000000000\t48000000000\t47000000000\t120000\n", GPU_COPY_DRIVER},
        {"huge\t1\t1\t1\t1\t0", GPU_COPY_HUGE},
        {"pages\tup B/s\tdown B/s\tup beside down\tdown beside up\tpinning ns/MiB\n", -1},
        {"none\n", -1},
        {"", -1},
        {"small\t1\t1\t1\t1\n2\n", -1}, /* not beyond the line */
        {"small\t1\t1\t1\t1\n", -1},
        {"small\t1\t0\t1\t1\t1\n", -1},
        {"small\t1\t1\t1\t1\t-1\n", -1},
        {"smaller\t1\t1\t1\t1\t1\n", -1},
    };
    struct gpu_copy_limits limits;
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const bool is_kind = gpu_copy_limits_parse(kinds[i].line, &limits);
        if (is_kind != (kinds[i].pages >= 0) || (is_kind && (int)limits.pages != kinds[i].pages))
            fail_msg("line %zu", i);
    }
    assert_true(gpu_copy_limits_parse(kinds[0].line, &limits));
    assert_int_equal(limits.up_beside, 48000000000);
    assert_int_equal(limits.pin_ns, 120000);
}

static void lines_are_read(void **state)
{
    struct gpu_listed card;
    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        const bool is_card = gpu_listing_parse(lines[i].line, &card);
        if (is_card != (lines[i].index >= 0))
            fail_msg("line %zu", i);
        if (is_card) {
            assert_int_equal(card.index, lines[i].index);
            assert_string_equal(card.facts.name, lines[i].name);
        }
    }
    assert_true(gpu_listing_parse(lines[0].line, &card));
    assert_int_equal(card.facts.memory_bytes, 150);
    assert_int_equal(card.facts.sms, 132);
    assert_int_equal(card.facts.copy_engines, 3);
    assert_string_equal(card.facts.driver, "CUDA 13.0");
    assert_string_equal(card.facts.uuid, UUID);
    assert_string_equal(card.facts.pci, "0000:3b:00.0");
}

static void a_line_reads_as_it_was_written(void **state)
{
    struct gpu_listed card, again;
    char text[256] = "";
    (void)state;
    assert_true(gpu_listing_parse(lines[0].line, &card));
    FILE *to = fmemopen(text, sizeof text, "w");
    assert_non_null(to);
    gpu_listing_print(&card, to);
    assert_int_equal(fclose(to), 0);
    assert_string_equal(text, lines[0].line);
    assert_true(gpu_listing_parse(text, &again));
    assert_memory_equal(&card, &again, sizeof card);
}

/* A program of this text, which a shell runs. */
static void program_put(const char *text)
{
    FILE *file = fopen(program, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fchmod(fileno(file), 0755), 0);
    assert_int_equal(fclose(file), 0);
}

static int begin(void **state)
{
    const int descriptor = mkstemp(program);
    (void)state;
    return descriptor < 0 ? -1 : close(descriptor);
}

static int end(void **state)
{
    (void)state;
    return unlink(program);
}

static core_status run(const char *visible, struct gpu_listed *cards, uint32_t *count, struct core_error *why,
                       struct core_error *error)
{
    *why = *error = (struct core_error){""};
    return gpu_listing_run(program, "cuda", visible, cards, count, why, error);
}

static void the_program_is_run(void **state)
{
    static struct gpu_listed cards[GPU_LISTING_MAX];
    struct core_error why, error;
    uint32_t count;
    (void)state;
    program_put("#!/bin/sh\n[ \"$*\" = '--list --backend cuda' ] || exit 9\n"
                "for i in 0 1; do printf \"$i\\tA card\\t" FACTS "\\n\"; done; echo noise >&2\n");
    assert_int_equal(run(NULL, cards, &count, &why, &error), CORE_OK);
    assert_int_equal(count, 2);
    assert_int_equal(cards[1].index, 1);
    assert_string_equal(cards[1].facts.name, "A card");
    assert_string_equal(why.text, "");

    program_put("#!/bin/sh\nfor i in $(seq 100); do printf \"$i\\tA\\t" FACTS "\\n\"; done\n");
    assert_int_equal(run(NULL, cards, &count, &why, &error), CORE_OK);
    assert_int_equal(count, GPU_LISTING_MAX);

    program_put("#!/bin/sh\necho none; echo millrace-gpu: no driver >&2\n");
    assert_int_equal(run(NULL, cards, &count, &why, &error), CORE_OK);
    assert_int_equal(count, 0);
    assert_non_null(strstr(why.text, " --list: no driver"));

    program_put("#!/bin/sh\necho none\n");
    assert_int_equal(run(NULL, cards, &count, &why, &error), CORE_OK);
    assert_non_null(strstr(why.text, " --list: shows no card"));

    program_put("#!/bin/sh\nprintf \"0\\tA\\t" FACTS
                "\\n\"; echo millrace-gpu: card 1: broken >&2; exit 4\n");
    assert_int_equal(run(NULL, cards, &count, &why, &error), CORE_SYSTEM);
    assert_int_equal(count, 0);
    assert_non_null(strstr(error.text, " --list: card 1: broken"));

    program_put("#!/bin/sh\nexec yes\n");
    assert_int_equal(run(NULL, cards, &count, &why, &error), CORE_SYSTEM);
    assert_non_null(strstr(error.text, " --list failed"));
}

static void what_can_not_be_run_is_named(void **state)
{
    static struct gpu_listed cards[GPU_LISTING_MAX];
    struct core_error why = {""}, error = {""};
    uint32_t count;
    (void)state;
    assert_int_equal(gpu_listing_run("/nonexistent/millrace-gpu", "cuda", NULL, cards, &count, &why, &error),
                     CORE_NOT_FOUND);
    assert_non_null(strstr(error.text, "/nonexistent/millrace-gpu can not be run"));
}

/* The caller's environment, in which one card may be all that CUDA sees. */
static void the_program_sees_our_environment(void **state)
{
    static struct gpu_listed cards[GPU_LISTING_MAX];
    struct core_error why, error;
    uint32_t count;
    (void)state;
    program_put("#!/bin/sh\nset -- \"$LD_LIBRARY_PATH $CUDA_DEVICE_ORDER ${CUDA_VISIBLE_DEVICES-unset}"
                " $(env | grep -c ^CUDA_VISIBLE)\"\n"
                "printf \"0\\t$1\\t" FACTS "\\n\"\n");
    assert_int_equal(setenv("LD_LIBRARY_PATH", "/nonexistent", 1), 0);
    assert_int_equal(setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1), 0);
    assert_int_equal(unsetenv("CUDA_VISIBLE_DEVICES"), 0);
    assert_int_equal(run(NULL, cards, &count, &why, &error), CORE_OK);
    assert_string_equal(cards[0].facts.name, "/nonexistent PCI_BUS_ID unset 0");
    assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", "3", 1), 0);
    assert_int_equal(run(NULL, cards, &count, &why, &error), CORE_OK);
    assert_string_equal(cards[0].facts.name, "/nonexistent PCI_BUS_ID 3 1");
    assert_int_equal(run("MIG-1", cards, &count, &why, &error), CORE_OK);
    assert_string_equal(cards[0].facts.name, "/nonexistent PCI_BUS_ID MIG-1 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_are_read),
        cmocka_unit_test(lines_are_read),
        cmocka_unit_test(a_line_reads_as_it_was_written),
        cmocka_unit_test(the_program_is_run),
        cmocka_unit_test(what_can_not_be_run_is_named),
        cmocka_unit_test(the_program_sees_our_environment),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
