#include "server/admin/figures.h"

#include "server/admin/snapshot.h"

#define COUNT   SERVER_FIGURE_COUNT
#define SHARE   SERVER_FIGURE_SHARE
#define SECONDS SERVER_FIGURE_SECONDS
#define TIME    SERVER_FIGURE_TIME
#define END                                                                                                  \
    {                                                                                                        \
        NULL, NULL, NULL, NULL, COUNT, 0                                                                     \
    }

const struct server_figure server_figures_totals[] = {
#define SERVER_COUNT(member, io, total, metric, type, help)                                                  \
    {total, NULL, NULL, help, COUNT, offsetof(struct server_counts, member)},
#include "server/counts.def"
#undef SERVER_COUNT
    END};

#define IO(member) offsetof(struct server_snapshot_io, member)

const struct server_figure server_figures_io[] = {
#define SERVER_COUNT(member, io, total, metric, type, help)                                                  \
    {io, metric, type, help, COUNT, IO(counts.member)},
#include "server/counts.def"
#undef SERVER_COUNT
    {"utilisation", "io_promised_ratio", "gauge",
     "Share of the I/O thread's time that is reserved for streams.", SHARE, IO(utilisation_ppb)},
    {"cpu_s", "io_cpu_seconds_total", "counter", "CPU time of the I/O thread.", SECONDS, IO(cpu_ns)},
    {"turn_max_us", NULL, NULL, "The longest time that an event waited for the end of its turn.", TIME,
     IO(turn_max_ns)},
    {"excess_us", "io_turn_excess_seconds_total", "counter", "Time that its turns took beyond their bound.",
     TIME, IO(excess_ns)},
    {"lost_us", "io_lost_seconds_total", "counter",
     "Time that its turns took beyond what bounds and margins allow.", TIME, IO(lost_ns)},
    {"overload_us", "io_overload_seconds", "gauge",
     "The most of that in a tenth of a second within the last overload.quiet_ms.", TIME, IO(level_ns)},
    END};

#define WORKER(member) offsetof(struct server_snapshot_worker, member)

const struct server_figure server_figures_worker[] = {
    {"streams", "worker_streams", "gauge", "Streams placed on the worker.", COUNT, WORKER(streams)},
    {"utilisation", "worker_promised_ratio", "gauge",
     "Share of the worker's time that is reserved for streams.", SHARE, WORKER(utilisation_ppb)},
    {"headroom", "worker_headroom_ratio", "gauge",
     "Smallest share of any window of time that is not reserved.", SHARE, WORKER(headroom_ppb)},
    {"backups", "worker_backups", "gauge",
     "Backups: streams of GPUs that the worker takes over if their GPU fails.", COUNT, WORKER(backups)},
    {"reserved", "worker_reserved_ratio", "gauge",
     "Largest share of the worker's time that is reserved for the failure of a GPU.", SHARE,
     WORKER(reserved_ppb)},
    {"bursts", "worker_bursts_total", "counter", "Bursts encrypted.", COUNT, WORKER(bursts)},
    {"pieces", "worker_pieces_total", "counter", "Pieces of packets encrypted.", COUNT, WORKER(pieces)},
    {"packets", "worker_packets_total", "counter", "Packets encrypted.", COUNT, WORKER(packets)},
    {NULL, "worker_bytes_total", "counter", "Bytes encrypted.", COUNT, WORKER(bytes)},
    {NULL, "worker_busy_seconds_total", "counter", "Time spent inside bursts.", TIME, WORKER(busy_ns)},
    {"burst_max_us", NULL, NULL, "The longest burst.", TIME, WORKER(burst_max_ns)},
    {"burst_bound_us", NULL, NULL, "No burst may take longer: worker_burst_bound_seconds.", TIME,
     WORKER(burst_bound_ns)},
    {"exceeded", "worker_bursts_exceeded_total", "counter", "Bursts that took longer than their bound.",
     COUNT, WORKER(bursts_exceeded)},
    {"excess_us", "worker_burst_excess_seconds_total", "counter", "Time that these bursts took beyond it.",
     TIME, WORKER(burst_excess_ns)},
    {"cpu_s", "worker_cpu_seconds_total", "counter", "CPU time of the worker's thread.", SECONDS,
     WORKER(cpu_ns)},
    END};

