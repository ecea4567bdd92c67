#include "tests/support/http_verdict.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define ALNUM "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define TOKEN ALNUM "!#$%&'*+-.^_`|~"

/* A copy of a head is cut into lines as it is read. */
struct reading {
    char text[HTTP_HEAD_BYTES_MAX + 1], *next;
    unsigned hosts;
    long length; /* Content-Length; -1: none */
};

/* Lines end in CR LF or, for servers that permit it, in LF alone. */
static char *next_line(struct reading *reading)
{
    char *line = reading->next, *end = strchr(line, '\n');
    reading->next = end + 1;
    if (end > line && end[-1] == '\r')
        end--;
    *end = '\0';
    return line;
}

static enum http_kind worse(enum http_kind a, enum http_kind b)
{
    return a < b ? a : b;
}

/* The bytes of the head, or 0. */
static size_t find_end(const char *bytes, size_t count)
{
    bool empty = false; /* the line so far; the first one is the request's, even if there is nothing on it */
    for (size_t at = 0; at < count; at++)
        if (bytes[at] == '\n' && empty)
            return at + 1;
        else if (bytes[at] == '\n')
            empty = true;
        else if (bytes[at] != '\r' || at + 1 == count || bytes[at + 1] != '\n')
            empty = false;
    return 0;
}

/* ---- the request line ---- */

/* origin-form, absolute-form, or others, which name nothing that is here. */
static enum http_kind read_target(struct http_verdict *verdict, char *target)
{
    enum http_kind kind = HTTP_GOOD;
    if (*target == '\0')
        return HTTP_BAD;
    for (const char *byte = target; *byte != '\0'; byte++)
        if (*byte < '!' || *byte > '~')
            return HTTP_BAD;
    if (strchr(target, '#') != NULL)
        kind = HTTP_ODD; /* a fragment is no part of a target */
    target[strcspn(target, "#")] = '\0';
    if (strncasecmp(target, "http://", 7) == 0) {
        target += 7;
        const size_t authority = strcspn(target, "/?");
        if (authority == 0 || strspn(target, ALNUM ".-:") < authority)
            kind = HTTP_ODD;
        target += authority;
    }
    const size_t path = strcspn(target, "?");
    (void)snprintf(verdict->path, sizeof verdict->path, "%.*s", (int)path, target);
    (void)snprintf(verdict->query, sizeof verdict->query, "%s", target[path] == '?' ? target + path + 1 : "");
    return kind;
}

static enum http_kind read_request_line(struct http_verdict *verdict, char *line, bool *needs_host)
{
    const size_t method = strspn(line, TOKEN);
    char *version = strrchr(line, ' ');
    if (method == 0 || line[method] != ' ' || version == line + method ||
        (strcmp(version, " HTTP/1.1") != 0 && strcmp(version, " HTTP/1.0") != 0))
        return HTTP_BAD;
    line[method] = *version = '\0';
    *needs_host = strcmp(version + 1, "HTTP/1.1") == 0;
    verdict->reads = strcmp(line, "HEAD") == 0 || strcmp(line, "GET") == 0;
    return read_target(verdict, line + method + 1);
}

/* ---- fields ---- */

static enum http_kind read_length(struct reading *reading, const char *value)
{
    char *end;
    const long length = strtol(value, &end, 10);
    if (strspn(value, "0123456789") == 0 || value[strspn(value, "0123456789")] != '\0')
        return HTTP_BAD;
    if (reading->length >= 0 && reading->length != length)
        return HTTP_BAD;
    const bool again = reading->length >= 0;
    reading->length = length;
    return again ? HTTP_ODD : HTTP_GOOD; /* once more, possibly as 00 */
}

static enum http_kind read_field(struct reading *reading, char *line)
{
    const size_t name = strspn(line, TOKEN);
    if (name == 0 || line[name] != ':')
        return HTTP_BAD; /* also one that continues the line before it */
    line[name] = '\0';
    char *value = line + name + 1 + strspn(line + name + 1, " \t");
    for (size_t bytes = strlen(value); bytes > 0 && strchr(" \t", value[bytes - 1]) != NULL; bytes--)
        value[bytes - 1] = '\0';
    reading->hosts += strcasecmp(line, "Host") == 0;
    if (strcasecmp(line, "Transfer-Encoding") == 0)
        return HTTP_BAD; /* we know none: what is behind the head has no known end */
    if (strcasecmp(line, "Content-Length") == 0)
        return read_length(reading, value);
    return HTTP_GOOD;
}

struct http_verdict http_judge(const char *bytes, size_t count)
{
    static struct reading reading;
    struct http_verdict verdict = {.kind = HTTP_PART};
    const size_t most = count < HTTP_HEAD_BYTES_MAX ? count : HTTP_HEAD_BYTES_MAX,
                 head = find_end(bytes, most);
    bool needs_host = false;

    if (head == 0) {
        verdict.kind = most == HTTP_HEAD_BYTES_MAX ? HTTP_LONG : HTTP_PART;
        return verdict;
    }
    reading = (struct reading){.next = reading.text, .length = -1};
    memcpy(reading.text, bytes, head);
    reading.text[head] = '\0';
    verdict.kind = HTTP_BAD;
    if (strlen(reading.text) < head)
        return verdict;
    verdict.kind = read_request_line(&verdict, next_line(&reading), &needs_host);
    for (char *line; verdict.kind > HTTP_BAD && *(line = next_line(&reading)) != '\0';)
        verdict.kind = worse(verdict.kind, read_field(&reading, line));
    if (reading.hosts > 1 || (needs_host && reading.hosts == 0))
        verdict.kind = HTTP_BAD;
    verdict.body_too_long = reading.length > HTTP_BODY_BYTES_MAX;
    return verdict;
}
