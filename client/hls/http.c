#include "client/hls/http.h"

#include "core/secret.h"

#include <fcntl.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define IDLE_S       60u
#define CONNECTIONS  1024u
#define BUFFER_BYTES ((size_t)128 << 10) /* of a connection: what is read at once */

/* A request whose body is being received. */
struct upload {
    uint8_t *content;
    size_t bytes, room;
    bool refused; /* there is no room for it */
};

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned status, const char *text)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_MUST_COPY);
    if (response == NULL)
        return MHD_NO;
    enum MHD_Result queued = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return queued;
}

/* ---- what comes ---- */

static bool grow(struct hls_http *http, struct upload *upload, size_t bytes)
{
    size_t room = upload->room == 0 ? (size_t)256 << 10 : upload->room;
    if (!hls_has_room(http->hls, http->uploading_bytes + bytes))
        return false;
    while (room < upload->bytes + bytes)
        room *= 2;
    uint8_t *larger = room == upload->room ? upload->content : realloc(upload->content, room);
    if (larger == NULL)
        return false;
    upload->content = larger;
    upload->room = room;
    return true;
}

static void take_bytes(struct hls_http *http, struct upload *upload, const char *bytes, size_t count)
{
    upload->refused = upload->refused || !grow(http, upload, count);
    if (upload->refused)
        return;
    memcpy(upload->content + upload->bytes, bytes, count);
    upload->bytes += count;
    http->uploading_bytes += count;
}

/* Told once, until there is room again. */
static enum MHD_Result answer_full(struct hls_http *http, struct MHD_Connection *connection, const char *path)
{
    if (!http->told_full)
        http->hls->say(
            "%s is answered 503: it does not fit into --memory, beside the %zu bytes in clear that wait",
            path, http->hls->clear_bytes + http->uploading_bytes);
    http->told_full = true;
    return answer(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "no room for this file now\n");
}

static enum MHD_Result finish_upload(struct hls_http *http, struct MHD_Connection *connection,
                                     const char *path, struct upload *upload)
{
    struct core_error error;
    if (upload->refused || (upload->content == NULL && !grow(http, upload, 0)))
        return answer_full(http, connection, path);
    uint8_t *content = upload->content;
    size_t bytes = upload->bytes;
    http->told_full = false;
    http->uploading_bytes -= bytes;
    *upload = (struct upload){0};
    core_status status = hls_put(http->hls, path, content, bytes, &error);
    if (status == CORE_OK)
        return answer(connection, MHD_HTTP_CREATED, "");
    http->hls->say("%s", error.text);
    return answer(connection,
                  status == CORE_FULL ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_UNPROCESSABLE_CONTENT,
                  error.text);
}

/* ---- what goes ---- */

static const char *type_of(const char *path)
{
    static const char *const types[][2] = {{".m3u8", "application/vnd.apple.mpegurl"},
                                           {".ts", "video/mp2t"},
                                           {".mp4", "video/mp4"},
                                           {".m4s", "video/iso.segment"},
                                           {".vtt", "text/vtt"},
                                           {".aac", "audio/aac"}};
    const char *dot = strrchr(path, '.');
    for (size_t i = 0; dot != NULL && i < sizeof types / sizeof types[0]; i++)
        if (strcmp(dot, types[i][0]) == 0)
            return types[i][1];
    return "application/octet-stream";
}

static enum MHD_Result serve_file(struct hls_http *http, struct MHD_Connection *connection, const char *path)
{
    struct stat about;
    int file = openat(http->hls->output, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0 || fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) {
        if (file >= 0)
            close(file);
        return answer(connection, MHD_HTTP_NOT_FOUND, "no such file\n");
    }
    struct MHD_Response *response = MHD_create_response_from_fd64((uint64_t)about.st_size, file);
    if (response == NULL) {
        close(file);
        return MHD_NO;
    }
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type_of(path));
    if (hls_path_is_playlist(path))
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    enum MHD_Result queued = MHD_queue_response(connection, MHD_HTTP_OK, response);
    MHD_destroy_response(response);
    return queued;
}

static enum MHD_Result serve_metrics(const struct hls *hls, struct MHD_Connection *connection)
{
    const struct hls_counts *counts = &hls->counts;
    const struct {
        const char *name, *type;
        double value;
    } metrics[] = {
        {"millrace_hls_segments_total", "counter", (double)counts->segments},
        {"millrace_hls_parts_total", "counter", (double)counts->parts},
        {"millrace_hls_maps_total", "counter", (double)counts->maps},
        {"millrace_hls_playlists_total", "counter", (double)counts->playlists},
        {"millrace_hls_bytes_total", "counter", (double)counts->bytes},
        {"millrace_hls_late_total", "counter", (double)counts->late},
        {"millrace_hls_gone_total", "counter", (double)counts->gone},
        {"millrace_hls_playlists_refused_total", "counter", (double)counts->refused},
        {"millrace_hls_keys_total", "counter", (double)hls->keys.made},
        {"millrace_hls_reconnects_total", "counter", (double)hls->link.counts.reconnects},
        {"millrace_hls_streams_refused_total", "counter", (double)hls->link.counts.refused},
        {"millrace_hls_connected", "gauge", hls->link.connection != NULL},
        {"millrace_hls_renditions", "gauge", (double)hls->rendition_count},
        {"millrace_hls_waiting_bytes", "gauge", (double)hls->clear_bytes},
        {"millrace_hls_delay_seconds_max", "gauge", (double)core_histogram_maximum_ns(&hls->delay) / 1e9},
    };
    char text[4096];
    size_t length = 0;
    for (size_t i = 0; i < sizeof metrics / sizeof metrics[0]; i++)
        length += (size_t)snprintf(text + length, sizeof text - length, "# TYPE %s %s\n%s %.17g\n",
                                   metrics[i].name, metrics[i].type, metrics[i].name, metrics[i].value);
    return answer(connection, MHD_HTTP_OK, text);
}

