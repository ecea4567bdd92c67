#include "inputgen/replay_live.h"

#include "core/secret.h"
#include "inputgen/replay_payload.h"

#include <openssl/rand.h>
#include <string.h>

/* The contract at the scaled rate; the named key decides about the cipher. */
static core_status spec_scale(const struct inputgen_replay_options *options, struct core_stream_spec *spec,
                              size_t stream, struct core_error *error)
{
    double scale = options->scale > 0 ? options->scale : 1;
    double interval_ns = (double)spec->interval_ns / scale;
    if (interval_ns > (double)CORE_INTERVAL_NS_MAX)
        interval_ns = (double)CORE_INTERVAL_NS_MAX;
    spec->interval_ns = (core_ns)interval_ns;
    if (options->key_name)
        spec->cipher = options->key_cipher;
    if (core_stream_spec_check(spec, error) != CORE_OK)
        return core_error_prefix(error, CORE_INVALID, "stream %zu", stream);
    return CORE_OK;
}

static struct inputgen_timetable table_of(const struct inputgen_live *live,
                                          const struct inputgen_replay_options *options, core_ns first_ns)
{
    uint32_t group = options->bursts ? live->source.spec.burst_packets : 1;
    core_ns group_ns = live->source.spec.interval_ns * group;
    group_ns += (core_ns)((double)group_ns * options->slower);
    return (struct inputgen_timetable){.first_ns = first_ns, .group = group, .group_ns = group_ns};
}

/* Packets that are due before stop_ns, those below the table's first among them. */
static uint64_t packets_before(const struct inputgen_timetable *table, core_ns stop_ns)
{
    if (stop_ns == CORE_NS_NEVER)
        return INPUTGEN_LIVE_ENDLESS;
    if (table->first_ns >= stop_ns)
        return table->first;
    return table->first + (uint64_t)((stop_ns - table->first_ns - 1) / table->group_ns + 1) * table->group;
}

/* Groups of packets are due every group_ns from the start on, as long as that is before the stop. */
static void timetable_set(struct inputgen_live *live, const struct inputgen_stream *stream,
                          const struct inputgen_replay_options *options, core_ns duration_ns)
{
    uint64_t draw = inputgen_mix(inputgen_mix(options->seed) + live->source.stream);
    core_ns stop_ns = core_time_min(stream->stop_ns, duration_ns);
    struct inputgen_timetable *table = &live->now;
    *table = table_of(live, options, stream->start_ns);
    if (options->random_phases)
        table->first_ns += (core_ns)(draw % (uint64_t)table->group_ns);
    live->origin = live->source.spec;
    live->stop_ns = stop_ns;
    live->planned = packets_before(table, stop_ns);
}

static core_status key_set(struct inputgen_live *live, const struct inputgen_replay_options *options,
                           struct core_error *error)
{
    int key_bytes = (int)core_cipher_key_bytes(live->source.spec.cipher);
    if (options->key_name)
        memcpy(live->key, options->key, (size_t)key_bytes);
    if (RAND_bytes(live->iv, CORE_BLOCK_BYTES) != 1 ||
        (!options->key_name && RAND_bytes(live->key, key_bytes) != 1))
        return core_error_set(error, CORE_SYSTEM, "OpenSSL has no random bytes for a key");
    return CORE_OK;
}

core_status inputgen_live_init(struct inputgen_live *live, const struct inputgen_replay_options *options,
                               const struct inputgen_streams *list, size_t index, core_ns duration_ns,
                               struct core_error *error)
{
    const struct inputgen_stream *stream = &list->streams[index];
    *live = (struct inputgen_live){.source = {stream->spec, stream->message_packets, (uint32_t)index},
                                   .class_index = stream->class_index};
    core_status status = spec_scale(options, &live->source.spec, index + 1, error);
    if (status != CORE_OK)
        return status;
    timetable_set(live, stream, options, duration_ns);
    return key_set(live, options, error);
}

core_status inputgen_live_begin(struct inputgen_live *live, const struct inputgen_replay_options *options,
                                const struct inputgen_stream *stream, uint32_t index, core_ns begin_ns,
                                struct core_error *error)
{
    *live = (struct inputgen_live){.source = {stream->spec, stream->message_packets, index},
                                   .planned = INPUTGEN_LIVE_ENDLESS,
                                   .stop_ns = CORE_NS_NEVER};
    core_status status = spec_scale(options, &live->source.spec, index, error);
    if (status != CORE_OK)
        return status;
    live->origin = live->source.spec;
    live->now = table_of(live, options, begin_ns);
    return key_set(live, options, error);
}

bool inputgen_live_may_change(const struct inputgen_live *live)
{
    return live->state == INPUTGEN_LIVE_OPEN && live->scheduled && !live->changing &&
           live->received >= live->now.first && live->received >= live->changed;
}

void inputgen_live_change(struct inputgen_live *live, const struct inputgen_replay_options *options,
                          const struct core_stream_spec *spec, uint64_t first)
{
    live->changed = first;
    live->latency_before_ns = live->source.spec.latency_ns;
    live->source.spec = *spec;
    if (live->sent == live->planned)
        return; /* nothing is to come */
    core_ns next_ns = inputgen_live_due_ns(live, live->sent);
    live->before = live->now;
    live->now = table_of(live, options, next_ns);
    live->now.first = live->sent;
    live->planned = packets_before(&live->now, live->stop_ns);
}

void inputgen_live_free(struct inputgen_live *live)
{
    inputgen_checker_free(&live->checker);
    core_secret_wipe(live->key, sizeof live->key);
}
