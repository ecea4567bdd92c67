#include "bench/pool.h"

#include "inputgen/shipped.h"
#include "inputgen/streams.h"

#include <stdlib.h>

_Static_assert(BENCH_POOL_MAX <= INPUTGEN_STREAMS_MAX, "a pool is a list of streams");

static core_status draw(struct bench_pool *pool, const struct config_workload *workload,
                        const struct bench_pool_request *request, struct core_error *error)
{
    struct inputgen_streams *list;
    const core_status status =
        inputgen_streams_make(workload, request->count, 0, request->seed, &list, error);

    if (status != CORE_OK)
        return status;
    struct core_stream_spec *specs = calloc(list->count, sizeof *specs);
    if (specs != NULL) {
        for (size_t i = 0; i < list->count; i++) {
            specs[i] = list->streams[i].spec;
            if (request->messages) {
                specs[i].unit = CORE_UNIT_MESSAGE;
                specs[i].iv = CORE_IV_COUNTER;
                specs[i].message_packets = 1;
            }
        }
        *pool = (struct bench_pool){.specs = specs, .count = list->count};
    }
    inputgen_streams_free(list);
    return specs != NULL
               ? CORE_OK
               : core_error_set(error, CORE_NO_MEMORY, "no memory for a pool of %u streams", request->count);
}

core_status bench_pool_open(struct bench_pool *pool, const struct bench_pool_request *request,
                            struct core_error *error)
{
    struct config_workload *workload;

    *pool = (struct bench_pool){0};
    core_status status = inputgen_workload_open(request->workload, &workload, error);
    if (status != CORE_OK)
        return status;
    for (size_t i = 0; i < workload->class_count; i++) {
        struct config_workload_class *class = &workload->classes[i];
        if (request->packet_bytes != 0)
            class->spec.packet_bytes = request->packet_bytes;
        if (request->burst_packets != 0)
            class->spec.burst_packets = request->burst_packets;
    }
    status = draw(pool, workload, request, error);
    config_workload_free(workload);
    return status;
}

void bench_pool_free(struct bench_pool *pool)
{
    free(pool->specs);
    *pool = (struct bench_pool){0};
}
