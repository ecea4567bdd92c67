/* Calls that wait. Several threads may wait on one connection: one of them at a time, the poller, sleeps in
 * poll without the lock and then reads for all; the others sleep on the condition. Each reader completes
 * whatever answers it finds. */
#include "client/connection.h"

#include "client/structs.h"
#include "client/translate.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define WAIT_READS 16 /* reads before a waiting call looks at its own answer and deadline again */

/* ---- waiters ---- */

struct client_waiter *client_waiter_find(const struct millrace *connection, uint8_t answer, uint32_t id,
                                         uint32_t sequence)
{
    struct client_waiter *waiter = connection->waiters;
    while (waiter != NULL && (waiter->done || waiter->answer != answer || waiter->id != id ||
                              (answer == PROTOCOL_RESULT && waiter->sequence != sequence)))
        waiter = waiter->next;
    return waiter;
}

void client_waiter_done(struct millrace *connection, struct client_waiter *waiter, core_status status)
{
    waiter->done = true;
    waiter->status = status;
    client_wake(connection);
}

static void waiter_add(struct millrace *connection, struct client_waiter *waiter, uint8_t answer, uint32_t id)
{
    waiter->answer = answer;
    waiter->id = id;
    waiter->next = connection->waiters;
    connection->waiters = waiter;
}

static void waiter_remove(struct millrace *connection, const struct client_waiter *waiter)
{
    struct client_waiter **link = &connection->waiters;
    while (*link != waiter)
        link = &(*link)->next;
    *link = waiter->next;
}

/* ---- sleeping and waking ---- */

static void end_poll(const struct millrace *connection)
{
    const uint64_t one = 1;
    /* Fails only when the count is at its limit, and then the poller is awake already. */
    ssize_t written = write(connection->wake, &one, sizeof one);
    (void)written;
}

void client_wake(struct millrace *connection)
{
    pthread_cond_broadcast(&connection->changed);
    if (connection->polling)
        end_poll(connection);
}

static core_status sleep_in_poll(struct millrace *connection, core_ns deadline_ns, struct core_error *error)
{
    struct pollfd ready[2] = {
        {.fd = connection->transport.descriptor, .events = client_events(connection)},
        {.fd = connection->wake, .events = POLLIN},
    };
    connection->polling = true;
    connection->polled_events = ready[0].events;
    client_unlock(connection);
    int count = poll(ready, 2, client_milliseconds_until(deadline_ns));
    int poll_errno = errno;
    client_lock(connection);
    connection->polling = false;
    uint64_t wakes;
    if (count > 0 && ready[1].revents != 0 && read(connection->wake, &wakes, sizeof wakes) < 0)
        wakes = 0; /* somebody's wake was read already */
    pthread_cond_broadcast(&connection->changed);
    errno = poll_errno;
    if (count < 0 && errno != EINTR)
        return core_error_errno(error, "poll");
    return CORE_OK;
}

/* The poller reads for us; it must also write for us. */
static void sleep_on_condition(struct millrace *connection, core_ns deadline_ns)
{
    if (client_events(connection) & ~connection->polled_events)
        end_poll(connection);
    if (deadline_ns == CORE_NS_NEVER) {
        pthread_cond_wait(&connection->changed, &connection->lock);
        return;
    }
    const struct timespec until = {.tv_sec = deadline_ns / CORE_NS_PER_S,
                                   .tv_nsec = deadline_ns % CORE_NS_PER_S};
    pthread_cond_timedwait(&connection->changed, &connection->lock, &until);
}

/* Sleeps until something may have changed. */
static core_status await_change(struct millrace *connection, core_ns deadline_ns, struct core_error *error)
{
    if (deadline_ns != CORE_NS_NEVER && core_time_now_ns() >= deadline_ns)
        return core_error_set(error, CORE_TIMEOUT, "the server did not answer in time");
    if (connection->polling) {
        sleep_on_condition(connection, deadline_ns);
        return CORE_OK;
    }
    return sleep_in_poll(connection, deadline_ns, error);
}

/* ---- waiting ---- */

