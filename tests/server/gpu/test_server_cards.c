/* Which cards the server takes: those that millrace-gpu lists, the profile describes and the configuration wants;
 * and a start where there is no memory for the path of millrace-gpu, which is an error and no crash. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/log.h"
#include "server/gpu/internal.h"
#include "server/server_internal.h"
#include "tests/support/client.h"
#include "tests/support/gpu_server.h"
#include "tests/support/http.h"

#define PROGRAM MILLRACE_BINARY_DIR "/gpu/millrace-gpu"

static int fails_at;       /* the copy of the program's path that fails */
static _Atomic int copies; /* so far; cards start on threads of their own */

char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);

char *__wrap_strdup(const char *text)
{
    if (strcmp(text, PROGRAM) != 0 || ++copies != fails_at)
        return __real_strdup(text);
    errno = ENOMEM;
    return NULL;
}

static void every_copy_of_the_path_may_fail(void **state)
{
    (void)state;
    static const char yaml[] = "listeners: [{address: 'unix:@millrace-test-cards'}]\nengine: ipsec-mb\n"
                               "threads: {io: 1, workers: 1, realtime: off, pin: false}\n"
                               "gpus: {use: emulated, program: " PROGRAM "}\n";
    struct config_profile *profile = test_gpu_profile(1);
    struct config_server *config = NULL;
    struct core_error error = {""};
    struct server *server = NULL;
    core_log_set_level(CORE_LOG_ERROR);
    assert_int_equal(config_server_parse(yaml, strlen(yaml), "test.yaml", &config, &error), CORE_OK);
    for (fails_at = 1; fails_at < 100; fails_at++) {
        copies = 0;
        const core_status status = server_start(&server, config, profile, &error);
        if (status == CORE_OK)
            break;
        assert_int_equal(status, CORE_NO_MEMORY);
        assert_non_null(strstr(error.text, "no memory"));
    }
    assert_in_range(fails_at, 4, 99); /* the check, the start, the card, its engine: all have failed */
    assert_int_equal(server_stop(server), 0);
    config_server_free(config);
    config_profile_free(profile);
}

/* ---- cards that are listed ---- */

/* A millrace-gpu that says it has these cards, or those beside which CUDA shows no other. It writes down the
 * ends of the UUIDs of those that it was asked to serve, if they are all that CUDA shows then, and serves none.
 */
#define LISTER                                                                                               \
    "#!/bin/sh\n"                                                                                            \
    "cd \"${0%/*}\"\n"                                                                                       \
    "if [ $1 = --list ]; then cat list$CUDA_VISIBLE_DEVICES; exit $(cat status); fi\n"                       \
    "[ \"$5 $CUDA_VISIBLE_DEVICES\" = \"0 $9\" ] && printf %s \"${9#\"${9%?}\"}\" >>tried; exit 1\n"

#define FACTS              "\t1 bytes\t8 SMs\t2 copy engines\tdriver 1\t"
#define UUID(end)          "GPU-00000000-0000-0000-0000-00000000000" #end
#define INSTANCE           "MIG-00000000-0000-0000-0000-00000000000a"
#define OTHER(index, name) #index "\t" name FACTS UUID(index) "\t0000:0" #index ":00.0\n"
#define CARD(index)        OTHER(index, "emulated-small")
#define MOVED(index, end)  #index "\temulated-small" FACTS UUID(end) "\t\n"

static char folder[32];

static void put(const char *name, const char *text, mode_t mode)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fchmod(fileno(file), mode), 0);
    assert_int_equal(fclose(file), 0);
}

static int make_lister(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/millrace-cards-XXXXXX");
    if (mkdtemp(folder) == NULL || chmod(folder, 0777) != 0)
        return -1;
    put("lister", LISTER, 0755);
    return 0;
}

static int remove_lister(void **state)
{
    static const char *const names[] = {"lister", "tried",  "list", ("list" INSTANCE),
                                        "list5",  "status", "here", "health"};
    char path[128];
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        (void)unlink(path);
    }
    return rmdir(folder);
}

