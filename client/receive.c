/* From the socket to whole frames, which are handled where they were read; those of a lane, where they lie. */
#include "client/connection.h"

#include "client/lane.h"
#include "client/pool.h"
#include "client/translate.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define READ_BYTES  ((size_t)256 << 10) /* asked for in one read, at most */
#define ROOM_BYTES  ((size_t)64 << 10)  /* less room than this: move what is left to the front first */
#define INPUT_BYTES (READ_BYTES + ROOM_BYTES)
#define TAKEN_BYTES ((size_t)32 << 10) /* of a lane are given back at once */

/* ---- from bytes to frames ---- */

/* Of a RESULT the longest packet, with a block of padding and, in version 3, an IV and a code. */
static uint32_t body_bytes_max(const struct millrace *connection, uint8_t type)
{
    const uint32_t more_bytes =
        CORE_BLOCK_BYTES + (connection->welcome.version < 3 ? 0 : CORE_BLOCK_BYTES + CORE_MAC_BYTES);
    return type != PROTOCOL_RESULT
               ? PROTOCOL_CONTROL_BYTES_MAX
               : PROTOCOL_RESULT_BYTES + connection->welcome.packet_bytes_max + more_bytes;
}

/* Judges a header before its body is waited for, so that nonsense can not make the buffer grow. */
static core_status check_header(struct millrace *connection, const uint8_t *frame,
                                struct protocol_header *header)
{
    bool sound = protocol_header_read(connection->welcome.version, frame, header) == CORE_OK;
    if (!sound || client_frame_handler_of(connection->welcome.version, header->type) == NULL)
        return client_fail(connection, CORE_INVALID,
                           CLIENT_BREACH "no frame begins with %02x %02x %02x %02x %02x %02x %02x %02x"
                                         " (is this a Millrace server, and are both sides tls: or both not?)",
                           frame[0], frame[1], frame[2], frame[3], frame[4], frame[5], frame[6], frame[7]);
    if (!connection->welcomed && header->type != PROTOCOL_WELCOME && header->type != PROTOCOL_ERROR)
        return client_fail(connection, CORE_INVALID, CLIENT_BREACH "a frame of type %u before WELCOME",
                           header->type);
    if (header->body_bytes > body_bytes_max(connection, header->type))
        return client_fail(connection, CORE_INVALID,
                           CLIENT_BREACH "a frame of type %u with %" PRIu32 " bytes", header->type,
                           header->body_bytes);
    return CORE_OK;
}

/* Handles every whole frame. */
static core_status parse(struct millrace *connection)
{
    struct client_input *input = &connection->input;
    input->missing = PROTOCOL_HEADER_BYTES;
    while (input->end - input->begin >= PROTOCOL_HEADER_BYTES) {
        struct protocol_header header;
        uint16_t version = connection->welcome.version;
        const uint8_t *frame = input->bytes + input->begin;
        core_status status = check_header(connection, frame, &header);
        if (status)
            return status;
        size_t whole = PROTOCOL_HEADER_BYTES + (size_t)header.body_bytes;
        if (input->end - input->begin < whole) {
            input->missing = whole - (input->end - input->begin);
            return CORE_OK;
        }
        input->begin += whole;
        client_frame_handler *handler =
            connection->link != NULL ? client_pool_take_frame : client_frame_handler_of(version, header.type);
        if ((status = handler(connection, &header, frame + PROTOCOL_HEADER_BYTES)))
            return status;
    }
    return CORE_OK;
}

/* ---- from the socket to bytes ---- */

