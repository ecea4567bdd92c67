/* Evacuation: the streams of a GPU that is out of service migrate to other units where there is capacity, and
 * return once it is in service again. Streams with a backup do not: their packets go there by themselves. */
#include "partition/planner/internal.h"

#define MIGRATIONS_AT_ONCE 16 /* of one step, so that requests are answered between */

void planner_scan(struct partition_planner *planner, uint32_t gpu)
{
    struct planner_gpu *of = &planner->gpus[gpu];

    of->scanning = true;
    of->again = false;
    of->next = 0;
    of->scan_ns = 0;
}

void planner_note_service(struct partition_planner *planner)
{
    for (uint32_t gpu = 0; gpu < planner->options.gpus; gpu++) {
        bool out = !planner->host.in_service(planner->context, gpu);
        if (out == planner->gpus[gpu].out)
            continue;
        planner->gpus[gpu].out = out;
        admission_set_out(planner->admission, gpu, out);
        planner_scan(planner, gpu);
        planner->host.service(planner->context, gpu, out);
    }
}

static bool send(struct partition_planner *planner, uint32_t number, uint32_t unit, core_ns period_ns,
                 core_ns now_ns)
{
    char reason[256];
    const struct planner_move move = {.stream = number,
                                      .unit = unit,
                                      .period_ns = period_ns,
                                      .timeout_ns = planner->options.timeout_ns,
                                      .now_ns = now_ns};

    return planner_move(planner, &move, reason, sizeof reason);
}

/* At the period that it has, or at the one that the stream had at home. */
static bool send_to_gpu(struct partition_planner *planner, uint32_t number, uint32_t gpu, core_ns now_ns)
{
    core_ns period_ns = admission_gpu_at(planner->admission, gpu).period_ns;

    if (period_ns == 0)
        period_ns = planner->reservations[number].evacuated_period_ns;
    return send(planner, number, partition_unit_of_gpu(planner->options.workers, gpu), period_ns, now_ns);
}

/* To the least loaded worker that accepts it, or to another GPU. The best-effort fallback worker serves it
 * until then, and ever after if there is none. */
static bool evacuate(struct partition_planner *planner, uint32_t number, core_ns now_ns)
{
    struct planner_reservation *reservation = &planner->reservations[number];
    const struct admission_stream stream = admission_stream_of(planner->admission, number);
    uint32_t evacuated_from = planner_gpu_of(planner, reservation->unit);
    uint32_t worker = admission_worker_for(planner->admission, &stream.spec, stream.io);

    reservation->evacuated_from = evacuated_from;
    reservation->evacuated_period_ns = admission_gpu_at(planner->admission, evacuated_from).period_ns;
    if (worker != ADMISSION_NONE && send(planner, number, worker, 0, now_ns))
        return true;
    for (uint32_t gpu = 0; gpu < planner->options.gpus; gpu++)
        if (gpu != evacuated_from && send_to_gpu(planner, number, gpu, now_ns))
            return true;
    return false;
}

/* Does the stream have to leave the GPU that is out, or to return to it? */
static bool is_wanted(const struct partition_planner *planner, uint32_t number, uint32_t gpu)
{
    const struct planner_reservation *reservation = &planner->reservations[number];
    uint32_t at;

    if (reservation->owner == NULL || reservation->target != PLANNER_NONE || reservation->superseded ||
        reservation->retired)
        return false;
    at = planner_gpu_of(planner, reservation->unit);
    if (planner->gpus[gpu].out ? at != gpu : reservation->evacuated_from != gpu || at == gpu)
        return false;
    return admission_stream_of(planner->admission, number).backup_unit == ADMISSION_NONE;
}

static void end_scan(struct partition_planner *planner, struct planner_gpu *gpu, core_ns now_ns)
{
    gpu->scanning = gpu->again;
    gpu->again = false;
    gpu->next = 0;
    gpu->scan_ns = now_ns + planner->options.scan_ns;
}

static void scan(struct partition_planner *planner, uint32_t gpu, core_ns now_ns)
{
    struct planner_gpu *of = &planner->gpus[gpu];

    for (uint32_t begun = 0; of->next < planner->capacity && begun < MIGRATIONS_AT_ONCE; of->next++) {
        if (!is_wanted(planner, of->next, gpu))
            continue;
        begun++;
        if (of->out)
            of->again |= !evacuate(planner, of->next, now_ns);
        else {
            (void)send_to_gpu(planner, of->next, gpu, now_ns);
            of->again = true; /* it may be given up */
        }
    }
    if (of->next >= planner->capacity)
        end_scan(planner, of, now_ns);
}

void planner_step_evacuation(struct partition_planner *planner, core_ns now_ns)
{
    for (uint32_t gpu = 0; gpu < planner->options.gpus; gpu++)
        if (planner->gpus[gpu].scanning && now_ns >= planner->gpus[gpu].scan_ns)
            scan(planner, gpu, now_ns);
}
