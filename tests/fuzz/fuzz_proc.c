/* Any text as any of the kernel's small files: what is read of it is a figure, a name or nothing, and sums of
 * what threads say stay figures. */
#include "core/proc.h"
#include "server/overload/reserve.h"
#include "tests/support/require.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_figures(const char *text)
{
    static const int64_t units[] = {4096, 10000000, CORE_PROC_FIGURE_MAX};
    for (unsigned index = 0; index < 18; index++) {
        const int64_t figure = core_proc_figure(text, index, 1);
        TEST_REQUIRE(figure >= -1 && figure <= CORE_PROC_FIGURE_MAX);
        for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
            const int64_t scaled = core_proc_figure(text, index, units[i]);
            TEST_REQUIRE(scaled >= -1 && scaled <= CORE_PROC_FIGURE_MAX);
            TEST_REQUIRE(scaled < 0 || (scaled / units[i] == figure && scaled % units[i] == 0));
        }
    }
}

static void read_names(const char *text)
{
    char processor[32], group[16];
    core_proc_processor(text, processor, sizeof processor);
    TEST_REQUIRE(processor[0] != '\0' && strchr(processor, '\n') == NULL);
    if (core_proc_group(text, group, sizeof group))
        TEST_REQUIRE(group[0] == '/' && strchr(group, '\n') == NULL);
    TEST_REQUIRE(core_proc_quota(text) > 0);
    if (core_proc_list_has(text, 7))
        TEST_REQUIRE(text[0] >= '0' && text[0] <= '9');
}

/* Of many threads, which all say this. */
static void read_signs(const char *text)
{
    struct server_overload_signs signs = {0}, before;
    char cause[256];
    for (int i = 0; i < 5; i++) {
        before = signs;
        server_overload_signs_add(&signs, text, text);
        TEST_REQUIRE(signs.delayed_ns == -1 || signs.delayed_ns >= before.delayed_ns);
        TEST_REQUIRE(signs.faults >= before.faults);
    }
    server_overload_cause(1, &signs, cause, sizeof cause);
    TEST_REQUIRE(cause[0] != '\0');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1); /* of its own: what is read behind its end is seen */
    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    read_figures(text);
    read_figures(core_proc_stat(text));
    read_names(text);
    read_signs(text);
    free(text);
    return 0;
}
