/* What an HTTP/1.x server that can only be read must answer to the bytes of one connection: a reading of
 * RFC 9112 of its own, to hold the admin port against. */
#ifndef MILLRACE_TESTS_HTTP_VERDICT_H
#define MILLRACE_TESTS_HTTP_VERDICT_H

#include <stdbool.h>
#include <stddef.h>

#define HTTP_HEAD_BYTES_MAX 8192 /* of a request's head, with the empty line behind it */
#define HTTP_BODY_BYTES_MAX 4096 /* that a request may announce */

enum http_kind {
    HTTP_PART, /* no whole head is here yet: there is no answer */
    HTTP_LONG, /* nor will there be: 431 */
    HTTP_BAD,  /* 4xx */
    HTTP_ODD,  /* one that servers may refuse: 4xx, or as if it were good */
    HTTP_GOOD,
};

struct http_verdict {
    enum http_kind kind;
    bool reads;         /* GET or HEAD */
    bool body_too_long; /* 413 */
    char path[64];      /* cut to this; "" where the target names none */
    char query[64];     /* without '?' */
};

/* However the bytes were cut, and whatever is behind the head. */
struct http_verdict http_judge(const char *bytes, size_t count);

#endif