/* Room behind what is left for at least what is missing. */
static core_status make_room(struct millrace *connection)
{
    struct client_input *input = &connection->input;
    size_t missing = input->missing;
    size_t left = input->end - input->begin;
    if (left == 0)
        input->begin = input->end = 0;
    size_t wanted = missing > ROOM_BYTES ? missing : ROOM_BYTES;
    if (input->capacity - input->end >= wanted)
        return CORE_OK;
    if (input->begin > 0) {
        memmove(input->bytes, input->bytes + input->begin, left);
        input->begin = 0;
        input->end = left;
    }
    if (input->capacity - left >= wanted)
        return CORE_OK;
    size_t capacity = left + missing > READ_BYTES ? left + missing + ROOM_BYTES : INPUT_BYTES;
    uint8_t *larger = realloc(input->bytes, capacity);
    if (larger == NULL)
        return client_fail(connection, CORE_NO_MEMORY, "no memory for %zu bytes of input", capacity);
    input->bytes = larger;
    input->capacity = capacity;
    return CORE_OK;
}

static core_status ended(struct millrace *connection)
{
    const struct client_input *input = &connection->input;
    if (input->end > input->begin || input->left > 0)
        return client_fail(connection, CORE_CLOSED,
                           "the server closed the connection in the middle of a frame");
    return client_fail(connection, CORE_CLOSED, "the server closed the connection");
}

/* *drained: there was less than asked for, so that another read would find nothing. */
static core_status read_once(struct millrace *connection, bool *drained)
{
    core_status status = make_room(connection);
    if (status)
        return status;
    struct client_input *input = &connection->input;
    size_t room = input->capacity - input->end, got = 0;
    struct core_error error;
    if (room > READ_BYTES && input->missing <= READ_BYTES)
        room = READ_BYTES;
    status = connection->transport.kind->read(&connection->transport, input->bytes + input->end, room, &got,
                                              &error);
    if (status == CORE_CLOSED)
        return ended(connection);
    if (status == CORE_SYSTEM)
        return client_fail(connection, status, "%s", error.text);
    input->end += got;
    input->read += got;
    *drained = got < room && connection->transport.tls == NULL;
    return status == CORE_OK ? parse(connection) : status;
}

/* ---- from a lane ---- */

/* The server can change what is in its memory while we look at it. Of a RESULT all that is judged is copied, and its
 * ciphertext is what it is whenever it is looked at; of any other frame a copy is handled. */
static core_status handle_in_lane(struct millrace *connection, const struct protocol_header *header,
                                  const uint8_t *body)
{
    client_frame_handler *handler = client_frame_handler_of(connection->welcome.version, header->type);
    uint8_t copy[PROTOCOL_CONTROL_BYTES_MAX];

    if (header->type == PROTOCOL_RESULT)
        return handler(connection, header, body);
    memcpy(copy, body, header->body_bytes);
    return handler(connection, header, copy);
}

/* The next frame's stream, and the header behind that frame if it is as long as this one: with thousands of streams
 * neither is near, and the lane's bytes are where the server has written them. */
static void look_ahead(const struct millrace *connection, const uint8_t *bytes, size_t count, size_t whole)
{
    struct protocol_header next;
    if (count < whole + PROTOCOL_HEADER_BYTES)
        return;
    if (protocol_header_read(connection->welcome.version, bytes + whole, &next) == CORE_OK)
        client_streams_prefetch(&connection->streams, next.id);
    if (count > 2 * whole)
        __builtin_prefetch(bytes + 2 * whole);
}

/* Handles the whole frames of `count` bytes in the lane; *done of them. CORE_FULL: what follows is a frame that the
 * lane can not hold. */
static core_status parse_lane(struct millrace *connection, const uint8_t *bytes, size_t count, size_t *done)
{
    struct core_lane *lane = &connection->transport.lane;
    core_status status = CORE_OK;
    size_t taken = 0;

    while (status == CORE_OK && count - *done >= PROTOCOL_HEADER_BYTES) {
        struct protocol_header header;
        if ((status = check_header(connection, bytes + *done, &header)))
            break;
        const size_t whole = PROTOCOL_HEADER_BYTES + (size_t)header.body_bytes;
        if (count - *done < whole) {
            status = whole > lane->ring_bytes ? CORE_FULL : CORE_AGAIN;
            break;
        }
        look_ahead(connection, bytes + *done, count - *done, whole);
        status = handle_in_lane(connection, &header, bytes + *done + PROTOCOL_HEADER_BYTES);
        *done += whole;
        if (*done - taken >= TAKEN_BYTES) {
            core_lane_take(lane, *done - taken);
            taken = *done;
        }
    }
    if (*done > taken)
        core_lane_take(lane, *done - taken);
    return status;
}

