#include "server/admin/stream_dump.h"

#include "server/net/io.h"
#include "server/stream/advance.h"
#include "server/stream/backup.h"

#include <stdlib.h>
#include <string.h>

#define STEPS_MAX 4096 /* connections and stream ids looked at in one turn, listed or not */
#define ANSWER_TIMEOUT_NS                                                                                    \
    (2 * CORE_NS_PER_S) /* without any page; then the listing ends without those who did not answer */

struct page {
    struct server_message message;          /* first member */
    struct server_io *io;                   /* whose streams; set before start */
    struct server_stream_dump *stream_dump; /* set before start; for the admin thread only */
    bool begin;                             /* asked: from the first stream on */
    bool last;                              /* answered: no stream comes after these */
    uint32_t count;                         /* answered: rows */
    uint64_t round;                         /* admin thread: the listing it was asked for */
    bool away;                              /* admin thread: the I/O thread has it */
    struct server_stream_dump_row rows[SERVER_STREAM_DUMP_ROWS];
};

struct server_stream_dump { /* owned by the admin thread */
    struct server_mailbox *reply;
    struct server_stream_dump_calls calls;
    core_ns until_ns;    /* the listing ends then if no page comes before; CORE_NS_NEVER: none runs */
    struct page **pages; /* by I/O thread */
    uint32_t page_count;
    uint32_t open; /* I/O threads of this round that have not answered with their last page */
    bool complete;
    uint64_t round; /* counts listings, so that a page of an old one is known when it comes at last */
};

/* ---- on the I/O thread ---- */

const char *server_stream_dump_state_name(enum server_stream_dump_state state)
{
    static const char *const names[] = {"home", "moving", "held", "away"};
    return names[state];
}

static enum server_stream_dump_state state_of(const struct server_stream *stream)
{
    if (server_path_waits(stream->path) && stream->path != SERVER_PATH_LOSING)
        return SERVER_STREAM_DUMP_HELD;
    if (server_stream_failed_over(stream))
        return SERVER_STREAM_DUMP_FAILED_OVER;
    return stream->migration != NULL ? SERVER_STREAM_DUMP_MOVING : SERVER_STREAM_DUMP_PRIMARY;
}

static void write_row(struct server_stream_dump_row *row, const struct server_stream *stream)
{
    const struct server_connection *connection = server_connection_of(stream);
    bool on_gpu = stream->units.gpu != NULL;
    *row = (struct server_stream_dump_row){.connection = connection->client.number,
                                           .stream = stream->id,
                                           .on_gpu = on_gpu,
                                           .unit = on_gpu ? stream->reservation->gpu : stream->units.worker,
                                           .backed = server_backup_is_held(stream),
                                           .backup_on_gpu = stream->units.secondary != NULL,
                                           .backup = stream->units.secondary != NULL
                                                         ? stream->reservation->secondary.gpu
                                                         : stream->reservation->backup.unit,
                                           .state = state_of(stream),
                                           .spec = stream->spec,
                                           .account = stream->account};
    memcpy(row->peer, connection->client.peer, sizeof row->peer);
}

/* New connections join at the head of the list, which the listing has already passed. */
static void fill(struct page *page, struct server_connection_cursor *cursor)
{
    page->count = 0;
    for (uint32_t steps = 0; cursor->connection != NULL && steps < STEPS_MAX; steps++) {
        const struct server_connection *connection = cursor->connection;
        if (cursor->place >= connection->stream_capacity) {
            server_connection_pass(cursor, connection);
            continue;
        }
        if (page->count == SERVER_STREAM_DUMP_ROWS)
            break;
        const struct server_stream *stream = server_connection_stream_at(connection, cursor->place++);
        if (stream != NULL)
            write_row(&page->rows[page->count++], stream);
    }
    page->last = cursor->connection == NULL;
}

static void take_page(void *owner, struct server_message *message);

static void answer(void *owner, struct server_message *message)
{
    struct server_io *io = owner;
    struct page *page = (struct page *)message;

    if (page->begin)
        io->cursor = (struct server_connection_cursor){.connection = io->connections};
    fill(page, &io->cursor);
    message->run = take_page;
    server_mailbox_post(page->stream_dump->reply, message);
}

/* ---- on the admin thread ---- */

static void ask(struct page *page, bool begin)
{
    page->stream_dump->until_ns = core_time_now_ns() + ANSWER_TIMEOUT_NS;
    page->begin = begin;
    page->away = true;
    page->message.run = answer;
    server_mailbox_post(&page->io->mailbox, &page->message);
}

static void finish(struct server_stream_dump *stream_dump, bool complete)
{
    stream_dump->open = 0;
    stream_dump->until_ns = CORE_NS_NEVER;
    stream_dump->calls.done(stream_dump->calls.argument, complete);
}

static void take_page(void *owner, struct server_message *message)
{
    struct page *page = (struct page *)message;
    struct server_stream_dump *stream_dump = page->stream_dump;
    (void)owner;

    page->away = false;
    if (stream_dump->open == 0 || page->round != stream_dump->round)
        return; /* too late */
    for (uint32_t i = 0; i < page->count; i++)
        stream_dump->calls.row(stream_dump->calls.argument, &page->rows[i]);
    if (!page->last)
        ask(page, false);
    else if (--stream_dump->open == 0)
        finish(stream_dump, stream_dump->complete);
}

void server_stream_dump_end_overdue(struct server_stream_dump *stream_dump, core_ns now_ns)
{
    if (now_ns > stream_dump->until_ns)
        finish(stream_dump, false);
}

void server_stream_dump_start(struct server_stream_dump *stream_dump)
{
    stream_dump->round++;
    stream_dump->open = 0;
    stream_dump->complete = true;
    for (uint32_t i = 0; i < stream_dump->page_count; i++) {
        struct page *page = stream_dump->pages[i];
        if (page->away) {
            stream_dump->complete = false;
            continue;
        }
        page->round = stream_dump->round;
        stream_dump->open++;
        ask(page, true);
    }
    if (stream_dump->open == 0)
        finish(stream_dump, false);
}

core_status server_stream_dump_create(struct server_stream_dump **stream_dump, struct server *server,
                                      struct server_mailbox *reply,
                                      const struct server_stream_dump_calls *calls, struct core_error *error)
{
    struct server_stream_dump *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the list of streams");
    fresh->reply = reply;
    fresh->calls = *calls;
    fresh->pages = calloc(server->io_count, sizeof(struct page *));
    fresh->until_ns = CORE_NS_NEVER;
    while (fresh->pages != NULL && fresh->page_count < server->io_count) {
        struct page *page = calloc(1, sizeof *page);
        if (page == NULL)
            break;
        page->io = server->ios[fresh->page_count];
        page->stream_dump = fresh;
        fresh->pages[fresh->page_count++] = page;
    }
    if (fresh->page_count < server->io_count) {
        server_stream_dump_destroy(fresh);
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the list of streams");
    }
    *stream_dump = fresh;
    return CORE_OK;
}

void server_stream_dump_destroy(struct server_stream_dump *stream_dump)
{
    if (stream_dump == NULL)
        return;
    for (uint32_t i = 0; stream_dump->pages != NULL && i < stream_dump->page_count; i++)
        free(stream_dump->pages[i]);
    free(stream_dump->pages);
    free(stream_dump);
}
