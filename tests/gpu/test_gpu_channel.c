/* The channel between server and child, and above all what the server does with a child's nonsense. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpu/channel.h"
#include "tests/support/gpu_crowd.h"
#include "tests/support/require.h"

struct pair {
    struct gpu_channel server, child;
};

static void pair_open(struct pair *pair, bool with_emulation)
{
    struct core_error error = {""};
    struct gpu_channel_start start = {.beat_ns = 7, .silence_ns = 11, .has_emulation = with_emulation};
    if (with_emulation)
        start.emulation = gpu_crowd_card(2);
    assert_int_equal(gpu_channel_create(&pair->server, &start, &error), CORE_OK);
    if (gpu_channel_attach(&pair->child, pair->server.memory_descriptor, &error) != CORE_OK)
        fail_msg("%s", error.text);
}

static void pair_close(struct pair *pair)
{
    gpu_channel_detach(&pair->child);
    gpu_channel_destroy(&pair->server);
}

static void what_the_child_must_know_arrives(void **state)
{
    (void)state;
    struct pair pair;
    pair_open(&pair, true);
    const struct gpu_emulation card = gpu_crowd_card(2), *got = &pair.child.start.emulation;
    assert_int_equal(pair.child.start.beat_ns, 7);
    assert_int_equal(pair.child.start.silence_ns, 11);
    assert_string_equal(got->name, card.name);
    assert_int_equal(got->copy_count, card.copy_count);
    assert_memory_equal(got->copies, card.copies, card.copy_count * sizeof *card.copies);
    assert_memory_equal(got->shares, card.shares, card.share_count * sizeof *card.shares);
    pair_close(&pair);
}

static void rings_fill_and_go_round(void **state)
{
    (void)state;
    struct pair pair;
    struct gpu_completion completion;
    pair_open(&pair, false);
    assert_null(gpu_channel_command_peek(&pair.child));
    assert_int_equal(gpu_channel_completion_take(&pair.server, &completion), CORE_AGAIN);
    uint32_t put = 0, taken = 0;
    for (int round = 0; round < 5; round++) {
        struct gpu_command command = {.kind = GPU_COMMAND_KEY_SET};
        struct gpu_channel_key key = {.key_bytes = 16};
        for (;;) {
            command.key_slot = put;
            memset(key.key, (int)put, sizeof key.key);
            if (gpu_channel_command_put(&pair.server, &command, &key) != CORE_OK)
                break;
            put++;
        }
        assert_int_equal(gpu_channel_command_put(&pair.server, &command, &key), CORE_FULL);
        assert_int_equal(put - taken, GPU_CHANNEL_ENTRIES);
        for (int i = 0; i < 100; i++, taken++) {
            assert_int_equal(gpu_channel_command_peek(&pair.child)->key_slot, taken);
            assert_int_equal(gpu_channel_command_key(&pair.child)->key[0], taken & 0xff);
            gpu_channel_command_take(&pair.child);
        }
    }
    struct gpu_completion done = {.kind = GPU_COMPLETION_BATCH};
    for (uint64_t i = 0; i < GPU_CHANNEL_ENTRIES; i++) {
        done.batch.number = i;
        assert_int_equal(gpu_channel_completion_put(&pair.child, &done), CORE_OK);
    }
    assert_int_equal(gpu_channel_completion_put(&pair.child, &done), CORE_FULL);
    for (uint64_t i = 0; i < GPU_CHANNEL_ENTRIES; i++) {
        assert_int_equal(gpu_channel_completion_take(&pair.server, &completion), CORE_OK);
        assert_int_equal(completion.batch.number, i);
    }
    assert_int_equal(gpu_channel_completion_take(&pair.server, &completion), CORE_AGAIN);
    pair_close(&pair);
}

static void each_side_beats_for_itself(void **state)
{
    (void)state;
    struct pair pair;
    pair_open(&pair, false);
    gpu_channel_beat(&pair.server, true);
    assert_int_equal(gpu_channel_beats(&pair.child, true), 1);
    assert_int_equal(gpu_channel_beats(&pair.child, false), 0);
    pair_close(&pair);
}

#define MESSAGES 200000

static void *producer(void *argument)
{
    struct gpu_channel *server = argument;
    for (uint32_t i = 0; i < MESSAGES;) {
        const struct gpu_command command = {
            .kind = GPU_COMMAND_BATCH, .key_slot = i, .order.number = ~(uint64_t)i};
        const core_status status = gpu_channel_command_put(server, &command, NULL);
        TEST_REQUIRE(status == CORE_OK || status == CORE_FULL);
        i += status == CORE_OK;
    }
    return NULL;
}

/* One thread a side: entries come whole and in order. */
static void threads_pass_commands(void **state)
{
    (void)state;
    struct pair pair;
    pthread_t thread;
    pair_open(&pair, false);
    assert_int_equal(pthread_create(&thread, NULL, producer, &pair.server), 0);
    for (uint32_t i = 0; i < MESSAGES;) {
        const struct gpu_command *command = gpu_channel_command_peek(&pair.child);
        if (command == NULL)
            continue;
        assert_int_equal(command->key_slot, i);
        assert_int_equal(command->order.number, ~(uint64_t)i);
        gpu_channel_command_take(&pair.child);
        i++;
    }
    pthread_join(thread, NULL);
    pair_close(&pair);
}

