/* Admission: another contract for a stream, on the unit that it is on. */
#include "partition/admission/internal.h"
#include "partition/admission/offer.h"
#include "partition/admission/reasons.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* ---- joins ---- */

static struct core_stream_spec join_of(const struct core_stream_spec *a, const struct core_stream_spec *b)
{
    struct core_stream_spec join = *b;
    join.interval_ns = core_time_min(a->interval_ns, b->interval_ns);
    join.burst_packets = a->burst_packets > b->burst_packets ? a->burst_packets : b->burst_packets;
    join.latency_ns = core_time_min(a->latency_ns, b->latency_ns);
    return join;
}

static bool same(const struct core_stream_spec *a, const struct core_stream_spec *b)
{
    return a->interval_ns == b->interval_ns && a->burst_packets == b->burst_packets &&
           a->latency_ns == b->latency_ns;
}

bool admission_joined(const struct admission_record *record)
{
    return !same(&record->join, &record->contract);
}

/* ---- questions ---- */

struct change {
    struct admission *admission;
    uint32_t stream;
    struct partition_demand join;
    struct partition_answer answer;   /* the unit's */
    struct admission_placement guard; /* with a backup: the GPU's, and that of the backup's unit */
    bool taken;                       /* the GPU would take it then */
    bool offers;                      /* new periods for guaranteed streams are left out */
    bool whole;                       /* as if its unit withheld no capacity from admission */
};

static const struct admission_record *record_of(const struct change *change)
{
    return &change->admission->record[change->stream];
}

/* What its unit is charged for now. */
static struct partition_demand charged(const struct change *change)
{
    return partition_demand_of(&record_of(change)->spec, change->admission->profile);
}

static bool on_gpu(const struct change *change)
{
    return admission_is_gpu(change->admission, record_of(change)->unit);
}

static bool ask_alone(struct change *change)
{
    const struct partition_unit *unit = change->admission->unit[record_of(change)->unit];
    const struct partition_demand now = charged(change);
    struct partition_question question = {.more = &change->join,
                                          .instead_of = &now,
                                          .scenario = PARTITION_OWN,
                                          .whole = change->whole,
                                          .period = PARTITION_PERIOD_PRESENT};
    change->answer = partition_unit_ask(unit, &question);
    if (change->answer.accepted || !on_gpu(change) || change->join.load.shortest_ns <= 0)
        return change->answer.accepted;
    question.period = PARTITION_PERIOD_BEST;
    struct partition_answer other = partition_unit_ask(unit, &question);
    if (other.accepted || other.verdict.headroom_ppb > change->answer.verdict.headroom_ppb)
        change->answer = other;
    return change->answer.accepted;
}

static bool protected(const struct change *change)
{
    return record_of(change)->backup.unit != ADMISSION_NONE;
}

/* Both rooms anew, the backup's where it is if that has room. */
static bool ask_failover(struct change *change)
{
    const struct admission *admission = change->admission;
    const struct admission_record *record = record_of(change);
    const struct partition_demand now = charged(change);
    struct partition_failover_question question = {.admission = admission,
                                                   .spec = &change->join.spec,
                                                   .g = admission_gpu_of(admission, record->unit),
                                                   .period = PARTITION_PERIOD_PRESENT,
                                                   .instead_of = &now,
                                                   .present = &record->backup,
                                                   .whole = change->whole};
    bool present, other = false;
    if (partition_failover_on_gpu(&question, &change->guard, &present))
        return true;
    question.period = PARTITION_PERIOD_BEST;
    bool found = !change->offers && partition_failover_on_gpu(&question, &change->guard, &other);
    change->taken = present || other;
    return found;
}

static int64_t io_ppb_now(const struct change *change)
{
    return perfmodel_io_utilisation_ppb(&record_of(change)->join, change->admission->profile);
}

static bool io_fits(const struct change *change)
{
    return admission_io_fits(change->admission, record_of(change)->io, io_ppb_now(change),
                             change->join.io_ppb);
}

