/* Arbitrary bytes as operations of a program that uses a pool, of nodes and of time, against a model of what the
 * program must be told (support/pool/pool_model.h). */
#include "tests/support/pool/pool_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    test_pool_model_name("this input");
    test_pool_model_run(data, size);
    return 0;
}
