/* What each frame of a client does. */
#include "server/net/io.h"
#include "server/net/keys.h"
#include "server/net/lane.h"
#include "server/net/units.h"
#include "server/stream/advance.h"
#include "server/stream/backup.h"

#include "core/log.h"
#include "core/secret.h"

#include <stdlib.h>
#include <string.h>

#define PLAN_TIMEOUT_NS CORE_NS_PER_S /* with a GPU's new period, before an OPEN is answered */

static void handle_hello(struct server_connection *connection, const uint8_t *body, uint32_t bytes)
{
    struct server *server = connection->io->server;
    const struct config_server_limits *limits = &server->config->limits;
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    uint16_t lowest, highest;
    struct core_error error = {""};

    if (protocol_hello_read(body, bytes, &lowest, &highest, &error) != CORE_OK) {
        server_connection_fail(connection, 0, PROTOCOL_ERROR_MALFORMED, error.text);
        return;
    }
    if (lowest > PROTOCOL_VERSION || highest < PROTOCOL_VERSION_MIN) {
        char text[64];
        snprintf(text, sizeof text, "this server speaks the versions %d to %d", PROTOCOL_VERSION_MIN,
                 PROTOCOL_VERSION);
        server_connection_fail(connection, 0, PROTOCOL_ERROR_VERSION, text);
        return;
    }
    connection->version = highest < PROTOCOL_VERSION ? highest : PROTOCOL_VERSION;
    connection->transport.takes_memory = connection->version >= 3 &&
                                         strncmp(connection->client.peer, "unix:", 5) == 0 &&
                                         server_lanes_are_there(server->lanes);
    struct protocol_welcome welcome = {
        .version = connection->version,
        .flags = (uint16_t)((connection->inline_keys ? PROTOCOL_ALLOWS_INLINE_KEY : 0) |
                            (server->config->client_iv ? PROTOCOL_ALLOWS_CLIENT_IV : 0) |
                            (server_keys_are_there(server) ? PROTOCOL_HAS_NAMED_KEYS : 0) |
                            (connection->transport.takes_memory ? PROTOCOL_HAS_LANES : 0)),
        .packet_bytes_max = limits->packet_bytes,
        .burst_packets_max = limits->burst_packets,
        .streams_max = limits->streams_per_connection,
        .stream_buffer_bytes_max = limits->stream_buffer_bytes,
        .bytes_per_key = limits->bytes_per_key,
        .interval_ns_min = CORE_INTERVAL_NS_MIN,
        .latency_ns_min = CORE_LATENCY_NS_MIN,
    };
    connection->state = SERVER_CONNECTION_READY;
    server_output_control(connection, frame, protocol_welcome_write(frame, &welcome));
    server_connection_tell_leaving(connection); /* before anything is asked for */
}

void server_frame_refuse(struct server_connection *connection, enum server_asked asked, uint32_t request,
                         const struct protocol_refused *refused)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    struct server_stats *stats = &connection->io->stats;
    server_stats_add(&stats->refused, 1);
    server_stats_add(&stats->refused_by[asked][refused->code], 1);
    server_stats_add(&stats->modifies_refused, asked == SERVER_ASKED_MODIFY ? 1 : 0);
    server_output_control(connection, frame,
                          protocol_refused_write(connection->version, frame, request, refused));
}