static bool ask_unit(struct change *change)
{
    return protected(change) ? ask_failover(change) : ask_alone(change);
}

/* No more than it is charged for: a promise that stands. */
static bool ask_nothing(struct change *change)
{
    const struct partition_unit *unit = change->admission->unit[record_of(change)->unit];
    change->answer = (struct partition_answer){
        .accepted = true, .verdict = {.period_ns = unit->period_ns, .memory_bytes = unit->memory_bytes}};
    if (protected(change))
        change->guard = admission_placement_of(change->admission, change->stream);
    return true;
}

static bool ask(struct change *change, const struct core_stream_spec *spec)
{
    const struct core_stream_spec join = join_of(&record_of(change)->join, spec);
    change->join = partition_demand_of(&join, change->admission->profile);
    if (same(&join, &record_of(change)->join))
        return ask_nothing(change);
    return io_fits(change) && ask_unit(change);
}

/* ---- offers ---- */

struct search {
    struct change change;
    struct core_stream_spec spec;
    core_ns *value_ns; /* a field of spec */
};

static bool search_ask(void *owner, core_ns value_ns)
{
    struct search *search = owner;
    if (admission_is_cancelled(search->change.admission))
        return true; /* the shortest way to the end */
    *search->value_ns = value_ns;
    return ask(&search->change, &search->spec);
}

/* What is accepted stays so for a longer interval or latency bound: the join gets no harder. */
static struct partition_offer offer_of(const struct change *change, const struct core_stream_spec *spec)
{
    struct partition_offer offer;
    struct search search = {.change = *change, .spec = *spec};
    search.change.offers = true;
    search.value_ns = &search.spec.interval_ns;
    offer.interval_ns = partition_search_least(spec->interval_ns, CORE_INTERVAL_NS_MAX, search_ask, &search);
    search.spec = *spec;
    search.value_ns = &search.spec.latency_ns;
    offer.latency_ns = partition_search_least(spec->latency_ns, CORE_LATENCY_NS_MAX, search_ask, &search);
    return offer;
}

/* ---- words ---- */

static void explain_gpu(const struct change *change, struct admission_placement *placement)
{
    const struct admission *admission = change->admission;
    uint32_t g = admission_gpu_of(admission, record_of(change)->unit);
    struct perfmodel_flow_load load = admission->gpu[g]->own.load;
    perfmodel_flow_load_add(&load, &change->join.load);
    struct partition_gpu_refusal refusal = {.verdict = &change->answer.verdict,
                                            .gpu = g,
                                            .gpus = admission->gpus,
                                            .change = true,
                                            .streams = admission->gpu[g]->own.load.streams,
                                            .shortest_ns = load.shortest_ns};
    placement->constraint = change->answer.verdict.binding;
    partition_explain_gpu(&refusal, placement->reason);
}

/* What the GPU says to all of the bound but what the detection takes. */
static void explain_failover(struct change *change, struct admission_placement *placement)
{
    const struct admission_record *record = record_of(change);
    struct change asked = *change;
    struct core_stream_spec join = change->join.spec;
    join.latency_ns -= record->backup.detection_ns + CORE_LATENCY_NS_MIN;
    if (join.latency_ns >= CORE_LATENCY_NS_MIN)
        asked.join = partition_demand_of(&join, change->admission->profile);
    if (!change->taken && join.latency_ns >= CORE_LATENCY_NS_MIN && !ask_alone(&asked)) {
        explain_gpu(&asked, placement);
        return;
    }
    placement->constraint = PERFMODEL_LIMIT_BACKUP;
    partition_explain_change_backup(admission_gpu_of(change->admission, record->unit), placement->reason);
}

/* Would it hold with nothing kept in reserve? */
static bool reserve_binds(const struct change *change)
{
    struct change whole = *change;
    whole.whole = true;
    return admission_withheld_ppb(change->admission, record_of(change)->unit) > 0 && ask_unit(&whole);
}

