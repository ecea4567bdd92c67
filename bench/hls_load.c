#include "bench/hls_load.h"

#include "core/address.h"
#include "core/stream.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define CONNECT_MS 10000
#define LOST_NS    (2 * CORE_NS_PER_S) /* after the end, until which a part may come */
#define HEAD_BYTES 512
#define TEXT_BYTES 4096
#define NAME_BYTES 40   /* "r000123.4567890.ts" */
#define LISTED     4    /* parts in a playlist */
#define STEP_BYTES 4099 /* by which the contents of parts differ */
#define EVENTS     64
#define WAIT_NS    (20 * CORE_NS_PER_MS)

enum phase { PHASE_IDLE, PHASE_PART, PHASE_PART_ANSWER, PHASE_LIST, PHASE_LIST_ANSWER, PHASE_WAITS };

struct rendition {
    unsigned number;
    int connection;
    enum phase phase;
    uint64_t part;        /* the one under way, or the next */
    core_ns due_ns;       /* of that part */
    core_ns begun_ns;     /* from when its latency counts */
    core_ns published_ns; /* 0: not yet */
    char head[HEAD_BYTES], list[TEXT_BYTES], answer[TEXT_BYTES];
    struct iovec pieces[2]; /* left of the request */
    size_t answered;
    char key_name[64]; /* of `key` */
    uint8_t key[16];
};

struct load {
    const struct hls_load_options *options;
    struct hls_load_figures *figures;
    struct rendition *renditions;
    uint8_t *content; /* of all parts: each is a piece of it */
    uint8_t *cipher, *clear;
    EVP_CIPHER_CTX *context;
    int poll, watch, output;
    core_ns start_ns, timed_from_ns, end_ns;
    uint64_t turns;     /* parts that fell due: renditions take turns */
    core_status status; /* of the first connection that ended */
};

/* ---- contents ---- */

/* All differ from their neighbours, and no block of one is a block of another at the same place. */
static const uint8_t *content_of(const struct load *load, const struct rendition *rendition, uint64_t part)
{
    size_t steps = load->options->part_bytes / STEP_BYTES + 2;
    return load->content + (rendition->number * 7 + part * 13) % steps * STEP_BYTES;
}

static bool make_content(struct load *load)
{
    size_t bytes = 2 * load->options->part_bytes + 3 * STEP_BYTES;
    uint64_t state = 88172645463325252U;
    load->content = malloc(bytes);
    load->cipher = malloc(load->options->part_bytes + 2 * CORE_BLOCK_BYTES);
    load->clear = malloc(load->options->part_bytes + 2 * CORE_BLOCK_BYTES);
    load->context = EVP_CIPHER_CTX_new();
    if (load->content == NULL || load->cipher == NULL || load->clear == NULL || load->context == NULL)
        return false;
    for (size_t i = 0; i < bytes; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        load->content[i] = (uint8_t)state;
    }
    return true;
}

static void part_name(const struct rendition *rendition, uint64_t part, char name[NAME_BYTES])
{
    snprintf(name, NAME_BYTES, "r%06u.%llu.ts", rendition->number, (unsigned long long)part);
}

static size_t write_list(const struct load *load, struct rendition *rendition)
{
    double part_s = (double)load->options->part_ns / 1e9;
    uint64_t first = rendition->part < LISTED ? 0 : rendition->part - LISTED + 1;
    int length =
        snprintf(rendition->list, TEXT_BYTES,
                 "#EXTM3U\n#EXT-X-VERSION:9\n#EXT-X-TARGETDURATION:1\n#EXT-X-PART-INF:PART-TARGET=%.5f\n"
                 "#EXT-X-MEDIA-SEQUENCE:1\n",
                 part_s);
    for (uint64_t part = first; part <= rendition->part; part++) {
        char name[NAME_BYTES];
        part_name(rendition, part, name);
        length += snprintf(rendition->list + length, TEXT_BYTES - (size_t)length,
                           "#EXT-X-PART:DURATION=%.5f,URI=\"%s\"\n", part_s, name);
    }
    return (size_t)length;
}

/* ---- requests ---- */

static void begin_request(struct rendition *rendition, enum phase phase, const char *name, const void *body,
                          size_t bytes)
{
    int length = snprintf(rendition->head, HEAD_BYTES,
                          "PUT /%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n", name, bytes);
    rendition->phase = phase;
    rendition->pieces[0] = (struct iovec){rendition->head, (size_t)length};
    rendition->pieces[1] = (struct iovec){(void *)(uintptr_t)body, bytes};
    rendition->answered = 0;
}