#define ASSERT_SAME(limit)                                                                                   \
    _Static_assert((int)PERFMODEL_LIMIT_##limit == (int)PROTOCOL_LIMIT_##limit, #limit " is sent as it is")

uint16_t server_frame_limit(enum perfmodel_limit limit)
{
    ASSERT_SAME(NONE);
    ASSERT_SAME(DEADLINE);
    ASSERT_SAME(CPU_UTILISATION);
    ASSERT_SAME(CPU_DEMAND);
    ASSERT_SAME(IO);
    ASSERT_SAME(GPU_COPY);
    ASSERT_SAME(GPU_KERNEL);
    ASSERT_SAME(GPU_LATENCY);
    ASSERT_SAME(GPU_MEMORY);
    ASSERT_SAME(GPU_OUT);
    ASSERT_SAME(RESERVE);
    ASSERT_SAME(BACKUP);
    return (uint16_t)limit;
}

static void refuse(struct server_connection *connection, bool is_query, uint32_t request,
                   enum protocol_refusal code, const struct admission_placement *placement, const char *text,
                   core_ns decided_ns)
{
    struct protocol_refused refused = {.code = code, .decided_ns = decided_ns};

    if (code == PROTOCOL_REFUSED_CAPACITY) {
        refused.constraint = server_frame_limit(placement->constraint);
        refused.offer_interval_ns = placement->offer.interval_ns;
        refused.offer_latency_ns = placement->offer.latency_ns;
        snprintf(refused.text, sizeof refused.text, "%s%s%s", placement->reason, text != NULL ? "; " : "",
                 text != NULL ? text : "");
    } else
        snprintf(refused.text, sizeof refused.text, "%s", text);
    server_frame_refuse(connection, is_query ? SERVER_ASKED_QUERY : SERVER_ASKED_OPEN, request, &refused);
}

bool server_frame_within_limits(const struct server_connection *connection,
                                const struct core_stream_spec *spec, uint32_t streams,
                                struct core_error *error)
{
    const struct config_server_limits *limits = &connection->io->server->config->limits;
    uint64_t burst_bytes = (uint64_t)spec->burst_packets * core_stream_held_bytes(spec);
    const struct {
        const char *what, *setting;
        uint64_t asked, limit;
    } rows[] = {
        {"bytes in a packet", "packet_bytes", spec->packet_bytes, limits->packet_bytes},
        {"packets in a burst", "burst_packets", spec->burst_packets, limits->burst_packets},
        {"bytes in a burst", "stream_buffer_kib", burst_bytes, limits->stream_buffer_bytes},
        {"streams of one connection", "streams_per_connection", streams, limits->streams_per_connection},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].asked > rows[i].limit) {
            (void)core_error_set(error, CORE_REFUSED, "%llu %s; this server allows %llu (limits.%s)",
                                 (unsigned long long)rows[i].asked, rows[i].what,
                                 (unsigned long long)rows[i].limit, rows[i].setting);
            return false;
        }
    return true;
}

/* Is it the client that chooses IVs, or knows them ahead? */
static bool gives_iv(const struct protocol_open *open)
{
    return open->has_iv || open->spec.iv == CORE_IV_COUNTER || open->spec.iv == CORE_IV_EXPLICIT;
}

/* Is there an IV where one is needed, and none where it would be of no use? */
static bool iv_fits(const struct protocol_open *open, struct core_error *error)
{
    if (open->spec.iv == CORE_IV_CONSTANT && !open->has_iv)
        (void)core_error_set(error, CORE_INVALID, "iv is constant, and there is none in the request");
    else if (open->has_iv && open->spec.iv != CORE_IV_CHAIN && open->spec.iv != CORE_IV_CONSTANT)
        (void)core_error_set(error, CORE_INVALID, "iv is %s, and the one in the request would not be used",
                             core_iv_name(open->spec.iv));
    else
        return true;
    return false;
}

/* What this connection and this server allow, whatever the load. 0, or the refusal with its reason in error.
 */
static enum protocol_refusal check_open(const struct server_connection *connection,
                                        const struct protocol_open *open, struct core_error *error)
{
    const struct config_server *config = connection->io->server->config;

    if (core_stream_spec_check(&open->spec, error) != CORE_OK)
        return PROTOCOL_REFUSED_SPEC;
    if (!server_frame_within_limits(connection, &open->spec,
                                    connection->stream_count + connection->opening + 1, error))
        return PROTOCOL_REFUSED_LIMIT;
    if (!iv_fits(open, error))
        return PROTOCOL_REFUSED_SPEC;
    if (gives_iv(open) && !config->client_iv) {
        (void)core_error_set(error, CORE_DENIED, "a client-given IV is not allowed here (client_iv)");
        return PROTOCOL_REFUSED_IV;
    }
    return 0;
}