/* Handles what is there; what comes later is told by the socket. */
static core_status look_once(struct millrace *connection, bool *drained)
{
    struct client_input *input = &connection->input;
    struct core_error error;
    uint8_t *bytes;
    size_t count, done = 0;
    core_status status = client_lane_look(&connection->transport, &bytes, &count, &error);
    const bool over = connection->transport.lane.ended; /* before that look */

    *drained = true;
    if (status == CORE_CLOSED)
        return ended(connection);
    if (status == CORE_SYSTEM)
        return client_fail(connection, status, "%s", error.text);
    if (status != CORE_OK)
        return status;
    input->read += count - input->left;
    status = parse_lane(connection, bytes, count, &done);
    input->left = count - done;
    if (over && input->left > 0 && (status == CORE_OK || status == CORE_AGAIN))
        return ended(connection); /* that was all */
    if (status != CORE_FULL)
        return status;
    input->read -= input->left; /* it is gathered outside */
    input->left = 0;
    return read_once(connection, drained);
}

/* A pool looks at a RESULT more than once. */
static bool takes_from_lane(const struct millrace *connection)
{
    return connection->transport.shares && connection->link == NULL &&
           connection->input.begin == connection->input.end;
}

/* Reads and dispatches, at most `reads` times (0: no limit). */
CORE_CHECKED static core_status receive(struct millrace *connection, unsigned reads)
{
    bool drained = false;
    core_status status = CORE_OK;
    connection->receiving = true;
    for (unsigned i = 0; status == CORE_OK && !drained; i++) {
        if (reads > 0 && i >= reads && !connection->transport.kind->pending(&connection->transport))
            break;
        status =
            takes_from_lane(connection) ? look_once(connection, &drained) : read_once(connection, &drained);
    }
    connection->receiving = false;
    return status == CORE_AGAIN ? CORE_OK : status;
}

/* It came with WELCOME, when nobody could be called back. */
static void tell_leaving(struct millrace *connection)
{
    const struct millrace_callbacks *callbacks = &connection->callbacks;
    const struct millrace_notice notice = {.size = sizeof notice,
                                           .kind = MILLRACE_NOTICE_LEAVING,
                                           .text = "it was leaving when this connection was made"};
    if (!connection->leaving || connection->told_leaving || callbacks->on_notice == NULL)
        return;
    connection->told_leaving = true;
    connection->receiving = true;
    callbacks->on_notice(callbacks->argument, 0, &notice);
    connection->receiving = false;
}

core_status client_process(struct millrace *connection, unsigned reads, struct core_error *error)
{
    core_status status = client_alive(connection, error);
    if (status)
        return status;
    if (connection->receiving)
        return core_error_set(error, CORE_INVALID, "a callback must not process its own connection");
    tell_leaving(connection);
    client_flush(connection);
    status = receive(connection, reads);
    if (status == CORE_OK)
        client_flush(connection);
    if (status == CORE_OK && connection->unwritable)
        status = receive(connection, 0);
    if (status == CORE_OK && connection->unwritable)
        status = client_fail(connection, CORE_SYSTEM, "%s", connection->write_error.text);
    return status ? core_error_set(error, status, "%s", connection->cause.text) : CORE_OK;
}

millrace_status millrace_process(struct millrace *connection, unsigned reads, char error[MILLRACE_TEXT_BYTES])
{
    client_lock(connection);
    core_status status = client_process(connection, reads, client_error(error));
    client_unlock(connection);
    return (millrace_status)status;
}
