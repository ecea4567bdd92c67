/* A client of the admin port: sends what it is given and reads until the server closes. Every wait ends after
 * TEST_PATIENCE_MS at the latest. */
#ifndef MILLRACE_TESTS_HTTP_H
#define MILLRACE_TESTS_HTTP_H

#include "core/address.h"

#include <jansson.h>
#include <stddef.h>

struct http_answer {
    int code;         /* 0: the server closed without an answer */
    char *bytes;      /* all of it, terminated */
    const char *body; /* inside bytes; "" if there is none */
};

/* Connects, or aborts the test program. */
int http_dial(const struct core_address *address);
/* Sends as much as the server takes before it closes. */
void http_send(int descriptor, const void *bytes, size_t count);
/* Reads to the end and closes the descriptor. */
struct http_answer http_read(int descriptor);
void http_free(struct http_answer *answer);

/* One request: "GET <path> HTTP/1.1" and so on. */
struct http_answer http_ask(const struct core_address *address, const char *method, const char *path);
/* GET, which must succeed and bring an object of JSON. */
json_t *http_json(const struct core_address *address, const char *path);
/* GET; its status code alone. */
int http_code(const struct core_address *address, const char *path);

#endif