static bool is_printable(const uint8_t *text, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++)
        if (text[i] <= ' ' || text[i] > '~')
            return false;
    return true;
}

static uint32_t audit_one_in(const struct server *server, bool all)
{
    return server->gpu_count == 0 ? 0 : all ? 1 : server->config->gpus.audit;
}

/* The peer is told no more than of a key that is not there. */
static void report_denied(struct server_connection *connection, const struct server_key_wish *wish)
{
    struct core_log_fields fields = server_stream_client_fields(&connection->client, 0);
    server_stats_add(&connection->io->stats.keys_denied, 1);
    core_log_with(CORE_LOG_WARNING, "key.denied", &fields,
                  "connection %lu (%s) asked for the key '%.*s', which it may not use (keyring, line %zu)",
                  (unsigned long)connection->client.number, connection->client.peer, (int)wish->name_bytes,
                  wish->name, wish->line);
}

static enum protocol_refusal fetch_named_key(struct server_connection *connection, struct protocol_open *open,
                                             uint8_t *key, struct core_error *error)
{
    struct server_key_wish wish = {.name = (const char *)open->key,
                                   .name_bytes = open->key_bytes,
                                   .cipher = open->spec.cipher,
                                   .iv = gives_iv(open),
                                   .user = &connection->user};
    bool printable = is_printable(open->key, open->key_bytes); /* else it is not for anybody's screen */
    int shown_bytes = printable ? (int)open->key_bytes : 1;
    const char *shown = printable ? (const char *)open->key : "?";

    switch (server_key_find(connection->io->server, &wish, key)) {
    case CORE_OK:
        open->spec.audit_one_in = audit_one_in(connection->io->server, wish.audit);
        return 0;
    case CORE_MISMATCH:
        (void)core_error_set(error, CORE_INVALID, "the key called '%.*s' is for another cipher", shown_bytes,
                             shown);
        return PROTOCOL_REFUSED_KEY;
    case CORE_REFUSED:
        (void)core_error_set(error, CORE_DENIED,
                             "a client-given IV is not allowed with the key called '%.*s' (write client-iv "
                             "behind it in the keyring to allow it)",
                             shown_bytes, shown);
        return PROTOCOL_REFUSED_IV;
    case CORE_DENIED:
        report_denied(connection, &wish);
        break;
    default:
        break;
    }
    (void)core_error_set(error, CORE_INVALID,
                         "the server's keyring has no key called '%.*s' that this connection may use",
                         shown_bytes, shown);
    return PROTOCOL_REFUSED_KEY;
}

enum protocol_refusal server_frame_fetch_key(struct server_connection *connection, struct protocol_open *open,
                                             bool is_query, uint8_t *key, struct core_error *error)
{
    open->spec.audit_one_in = audit_one_in(connection->io->server, false);
    open->spec.by_lane = connection->transport.lane != NULL;
    if (open->key_kind == PROTOCOL_KEY_NONE) {
        (void)core_error_set(error, CORE_INVALID, "OPEN needs a key, inline or named");
        return is_query ? 0 : PROTOCOL_REFUSED_KEY;
    }
    if (open->key_kind == PROTOCOL_KEY_INLINE && !connection->inline_keys) {
        (void)core_error_set(error, CORE_DENIED, "inline keys are allowed on Unix and TLS connections only");
        return PROTOCOL_REFUSED_KEY;
    }
    if (open->key_kind == PROTOCOL_KEY_INLINE) {
        uint32_t wanted = core_cipher_key_bytes(open->spec.cipher);
        (void)core_error_set(error, CORE_INVALID, "the key has %u bytes; %s needs %u", open->key_bytes,
                             core_cipher_name(open->spec.cipher), wanted);
        if (open->key_bytes != wanted)
            return PROTOCOL_REFUSED_KEY;
        memcpy(key, open->key, wanted);
        return 0;
    }
    return fetch_named_key(connection, open, key, error);
}