static const struct choice {
    const char *gpus, *list, *status;
    uint32_t described; /* cards of the profile */
    const char *tried;  /* which it is asked to serve; NULL: none, for one is missing */
} choices[] = {
    {"use: auto", CARD(0) CARD(1), "0", 2, "01"},
    {"use: auto", CARD(0) CARD(1) CARD(2), "0", 2, "01"}, /* more than are described */
    {"use: auto", CARD(3), "0", 2, "3"},                  /* fewer */
    {"use: auto", OTHER(0, "another model") CARD(1), "0", 2, "1"},
    {"use: auto", "no card here\n1 no tab\n2\t\n99999999999\temulated-small\n", "0", 2, ""},
    {"use: auto", CARD(0), "1", 2, ""}, /* it fails */
    {"use: none", CARD(0), "0", 2, ""},
    {"cards: [1]", CARD(0) CARD(1), "0", 2, "1"},
    {"cards: [1, 0]", CARD(0) CARD(1), "0", 2, "01"}, /* it is an error that they do not serve */
    {"cards: [1, 2]", CARD(0) CARD(1), "0", 2, NULL},
    {"cards: [0, 1]", CARD(0) CARD(1), "0", 1, NULL}, /* the profile describes one */
    {"cards: [1]", CARD(0) MOVED(1, 7), "0", 2, "7"},
    {"cards: [" UUID(7) "]", CARD(0) MOVED(1, 7), "0", 2, "7"},
    {"cards: [" UUID(1) "]", CARD(0) MOVED(1, 7), "0", 2, NULL},
    {"cards: [" INSTANCE "]", CARD(0), "0", 2, "a"},     /* which CUDA does not show beside others */
    {"cards: [0, " INSTANCE "]", CARD(1), "0", 2, NULL}, /* where it is alone it has no number */
    {"cards: [" INSTANCE ", 0]", CARD(1), "0", 2, NULL},
};

static int by_character(const void *a, const void *b)
{
    return *(const char *)a - *(const char *)b;
}

/* In order: cards start side by side. */
static void read_tried(char text[32])
{
    char path[64];
    snprintf(path, sizeof path, "%s/tried", folder);
    FILE *file = fopen(path, "re");
    const size_t bytes = file != NULL ? fread(text, 1, 31, file) : 0;
    text[bytes] = '\0';
    qsort(text, bytes, 1, by_character);
    if (file != NULL)
        assert_int_equal(fclose(file), 0);
}

static void choose(const struct choice *choice)
{
    char yaml[512], tried[32];
    struct config_profile *profile = test_gpu_profile(1);
    struct config_server *config = NULL;
    struct core_error error = {""};
    struct server *server = NULL;
    profile->gpus[0].count = choice->described;
    put("list", choice->list, 0644);
    put(("list" INSTANCE), "0\temulated-small" FACTS INSTANCE "\t0000:01:00.0\n", 0644);
    put("status", choice->status, 0644);
    put("tried", "", 0666);
    snprintf(yaml, sizeof yaml,
             "listeners: [{address: 'unix:@millrace-test-cards'}]\nengine: ipsec-mb\n"
             "threads: {io: 1, workers: 1, realtime: off, pin: false}\ngpus: {%s, program: %s/lister}\n",
             choice->gpus, folder);
    assert_int_equal(config_server_parse(yaml, strlen(yaml), "test.yaml", &config, &error), CORE_OK);
    const core_status status = server_start(&server, config, profile, &error);
    read_tried(tried);
    if (strcmp(tried, choice->tried != NULL ? choice->tried : "") != 0)
        fail_msg("%s: tried '%s', not '%s': %s", choice->gpus, tried, choice->tried, error.text);
    if (choice->tried == NULL &&
        (status != CORE_NOT_FOUND || strstr(error.text, "is not in this machine") == NULL))
        fail_msg("%s: status %d: %s", choice->gpus, status, error.text);
    assert_int_equal(status == CORE_OK, strncmp(choice->gpus, "use: ", 5) == 0);
    if (status == CORE_OK) /* with the CPU alone */
        assert_int_equal(server_stop(server), 0);
    config_server_free(config);
    config_profile_free(profile);
}

static void cards_are_those_that_all_know(void **state)
{
    (void)state;
    fails_at = 0;
    assert_int_equal(unsetenv("CUDA_VISIBLE_DEVICES"), 0);
    for (size_t which = 0; which < sizeof choices / sizeof *choices; which++)
        choose(&choices[which]);
}

/* What CUDA shows to the server it shows to who lists for it, and numbers are of these. */
static void cards_are_those_that_cuda_shows_us(void **state)
{
    static const struct choice shown = {"cards: [0]", CARD(1), "0", 2, "5"};
    (void)state;
    put("list5", MOVED(0, 5), 0644);
    assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", "5", 1), 0);
    choose(&shown);
    assert_int_equal(unsetenv("CUDA_VISIBLE_DEVICES"), 0);
}