static void begin_part(struct load *load, struct rendition *rendition, core_ns begun_ns)
{
    char name[NAME_BYTES];
    part_name(rendition, rendition->part, name);
    rendition->begun_ns = begun_ns;
    rendition->published_ns = 0;
    begin_request(rendition, PHASE_PART, name, content_of(load, rendition, rendition->part),
                  load->options->part_bytes);
}

static void begin_list(struct load *load, struct rendition *rendition)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "r%06u.m3u8", rendition->number);
    size_t bytes = write_list(load, rendition);
    begin_request(rendition, PHASE_LIST, name, rendition->list, bytes);
}

/* True: all of the request is sent. */
static bool send_more(struct load *load, struct rendition *rendition)
{
    struct iovec *pieces = rendition->pieces;
    while (pieces[0].iov_len + pieces[1].iov_len > 0) {
        const struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 2};
        ssize_t sent = sendmsg(rendition->connection, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) {
            if (errno != EAGAIN && errno != EINTR)
                load->status = CORE_CLOSED;
            return false;
        }
        for (int i = 0; i < 2; i++) {
            size_t taken = (size_t)sent < pieces[i].iov_len ? (size_t)sent : pieces[i].iov_len;
            pieces[i].iov_base = (char *)pieces[i].iov_base + taken;
            pieces[i].iov_len -= taken;
            sent -= (ssize_t)taken;
        }
    }
    return true;
}

/* True: the answer is whole. All that we are answered is a head and, if it is none of 201, a short text. */
static bool read_answer(struct load *load, struct rendition *rendition)
{
    ssize_t got = recv(rendition->connection, rendition->answer + rendition->answered,
                       TEXT_BYTES - 1 - rendition->answered, MSG_DONTWAIT);
    if (got <= 0) {
        if (got == 0 || (errno != EAGAIN && errno != EINTR))
            load->status = CORE_CLOSED;
        return false;
    }
    rendition->answered += (size_t)got;
    rendition->answer[rendition->answered] = '\0';
    if (strstr(rendition->answer, "\r\n\r\n") == NULL)
        return false;
    load->figures->refused += strncmp(rendition->answer, "HTTP/1.1 201", 12) != 0;
    return true;
}

/* ---- what comes back ---- */

static ssize_t read_file(int folder, const char *name, void *room, size_t bytes)
{
    int file = openat(folder, name, O_RDONLY | O_CLOEXEC);
    ssize_t got = file < 0 ? -1 : read(file, room, bytes);
    if (file >= 0)
        close(file);
    return got;
}

/* The key that the list names last before the part. */
static bool find_key(const struct load *load, struct rendition *rendition, const char *list, const char *part)
{
    static const char mark[] = "#EXT-X-KEY:METHOD=AES-128,URI=\"";
    char path[512];
    const char *key = NULL;
    for (const char *at = list; (at = strstr(at, mark)) != NULL && at < part; at++)
        key = at + sizeof mark - 1;
    if (key == NULL)
        return false;
    size_t bytes = strcspn(key, "\"");
    if (bytes == strlen(rendition->key_name) && memcmp(key, rendition->key_name, bytes) == 0)
        return true;
    snprintf(rendition->key_name, sizeof rendition->key_name, "%.*s", (int)bytes, key);
    snprintf(path, sizeof path, "%s/%s.key", load->options->keys, rendition->key_name);
    return read_file(AT_FDCWD, path, rendition->key, sizeof rendition->key) == sizeof rendition->key;
}

static bool is_right(const struct load *load, const struct rendition *rendition, const char *name)
{
    static const uint8_t iv[CORE_BLOCK_BYTES] = {[CORE_BLOCK_BYTES - 1] = 1}; /* the media sequence number */
    size_t bytes = load->options->part_bytes;
    int some, rest;
    ssize_t got = read_file(load->output, name, load->cipher, bytes + 2 * CORE_BLOCK_BYTES);
    return got >= 0 && EVP_DecryptInit_ex(load->context, EVP_aes_128_cbc(), NULL, rendition->key, iv) == 1 &&
           EVP_DecryptUpdate(load->context, load->clear, &some, load->cipher, (int)got) == 1 &&
           EVP_DecryptFinal_ex(load->context, load->clear + some, &rest) == 1 &&
           (size_t)some + (size_t)rest == bytes &&
           memcmp(load->clear, content_of(load, rendition, rendition->part), bytes) == 0;
}