static void free_request(struct server_request *request)
{
    core_secret_free(request->key, SERVER_KEY_BYTES);
    free(request);
}

static struct server_request *new_request(struct server_connection *connection, bool is_query)
{
    struct server_request *request = calloc(1, sizeof *request);
    if (request == NULL)
        return NULL;
    request->key = core_secret_alloc(SERVER_KEY_BYTES);
    if (request->key == NULL) {
        free(request);
        return NULL;
    }
    request->turn.asker = &connection->client.asker;
    request->connection = connection;
    request->reply = &connection->io->mailbox;
    request->answered = server_frame_answered;
    request->is_query = is_query;
    request->io = connection->io->index;
    request->gpu = SERVER_NO_GPU;
    return request;
}

static void handle_open(struct server_connection *connection, const struct protocol_header *header,
                        const uint8_t *body, core_ns now_ns)
{
    bool is_query = header->type == PROTOCOL_QUERY;
    struct core_error error = {""};
    struct protocol_open open;

    if (protocol_open_read(connection->version, body, header->body_bytes, &open, &error) != CORE_OK) {
        server_connection_fail(connection, 0, PROTOCOL_ERROR_MALFORMED, error.text);
        return;
    }
    if (connection->client.requests >= SERVER_REQUESTS_MAX) {
        server_connection_fail(connection, 0, PROTOCOL_ERROR_LIMIT, "too many unanswered requests");
        return;
    }
    struct server_request *request = new_request(connection, is_query);
    if (request == NULL) {
        refuse(connection, is_query, header->id, PROTOCOL_REFUSED_INTERNAL, NULL,
               "the server is out of memory", core_time_now_ns() - now_ns);
        return;
    }
    enum protocol_refusal refusal = check_open(connection, &open, &error);
    if (refusal == 0)
        refusal = server_frame_fetch_key(connection, &open, is_query, request->key, &error);
    if (refusal != 0) {
        refuse(connection, is_query, header->id, refusal, NULL, error.text, core_time_now_ns() - now_ns);
        free_request(request);
        return;
    }
    request->open = open;
    request->open.key = NULL; /* pointed into the read buffer */
    request->request = header->id;
    request->memory.packets = server_stream_queue_packets(
        &open.spec, perfmodel_cpu_backlog_packets(&open.spec, connection->io->server->profile));
    request->memory.bytes = server_stream_buffer_bytes(&open.spec, request->memory.packets);
    request->memory.stagger = connection->io->streams.stagger++;
    request->received_ns = now_ns;
    connection->client.requests++;
    connection->opening += is_query ? 0 : 1;
    server_planner_ask(connection->io->server->planner, request);
}

/* What the stream's worker, or on a GPU its backup's or the fallback worker, is to schedule. That one
 * promises nothing, so a contract that no worker could keep will do. */
static struct perfmodel_cpu_task task_of(const struct server *server, const struct server_request *request)
{
    const struct core_stream_spec *spec = &request->open.spec;
    struct perfmodel_cpu_task task;

    if (request->gpu == SERVER_NO_GPU)
        return request->placement.task;
    if (!partition_unit_is_gpu(server->worker_count, request->placement.backup_unit)) {
        task = request->placement.backup_task;
        task.spacing_ns = 0;
        return task;
    }
    if (perfmodel_cpu_task_from(spec, server->profile, &task, NULL) != CORE_OK)
        task = (struct perfmodel_cpu_task){.piece_bytes = server->profile->cpu.piece_bytes,
                                           .deadline_ns = spec->latency_ns};
    task.spacing_ns = 0; /* a batch takes packets as they become eligible */
    return task;
}

