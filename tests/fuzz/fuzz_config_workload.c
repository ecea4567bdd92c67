/* Any text as a workload: an answer without harm; from what is accepted, streams can be drawn and the drawing
 * ends. */
#include "config/workload.h"
#include "inputgen/streams.h"

#include <stdbool.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition)
        abort();
}

static void distribution_require(const struct config_distribution *distribution)
{
    require(distribution->minimum > 0 && distribution->minimum <= distribution->maximum);
    require(distribution->mean > 0 && distribution->sd >= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct config_workload *workload = NULL;
    struct inputgen_streams *list = NULL;
    struct core_error error = {""};

    if (config_workload_parse((const char *)data, size, "fuzz.yaml", &workload, &error) != CORE_OK) {
        require(!workload && error.text[0]);
        return 0;
    }
    require(workload->class_count >= 1 && workload->start_spread_s < workload->duration_s);
    for (size_t i = 0; i < workload->class_count; i++) {
        distribution_require(&workload->classes[i].rate_mbit_per_s);
        distribution_require(&workload->classes[i].deadline_ms);
    }
    if (inputgen_streams_make(workload, 20, 0, 1, &list, &error) == CORE_OK)
        require(list->count == 20);
    inputgen_streams_free(list);
    config_workload_free(workload);
    return 0;
}