#define GPU(member) offsetof(struct server_snapshot_gpu, member)

const struct server_figure server_figures_gpu[] = {
    {NULL, "gpu_up", "gauge", "1 while the GPU is in service.", COUNT, GPU(up)},
    {"state_s", NULL, NULL, "Time since its state changed.", SECONDS, GPU(state_ns)},
    {"process", NULL, NULL, "Number of its process millrace-gpu.", COUNT, GPU(process)},
    {"faults", "gpu_faults_total", "counter", "Times the GPU went out of service.", COUNT, GPU(faults)},
    {"restarts", "gpu_restarts_total", "counter", "Times it came back.", COUNT, GPU(restarts)},
    {"streams", "gpu_streams", "gauge", "Streams placed on the GPU.", COUNT, GPU(streams)},
    {"guaranteed", NULL, NULL, "Of these, guaranteed ones.", COUNT, GPU(guaranteed)},
    {"backups", "gpu_backups", "gauge",
     "Backups: streams of other GPUs that this one takes over if theirs fails.", COUNT, GPU(backups)},
    {"reserved", "gpu_reserved_ratio", "gauge",
     "Largest share of its busiest stage that is reserved for the failure of another GPU.", SHARE,
     GPU(reserved_ppb)},
    {"batches", "gpu_batches_total", "counter", "Batches that came back.", COUNT, GPU(batches)},
    {"packets", "gpu_packets_total", "counter", "Packets in these batches.", COUNT, GPU(packets)},
    {"bytes", "gpu_bytes_total", "counter", "Bytes of these packets.", COUNT, GPU(bytes)},
    {"lost_batches", "gpu_lost_batches_total", "counter",
     "Batches that other units encrypted again because the GPU failed.", COUNT, GPU(lost_batches)},
    {"late", "gpu_late_packets_total", "counter",
     "Packets that reached their batch too late and went into the next.", COUNT, GPU(late)},
    {"full", "gpu_full_total", "counter", "Times a packet did not fit into its batch.", COUNT, GPU(full)},
    {"held_up", "gpu_held_up_total", "counter", "Batches that were opened late because no arena was free.",
     COUNT, GPU(held_up)},
    {"batch_bytes", "gpu_batch_bound_bytes", "gauge", "The most bytes that a batch may have.", COUNT,
     GPU(batch_bytes)},
    {"arena_bytes", "gpu_arena_bytes", "gauge", "Most memory that there may be for one batch.", COUNT,
     GPU(arena_bytes)},
    {"memory_bytes", "gpu_memory_bytes", "gauge", "Memory that all batches have now.", COUNT,
     GPU(memory_bytes)},
    {"memory_refused", "gpu_memory_refused_total", "counter", "Times that batches got no more memory.", COUNT,
     GPU(memory_refused)},
    {"period_us", "gpu_period_seconds", "gauge", "Period of its batches.", TIME, GPU(period_ns)},
    {"period_changes", "gpu_period_changes_total", "counter", "Times that the period changed to another one.",
     COUNT, GPU(period_changes)},
    {"latency_bound_us", "gpu_latency_bound_seconds", "gauge",
     "Latency bound: the period and all stages of a batch.", TIME, GPU(latency_ns)},
    {"sm_hz", "gpu_sm_clock_hertz", "gauge", "Clock of its SMs; 0: not told.", COUNT, GPU(sm_hz)},
    {"sm_most_hz", "gpu_sm_clock_max_hertz", "gauge", "The highest clock that they have; 0: not told.", COUNT,
     GPU(sm_most_hz)},
    {"celsius", "gpu_temperature_celsius", "gauge", "Its temperature; 0: not told.", COUNT, GPU(celsius)},
    {NULL, "gpu_throttled", "gauge", "1 while heat or power hold its clock down.", COUNT, GPU(throttled)},
    END};

