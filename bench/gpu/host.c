#include "bench/gpu/host.h"

#include "bench/samples.h"
#include "gpu/grouping.h"

#include <math.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdlib.h>

#define STREAMS 16384
#define PACKETS 65536 /* writers' parts of both are whole pages of records */
#define WRITERS 4
#define EACH    (STREAMS / WRITERS)
#define MIXED   1597 /* odd, and so a way through all of EACH */
#define BATCHES 41
#define PAGES   (PACKETS / GPU_RECORD_PAGE)

struct host {
    struct gpu_grouping *grouping;
    struct gpu_record_page *pages; /* of each writer in a row */
    struct gpu_segment *segments;
    struct gpu_job *jobs;
    uint32_t packets; /* of a batch */
    bool alone;       /* each of them is a job */
    struct bench_samples samples;
};

static core_status host_make(struct host *host)
{
    core_status status = gpu_grouping_create(&host->grouping, STREAMS, PACKETS, PACKETS);
    host->pages = aligned_alloc(alignof(struct gpu_record_page), PAGES * sizeof *host->pages);
    host->segments = calloc(PACKETS, sizeof *host->segments);
    host->jobs = calloc(PACKETS, sizeof *host->jobs);
    if (status == CORE_OK)
        status = bench_samples_init(&host->samples, BATCHES);
    return host->pages != NULL && host->segments != NULL && host->jobs != NULL ? status : CORE_NO_MEMORY;
}

static void host_free(struct host *host)
{
    gpu_grouping_destroy(host->grouping);
    free(host->pages);
    free(host->segments);
    free(host->jobs);
    bench_samples_free(&host->samples);
}

/* As many packets of each stream, which come in turns; each stream has one writer. On a thread of its own, as
 * I/O threads are. */
static void *records_write(void *argument)
{
    const struct host *host = argument;
    const uint32_t each = host->packets / WRITERS;
    for (uint32_t i = 0; i < host->packets; i++) {
        const uint32_t writer = i / each, turn = i % each;
        struct gpu_record_page *page = &host->pages[i / GPU_RECORD_PAGE];
        page->records[i % GPU_RECORD_PAGE] =
            (struct gpu_record){.offset_bytes = (turn * WRITERS + writer) * 2048,
                                .bytes = 1408,
                                .begins_unit = host->alone,
                                .alone = host->alone,
                                .slot = turn * MIXED % EACH * WRITERS + writer};
        page->next = page + 1;
    }
    return NULL;
}

/* The time of one batch. */
static core_ns batch_ns(struct host *host)
{
    struct gpu_record_list lists[WRITERS];
    struct gpu_arena_batch batch = {0};
    const uint32_t each = host->packets / WRITERS;
    pthread_t thread;
    if (pthread_create(&thread, NULL, records_write, host) == 0)
        (void)pthread_join(thread, NULL);
    else
        (void)records_write(host);
    for (uint32_t writer = 0; writer < WRITERS; writer++)
        lists[writer] =
            (struct gpu_record_list){.page = &host->pages[writer * each / GPU_RECORD_PAGE], .left = each};
    const core_ns start_ns = core_time_now_ns();
    gpu_grouping_run(host->grouping, lists, WRITERS, host->segments, host->jobs, &batch);
    return core_time_now_ns() - start_ns;
}

static double packet_ns(struct host *host, uint32_t packets, bool alone)
{
    host->packets = packets;
    host->alone = alone;
    host->samples.count = 0;
    for (int n = 0; n < BATCHES; n++)
        bench_samples_add(&host->samples, (double)batch_ns(host) / packets);
    return bench_samples_percentile(&host->samples, 95);
}

core_status bench_gpu_host_packet_ns(core_ns *ns, struct core_error *error)
{
    struct host host = {0};
    const core_status status = host_make(&host);
    if (status == CORE_OK)
        *ns = (core_ns)ceil(fmax(fmax(packet_ns(&host, STREAMS, false), packet_ns(&host, PACKETS, false)),
                                 packet_ns(&host, PACKETS, true)));
    host_free(&host);
    return status == CORE_OK ? CORE_OK : core_error_set(error, status, "no memory to time the grouping");
}
