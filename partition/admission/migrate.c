#include "partition/admission/migrate.h"

#include <stdlib.h>

#define PASSES 16 /* over the moves that wait for room */

/* A GPU's heaps share their places: off the old unit first. */
static core_status change_over(struct admission *admission, uint32_t stream,
                               const struct admission_placement *placement)
{
    core_status status = admission_allocate(admission, placement);
    if (status != CORE_OK)
        return status;
    admission_remove_demand(admission, stream);
    admission_set_periods(admission, placement);
    admission_assign(&admission->record[stream], placement);
    /* what it left may have been the room that was reserved */
    status = admission_allocate(admission, placement);
    if (status == CORE_OK)
        admission_add_demand(admission, stream);
    return status;
}

static bool find_place(struct admission *admission, uint32_t stream, uint32_t kind,
                       struct admission_placement *placement)
{
    const struct admission_record *record = &admission->record[stream];
    const struct partition_demand demand = partition_demand_of(&record->join, admission->profile);
    admission_charge_io(admission, record->io, demand.io_ppb, 0); /* it is not asked for twice */
    bool found = admission_place(admission, &demand, record->io, kind, placement);
    admission_charge_io(admission, record->io, 0, demand.io_ppb);
    return found;
}

core_status partition_migrations_change(struct admission *admission, uint32_t stream, uint32_t kind,
                                        bool *found)
{
    struct admission_placement placement;
    *found = find_place(admission, stream, kind, &placement);
    return *found ? change_over(admission, stream, &placement) : CORE_OK;
}

/* ---- renumbering ---- */

struct overlap {
    uint32_t streams, planned, present;
};

static int compare_overlaps(const void *a, const void *b)
{
    const struct overlap *left = a, *right = b;
    if (left->streams != right->streams)
        return left->streams > right->streams ? -1 : 1;
    if (left->planned != right->planned)
        return left->planned < right->planned ? -1 : 1;
    return (left->present > right->present) - (left->present < right->present);
}

/* Pairs of units of a kind, most streams in common first. */
static size_t list_overlaps(const struct admission *admission, const uint32_t *common, uint32_t units,
                            struct overlap *list)
{
    size_t count = 0;
    for (uint32_t planned = 0; planned < units; planned++)
        for (uint32_t present = 0; present < units; present++)
            if (admission->unit[planned]->kind == admission->unit[present]->kind)
                list[count++] = (struct overlap){common[(size_t)planned * units + present], planned, present};
    qsort(list, count, sizeof *list, compare_overlaps);
    return count;
}

core_status partition_migrations_renumber(const struct admission *admission, const uint32_t *from,
                                          const uint32_t *to, size_t count, uint32_t *number)
{
    uint32_t units = admission_units(admission);
    uint32_t *common = calloc((size_t)units * units, sizeof *common);
    struct overlap *list = malloc((size_t)units * units * sizeof *list);
    bool *used = calloc(units, sizeof *used);
    core_status status = common != NULL && list != NULL && used != NULL ? CORE_OK : CORE_NO_MEMORY;
    for (size_t i = 0; status == CORE_OK && i < count; i++)
        common[(size_t)to[i] * units + from[i]]++;
    for (uint32_t u = 0; u < units; u++)
        number[u] = ADMISSION_NONE;
    size_t pairs = status == CORE_OK ? list_overlaps(admission, common, units, list) : 0;
    for (size_t n = 0; n < pairs; n++) {
        if (number[list[n].planned] != ADMISSION_NONE || used[list[n].present])
            continue;
        number[list[n].planned] = list[n].present;
        used[list[n].present] = true;
    }
    free(used);
    free(list);
    free(common);
    return status;
}

/* ---- order ---- */

static bool may_protect(const struct admission *admission, const struct core_stream_spec *spec, uint32_t g,
                        core_ns period_ns, struct admission_placement *placement)
{
    struct partition_failover_question question = {
        .admission = admission, .spec = spec, .g = g, .period = PARTITION_PERIOD_AT, .period_ns = period_ns};
    bool taken;
    if (partition_failover_on_gpu(&question, placement, &taken))
        return true;
    question.period = PARTITION_PERIOD_PRESENT;
    return partition_failover_on_gpu(&question, placement, &taken);
}

bool partition_migrations_may(const struct admission *admission, uint32_t stream, uint32_t unit,
                              core_ns period_ns, struct admission_placement *placement)
{
    const struct core_stream_spec *spec = &admission->record[stream].join;
    *placement = (struct admission_placement){.accepted = true, .unit = unit, .backup_unit = ADMISSION_NONE};
    const struct partition_unit *of = admission->unit[unit];
    if (of->out)
        return false;
    if (spec->guaranteed && admission_is_gpu(admission, unit))
        return may_protect(admission, spec, admission_gpu_of(admission, unit), period_ns, placement);
    const struct partition_demand demand = partition_demand_of(spec, admission->profile);
    struct partition_question question = {
        .more = &demand, .scenario = PARTITION_OWN, .period = PARTITION_PERIOD_AT, .period_ns = period_ns};
    struct partition_answer answer = partition_unit_ask(of, &question);
    if (!answer.accepted && admission_is_gpu(admission, unit)) {
        question.period = PARTITION_PERIOD_PRESENT;
        answer = partition_unit_ask(of, &question);
    }
    placement->period_ns = answer.verdict.period_ns;
    placement->memory_bytes = answer.verdict.memory_bytes;
    return answer.accepted;
}

/* Makes the moves from `done` on that can be made as things stand, and brings them to the front. */
static core_status make_moves(struct admission *now, const struct admission *after,
                              struct partition_migrations *moves)
{
    core_status status = CORE_OK;
    for (size_t n = moves->in_turn; status == CORE_OK && n < moves->count; n++) {
        struct admission_move move = moves->move[n];
        struct admission_placement placement;
        if (!partition_migrations_may(now, move.stream, move.to, after->unit[move.to]->period_ns, &placement))
            continue;
        status = change_over(now, move.stream, &placement);
        move.period_ns = placement.period_ns;
        moves->move[n] = moves->move[moves->in_turn];
        moves->move[moves->in_turn++] = move;
    }
    return status;
}

core_status partition_migrations_order(const struct admission *admission, const struct admission *after,
                                       struct partition_migrations *moves)
{
    struct admission *now = NULL;
    struct admission_placement placement;
    moves->count = moves->in_turn = 0;
    for (uint32_t n = 0; n < admission->count; n++) {
        uint32_t stream = admission->listed[n];
        const struct admission_record *record = &admission->record[stream];
        uint32_t to = after->record[stream].unit;
        if (to != record->unit)
            moves->move[moves->count++] =
                (struct admission_move){stream, record->handle, record->unit, to, after->unit[to]->period_ns};
    }
    core_status status = admission_copy(admission, &now);
    for (int pass = 0; status == CORE_OK && pass < PASSES; pass++) {
        size_t before = moves->in_turn;
        status = make_moves(now, after, moves);
        if (moves->in_turn == before)
            break;
    }
    moves->admits = status == CORE_OK && moves->in_turn == moves->count &&
                    admission_place(now, moves->request, moves->io, PARTITION_KIND_ANY, &placement);
    admission_destroy(now);
    return status;
}
