#include "client/ts/metrics.h"

#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define IDLE_S      60u
#define CONNECTIONS 64u

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned status, char *text, size_t bytes)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(bytes, text, MHD_RESPMEM_MUST_FREE);
    if (response == NULL) {
        free(text);
        return MHD_NO;
    }
    enum MHD_Result queued = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return queued;
}

static enum MHD_Result on_request(void *argument, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *bytes, size_t *count,
                                  void **context)
{
    const struct ts_metrics *metrics = argument;
    bool is_found = strcmp(url, "/metrics") == 0 && strcmp(method, MHD_HTTP_METHOD_GET) == 0;
    char *text = NULL;
    size_t length = 0;
    (void)version;
    (void)bytes;
    (void)context;
    *count = 0;
    FILE *page = open_memstream(&text, &length);
    if (page == NULL)
        return MHD_NO;
    if (is_found)
        ts_report_metrics(metrics->set, page);
    else
        fputs("GET /metrics\n", page);
    fclose(page);
    return answer(connection, is_found ? MHD_HTTP_OK : MHD_HTTP_NOT_FOUND, text, length);
}

static bool is_local(const struct core_address *address)
{
    return address->transport == CORE_TRANSPORT_UNIX ||
           (address->transport == CORE_TRANSPORT_TCP &&
            (strcmp(address->host, "127.0.0.1") == 0 || strcmp(address->host, "::1") == 0 ||
             strcmp(address->host, "localhost") == 0));
}

core_status ts_metrics_start(struct ts_metrics *metrics, const struct ts_set *set, const char *text,
                             struct core_error *error)
{
    struct core_address address;
    core_status status = core_address_parse(text, &address, error);
    if (status == CORE_OK && !is_local(&address))
        status = core_error_set(error, CORE_INVALID, "%s: listen on unix:, tcp:127.0.0.1 or tcp:[::1]", text);
    if (status || (status = core_address_listen(&address, 0660, &metrics->listener, &metrics->bound, error)))
        return status;
    metrics->set = set;
    metrics->daemon = MHD_start_daemon(
        MHD_USE_EPOLL, 0, NULL, NULL, on_request, metrics, MHD_OPTION_LISTEN_SOCKET, metrics->listener,
        MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S, MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS, MHD_OPTION_END);
    if (metrics->daemon != NULL)
        return CORE_OK;
    core_address_remove(&metrics->bound);
    close(metrics->listener);
    return core_error_set(error, CORE_SYSTEM, "the HTTP server does not start");
}

int ts_metrics_descriptor(const struct ts_metrics *metrics)
{
    return metrics->daemon == NULL ? -1
                                   : MHD_get_daemon_info(metrics->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
}

void ts_metrics_turn(struct ts_metrics *metrics)
{
    if (metrics->daemon != NULL)
        (void)MHD_run(metrics->daemon);
}

void ts_metrics_stop(struct ts_metrics *metrics)
{
    if (metrics->daemon == NULL)
        return;
    core_address_remove(&metrics->bound);
    MHD_stop_daemon(metrics->daemon); /* closes the listener */
    metrics->daemon = NULL;
}