static void explain_worker(const struct change *change, struct admission_placement *placement)
{
    const struct perfmodel_edf_result *test = &change->answer.test;
    struct perfmodel_cpu_task task;
    struct core_error error;
    placement->constraint = test->binding;
    if (perfmodel_cpu_task_from(&change->join.spec, change->admission->profile, &task, &error) == CORE_OK)
        partition_explain_change(record_of(change)->unit, test, placement->reason);
    else
        snprintf(placement->reason, sizeof placement->reason, "%.*s", (int)sizeof placement->reason - 1,
                 error.text);
}

static void explain(struct change *change, struct admission_placement *placement)
{
    const struct admission_record *record = record_of(change);
    if (!io_fits(change))
        admission_explain_io(change->admission, change->join.io_ppb, record->io, io_ppb_now(change),
                             placement);
    else if (reserve_binds(change))
        admission_explain_withheld(change->admission, record->unit, placement);
    else if (protected(change))
        explain_failover(change, placement);
    else if (on_gpu(change))
        explain_gpu(change, placement);
    else
        explain_worker(change, placement);
}

/* ---- the decision ---- */

/* What the packets under the new contract are promised: they are served as the join's until the settle, and
 * as their own from then on. */
static void fill_accepted(const struct change *change, const struct core_stream_spec *spec,
                          struct admission_placement *placement)
{
    const struct admission *admission = change->admission;
    if (protected(change))
        *placement = change->guard;
    placement->accepted = true;
    placement->unit = record_of(change)->unit;
    placement->stream = change->stream;
    placement->joined = !same(&change->join.spec, spec);
    placement->bound_ns = spec->latency_ns;
    if (!on_gpu(change)) {
        const struct partition_unit *unit = admission->unit[placement->unit];
        const struct partition_demand demand = partition_demand_of(spec, admission->profile);
        placement->task = change->join.task;
        placement->bound_ns = core_time_max(partition_unit_bound_ns(unit, &change->join),
                                            partition_unit_bound_ns(unit, &demand));
        return;
    }
    if (protected(change))
        return;
    const struct perfmodel_flow_verdict *verdict = &change->answer.verdict;
    placement->period_ns = verdict->period_ns;
    placement->new_period = verdict->period_ns != admission->unit[placement->unit]->period_ns;
    placement->memory_bytes = verdict->memory_bytes;
}

static const char *class_name(const struct core_stream_spec *spec)
{
    return spec->guaranteed ? "guaranteed" : "standard";
}

static core_status check(const struct admission *admission, uint32_t stream,
                         const struct core_stream_spec *spec, struct core_error *error)
{
    assert(stream < admission->capacity);
    const struct admission_record *record = &admission->record[stream];
    const struct core_stream_spec *old = &record->contract;
    core_status status = admission_check(admission, spec, record->io, error);
    if (status != CORE_OK)
        return status;
    if (spec->packet_bytes != old->packet_bytes || spec->padding != old->padding ||
        spec->cipher != old->cipher || spec->guaranteed != old->guaranteed)
        return core_error_set(
            error, CORE_INVALID,
            "packets of %u bytes with %s, padding %s, %s: a stream keeps what it was opened "
            "with, %u bytes, %s, %s, %s; open another stream",
            spec->packet_bytes, core_cipher_name(spec->cipher), core_padding_name(spec->padding),
            class_name(spec), old->packet_bytes, core_cipher_name(old->cipher),
            core_padding_name(old->padding), class_name(old));
    if (record->moved)
        return core_error_set(error, CORE_REFUSED, "the stream has been moved to another number");
    return CORE_OK;
}