static core_status arm_stream(struct server_io *io, struct server_stream *stream,
                              struct server_request *request)
{
    const struct server *server = io->server;
    struct perfmodel_cpu_task task = task_of(server, request);
    core_status status =
        server_stream_arm(stream, server->engine, io->streams.engine, &task, server->profile->margins.in_ns,
                          request->key, request->iv, request->open.mac_id);

    stream->units.worker = server_backup_worker(server, request->reservation);
    if (status != CORE_OK || request->gpu == SERVER_NO_GPU)
        return status;
    bool secondary = request->reservation->secondary.gpu != SERVER_NO_GPU;
    stream->units.gpu = server_gpu_binding_create(request->plan);
    stream->units.secondary = secondary ? server_gpu_binding_create(request->secondary_plan) : NULL;
    return stream->units.gpu != NULL && (!secondary || stream->units.secondary != NULL) ? CORE_OK
                                                                                        : CORE_NO_MEMORY;
}

/* Makes the granted stream; NULL if there is no memory for it. */
static struct server_stream *make_stream(struct server_connection *connection, struct server_request *request)
{
    struct server_io *io = connection->io;
    struct server_stream *stream = NULL;

    server_message_first_iv(&request->open, &io->ivs, request->iv);
    if (request->memory.block == NULL ||
        server_eligible_queue_reserve(&io->waiting, io->stream_count + 1) != CORE_OK ||
        server_stream_create(&stream, &request->open.spec, request->memory.block) != CORE_OK)
        return NULL;
    request->memory.block = NULL; /* the stream's now */
    server_stream_share(stream, &io->streams.hot);
    stream->client = &connection->client;
    stream->version = connection->version;
    stream->message.given_iv = request->open.has_iv;
    stream->keys.inlines = request->open.key_kind == PROTOCOL_KEY_INLINE;
    stream->bounds.promised_ns = server_backup_bound_ns(&request->placement);
    stream->reservation = request->reservation;
    if (arm_stream(io, stream, request) != CORE_OK ||
        server_connection_add_stream(connection, stream) != CORE_OK) {
        server_gpu_binding_destroy(stream->units.gpu);
        server_gpu_binding_destroy(stream->units.secondary);
        server_planner_wipe(io->server->planner, server_stream_take_blocks(stream));
        server_stream_destroy(stream, io->server->engine);
        return NULL;
    }
    stream->reservation->holder = stream;
    request->reservation = NULL; /* the stream's now */
    io->stream_count++;
    server_io_count_stream(stream);
    server_stats_add(&io->stats.streams, 1);
    server_stats_add(&io->stats.opened, 1);
    return stream;
}

static void send_opened(struct server_connection *connection, const struct server_request *request,
                        uint32_t stream)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    const struct admission_placement *placement = &request->placement;
    bool on_gpu = request->gpu != SERVER_NO_GPU;
    struct protocol_opened opened = {.stream = stream,
                                     .unit = on_gpu ? PROTOCOL_UNIT_GPU : PROTOCOL_UNIT_CPU,
                                     .unit_index = (uint16_t)(on_gpu ? request->gpu : placement->unit),
                                     .bound_ns = server_backup_bound_ns(placement),
                                     .decided_ns = request->decided_ns,
                                     .queue_packets = request->memory.packets,
                                     .backup = server_backup_report(connection->io->server, placement)};
    memcpy(opened.iv, request->iv, CORE_BLOCK_BYTES);
    core_histogram_record(&connection->io->stats.admission, request->decided_ns);
    if (!request->is_query) {
        opened.in_force_ns = core_time_now_ns() - request->received_ns;
        core_histogram_record(&connection->io->stats.in_force, opened.in_force_ns);
    }
    server_output_control(connection, frame,
                          protocol_opened_write(connection->version, frame, request->request, &opened));
}

