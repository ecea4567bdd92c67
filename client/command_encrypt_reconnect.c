/* millrace encrypt --reconnect: the server goes away, and the stream goes on at the next one. */
#include "client/command_encrypt.h"

#include "core/secret.h"

#include <stdlib.h>
#include <string.h>

#define PAUSE_NS   (100 * CORE_NS_PER_MS) /* between two attempts */
#define ATTEMPT_MS 1000                   /* for one of them */

/* ---- what may have to be sent again ---- */

core_status encrypt_kept_init(struct encrypt_kept *kept, uint32_t packet_bytes, struct core_error *error)
{
    uint64_t slots = ENCRYPT_AHEAD_BYTES / packet_bytes + 1;
    *kept = (struct encrypt_kept){.slots = slots, .slot_bytes = packet_bytes};
    kept->bytes = malloc(slots * packet_bytes);
    kept->lengths = calloc(slots, sizeof *kept->lengths);
    if (kept->bytes != NULL && kept->lengths != NULL)
        return CORE_OK;
    encrypt_kept_free(kept);
    return core_error_set(error, CORE_NO_MEMORY, "no memory to keep packets for another server");
}

void encrypt_kept_free(struct encrypt_kept *kept)
{
    if (kept->bytes != NULL)
        core_secret_wipe(kept->bytes, kept->slots * kept->slot_bytes);
    free(kept->bytes);
    free(kept->lengths);
    *kept = (struct encrypt_kept){0};
}

void encrypt_kept_put(struct encrypt_kept *kept, uint64_t number, const uint8_t *packet, uint32_t bytes)
{
    uint64_t slot = number % kept->slots;
    memcpy(kept->bytes + slot * kept->slot_bytes, packet, bytes);
    kept->lengths[slot] = bytes;
}

const uint8_t *encrypt_kept_get(const struct encrypt_kept *kept, uint64_t number, uint32_t *bytes)
{
    uint64_t slot = number % kept->slots;
    *bytes = kept->lengths[slot];
    return kept->bytes + slot * kept->slot_bytes;
}

/* ---- the next server ---- */

/* Another attempt may succeed where the reason is not the stream itself. */
static bool may_pass(const struct millrace_refused *refused)
{
    return refused->code == MILLRACE_REFUSED_CAPACITY || refused->code == MILLRACE_REFUSED_LIMIT ||
           refused->code == MILLRACE_REFUSED_DRAINING || refused->code == MILLRACE_REFUSED_INTERNAL;
}

/* CORE_AGAIN: not now. */
static core_status attempt(struct encrypt_run *run)
{
    const struct core_options_server *server = &run->options->server;
    struct millrace_refused refused = {.size = sizeof refused};
    int timeout_ms = server->timeout_ms < ATTEMPT_MS ? server->timeout_ms : ATTEMPT_MS;
    millrace_disconnect(run->connection);
    run->connection = NULL;
    if (command_connect_within(server, timeout_ms, &run->connection, &run->error) != CORE_OK)
        return CORE_AGAIN;
    run->open.has_iv = true;
    memcpy(run->open.iv, run->chain, CORE_BLOCK_BYTES);
    core_status status = (core_status)millrace_open_stream(run->connection, &run->open, server->timeout_ms,
                                                           &run->opened, &refused, run->error.text);
    if (status == CORE_REFUSED)
        return may_pass(&refused) ? CORE_AGAIN : CORE_REFUSED;
    return status == CORE_OK ? CORE_OK : CORE_AGAIN;
}

core_status encrypt_reconnect(struct encrypt_run *run, const struct millrace_callbacks *callbacks,
                              bool (*stopped)(void))
{
    core_ns until_ns = core_time_now_ns() + run->options->reconnect_ns;
    core_status status;
    if (!run->options->quiet)
        fprintf(stderr, "millrace: %s; looking for the server to go on after packet %llu\n", run->error.text,
                (unsigned long long)run->options->skip + (unsigned long long)run->received);
    while ((status = attempt(run)) == CORE_AGAIN && core_time_now_ns() < until_ns && !stopped())
        core_time_sleep_until(core_time_now_ns() + PAUSE_NS);
    if (status)
        return status == CORE_AGAIN ? CORE_TIMEOUT : status;
    if (run->sent > run->kept_until)
        run->kept_until = run->sent;
    run->sent = run->corrected = run->received;
    run->arrival_ns = core_time_now_ns();
    run->lost = false;
    run->reconnects++;
    return (core_status)millrace_set_callbacks(run->connection, callbacks, run->error.text);
}
