#include "server/memory.h"

#include "core/realtime.h"
#include "server/stream/stream.h"

#include <stdatomic.h>
#include <stdlib.h>

struct server_memory {
    struct server_mailbox mailbox;
    struct server_message stop_message;
    uint64_t limit_bytes; /* set before start */
    _Atomic uint64_t
        waiting_bytes; /* atomic: to be freed; added by whoever gives, subtracted by the thread */
    bool stopping;     /* the thread's */
    pthread_t thread;
};

static void make(struct server_memory_request *request)
{
    request->block = server_block_create(request->spec, request->packets, request->stagger);
    server_mailbox_post(request->reply, request->answer);
}

static void make_here(void *owner, struct server_message *message)
{
    (void)owner;
    make((struct server_memory_request *)message);
}

/* Whoever gave bytes up has added them to those that wait before their reservation was released. */
static bool is_made_at_once(const struct server_memory *memory, const struct server_memory_request *request,
                            uint64_t granted_bytes)
{
    uint64_t waiting_bytes = atomic_load_explicit(&memory->waiting_bytes, memory_order_relaxed);

    return request->bytes <= SERVER_MEMORY_SMALL_BYTES &&
           granted_bytes + waiting_bytes <= memory->limit_bytes;
}

void server_memory_make(struct server_memory *memory, struct server_memory_request *request,
                        uint64_t granted_bytes)
{
    if (request->packets == 0)
        server_mailbox_post(request->reply, request->answer);
    else if (is_made_at_once(memory, request, granted_bytes))
        make(request);
    else {
        request->message.run = make_here;
        server_mailbox_post(&memory->mailbox, &request->message);
    }
}

static void wipe(void *owner, struct server_message *message)
{
    struct server_memory *memory = owner;
    struct server_block *block = (struct server_block *)message, *next;

    for (; block != NULL; block = next) {
        uint64_t bytes = block->bytes;
        next = block->next;
        server_block_destroy(block);
        atomic_fetch_sub_explicit(&memory->waiting_bytes, bytes, memory_order_relaxed);
    }
}

void server_memory_wipe(struct server_memory *memory, struct server_block *blocks)
{
    uint64_t bytes = 0;

    if (blocks == NULL)
        return;
    for (const struct server_block *block = blocks; block != NULL; block = block->next)
        bytes += block->bytes;
    atomic_fetch_add_explicit(&memory->waiting_bytes, bytes, memory_order_relaxed);
    blocks->message.run = wipe;
    server_mailbox_post(&memory->mailbox, &blocks->message);
}

static void stop(void *owner, struct server_message *message)
{
    struct server_memory *memory = owner;
    (void)message;
    memory->stopping = true;
}

static void *run(void *argument)
{
    struct server_memory *memory = argument;
    while (!memory->stopping)
        server_mailbox_wait(&memory->mailbox, memory, -1);
    return NULL;
}

core_status server_memory_start(struct server_memory **memory, uint64_t limit_bytes, struct core_error *error)
{
    const struct core_thread_options thread = {.name = "memory", .cpu = -1};
    struct server_memory *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the thread of packet memory");
    fresh->limit_bytes = limit_bytes;
    core_status status = server_mailbox_init(&fresh->mailbox, error);
    if (status == CORE_OK)
        status = core_thread_start(&fresh->thread, &thread, run, fresh, NULL, error);
    if (status != CORE_OK) {
        server_mailbox_destroy(&fresh->mailbox);
        free(fresh);
        return status;
    }
    *memory = fresh;
    return CORE_OK;
}

void server_memory_stop(struct server_memory *memory)
{
    if (memory == NULL)
        return;
    memory->stop_message.run = stop; /* behind all that was given before */
    server_mailbox_post(&memory->mailbox, &memory->stop_message);
    pthread_join(memory->thread, NULL);
    server_mailbox_destroy(&memory->mailbox);
    free(memory);
}
