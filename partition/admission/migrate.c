#include "partition/admission/migrate.h"

#include <stdlib.h>

#define PASSES 16 /* over the moves that wait for room */

/* A GPU's heaps share their places: off the old unit first. */
static core_status change_over(struct partition_standing *standing, uint32_t stream,
                               const struct partition_standing_placement *placement)
{
    core_status status = partition_standing_reserve(standing, placement);
    if (status != CORE_OK)
        return status;
    partition_standing_take(standing, stream);
    partition_standing_set(standing, placement);
    partition_standing_assign(&standing->record[stream], placement);
    /* what it left may have been the room that was reserved */
    status = partition_standing_reserve(standing, placement);
    if (status == CORE_OK)
        partition_standing_put(standing, stream);
    return status;
}

static bool find_place(struct partition_standing *standing, uint32_t stream, uint32_t kind,
                       struct partition_standing_placement *placement)
{
    const struct partition_standing_record *record = &standing->record[stream];
    const struct partition_demand demand = partition_demand_of(&record->join, standing->profile);
    partition_standing_charge_io(standing, record->io, demand.io_ppb, 0); /* it is not asked for twice */
    bool found = partition_standing_place(standing, &demand, record->io, kind, placement);
    partition_standing_charge_io(standing, record->io, 0, demand.io_ppb);
    return found;
}

core_status partition_moves_change(struct partition_standing *standing, uint32_t stream, uint32_t kind,
                                   bool *found)
{
    struct partition_standing_placement placement;
    *found = find_place(standing, stream, kind, &placement);
    return *found ? change_over(standing, stream, &placement) : CORE_OK;
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
static size_t list_overlaps(const struct partition_standing *standing, const uint32_t *common, uint32_t units,
                            struct overlap *list)
{
    size_t count = 0;
    for (uint32_t planned = 0; planned < units; planned++)
        for (uint32_t present = 0; present < units; present++)
            if (standing->unit[planned]->kind == standing->unit[present]->kind)
                list[count++] = (struct overlap){common[(size_t)planned * units + present], planned, present};
    qsort(list, count, sizeof *list, compare_overlaps);
    return count;
}

core_status partition_moves_renumber(const struct partition_standing *standing, const uint32_t *from,
                                     const uint32_t *to, size_t count, uint32_t *number)
{
    uint32_t units = partition_standing_units(standing);
    uint32_t *common = calloc((size_t)units * units, sizeof *common);
    struct overlap *list = malloc((size_t)units * units * sizeof *list);
    bool *used = calloc(units, sizeof *used);
    core_status status = common != NULL && list != NULL && used != NULL ? CORE_OK : CORE_NO_MEMORY;
    for (size_t i = 0; status == CORE_OK && i < count; i++)
        common[(size_t)to[i] * units + from[i]]++;
    for (uint32_t u = 0; u < units; u++)
        number[u] = PARTITION_STANDING_NONE;
    size_t pairs = status == CORE_OK ? list_overlaps(standing, common, units, list) : 0;
    for (size_t n = 0; n < pairs; n++) {
        if (number[list[n].planned] != PARTITION_STANDING_NONE || used[list[n].present])
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

static bool may_guarded(const struct partition_standing *standing, const struct core_stream_spec *spec,
                        uint32_t g, core_ns period_ns, struct partition_standing_placement *placement)
{
    struct partition_guard_question question = {
        .standing = standing, .spec = spec, .g = g, .period = PARTITION_PERIOD_AT, .period_ns = period_ns};
    bool taken;
    if (partition_guard_on_gpu(&question, placement, &taken))
        return true;
    question.period = PARTITION_PERIOD_PRESENT;
    return partition_guard_on_gpu(&question, placement, &taken);
}

bool partition_moves_may(const struct partition_standing *standing, uint32_t stream, uint32_t unit,
                         core_ns period_ns, struct partition_standing_placement *placement)
{
    const struct core_stream_spec *spec = &standing->record[stream].join;
    *placement = (struct partition_standing_placement){
        .accepted = true, .unit = unit, .backup_unit = PARTITION_STANDING_NONE};
    const struct partition_unit *of = standing->unit[unit];
    if (of->out)
        return false;
    if (spec->guaranteed && partition_standing_is_gpu(standing, unit))
        return may_guarded(standing, spec, partition_standing_gpu_of(standing, unit), period_ns, placement);
    const struct partition_demand demand = partition_demand_of(spec, standing->profile);
    struct partition_question question = {
        .more = &demand, .scenario = PARTITION_OWN, .period = PARTITION_PERIOD_AT, .period_ns = period_ns};
    struct partition_answer answer = partition_unit_ask(of, &question);
    if (!answer.accepted && partition_standing_is_gpu(standing, unit)) {
        question.period = PARTITION_PERIOD_PRESENT;
        answer = partition_unit_ask(of, &question);
    }
    placement->period_ns = answer.verdict.period_ns;
    placement->memory_bytes = answer.verdict.memory_bytes;
    return answer.accepted;
}

/* Makes the moves from `done` on that can be made as things stand, and brings them to the front. */
static core_status make_moves(struct partition_standing *now, const struct partition_standing *after,
                              struct partition_moves *moves)
{
    core_status status = CORE_OK;
    for (size_t n = moves->in_turn; status == CORE_OK && n < moves->count; n++) {
        struct partition_standing_move move = moves->move[n];
        struct partition_standing_placement placement;
        if (!partition_moves_may(now, move.stream, move.to, after->unit[move.to]->period_ns, &placement))
            continue;
        status = change_over(now, move.stream, &placement);
        move.period_ns = placement.period_ns;
        moves->move[n] = moves->move[moves->in_turn];
        moves->move[moves->in_turn++] = move;
    }
    return status;
}

core_status partition_moves_order(const struct partition_standing *standing,
                                  const struct partition_standing *after, struct partition_moves *moves)
{
    struct partition_standing *now = NULL;
    struct partition_standing_placement placement;
    moves->count = moves->in_turn = 0;
    for (uint32_t n = 0; n < standing->count; n++) {
        uint32_t stream = standing->listed[n];
        const struct partition_standing_record *record = &standing->record[stream];
        uint32_t to = after->record[stream].unit;
        if (to != record->unit)
            moves->move[moves->count++] = (struct partition_standing_move){
                stream, record->handle, record->unit, to, after->unit[to]->period_ns};
    }
    core_status status = partition_standing_copy(standing, &now);
    for (int pass = 0; status == CORE_OK && pass < PASSES; pass++) {
        size_t before = moves->in_turn;
        status = make_moves(now, after, moves);
        if (moves->in_turn == before)
            break;
    }
    moves->admits = status == CORE_OK && moves->in_turn == moves->count &&
                    partition_standing_place(now, moves->newcomer, moves->io, PARTITION_KIND_ANY, &placement);
    partition_standing_destroy(now);
    return status;
}