/* ---- the way of a part ---- */

static void finish_part(struct load *load, struct rendition *rendition)
{
    const struct hls_load_options *options = load->options;
    struct hls_load_figures *figures = load->figures;
    core_ns latency_ns = rendition->published_ns - rendition->begun_ns;
    if (rendition->due_ns >= load->timed_from_ns) {
        figures->timed++;
        figures->late += latency_ns > options->deadline_ns;
        core_histogram_record(&figures->latency, latency_ns);
    }
    rendition->phase = PHASE_IDLE;
    rendition->part++;
    rendition->due_ns += options->part_ns;
    if (rendition->due_ns <= rendition->published_ns && rendition->due_ns < load->end_ns)
        begin_part(load, rendition, rendition->due_ns); /* that was not our fault */
}

/* As far as it gets without waiting. */
static void advance(struct load *load, struct rendition *rendition)
{
    for (;;)
        switch (rendition->phase) {
        case PHASE_PART:
        case PHASE_LIST:
            if (!send_more(load, rendition))
                return;
            rendition->phase++;
            break;
        case PHASE_PART_ANSWER:
            if (!read_answer(load, rendition))
                return;
            begin_list(load, rendition);
            break;
        case PHASE_LIST_ANSWER:
            if (!read_answer(load, rendition))
                return;
            rendition->phase = PHASE_WAITS;
            break;
        case PHASE_WAITS:
            if (rendition->published_ns == 0)
                return;
            finish_part(load, rendition);
            break;
        default:
            return;
        }
}

/* Begins what is due. Returns when the next part falls due. */
static core_ns begin_due(struct load *load, core_ns now_ns)
{
    const struct hls_load_options *options = load->options;
    assert(options->renditions > 0);
    for (;; load->turns++) {
        struct rendition *rendition = &load->renditions[load->turns % options->renditions];
        core_ns due_ns =
            load->start_ns + (core_ns)(load->turns * (uint64_t)options->part_ns / options->renditions);
        if (due_ns > now_ns || due_ns >= load->end_ns)
            return due_ns;
        if (rendition->phase != PHASE_IDLE || rendition->due_ns > now_ns)
            continue; /* begins when the one before is there, or has begun */
        core_ns late_ns = now_ns - rendition->due_ns;
        if (late_ns > load->figures->sent_late_ns && rendition->due_ns >= load->timed_from_ns)
            load->figures->sent_late_ns = late_ns;
        begin_part(load, rendition, now_ns);
        advance(load, rendition);
    }
}

/* A playlist of the output is another one. */
static void look_at_list(struct load *load, const char *name, core_ns now_ns)
{
    char list[TEXT_BYTES], part[NAME_BYTES], *end;
    unsigned long number = strtoul(name + 1, &end, 10);
    if (strcmp(end, ".m3u8") != 0 || number >= load->options->renditions)
        return;
    struct rendition *rendition = &load->renditions[number];
    part_name(rendition, rendition->part, part);
    ssize_t got = read_file(load->output, name, list, sizeof list - 1);
    list[got < 0 ? 0 : got] = '\0';
    const char *named = strstr(list, part);
    if (rendition->phase < PHASE_LIST || rendition->published_ns > 0 || named == NULL)
        return; /* one from before */
    rendition->published_ns = now_ns;
    load->figures->parts++;
    load->figures->wrong += !find_key(load, rendition, list, named) || !is_right(load, rendition, part);
    unlinkat(load->output, part, 0);
    advance(load, rendition);
}

static void look_at_output(struct load *load)
{
    _Alignas(struct inotify_event) char events[4096];
    for (ssize_t bytes; (bytes = read(load->watch, events, sizeof events)) > 0;) {
        core_ns now_ns = core_time_now_ns();
        for (ssize_t at = 0; at < bytes;) {
            const struct inotify_event *event = (const void *)(events + at);
            if (event->len > 0)
                look_at_list(load, event->name, now_ns);
            at += (ssize_t)(sizeof *event + event->len);
        }
    }
}

/* ---- the run ---- */