static void announce(struct server_stream *stream, const struct server_request *request)
{
    stream->bounds.opened_ns = core_time_now_ns();
    send_opened(server_connection_of(stream), request, stream->id);
}

static void begin_close(struct server_stream *stream)
{
    stream->state = SERVER_STREAM_CLOSING;
    stream->close_reason = PROTOCOL_CLOSE_ASKED;
}

static void handle_close(struct server_connection *connection, uint32_t id)
{
    struct server_stream *stream = server_connection_find_stream(connection, id);
    if (stream == NULL || stream->state != SERVER_STREAM_OPEN) {
        server_output_error(connection, id, PROTOCOL_ERROR_STREAM, false,
                            "CLOSE for a stream that is not open on this connection");
        return;
    }
    begin_close(stream);
    server_connection_settle_stream(stream);
}

/* The peer has finished sending, but still wants its answers. */
static bool half_closed(const struct server_connection *connection)
{
    return connection->state == SERVER_CONNECTION_FINISHING && !connection->has_last_error &&
           !connection->client.abandoned;
}

/* The connection may go, as far as this request is concerned. */
static void end_request(struct server_connection *connection, struct server_request *request)
{
    connection->client.requests--;
    connection->opening -= request->is_query ? 0 : 1;
    server_io_mark(connection);
    server_planner_wipe(connection->io->server->planner, request->memory.block);
    if (request->reservation != NULL)
        server_planner_release(connection->io->server->planner, request->reservation);
    free_request(request);
}

/* The answer waits for one key more. */
static void await_key(struct server_request *request, struct server_stream *stream,
                      struct server_gpu_binding *place, uint32_t gpu)
{
    place->request = request;
    request->keys++;
    server_gpu_binding_attach(stream->client->io, place, stream, gpu, core_time_now_ns() + PLAN_TIMEOUT_NS);
}

/* A granted OPEN. True: it is answered when its GPU has the key, and the one of its backup. */
static bool open_stream(struct server_connection *connection, struct server_request *request)
{
    struct server_stream *stream = make_stream(connection, request);

    if (stream == NULL) {
        refuse(connection, request->is_query, request->request, PROTOCOL_REFUSED_INTERNAL, NULL,
               "the server is out of memory", core_time_now_ns() - request->received_ns);
        return false;
    }
    if (stream->units.gpu != NULL) {
        await_key(request, stream, stream->units.gpu, request->gpu);
        if (stream->units.secondary != NULL)
            await_key(request, stream, stream->units.secondary, stream->reservation->secondary.gpu);
        return true;
    }
    announce(stream, request);
    if (half_closed(connection))
        handle_close(connection, stream->id);
    return false;
}

/* True: the answer is to come. */
static bool answer(struct server_connection *connection, struct server_request *request)
{
    if (request->refusal == 0 && !request->is_query)
        return open_stream(connection, request);
    if (request->refusal != 0) {
        core_histogram_record(&connection->io->stats.admission, request->decided_ns);
        bool capacity = request->refusal == PROTOCOL_REFUSED_CAPACITY;
        refuse(connection, request->is_query, request->request, request->refusal, &request->placement,
               capacity ? request->advice : request->refusal_text, request->decided_ns);
    } else
        send_opened(connection, request, 0);
    return false;
}

void server_frame_answered(void *owner, struct server_message *message)
{
    struct server_request *request = (struct server_request *)message;
    struct server_connection *connection = request->connection;
    (void)owner;

    if (connection->state == SERVER_CONNECTION_READY || half_closed(connection)) {
        if (answer(connection, request))
            return;
    } else if (connection->state == SERVER_CONNECTION_FINISHING && !connection->client.abandoned)
        refuse(connection, request->is_query, request->request, PROTOCOL_REFUSED_DRAINING, NULL,
               "the server is stopping", request->decided_ns);
    end_request(connection, request);
}