/* ---- requests ---- */

static bool is_method(const char *method, const char *one, const char *two)
{
    return strcmp(method, one) == 0 || strcmp(method, two) == 0;
}

static enum MHD_Result on_request(void *argument, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *bytes, size_t *count,
                                  void **context)
{
    struct hls_http *http = argument;
    struct upload *upload = *context;
    char path[HLS_PATH_BYTES];
    (void)version;
    if (upload == NULL) {
        *context = calloc(1, sizeof *upload);
        return *context == NULL ? MHD_NO : MHD_YES;
    }
    if (*count > 0) {
        take_bytes(http, upload, bytes, *count);
        *count = 0;
        return MHD_YES;
    }
    if (url[0] != '/' || hls_path_resolve("", url + 1, strlen(url + 1), path) != CORE_OK)
        return answer(connection, MHD_HTTP_BAD_REQUEST, "no such name is allowed\n");
    if (is_method(method, MHD_HTTP_METHOD_PUT, MHD_HTTP_METHOD_POST))
        return finish_upload(http, connection, path, upload);
    if (is_method(method, MHD_HTTP_METHOD_GET, MHD_HTTP_METHOD_HEAD))
        return strcmp(path, "metrics") == 0 ? serve_metrics(http->hls, connection)
                                            : serve_file(http, connection, path);
    if (strcmp(method, MHD_HTTP_METHOD_DELETE) != 0)
        return answer(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "PUT, POST, DELETE, GET, HEAD\n");
    hls_remove(http->hls, path);
    return answer(connection, MHD_HTTP_NO_CONTENT, "");
}

static void on_completed(void *argument, struct MHD_Connection *connection, void **context,
                         enum MHD_RequestTerminationCode code)
{
    struct hls_http *http = argument;
    struct upload *upload = *context;
    (void)connection;
    (void)code;
    if (upload == NULL)
        return;
    if (upload->content != NULL)
        core_secret_wipe(upload->content, upload->bytes);
    http->uploading_bytes -= upload->bytes;
    free(upload->content);
    free(upload);
    *context = NULL;
}

/* ---- the listener ---- */

static bool is_local(const struct core_address *address)
{
    return address->transport == CORE_TRANSPORT_UNIX ||
           (address->transport == CORE_TRANSPORT_TCP &&
            (strcmp(address->host, "127.0.0.1") == 0 || strcmp(address->host, "::1") == 0 ||
             strcmp(address->host, "localhost") == 0));
}

core_status hls_http_start(struct hls_http *http, struct hls *hls, const char *text, struct core_error *error)
{
    struct core_address address;
    core_status status = core_address_parse(text, &address, error);
    if (status == CORE_OK && !is_local(&address))
        status = core_error_set(error, CORE_INVALID, "%s: listen on unix:, tcp:127.0.0.1 or tcp:[::1]", text);
    if (status || (status = core_address_listen(&address, 0660, &http->listener, &http->bound, error)))
        return status;
    http->hls = hls;
    http->daemon =
        MHD_start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, on_request, http, MHD_OPTION_LISTEN_SOCKET,
                         http->listener, MHD_OPTION_NOTIFY_COMPLETED, on_completed, http,
                         MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S, MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS,
                         MHD_OPTION_CONNECTION_MEMORY_LIMIT, BUFFER_BYTES, MHD_OPTION_END);
    if (http->daemon != NULL)
        return CORE_OK;
    core_address_remove(&http->bound);
    close(http->listener);
    return core_error_set(error, CORE_SYSTEM, "the HTTP server does not start");
}

int hls_http_descriptor(const struct hls_http *http)
{
    return http->daemon == NULL ? -1 : MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
}

/* What is left in its buffers tells the library alone. */
int hls_http_wait_ms(const struct hls_http *http, int most_ms)
{
    MHD_UNSIGNED_LONG_LONG wait_ms;
    if (http->daemon == NULL || MHD_get_timeout(http->daemon, &wait_ms) != MHD_YES ||
        wait_ms > (MHD_UNSIGNED_LONG_LONG)most_ms)
        return most_ms;
    return (int)wait_ms;
}

void hls_http_turn(struct hls_http *http)
{
    if (http->daemon != NULL)
        (void)MHD_run(http->daemon);
}

void hls_http_stop(struct hls_http *http)
{
    if (http->daemon == NULL)
        return;
    core_address_remove(&http->bound);
    MHD_stop_daemon(http->daemon); /* closes the listener */
    http->daemon = NULL;
}