core_status admission_change_query(struct admission *admission, uint32_t stream,
                                   const struct core_stream_spec *spec, bool with_offer,
                                   struct admission_placement *placement, struct core_error *error)
{
    core_status status = check(admission, stream, spec, error);
    if (status != CORE_OK)
        return status;
    struct change change = {.admission = admission, .stream = stream};
    *placement = (struct admission_placement){
        .unit = ADMISSION_NONE, .stream = ADMISSION_NONE, .backup_unit = ADMISSION_NONE};
    if (ask(&change, spec)) {
        fill_accepted(&change, spec, placement);
        return CORE_OK;
    }
    if (admission_is_cancelled(admission))
        return CORE_OK;
    explain(&change, placement);
    if (with_offer)
        placement->offer = offer_of(&change, spec);
    return CORE_OK;
}

/* Charges the I/O thread for another join from now on. */
static void recharge_io(struct admission *admission, const struct admission_record *record,
                        const struct core_stream_spec *join)
{
    if (record->moved)
        return;
    admission_charge_io(admission, record->io,
                        perfmodel_io_utilisation_ppb(&record->join, admission->profile),
                        perfmodel_io_utilisation_ppb(join, admission->profile));
}

/* As it was, with its periods, d_g and backup. Only a backup that moved can lack memory for its old place; it
 * stays at the new one then, which has room for it. */
static void put_back(struct admission *admission, uint32_t stream, const struct core_stream_spec *join,
                     const struct admission_placement *was)
{
    struct admission_record *record = &admission->record[stream];
    const uint32_t backup_unit = record->backup.unit;
    recharge_io(admission, record, join);
    if (admission_allocate(admission, was) == CORE_OK)
        admission_reserve_join(admission, stream, join, was);
    else
        admission_replace(admission, stream, join);
    admission_plan_smaller(admission, record->unit, record->backup.unit);
    if (backup_unit != record->backup.unit)
        admission_plan_smaller(admission, ADMISSION_NONE, backup_unit);
}

/* Charges for the join, if that is more than now. False: batches have no room for it, and why; nothing has
 * changed. */
static bool charge(struct admission *admission, uint32_t stream, const struct core_stream_spec *join,
                   const struct admission_placement *placement, struct admission_refusal *words)
{
    struct admission_record *record = &admission->record[stream];
    const struct core_stream_spec before = record->join;
    const struct admission_placement was = admission_placement_of(admission, stream);
    if (same(join, &record->join))
        return true;
    recharge_io(admission, record, join);
    admission_reserve_join(admission, stream, join, placement);
    if (admission_plan_units(admission, record->unit, record->backup.unit, words)) {
        if (was.backup_unit != record->backup.unit)
            admission_plan_smaller(admission, ADMISSION_NONE, was.backup_unit);
        return true;
    }
    put_back(admission, stream, &before, &was);
    return false;
}

core_status admission_change(struct admission *admission, uint32_t stream,
                             const struct core_stream_spec *spec, struct admission_placement *placement,
                             struct core_error *error)
{
    core_status status = admission_change_query(admission, stream, spec, true, placement, error);
    struct admission_refusal words;
    if (status != CORE_OK || !placement->accepted)
        return status;
    if (admission_allocate(admission, placement) != CORE_OK)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the change");
    struct admission_record *record = &admission->record[stream];
    const struct core_stream_spec join = join_of(&record->join, spec);
    admission->changes++;
    if (charge(admission, stream, &join, placement, &words)) {
        record->contract = *spec;
        return CORE_OK;
    }
    *placement = (struct admission_placement){.unit = ADMISSION_NONE,
                                              .stream = ADMISSION_NONE,
                                              .backup_unit = ADMISSION_NONE,
                                              .constraint = words.constraint};
    memcpy(placement->reason, words.reason, sizeof placement->reason);
    return CORE_OK;
}

void admission_finalize(struct admission *admission, uint32_t stream)
{
    const struct admission_record *record = admission_record_of(admission, stream);
    if (!admission_joined(record))
        return;
    struct core_stream_spec contract = record->contract;
    recharge_io(admission, record, &contract);
    admission_replace(admission, stream, &contract);
    admission->changes++;
    admission_plan_smaller(admission, record->unit, record->backup.unit);
}