static void texts_are_made_printable(void **state)
{
    (void)state;
    struct pair pair;
    struct gpu_completion completion = {.kind = GPU_COMPLETION_ERROR};
    pair_open(&pair, false);
    memset(completion.text, 'x', sizeof completion.text); /* no end */
    memcpy(completion.text, "a\nb\x1b[2J\xff", 8);
    assert_int_equal(gpu_channel_completion_put(&pair.child, &completion), CORE_OK);
    assert_int_equal(gpu_channel_completion_take(&pair.server, &completion), CORE_OK);
    assert_int_equal(strlen(completion.text), sizeof completion.text - 1);
    assert_memory_equal(completion.text, "a?b?[2J?xxx", 11);
    completion.kind = GPU_COMPLETION_READY;
    memset(&completion.facts, 0xff, sizeof completion.facts);
    assert_int_equal(gpu_channel_completion_put(&pair.child, &completion), CORE_OK);
    assert_int_equal(gpu_channel_completion_take(&pair.server, &completion), CORE_OK);
    assert_int_equal(strlen(completion.facts.driver), sizeof completion.facts.driver - 1);
    completion.facts.sms = 0;
    assert_int_equal(gpu_channel_completion_put(&pair.child, &completion), CORE_OK);
    assert_int_equal(gpu_channel_completion_take(&pair.server, &completion), CORE_INVALID);
    completion.kind = 99;
    assert_int_equal(gpu_channel_completion_put(&pair.child, &completion), CORE_OK);
    assert_int_equal(gpu_channel_completion_take(&pair.server, &completion), CORE_INVALID);
    pair_close(&pair);
}

/* Whatever the memory holds, the server's calls return something that they say they return. */
static void noise_does_no_harm(void **state)
{
    (void)state;
    struct pair pair;
    uint32_t seen_invalid = 0;
    struct test_random random = {3};
    pair_open(&pair, true);
    for (int round = 0; round < 2000; round++) {
        uint8_t *memory = (uint8_t *)pair.server.memory;
        if (round % 2 == 0)
            gpu_channel_scribble(&pair.child);
        for (int i = 0; i < 200; i++)
            memory[test_random_next(&random) % pair.server.bytes] = (uint8_t)test_random_next(&random);
        struct gpu_completion completion;
        const core_status taken = gpu_channel_completion_take(&pair.server, &completion);
        const core_status put =
            gpu_channel_command_put(&pair.server, &(struct gpu_command){.kind = GPU_COMMAND_STOP}, NULL);
        assert_true(taken == CORE_OK || taken == CORE_AGAIN || taken == CORE_INVALID);
        assert_true(put == CORE_OK || put == CORE_FULL || put == CORE_INVALID);
        seen_invalid += taken == CORE_INVALID || put == CORE_INVALID;
        if (round % 10 == 9)
            gpu_channel_reset(&pair.server); /* a new child finds all in order again */
    }
    assert_true(seen_invalid > 0);
    gpu_channel_reset(&pair.server);
    struct gpu_completion completion;
    assert_int_equal(gpu_channel_completion_take(&pair.server, &completion), CORE_AGAIN);
    gpu_channel_detach(&pair.child);
    struct core_error error = {""};
    assert_int_equal(gpu_channel_attach(&pair.child, pair.server.memory_descriptor, &error), CORE_OK);
    assert_string_equal(pair.child.start.emulation.name, gpu_crowd_card(2).name);
    pair_close(&pair);
}

/* A child does not begin on what is no channel. */
static void other_memory_is_refused(void **state)
{
    (void)state;
    struct pair pair;
    struct gpu_channel other;
    struct core_error error = {""};
    const int descriptor = memfd_create("test", MFD_CLOEXEC);
    assert_int_equal(gpu_channel_attach(&other, -1, &error), CORE_SYSTEM);
    assert_int_equal(gpu_channel_attach(&other, descriptor, &error), CORE_INVALID);
    pair_open(&pair, true);
    assert_int_equal(ftruncate(descriptor, (off_t)pair.server.bytes), 0);
    assert_int_equal(gpu_channel_attach(&other, descriptor, &error), CORE_INVALID);
    assert_non_null(strstr(error.text, "of the same installation"));
    close(descriptor);
    /* The file can not be cut short under the server. */
    assert_int_equal(ftruncate(pair.server.memory_descriptor, 4096), -1);
    gpu_channel_scribble(&pair.child);
    assert_int_equal(gpu_channel_attach(&other, pair.server.memory_descriptor, &error), CORE_INVALID);
    pair_close(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_child_must_know_arrives),
        cmocka_unit_test(rings_fill_and_go_round),
        cmocka_unit_test(each_side_beats_for_itself),

        cmocka_unit_test(threads_pass_commands),
        cmocka_unit_test(texts_are_made_printable),
        cmocka_unit_test(noise_does_no_harm),
        cmocka_unit_test(other_memory_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
