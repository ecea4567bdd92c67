/* What the management library tells of a card, on a library of the tests' own (support/libraries/nvml.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/nvml.h"

#define CARD "GPU-00000000-1111-2222-3333-444444444444"

static const char *library; /* NULL: there is none */
static int open_count;      /* of libraries */
static char file[] = "/tmp/millrace-nvml-XXXXXX";

void *__real_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags);
int __real_dlclose(void *handle);
int __wrap_dlclose(void *handle);

void *__wrap_dlopen(const char *name, int flags)
{
    assert_string_equal(name, "libnvidia-ml.so.1");
    void *handle = library != NULL ? __real_dlopen(library, flags) : NULL;
    open_count += handle != NULL;
    return handle;
}

int __wrap_dlclose(void *handle)
{
    open_count--;
    return __real_dlclose(handle);
}

static void tell(const char *text)
{
    FILE *to = fopen(file, "we");
    assert_non_null(to);
    assert_true(fputs(text, to) >= 0);
    assert_int_equal(fclose(to), 0);
}

static int begin(void **state)
{
    (void)state;
    const int descriptor = mkstemp(file);
    library = MILLRACE_FAKE_NVML;
    return descriptor < 0 || close(descriptor) != 0 || setenv("FAKE_NVML", file, 1) != 0 ? -1 : 0;
}

static int end(void **state)
{
    (void)state;
    return unlink(file);
}

static void a_card_tells_its_health(void **state)
{
    static const char *const uuids[] = {CARD, "MIG-00000000-1111-2222-3333-444444444444"};
    struct core_error error = {""};
    (void)state;
    for (int i = 0; i < 2; i++) { /* of an instance it is the card's */
        struct gpu_nvml *nvml;
        struct gpu_nvml_health health;
        assert_int_equal(gpu_nvml_open(&nvml, uuids[i], &error), CORE_OK);
        tell("1320 1980 44 83 0");
        assert_int_equal(gpu_nvml_read(nvml, &health, &error), CORE_OK);
        assert_int_equal(health.sm_mhz, 1320);
        assert_int_equal(health.sm_most_mhz, 1980);
        assert_int_equal(health.reasons, GPU_NVML_POWER | GPU_NVML_HOT);
        assert_int_equal(health.celsius, 83);
        tell("1980 1980 0 45 0");
        assert_int_equal(gpu_nvml_read(nvml, &health, &error), CORE_OK);
        assert_int_equal(health.sm_mhz, 1980);
        assert_int_equal(health.reasons, 0);
        gpu_nvml_close(nvml);
        assert_int_equal(open_count, 0);
    }
}

static void figures_that_a_card_has_not_are_no_error(void **state)
{
    struct core_error error = {""};
    struct gpu_nvml *nvml;
    struct gpu_nvml_health health;
    (void)state;
    assert_int_equal(gpu_nvml_open(&nvml, CARD, &error), CORE_OK);
    tell("0 0 0 0 3");
    assert_int_equal(gpu_nvml_read(nvml, &health, &error), CORE_OK);
    assert_int_equal(health.sm_mhz, 0);
    tell("1980 1980 0 45 15");
    assert_int_equal(gpu_nvml_read(nvml, &health, &error), CORE_SYSTEM);
    assert_string_equal(error.text, "the card does not tell its clock: GPU is lost");
    gpu_nvml_close(nvml);
}

static void what_is_missing_is_named(void **state)
{
    struct core_error error = {""};
    struct gpu_nvml *nvml;
    (void)state;
    assert_int_equal(gpu_nvml_open(&nvml, "GPU-ffff", &error), CORE_NOT_FOUND);
    assert_string_equal(error.text, "libnvidia-ml.so.1 does not know GPU-ffff: Not Found");
    library = "libc.so.6";
    assert_int_equal(gpu_nvml_open(&nvml, CARD, &error), CORE_UNSUPPORTED);
    assert_non_null(strstr(error.text, "has no nvmlInit_v2"));
    library = NULL;
    assert_int_equal(gpu_nvml_open(&nvml, CARD, &error), CORE_UNSUPPORTED);
    assert_non_null(strstr(error.text, "is missing"));
    library = MILLRACE_FAKE_NVML;
    assert_int_equal(open_count, 0);
    gpu_nvml_close(NULL);
}

static void reasons_have_words(void **state)
{
    char text[128], short_text[12];
    (void)state;
    assert_string_equal(gpu_nvml_reasons_text(0, text, sizeof text), "none");
    assert_string_equal(gpu_nvml_reasons_text(GPU_NVML_IDLE | GPU_NVML_WARM, text, sizeof text),
                        "idle, heat (driver)");
    assert_string_equal(gpu_nvml_reasons_text(GPU_NVML_POWER | GPU_NVML_DISPLAY, text, sizeof text),
                        "power limit, display");
    assert_string_equal(gpu_nvml_reasons_text(UINT32_MAX, short_text, sizeof short_text), "idle, a set");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_card_tells_its_health),
        cmocka_unit_test(figures_that_a_card_has_not_are_no_error),
        cmocka_unit_test(what_is_missing_is_named),
        cmocka_unit_test(reasons_have_words),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