/* The server is stopping: a stream that was not announced is none. */
static void refuse_armed(struct server_request *request, struct server_stream *stream)
{
    stream->state = SERVER_STREAM_CLOSING;
    stream->unannounced = true;
    refuse(request->connection, request->is_query, request->request, PROTOCOL_REFUSED_DRAINING, NULL,
           "the server is stopping", core_time_now_ns() - request->received_ns);
}

void server_frame_armed(struct server_request *request, struct server_stream *stream)
{
    struct server_connection *connection = request->connection;

    if (!connection->client.abandoned && connection->state == SERVER_CONNECTION_FINISHING &&
        !half_closed(connection)) {
        refuse_armed(request, stream);
    } else if (!connection->client.abandoned) {
        announce(stream, request);
        if (half_closed(connection) && stream->state == SERVER_STREAM_OPEN)
            begin_close(stream); /* settled by the caller, who still has the stream */
    }
    end_request(connection, request);
}

void server_frame_overdue(struct server_request *request, struct server_stream *stream)
{
    struct server_connection *connection = request->connection;
    struct admission_placement *placement = &request->placement;

    stream->state = SERVER_STREAM_CLOSING;
    stream->unannounced = true;
    if (!connection->client.abandoned) {
        const char *backup = stream->units.secondary != NULL ? ", or the one of its backup," : "";
        placement->constraint = request->lacking ? PERFMODEL_LIMIT_GPU_MEMORY : PERFMODEL_LIMIT_GPU_LATENCY;
        if (request->lacking)
            snprintf(placement->reason, sizeof placement->reason,
                     "GPU %u%s has no memory for the batches that the stream needs (log: gpu.memory); ask "
                     "again in some seconds",
                     request->gpu, backup);
        else
            snprintf(placement->reason, sizeof placement->reason,
                     "GPU %u%s was too busy to change to the period that the stream needs; ask again, or "
                     "for a longer latency bound",
                     request->gpu, backup);
        refuse(connection, request->is_query, request->request, PROTOCOL_REFUSED_CAPACITY, placement, NULL,
               core_time_now_ns() - request->received_ns);
    }
    end_request(connection, request);
}

void server_frame_handle(struct server_connection *connection, const struct protocol_header *header,
                         const uint8_t *body, core_ns now_ns)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];

    switch (header->type) {
    case PROTOCOL_HELLO:
        handle_hello(connection, body, header->body_bytes);
        break;
    case PROTOCOL_OPEN:
    case PROTOCOL_QUERY:
        handle_open(connection, header, body, now_ns);
        break;
    case PROTOCOL_MODIFY:
        server_frame_modify(connection, header, body, now_ns);
        break;
    case PROTOCOL_REKEY:
        server_frame_rekey(connection, header, body, now_ns);
        break;
    case PROTOCOL_LANE:
        server_frame_lane(connection, header, body);
        break;
    case PROTOCOL_CLOSE:
        handle_close(connection, header->id);
        break;
    case PROTOCOL_PING:
        server_output_control(
            connection, frame,
            protocol_ping_write(frame, PROTOCOL_PONG, header->id, body, header->body_bytes));
        break;
    default: /* protocol_body_range lets nothing else through */
        break;
    }
}

void server_frame_data(struct server_connection *connection, struct server_packet *packet, core_ns now_ns)
{
    const struct server_arrival *arrival = &connection->input.arrival;
    struct server_io *io = connection->io;
    struct server_stream *stream = packet->stream;

    io->packets++;
    if (stream->modify != NULL)
        server_stream_advance(stream, now_ns);
    if (server_stream_accept(stream, packet, arrival, io->server->config->limits.bytes_per_key)) {
        if (packet->policed) {
            stream->account.policed++;
            server_stats_add(&io->stats.policed, 1);
        }
        server_units_submit(io, stream, packet, now_ns);
        return;
    }
    server_stats_add(&io->stats.rejected, 1);
    server_output_results(stream);
    server_io_mark(connection);
}
