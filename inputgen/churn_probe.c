#include "inputgen/churn_probe.h"

#include "core/secret.h"
#include "inputgen/replay_open.h"

#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>

/* What the server granted: stream n is on link n mod link_count. */
struct granted {
    struct inputgen_link *links;
    size_t link_count;
    uint32_t *ids;
    size_t count;
    int timeout_ms;
};

static struct millrace *connection_of(const struct granted *granted, size_t stream)
{
    return granted->links[stream % granted->link_count].millrace;
}

/* CORE_REFUSED: by the server, for whatever reason. */
static core_status open_one(struct granted *granted, const struct millrace_open *open,
                            struct inputgen_probe *probe, struct core_error *error)
{
    struct millrace_opened opened = {.size = sizeof opened};
    struct millrace_refused refused = {.size = sizeof refused};
    core_status status = (core_status)millrace_open_stream(
        connection_of(granted, granted->count), open, granted->timeout_ms, &opened, &refused, error->text);
    if (status == CORE_REFUSED)
        (void)snprintf(probe->refusal, sizeof probe->refusal, "%s", refused.text);
    if (status != CORE_OK)
        return status;
    granted->ids[granted->count++] = opened.stream;
    probe->on_gpus += opened.unit == MILLRACE_SERVER_UNIT_GPU;
    if (opened.decided_ns > probe->decided_max_ns)
        probe->decided_max_ns = opened.decided_ns;
    return CORE_OK;
}

static core_status open_all(struct granted *granted, const struct inputgen_probe_plan *plan,
                            struct inputgen_probe *probe, struct core_error *error)
{
    uint8_t key[32] = {0}, iv[CORE_BLOCK_BYTES] = {0};
    struct millrace_open open = inputgen_open_request(&plan->spec, key, plan->key_name, iv);
    core_status status = CORE_OK;
    if (RAND_bytes(key, sizeof key) != 1)
        return core_error_set(error, CORE_SYSTEM, "OpenSSL has no random bytes for a key");
    while (status == CORE_OK && granted->count < plan->limit)
        status = open_one(granted, &open, probe, error);
    core_secret_wipe(key, sizeof key);
    probe->bounded = status == CORE_REFUSED;
    probe->streams = granted->count;
    return status == CORE_REFUSED ? CORE_OK : status;
}

static core_status close_all(const struct granted *granted, struct core_error *error)
{
    struct millrace_closed closed = {.size = sizeof closed};
    core_status status = CORE_OK;
    for (size_t at = 0; at < granted->count && status == CORE_OK; at++)
        status = (core_status)millrace_close_stream(connection_of(granted, at), granted->ids[at],
                                                    granted->timeout_ms, &closed, error->text);
    return status;
}

core_status inputgen_probe_run(struct inputgen_link *links, size_t link_count,
                               const struct inputgen_probe_plan *plan, struct inputgen_probe *probe,
                               struct core_error *error)
{
    struct granted granted = {.links = links, .link_count = link_count, .timeout_ms = plan->timeout_ms};
    *probe = (struct inputgen_probe){0};
    granted.ids = calloc(plan->limit, sizeof *granted.ids);
    if (!granted.ids)
        return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    core_status status = open_all(&granted, plan, probe, error);
    if (status == CORE_OK)
        status = close_all(&granted, error);
    free(granted.ids);
    return status;
}