/* What every blocking call does first, with the lock. */
static core_status begin(struct millrace *connection, int timeout_ms, core_ns *deadline_ns,
                         struct core_error *error)
{
    *deadline_ns = timeout_ms < 0 ? CORE_NS_NEVER : core_time_now_ns() + timeout_ms * CORE_NS_PER_MS;
    if (connection->receiving)
        return core_error_set(error, CORE_INVALID, "a callback must not wait on its own connection");
    if (connection->wake < 0)
        connection->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (connection->wake < 0)
        return core_error_errno(error, "eventfd");
    return client_alive(connection, error);
}

/* After a frame did not fit, or there were too many unanswered requests: sends and reads; and, where the caller finds
 * that this has made no room, waits until something has changed. */
static core_status await_room(struct millrace *connection, bool *has_read, core_ns deadline_ns,
                              struct core_error *error)
{
    *has_read = !*has_read;
    return *has_read ? client_process(connection, WAIT_READS, error)
                     : await_change(connection, deadline_ns, error);
}

/* Until the waiter is done. Its status and error, or why it was not waited for to the end. */
static core_status await_answer(struct millrace *connection, struct client_waiter *waiter,
                                core_ns deadline_ns, struct core_error *error)
{
    core_status status = CORE_OK;
    do
        status = client_process(connection, WAIT_READS, error);
    while (status == CORE_OK && !waiter->done &&
           (status = await_change(connection, deadline_ns, error)) == CORE_OK);
    waiter_remove(connection, waiter);
    if (!waiter->done)
        return status;
    return waiter->status ? core_error_set(error, waiter->status, "%s", waiter->error.text) : CORE_OK;
}

/* ---- the calls ---- */