/* name: in metrics; at: offset of the stage; one and many: in sentences. */
#define PART(at, member) ((at) + offsetof(struct server_snapshot_stage, member))
#define STAGE(name, at, one, many)                                                                           \
    {"bound_us",        "gpu_" name "_bound_seconds", "gauge", "Bound on the time of one " one ".", TIME,    \
     PART(at, bound_ns)},                                                                                    \
        {"max_us", NULL, NULL, "The longest.", TIME, PART(at, max_ns)},                                      \
        {"mean_us", NULL, NULL, "Mean of all so far.", TIME, PART(at, mean_ns)},                             \
        {"worst", NULL, NULL, "The largest share of its bound that one took.", SHARE, PART(at, worst_ppb)},  \
        {"exceeded", "gpu_" name "_exceeded_total",                                                          \
         "counter",  many " that took longer than their bound.",                                             \
         COUNT,      PART(at, exceeded)},                                                                    \
    {                                                                                                        \
        "excess_us", "gpu_" name "_excess_seconds_total", "counter",                                         \
            many ": total time beyond their bounds.", TIME, PART(at, excess_ns)                              \
    }
#define STAGE_TOTAL(name, at, many)                                                                          \
    {                                                                                                        \
        NULL, "gpu_" name "_seconds_total", "counter", "Time of all " many ".", TIME, PART(at, total_ns)     \
    }

static const struct server_figure copy_up[] = {
    STAGE("copy_up", GPU(copy_up), "copy to the GPU", "Copies to the GPU"),
    STAGE_TOTAL("copy_up", GPU(copy_up), "copies to the GPU"), END};
static const struct server_figure kernel[] = {STAGE("kernel", GPU(kernel), "kernel", "Kernels"),
                                              STAGE_TOTAL("kernel", GPU(kernel), "kernels"), END};
static const struct server_figure copy_down[] = {
    STAGE("copy_down", GPU(copy_down), "copy back", "Copies back"),
    STAGE_TOTAL("copy_down", GPU(copy_down), "copies back"), END};
static const struct server_figure whole[] = {
    STAGE("batch", GPU(whole), "batch, from its closing to its last byte", "Batches"), END};
static const struct server_figure notice[] = {
    STAGE("notice", GPU(notice), "notice of a batch's last byte", "Notices of a batch's last byte"),
    STAGE_TOTAL("notice", GPU(notice), "notices of a batch's last byte"), END};

const struct server_figure_stage server_figures_stages[SERVER_FIGURES_STAGES] = {
    {"copy_up", copy_up}, {"kernel", kernel}, {"copy_down", copy_down}, {"whole", whole}, {"notice", notice}};

#define UNIT(member) offsetof(struct server_snapshot_unit, member)

const struct server_figure server_figures_unit[] = {
    {"packets", NULL, NULL, "Packets of the unit that were delivered.", COUNT, UNIT(packets)},
    {"missed", "unit_deadlines_missed_total", "counter", "Packets of the unit that missed their deadline.",
     COUNT, UNIT(missed)},
    {"reader_late", "unit_reader_late_total", "counter",
     "Of those met: ready in time, but the client did not read them in time.", COUNT, UNIT(reader_late)},
    {"lost_us", "unit_lost_seconds_total", "counter",
     "Time that the unit took beyond what bounds and margins allow.", TIME, UNIT(lost_ns)},
    {"overload_us", "unit_overload_seconds", "gauge",
     "The most of that in a tenth of a second within the last overload.quiet_ms.", TIME, UNIT(level_ns)},
    {"held_back", "unit_held_back_ratio", "gauge",
     "Share of the unit's capacity that is withheld from admission after overruns.", SHARE,
     UNIT(withheld_ppb)},
    END};

#define WHOLE(member) offsetof(struct server_snapshot, member)

const struct server_figure server_figures_moves[] = {
    {"moved", "moves_total", "counter", "Streams that migrated to another unit.", COUNT, WHOLE(moved)},
    {"given_up", "moves_given_up_total", "counter", "Migrations that timed out; the stream stayed.", COUNT,
     WHOLE(stayed)},
    {"held_max_us", NULL, NULL, "The longest time that a migration held packets of its stream.", TIME,
     WHOLE(held_max_ns)},
    END};

const struct server_figure server_figures_plans[] = {
    {"checked", "plans_checked_total", "counter", "Plans in force that were checked (check_plans).", COUNT,
     WHOLE(checked)},
    {"rejected", "plans_rejected_total", "counter", "Checked plans that do not hold: a defect of the server.",
     COUNT, WHOLE(rejected)},
    END};
