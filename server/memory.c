#include "server/memory.h"

#include <stdatomic.h>
#include <stdlib.h>

struct server_memory {
    struct server_mailbox_thread thread;
    const struct server_memory_ops *ops; /* set before start, as is limit_bytes */
    uint64_t limit_bytes;
    _Atomic uint64_t
        waiting_bytes; /* atomic: to be freed; added by whoever gives, subtracted by the thread */
};

static void make(const struct server_memory *memory, struct server_memory_request *request)
{
    request->block = memory->ops->create(request->spec, request->packets, request->stagger);
    server_mailbox_post(request->reply, request->answer);
}

static void make_here(void *owner, struct server_message *message)
{
    make(owner, (struct server_memory_request *)message);
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
        make(memory, request);
    else {
        request->message.run = make_here;
        server_mailbox_post(&memory->thread.mailbox, &request->message);
    }
}

static void wipe(void *owner, struct server_message *message)
{
    struct server_memory *memory = owner;
    struct server_block *blocks = (struct server_block *)message;
    uint64_t bytes = memory->ops->bytes(blocks);

    memory->ops->destroy(blocks);
    atomic_fetch_sub_explicit(&memory->waiting_bytes, bytes, memory_order_relaxed);
}

void server_memory_wipe(struct server_memory *memory, struct server_block *blocks)
{
    struct server_message *message = (struct server_message *)blocks;

    if (blocks == NULL)
        return;
    atomic_fetch_add_explicit(&memory->waiting_bytes, memory->ops->bytes(blocks), memory_order_relaxed);
    message->run = wipe;
    server_mailbox_post(&memory->thread.mailbox, message);
}

core_status server_memory_start(struct server_memory **memory, const struct server_memory_ops *ops,
                                uint64_t limit_bytes, struct core_error *error)
{
    struct server_memory *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the thread of packet memory");
    fresh->ops = ops;
    fresh->limit_bytes = limit_bytes;
    core_status status = server_mailbox_thread_start(&fresh->thread, "memory", 0, fresh, error);
    if (status != CORE_OK) {
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
    server_mailbox_thread_stop(&memory->thread);
    free(memory);
}