/* ---- a start of many ---- */

#define CARDS 8

/* One that is ready only when all are there: each waits for the others, for at most as long as the sum of the
 * starts would be. Writes down which have met, and serves none. */
#define WAITER                                                                                               \
    "#!/bin/sh\n"                                                                                            \
    "cd \"${0%/*}\"\n"                                                                                       \
    "[ $1 = --list ] && exec cat list\n"                                                                     \
    "echo x >>here; i=0\n"                                                                                   \
    "while [ $(grep -c x here) -lt 8 ] && [ $i -lt 100 ]; do sleep 0.1; i=$((i + 1)); done\n"                \
    "[ $(grep -c x here) -ge 8 ] && printf m >>tried; exit 1\n"

/* What a start takes is the longest of its cards' starts, not their sum. */
static void cards_start_side_by_side(void **state)
{
    char yaml[512], list[2048] = "", tried[32];
    struct config_profile *profile = test_gpu_profile(1);
    struct config_server *config = NULL;
    struct core_error error = {""};
    struct server *server = NULL;
    (void)state;
    profile->gpus[0].count = CARDS;
    for (int i = 0; i < CARDS; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list),
                 "%d\temulated-small" FACTS "GPU-%d\t0000:0%d:00.0\n", i, i, i);
    put("list", list, 0644);
    put("tried", "", 0666);
    put("here", "", 0666);
    put("lister", WAITER, 0755);
    snprintf(yaml, sizeof yaml,
             "listeners: [{address: 'unix:@millrace-test-cards'}]\nengine: ipsec-mb\n"
             "threads: {io: 1, workers: 1, realtime: off, pin: false}\ngpus: {program: %s/lister}\n",
             folder);
    assert_int_equal(config_server_parse(yaml, strlen(yaml), "test.yaml", &config, &error), CORE_OK);
    assert_int_equal(server_start(&server, config, profile, &error), CORE_OK); /* with the CPU alone */
    read_tried(tried);
    assert_string_equal(tried, "mmmmmmmm");
    assert_int_equal(server_stop(server), 0);
    config_server_free(config);
    config_profile_free(profile);
}

/* Cards that CUDA would drive, driven by the processor instead; one can not be opened. */
core_status __real_gpu_engine_open(struct gpu_engine **engine, const struct gpu_engine_options *options,
                                   struct core_error *error);
core_status __wrap_gpu_engine_open(struct gpu_engine **engine, const struct gpu_engine_options *options,
                                   struct core_error *error);

static const struct config_profile_gpu *played; /* NULL: as it is */

core_status __wrap_gpu_engine_open(struct gpu_engine **engine, const struct gpu_engine_options *options,
                                   struct core_error *error)
{
    struct gpu_engine_options changed = *options;
    if (played == NULL)
        return __real_gpu_engine_open(engine, options, error);
    if (strcmp(options->uuid, UUID(1)) == 0)
        return core_error_set(error, CORE_UNSUPPORTED, "it is broken");
    const struct gpu_emulation emulation = {
        .memory_bytes = played->memory_bytes,
        .sms = played->sms,
        .copy_engines = played->copy_engines,
        .sm_bytes_per_s = played->sm_bytes_per_s,
        .launch_ns = played->launch_ns,
        .copies = (const struct gpu_emulation_copy *)played->copies,
        .shares = (const struct gpu_emulation_share *)played->utilisation,
        .copy_count = played->copy_count,
        .share_count = played->utilisation_count,
    };
    changed.program = PROGRAM;
    changed.backend = "emulated";
    changed.emulation = &emulation;
    return __real_gpu_engine_open(engine, &changed, error);
}

/* /status, once it tells of the GPU's clock. To be freed. */
static json_t *await_clock(const struct server *server, size_t gpu)
{
    const core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    for (;;) {
        json_t *root = http_json(server_admin_address(server), "/status");
        const json_t *row = json_array_get(json_object_get(root, "gpus"), gpu);
        if (json_integer_value(json_object_get(row, "sm_hz")) > 0 || core_time_now_ns() > until_ns)
            return root;
        json_decref(root);
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    }
}

