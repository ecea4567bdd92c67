/* The tests run in this order: what happens before core_secret_init, then what happens after it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/secret.h"

#include <openssl/crypto.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define HEAP_BYTES 65536

static bool all_are(const volatile unsigned char *bytes, size_t count, unsigned char value)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != value)
            return false;
    return true;
}

static void before_init_it_is_ordinary_zeroed_memory(void **state)
{
    (void)state;
    unsigned char *block = core_secret_alloc(100);
    assert_non_null(block);
    assert_false(core_secret_holds(block));
    assert_true(all_are(block, 100, 0));
    memset(block, 1, 100);
    core_secret_free(block, 100);
    core_secret_free(NULL, 100);
}

static void impossible_heaps_are_refused(void **state)
{
    (void)state;
    struct core_error error;
    bool locked = true;
    assert_int_equal(core_secret_init(0, &locked, &error), CORE_INVALID);
    assert_false(locked);
    assert_non_null(strstr(error.text, "0 bytes"));
    assert_int_equal(core_secret_init(SIZE_MAX, &locked, NULL), CORE_INVALID);
    assert_int_equal(core_secret_init_openssl(0, &locked, NULL), CORE_INVALID);
}

static void init_makes_a_heap_and_forbids_core_dumps(void **state)
{
    (void)state;
    struct core_error error;
    struct rlimit limit;
    bool locked = false;
    assert_int_equal(core_secret_init(HEAP_BYTES - 1000, &locked, &error), CORE_OK);
    assert_int_equal(prctl(PR_GET_DUMPABLE, 0, 0, 0, 0), 0);
    assert_int_equal(getrlimit(RLIMIT_CORE, &limit), 0);
    assert_true(limit.rlim_cur == 0 && limit.rlim_max == 0);
    bool again = !locked;
    assert_int_equal(core_secret_init(2 * HEAP_BYTES, &again, &error), CORE_OK);
    assert_int_equal(again, locked);
}

static void blocks_are_zeroed_aligned_and_in_the_heap(void **state)
{
    (void)state;
    static const struct {
        size_t bytes, alignment;
    } cases[] = {{1, 16}, {16, 16}, {17, 32}, {240, 256}, {656, 1024}, {4096, 4096}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        unsigned char *block = core_secret_alloc(cases[i].bytes);
        assert_non_null(block);
        assert_true(core_secret_holds(block));
        assert_int_equal((uintptr_t)block % cases[i].alignment, 0);
        assert_true(all_are(block, cases[i].bytes, 0));
        memset(block, 0xAA, cases[i].bytes); /* the next case may get the same bytes, zeroed again */
        core_secret_free(block, cases[i].bytes);
    }
}

static void freed_blocks_are_wiped(void **state)
{
    (void)state;
    unsigned char *block = core_secret_alloc(256);
    assert_non_null(block);
    const volatile unsigned char *after = block;
    memset(block, 0xAA, 256);
    core_secret_free(block, 256);
    assert_true(all_are(after, 256, 0)); /* still mapped: it is the heap's own */
}

static void a_full_heap_says_null_and_recovers(void **state)
{
    (void)state;
    void *blocks[HEAP_BYTES / 1024 + 1];
    size_t count = 0;
    while (count < sizeof blocks / sizeof blocks[0] && (blocks[count] = core_secret_alloc(1024)) != NULL)
        count++;
    assert_int_equal(count, HEAP_BYTES / 1024);
    assert_null(core_secret_alloc(HEAP_BYTES * 2));
    while (count > 0)
        core_secret_free(blocks[--count], 1024);
    void *whole = core_secret_alloc(HEAP_BYTES / 2);
    assert_non_null(whole);
    core_secret_free(whole, HEAP_BYTES / 2);
}

static void wipe_overwrites(void **state)
{
    (void)state;
    unsigned char bytes[64];
    memset(bytes, 0xAA, sizeof bytes);
    core_secret_wipe(bytes + 1, 62);
    assert_true(all_are(bytes + 1, 62, 0));
    assert_true(bytes[0] == 0xAA && bytes[63] == 0xAA);
    core_secret_wipe(bytes, 0);
    assert_int_equal(bytes[0], 0xAA);
}

static void *early_block;

static int early_alloc(void **state)
{
    (void)state;
    early_block = core_secret_alloc(32);
    return early_block ? 0 : -1;
}

static void a_block_from_before_init_is_freed_after(void **state)
{
    (void)state;
    assert_false(core_secret_holds(early_block));
    core_secret_free(early_block, 32);
}

static void a_fork_gets_none_of_it(void **state)
{
    (void)state;
    unsigned char *block = core_secret_alloc(256);
    int status = 0;
    assert_non_null(block);
    memset(block, 0xAA, 256);
    const pid_t child = fork();
    if (child == 0)
        _exit(all_are(block, 256, 0) ? 0 : 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_true(all_are(block, 256, 0xAA));
    core_secret_free(block, 256);
}

static void an_end_gives_it_back(void **state)
{
    (void)state;
    bool locked;
    core_secret_end();
    core_secret_end();
    void *block = core_secret_alloc(1024);
    assert_non_null(block);
    assert_false(core_secret_holds(block));
    core_secret_free(block, 1024);

    assert_int_equal(core_secret_reserve(4 * HEAP_BYTES, &locked, NULL), CORE_OK);
    block = core_secret_alloc(2 * HEAP_BYTES); /* more than the first one had */
    assert_true(core_secret_holds(block));
    core_secret_free(block, 2 * HEAP_BYTES);
    assert_int_equal(core_secret_init_openssl(HEAP_BYTES, &locked, NULL), CORE_OK);
    assert_true(CRYPTO_secure_malloc_initialized());
    core_secret_end();
    assert_false(CRYPTO_secure_malloc_initialized());

    assert_true(CRYPTO_secure_malloc_init(HEAP_BYTES, 16) > 0); /* somebody else's */
    assert_int_equal(core_secret_init_openssl(HEAP_BYTES, &locked, NULL), CORE_OK);
    core_secret_end();
    assert_true(CRYPTO_secure_malloc_initialized());
    assert_int_equal(CRYPTO_secure_malloc_done(), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(before_init_it_is_ordinary_zeroed_memory),
        cmocka_unit_test(impossible_heaps_are_refused),
        cmocka_unit_test(init_makes_a_heap_and_forbids_core_dumps),
        cmocka_unit_test(a_block_from_before_init_is_freed_after),
        cmocka_unit_test(blocks_are_zeroed_aligned_and_in_the_heap),
        cmocka_unit_test(freed_blocks_are_wiped),
        cmocka_unit_test(a_full_heap_says_null_and_recovers),
        cmocka_unit_test(wipe_overwrites),
        cmocka_unit_test(a_fork_gets_none_of_it),
        cmocka_unit_test(an_end_gives_it_back),
    };
    return cmocka_run_group_tests_name("core/secret", tests, early_alloc, NULL);
}
