/* The HTTP side of a build that links everything statically: there is none, since Debian has no static archives of
 * all that its libmicrohttpd needs. */
#include "client/hls/http.h"

core_status hls_http_start(struct hls_http *http, struct hls *hls, const char *address,
                           struct core_error *error)
{
    (void)http;
    (void)hls;
    return core_error_set(error, CORE_UNSUPPORTED, "--listen=%s: this static build has no HTTP; use --input",
                          address);
}

int hls_http_descriptor(const struct hls_http *http)
{
    (void)http;
    return -1;
}

int hls_http_wait_ms(const struct hls_http *http, int most_ms)
{
    (void)http;
    return most_ms;
}

void hls_http_turn(struct hls_http *http)
{
    (void)http;
}

void hls_http_stop(struct hls_http *http)
{
    (void)http;
}
