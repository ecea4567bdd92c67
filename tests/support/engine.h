/* The CPU engines that the machine of the test has instructions for. */
#ifndef MILLRACE_TESTS_SUPPORT_ENGINE_H
#define MILLRACE_TESTS_SUPPORT_ENGINE_H

#include "cpu/engine.h"
#include "tests/support/require.h"

#include <stdbool.h>

/* Whether the engine opens here. The only reason not to is a processor without its instructions, and
 * OpenSSL's needs none. */
static inline bool test_engine_works(const struct cpu_engine_ops *ops)
{
    struct cpu_engine *engine;
    struct core_error error = {""};
    const core_status status = ops->open(&engine, &error);
    if (status == CORE_OK) {
        ops->close(engine);
        return true;
    }
    TEST_REQUIRE(status == CORE_UNSUPPORTED && ops != &cpu_engine_openssl);
    printf("engine %s is left out: %s\n", ops->name, error.text);
    return false;
}

#endif
