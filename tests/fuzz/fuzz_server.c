/* Arbitrary bytes as operations of clients, against a model of what the server must answer
 * (support/server_model.h). */
#include "tests/support/server_model.h"

#include <stdbool.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool started;
    if (!started)
        test_model_start();
    started = true;
    test_model_name("this input");
    test_model_run(data, size);
    return 0;
}