static void take_events(struct load *load, core_ns until_ns)
{
    struct epoll_event events[EVENTS];
    core_ns left_ns = core_time_max(until_ns - core_time_now_ns(), 0);
    const struct timespec wait = {.tv_nsec = (long)(left_ns < WAIT_NS ? left_ns : WAIT_NS)};
    int count = epoll_pwait2(load->poll, events, EVENTS, &wait, NULL);
    look_at_output(load);
    for (int i = 0; i < count; i++)
        if (events[i].data.ptr != NULL)
            advance(load, events[i].data.ptr);
}

static bool is_idle(const struct load *load)
{
    for (unsigned i = 0; i < load->options->renditions; i++)
        if (load->renditions[i].phase != PHASE_IDLE)
            return false;
    return true;
}

/* Each rendition waits for one of them at most. */
static void count_lost(struct load *load)
{
    for (unsigned i = 0; i < load->options->renditions; i++)
        if (load->renditions[i].phase != PHASE_IDLE) {
            load->figures->timed++;
            load->figures->late++;
            load->figures->lost++;
        }
}

static void run(struct load *load)
{
    const struct hls_load_options *options = load->options;
    load->start_ns = core_time_now_ns();
    load->timed_from_ns = load->start_ns + options->warm_up_ns;
    load->end_ns = load->timed_from_ns + options->duration_ns;
    for (unsigned i = 0; i < options->renditions; i++)
        load->renditions[i].due_ns =
            load->start_ns + (core_ns)(i * (uint64_t)options->part_ns / options->renditions);
    core_ns now_ns = load->start_ns;
    while (load->status == CORE_OK && now_ns < load->end_ns + LOST_NS &&
           (now_ns < load->end_ns || !is_idle(load)) && !(options->until_late && load->figures->late > 0)) {
        take_events(load, begin_due(load, now_ns));
        now_ns = core_time_now_ns();
    }
    if (now_ns >= load->end_ns)
        count_lost(load);
}

static core_status connect_all(struct load *load, struct core_error *error)
{
    struct core_address address = {.transport = CORE_TRANSPORT_UNIX};
    snprintf(address.host, sizeof address.host, "%s", load->options->socket);
    for (unsigned i = 0; i < load->options->renditions; i++) {
        struct rendition *rendition = &load->renditions[i];
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = rendition};
        rendition->number = i;
        core_status status = core_address_connect(&address, CONNECT_MS, &rendition->connection, error);
        if (status)
            return status;
        if (epoll_ctl(load->poll, EPOLL_CTL_ADD, rendition->connection, &event) != 0)
            return core_error_errno(error, "epoll");
    }
    return CORE_OK;
}

static core_status open_all(struct load *load, struct core_error *error)
{
    struct epoll_event event = {.events = EPOLLIN};
    load->renditions = calloc(load->options->renditions, sizeof *load->renditions);
    if (load->renditions == NULL || !make_content(load))
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the parts");
    for (unsigned i = 0; i < load->options->renditions; i++)
        load->renditions[i].connection = -1;
    load->poll = epoll_create1(EPOLL_CLOEXEC);
    load->watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    load->output = open(load->options->output, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (load->poll < 0 || load->watch < 0 || load->output < 0 ||
        inotify_add_watch(load->watch, load->options->output, IN_MOVED_TO) < 0 ||
        epoll_ctl(load->poll, EPOLL_CTL_ADD, load->watch, &event) != 0)
        return core_error_errno(error, "watching %s", load->options->output);
    return connect_all(load, error);
}

static void close_all(struct load *load)
{
    for (unsigned i = 0; load->renditions != NULL && i < load->options->renditions; i++)
        if (load->renditions[i].connection >= 0)
            close(load->renditions[i].connection);
    const int others[] = {load->poll, load->watch, load->output};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (others[i] >= 0)
            close(others[i]);
    free(load->renditions);
    free(load->content);
    free(load->cipher);
    free(load->clear);
    EVP_CIPHER_CTX_free(load->context);
}

core_status hls_load_run(const struct hls_load_options *options, struct hls_load_figures *figures,
                         struct core_error *error)
{
    struct load load = {.options = options, .figures = figures, .poll = -1, .watch = -1, .output = -1};
    *figures = (struct hls_load_figures){0};
    core_histogram_init(&figures->latency);
    core_status status = open_all(&load, error);
    if (status == CORE_OK) {
        run(&load);
        status = load.status;
        if (status)
            (void)core_error_set(error, status, "millrace hls has closed a connection");
    }
    close_all(&load);
    return status;
}
