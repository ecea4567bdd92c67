#include "bench/gpu_host.h"

#include "bench/samples.h"
#include "gpu/grouping.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STREAMS     16384
#define PACKETS     65536
#define WRITERS     4
#define EACH        (STREAMS / WRITERS)
#define MIXED       1597 /* odd, and so a way through all of EACH */
#define BATCHES     41
#define CACHE_BYTES ((size_t)64 << 20) /* what is written over what was read before */

struct host {
    struct gpu_grouping *grouping;
    struct gpu_record *records;
    struct gpu_segment *segments;
    struct gpu_job *jobs;
    uint8_t *others;
    struct bench_samples samples;
};

static core_status host_make(struct host *host)
{
    core_status status = gpu_grouping_create(&host->grouping, STREAMS);
    host->records = calloc(PACKETS, sizeof *host->records);
    host->segments = calloc(PACKETS, sizeof *host->segments);
    host->jobs = calloc(STREAMS, sizeof *host->jobs);
    host->others = calloc(1, CACHE_BYTES);
    if (status == CORE_OK)
        status = bench_samples_init(&host->samples, BATCHES);
    return host->records != NULL && host->segments != NULL && host->jobs != NULL && host->others != NULL
               ? status
               : CORE_NO_MEMORY;
}

static void host_free(struct host *host)
{
    gpu_grouping_destroy(host->grouping);
    free(host->records);
    free(host->segments);
    free(host->jobs);
    free(host->others);
    bench_samples_free(&host->samples);
}

/* As many packets of each stream, which come in turns; each stream has one writer. */
static void records_fill(struct host *host, uint32_t packets, struct gpu_record_list *lists)
{
    const uint32_t each = packets / WRITERS;
    for (uint32_t i = 0; i < packets; i++) {
        const uint32_t writer = i / each, turn = i % each;
        host->records[i] = (struct gpu_record){.offset_bytes = (turn * WRITERS + writer) * 2048,
                                               .bytes = 1408,
                                               .slot = turn * MIXED % EACH * WRITERS + writer};
    }
    for (uint32_t writer = 0; writer < WRITERS; writer++)
        lists[writer] = (struct gpu_record_list){.records = &host->records[writer * each], .count = each};
}

static double packet_ns(struct host *host, uint32_t packets)
{
    struct gpu_record_list lists[WRITERS];
    records_fill(host, packets, lists);
    host->samples.count = 0;
    for (int n = 0; n < BATCHES; n++) {
        struct gpu_arena_batch batch = {0};
        memset(host->others, n, CACHE_BYTES);
        const core_ns start_ns = core_time_now_ns();
        gpu_grouping_run(host->grouping, lists, WRITERS, host->segments, host->jobs, &batch);
        bench_samples_add(&host->samples, (double)(core_time_now_ns() - start_ns) / packets);
    }
    return bench_samples_percentile(&host->samples, 95);
}

core_status bench_gpu_host_packet_ns(core_ns *ns, struct core_error *error)
{
    struct host host = {0};
    const core_status status = host_make(&host);
    if (status == CORE_OK)
        *ns = (core_ns)ceil(fmax(packet_ns(&host, STREAMS), packet_ns(&host, PACKETS)));
    host_free(&host);
    return status == CORE_OK ? CORE_OK : core_error_set(error, status, "no memory to time the grouping");
}
