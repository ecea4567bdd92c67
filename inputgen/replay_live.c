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

/* Groups of packets are due every group_ns from the start on, as long as that is before the stop. */
static void timetable_set(struct inputgen_live *live, const struct inputgen_stream *stream,
                          const struct inputgen_replay_options *options, core_ns duration_ns)
{
    uint64_t draw = inputgen_mix(inputgen_mix(options->seed) + live->index);
    core_ns stop_ns = stream->stop_ns < duration_ns ? stream->stop_ns : duration_ns;
    live->group = options->bursts ? live->spec.burst_packets : 1;
    live->group_ns = live->spec.interval_ns * live->group;
    live->first_ns = stream->start_ns;
    if (options->random_phases)
        live->first_ns += (core_ns)(draw % (uint64_t)live->group_ns);
    if (live->first_ns < stop_ns)
        live->planned = (uint64_t)((stop_ns - live->first_ns - 1) / live->group_ns + 1) * live->group;
}

core_status inputgen_live_init(struct inputgen_live *live, const struct inputgen_replay_options *options,
                               const struct inputgen_streams *list, size_t index, core_ns duration_ns,
                               struct core_error *error)
{
    const struct inputgen_stream *stream = &list->streams[index];
    *live = (struct inputgen_live){
        .spec = stream->spec, .index = (uint32_t)index, .class_index = stream->class_index};
    core_status status = spec_scale(options, &live->spec, index + 1, error);
    if (status != CORE_OK)
        return status;
    timetable_set(live, stream, options, duration_ns);
    int key_bytes = (int)core_cipher_key_bytes(live->spec.cipher);
    if (options->key_name)
        memcpy(live->key, options->key, (size_t)key_bytes);
    else if (RAND_bytes(live->key, key_bytes) != 1)
        return core_error_set(error, CORE_SYSTEM, "OpenSSL has no random bytes for a key");
    return CORE_OK;
}

void inputgen_live_free(struct inputgen_live *live)
{
    inputgen_checker_free(&live->checker);
    core_secret_wipe(live->key, sizeof live->key);
}