/* Of three cards the second one does not start. What the driver's library says of them is in the file. */
static struct server *start_three(const char *health, struct config_server **config,
                                  struct config_profile *profile)
{
    char yaml[512];
    struct core_error error = {""};
    struct server *server = NULL;
    profile->gpus[0].count = 3;
    played = &profile->gpus[0];
    put("list", CARD(0) CARD(1) CARD(2), 0644);
    put("status", "0", 0644);
    put("health", health, 0644);
    snprintf(yaml, sizeof yaml, "%s/health", folder);
    assert_int_equal(setenv("FAKE_NVML", yaml, 1), 0);
    assert_int_equal(setenv("LD_LIBRARY_PATH", MILLRACE_BINARY_DIR "/tests/libraries", 1), 0);
    snprintf(yaml, sizeof yaml,
             "listeners: [{address: 'unix:@millrace-test-cards'}]\nengine: ipsec-mb\nadmin: tcp:127.0.0.1:0\n"
             "sandbox: off\n" /* the library that plays the driver's reads a file */
             "threads: {io: 1, workers: 1, realtime: off, pin: false}\ngpus: {program: %s/lister}\n",
             folder);
    assert_int_equal(config_server_parse(yaml, strlen(yaml), "test.yaml", config, &error), CORE_OK);
    assert_int_equal(server_start(&server, *config, profile, &error), CORE_OK);
    assert_int_equal(unsetenv("LD_LIBRARY_PATH"), 0);
    played = NULL;
    return server;
}

/* The third one has the second one's number, and says which card it is, and how it is. */
static void numbers_are_those_of_the_cards_that_start(void **state)
{
    struct config_profile *profile = test_gpu_profile(1);
    struct config_server *config;
    (void)state;
    struct server *server = start_three("1320 1980 44 83 0", &config, profile);
    json_decref(await_clock(server, 0));
    json_t *root = await_clock(server, 1);
    const json_t *gpus = json_object_get(root, "gpus");
    assert_int_equal(json_array_size(gpus), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *gpu = json_array_get(gpus, i);
        assert_string_equal(json_string_value(json_object_get(gpu, "uuid")), i == 0 ? UUID(0) : UUID(2));
        assert_string_equal(json_string_value(json_object_get(gpu, "pci")),
                            i == 0 ? "0000:00:00.0" : "0000:02:00.0");
        assert_string_equal(json_string_value(json_object_get(gpu, "state")), "up");
        assert_int_equal(json_integer_value(json_object_get(gpu, "sm_hz")), 1320000000);
        assert_int_equal(json_integer_value(json_object_get(gpu, "sm_most_hz")), 1980000000);
        assert_int_equal(json_integer_value(json_object_get(gpu, "celsius")), 83);
        assert_string_equal(json_string_value(json_object_get(gpu, "throttled_by")),
                            "power limit, heat (card)");
        assert_string_equal(server_gpu_name(server->gpus[i]), i == 0 ? "gpu-0" : "gpu-1");
    }
    json_decref(root);
    assert_int_equal(server_stop(server), 0);
    config_server_free(config);
    config_profile_free(profile);
}

static void a_library_that_does_not_answer_holds_nothing_up(void **state)
{
    struct config_profile *profile = test_gpu_profile(1);
    struct config_server *config;
    (void)state;
    struct server *server = start_three("0 0 0 0 -1", &config, profile);
    json_t *root = http_json(server_admin_address(server), "/status");
    const json_t *gpu = json_array_get(json_object_get(root, "gpus"), 0);
    assert_string_equal(json_string_value(json_object_get(gpu, "state")), "up");
    assert_int_equal(json_integer_value(json_object_get(gpu, "sm_hz")), 0);
    assert_string_equal(json_string_value(json_object_get(gpu, "throttled_by")), "");
    json_decref(root);
    assert_int_equal(server_stop(server), 0);
    config_server_free(config);
    config_profile_free(profile);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_copy_of_the_path_may_fail),
        cmocka_unit_test_setup_teardown(cards_are_those_that_all_know, make_lister, remove_lister),
        cmocka_unit_test_setup_teardown(cards_are_those_that_cuda_shows_us, make_lister, remove_lister),
        cmocka_unit_test_setup_teardown(cards_start_side_by_side, make_lister, remove_lister),
        cmocka_unit_test_setup_teardown(numbers_are_those_of_the_cards_that_start, make_lister,
                                        remove_lister),
        cmocka_unit_test_setup_teardown(a_library_that_does_not_answer_holds_nothing_up, make_lister,
                                        remove_lister),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