/* `last`: the last member of the struct's first version. */
#define CHECK(type, given, last, error)                                                                      \
    client_struct_check(given, CLIENT_STRUCT_END(struct type, last), #type, error)

static core_status check_refused(const struct millrace_refused *refused, struct core_error *error)
{
    return CHECK(millrace_refused, refused, text, error);
}

/* An answer that comes after its call has given up is for nobody. */
static void abandon(struct millrace *connection, uint32_t request_id)
{
    struct client_request *request = client_requests_find(&connection->requests, request_id);
    if (request != NULL)
        request->abandoned = true;
}

static core_status ask(struct millrace *connection, enum protocol_type type, const struct protocol_open *open,
                       core_ns deadline_ns, struct client_waiter *waiter, struct core_error *error)
{
    uint32_t request;
    bool has_read = false;
    core_status status;
    while ((status = client_send_open(connection, type, open, &request, error)) == CORE_FULL)
        if ((status = await_room(connection, &has_read, deadline_ns, error)))
            return status;
    if (status)
        return status;
    waiter_add(connection, waiter, PROTOCOL_OPENED, request);
    status = await_answer(connection, waiter, deadline_ns, error);
    if (!waiter->done)
        abandon(connection, request);
    return status;
}

static millrace_status open_or_query(struct millrace *connection, enum protocol_type type,
                                     const struct millrace_open *given, int timeout_ms,
                                     struct millrace_opened *opened, struct millrace_refused *refused,
                                     struct core_error *error)
{
    struct client_waiter waiter = {0};
    struct protocol_open open;
    core_ns deadline_ns;
    core_status status;
    if ((status = client_read_open(given, &open, error)) ||
        (status = CHECK(millrace_opened, opened, iv, error)) || (status = check_refused(refused, error)))
        return (millrace_status)status;
    client_lock(connection);
    status = begin(connection, timeout_ms, &deadline_ns, error);
    if (status == CORE_OK)
        status = ask(connection, type, &open, deadline_ns, &waiter, error);
    client_unlock(connection);
    if (status == CORE_OK)
        client_struct_write(opened, &waiter.opened, sizeof waiter.opened);
    if (status == CORE_REFUSED)
        client_struct_write(refused, &waiter.refused, sizeof waiter.refused);
    return (millrace_status)status;
}

millrace_status millrace_open_stream(struct millrace *connection, const struct millrace_open *open,
                                     int timeout_ms, struct millrace_opened *opened,
                                     struct millrace_refused *refused, char error[MILLRACE_TEXT_BYTES])
{
    return open_or_query(connection, PROTOCOL_OPEN, open, timeout_ms, opened, refused, client_error(error));
}

millrace_status millrace_query(struct millrace *connection, const struct millrace_open *open, int timeout_ms,
                               struct millrace_opened *opened, struct millrace_refused *refused,
                               char error[MILLRACE_TEXT_BYTES])
{
    return open_or_query(connection, PROTOCOL_QUERY, open, timeout_ms, opened, refused, client_error(error));
}

static core_status ask_to_modify(struct millrace *connection, const struct protocol_modify *modify,
                                 core_ns deadline_ns, struct client_waiter *waiter, struct core_error *error)
{
    uint32_t request;
    bool has_read = false;
    core_status status;
    while ((status = client_send_modify(connection, modify, &request, error)) == CORE_FULL)
        if ((status = await_room(connection, &has_read, deadline_ns, error)))
            return status;
    if (status)
        return status;
    waiter_add(connection, waiter, PROTOCOL_MODIFIED, request);
    return await_answer(connection, waiter, deadline_ns, error);
}

millrace_status millrace_modify_stream(struct millrace *connection, const struct millrace_modify *given,
                                       int timeout_ms, struct millrace_modified *modified,
                                       struct millrace_refused *refused, char error_text[MILLRACE_TEXT_BYTES])
{
    struct core_error *error = client_error(error_text);
    struct client_waiter waiter = {0};
    struct protocol_modify modify;
    core_ns deadline_ns;
    core_status status;
    if ((status = client_read_modify(given, &modify, error)) ||
        (status = CHECK(millrace_modified, modified, backup, error)) ||
        (status = check_refused(refused, error)))
        return (millrace_status)status;
    client_lock(connection);
    status = begin(connection, timeout_ms, &deadline_ns, error);
    if (status == CORE_OK)
        status = ask_to_modify(connection, &modify, deadline_ns, &waiter, error);
    client_unlock(connection);
    if (status == CORE_OK)
        client_struct_write(modified, &waiter.modified, sizeof waiter.modified);
    if (status == CORE_REFUSED)
        client_struct_write(refused, &waiter.refused, sizeof waiter.refused);
    return (millrace_status)status;
}

static core_status ask_to_rekey(struct millrace *connection, const struct protocol_rekey *rekey,
                                core_ns deadline_ns, struct client_waiter *waiter, struct core_error *error)
{
    uint32_t request;
    bool has_read = false;
    core_status status;
    while ((status = client_send_rekey(connection, rekey, &request, error)) == CORE_FULL)
        if ((status = await_room(connection, &has_read, deadline_ns, error)))
            return status;
    if (status)
        return status;
    waiter_add(connection, waiter, PROTOCOL_REKEYED, request);
    return await_answer(connection, waiter, deadline_ns, error);
}

millrace_status millrace_rekey_stream(struct millrace *connection, const struct millrace_rekey *given,
                                      int timeout_ms, struct millrace_rekeyed *rekeyed,
                                      struct millrace_refused *refused, char error_text[MILLRACE_TEXT_BYTES])
{
    struct core_error *error = client_error(error_text);
    struct client_waiter waiter = {0};
    struct protocol_rekey rekey;
    core_ns deadline_ns;
    core_status status;
    if ((status = client_read_rekey(given, &rekey, error)) ||
        (status = CHECK(millrace_rekeyed, rekeyed, in_force_ns, error)) ||
        (status = check_refused(refused, error)))
        return (millrace_status)status;
    client_lock(connection);
    status = begin(connection, timeout_ms, &deadline_ns, error);
    if (status == CORE_OK)
        status = ask_to_rekey(connection, &rekey, deadline_ns, &waiter, error);
    client_unlock(connection);
    if (status == CORE_OK)
        client_struct_write(rekeyed, &waiter.rekeyed, sizeof waiter.rekeyed);
    if (status == CORE_REFUSED)
        client_struct_write(refused, &waiter.refused, sizeof waiter.refused);
    return (millrace_status)status;
}

static core_status exchange(struct millrace *connection, uint32_t stream, const void *packet, uint32_t bytes,
                            core_ns deadline_ns, struct client_waiter *waiter, struct core_error *error)
{
    uint8_t *room;
    bool has_read = false;
    core_status status;
    while ((status = client_send_data(connection, stream, bytes, CLIENT_WHOLE, &room, &waiter->sequence,
                                      error)) == CORE_FULL)
        if ((status = await_room(connection, &has_read, deadline_ns, error)))
            return status;
    if (status)
        return status;
    if (bytes > 0)
        memcpy(room, packet, bytes);
    waiter->room_bytes = (size_t)bytes + client_streams_find(&connection->streams, stream)->more_bytes;
    waiter_add(connection, waiter, PROTOCOL_RESULT, stream);
    return await_answer(connection, waiter, deadline_ns, error);
}

millrace_status millrace_encrypt(struct millrace *connection, uint32_t stream, const void *packet,
                                 uint32_t bytes, int timeout_ms, uint8_t *ciphertext,
                                 uint32_t *ciphertext_bytes, struct millrace_result *result,
                                 char error_text[MILLRACE_TEXT_BYTES])
{
    struct core_error *error = client_error(error_text);
    struct client_waiter waiter = {.ciphertext = ciphertext};
    core_ns deadline_ns;
    core_status status = CHECK(millrace_result, result, ciphertext, error);
    if (status)
        return (millrace_status)status;
    client_lock(connection);
    status = begin(connection, timeout_ms, &deadline_ns, error);
    if (status == CORE_OK)
        status = exchange(connection, stream, packet, bytes, deadline_ns, &waiter, error);
    client_unlock(connection);
    *ciphertext_bytes = waiter.ciphertext_bytes;
    client_struct_write(result, &waiter.result, sizeof waiter.result);
    return (millrace_status)status;
}

millrace_status millrace_close_stream(struct millrace *connection, uint32_t stream, int timeout_ms,
                                      struct millrace_closed *closed, char error_text[MILLRACE_TEXT_BYTES])
{
    struct core_error *error = client_error(error_text);
    struct client_waiter waiter = {0};
    bool has_read = false;
    core_ns deadline_ns;
    core_status status = CHECK(millrace_closed, closed, missed, error);
    if (status)
        return (millrace_status)status;
    client_lock(connection);
    status = begin(connection, timeout_ms, &deadline_ns, error);
    while (status == CORE_OK && (status = client_send_close(connection, stream, error)) == CORE_FULL)
        status = await_room(connection, &has_read, deadline_ns, error);
    if (status == CORE_OK) {
        waiter_add(connection, &waiter, PROTOCOL_CLOSED, stream);
        status = await_answer(connection, &waiter, deadline_ns, error);
    }
    client_unlock(connection);
    if (status == CORE_OK)
        client_struct_write(closed, &waiter.closed, sizeof waiter.closed);
    return (millrace_status)status;
}

millrace_status millrace_ping(struct millrace *connection, int timeout_ms, int64_t *round_trip_ns,
                              char error_text[MILLRACE_TEXT_BYTES])
{
    struct core_error *error = client_error(error_text);
    struct client_waiter waiter = {0};
    core_ns deadline_ns, sent_ns = 0;
    bool has_read = false;
    uint32_t request;
    client_lock(connection);
    core_status status = begin(connection, timeout_ms, &deadline_ns, error);
    while (status == CORE_OK &&
           (status = client_send_ping(connection, NULL, 0, &request, error)) == CORE_FULL)
        status = await_room(connection, &has_read, deadline_ns, error);
    if (status == CORE_OK) {
        sent_ns = core_time_now_ns();
        waiter_add(connection, &waiter, PROTOCOL_PONG, request);
        status = await_answer(connection, &waiter, deadline_ns, error);
        if (!waiter.done)
            abandon(connection, request);
    }
    client_unlock(connection);
    if (status == CORE_OK)
        *round_trip_ns = core_time_now_ns() - sent_ns;
    return (millrace_status)status;
}
