#include "server/mailbox.h"

#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

core_status server_mailbox_init(struct server_mailbox *mailbox, struct core_error *error)
{
    atomic_init(&mailbox->head, NULL);
    mailbox->descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (mailbox->descriptor < 0)
        return core_error_errno(error, "can not create an eventfd");
    return CORE_OK;
}

void server_mailbox_post(struct server_mailbox *mailbox, struct server_message *message)
{
    struct server_message *head = atomic_load_explicit(&mailbox->head, memory_order_relaxed);
    do {
        message->next = head;
        /* release: the consumer must see the message's contents and its link */
    } while (!atomic_compare_exchange_weak_explicit(&mailbox->head, &head, message, memory_order_release,
                                                    memory_order_relaxed));
    if (head == NULL) {
        uint64_t one = 1;
        /* Can only fail when the counter is at its maximum, and then the descriptor is readable anyway. */
        ssize_t written = write(mailbox->descriptor, &one, sizeof one);
        (void)written;
    }
}

static struct server_message *reversed(struct server_message *message)
{
    struct server_message *previous = NULL;
    while (message != NULL) {
        struct server_message *next = message->next;
        message->next = previous;
        previous = message;
        message = next;
    }
    return previous;
}

void server_mailbox_run(struct server_mailbox *mailbox, void *owner)
{
    uint64_t count;
    /* Cleared before the list is taken: a message posted in between makes the descriptor readable again. */
    ssize_t got = read(mailbox->descriptor, &count, sizeof count);
    (void)got;
    /* acquire: pairs with the release of every producer whose message is in the list */
    struct server_message *message =
        reversed(atomic_exchange_explicit(&mailbox->head, NULL, memory_order_acquire));
    while (message != NULL) {
        struct server_message *next = message->next;
        message->run(owner, message);
        message = next;
    }
}

void server_mailbox_wait(struct server_mailbox *mailbox, void *owner, int timeout_ms)
{
    struct pollfd ready = {.fd = mailbox->descriptor, .events = POLLIN};
    if (poll(&ready, 1, timeout_ms) > 0)
        server_mailbox_run(mailbox, owner);
}

bool server_mailbox_has_mail(const struct server_mailbox *mailbox)
{
    /* relaxed: whoever takes the messages pairs with their producers */
    return atomic_load_explicit(&mailbox->head, memory_order_relaxed) != NULL;
}

void server_mailbox_destroy(struct server_mailbox *mailbox)
{
    if (mailbox->descriptor >= 0)
        close(mailbox->descriptor);
    mailbox->descriptor = -1;
}

static void stop(void *owner, struct server_message *message)
{
    (void)owner;
    ((struct server_mailbox_thread *)message)->stopping = true;
}

static void *run(void *argument)
{
    struct server_mailbox_thread *thread = argument;
    while (!thread->stopping)
        server_mailbox_wait(&thread->mailbox, thread->owner, -1);
    return NULL;
}

core_status server_mailbox_thread_start(struct server_mailbox_thread *thread, const char *name,
                                        size_t stack_bytes, void *owner, struct core_error *error)
{
    const struct core_thread_options options = {.name = name, .cpu = -1, .stack_bytes = stack_bytes};

    *thread = (struct server_mailbox_thread){.stop_message = {.run = stop}, .owner = owner};
    core_status status = server_mailbox_init(&thread->mailbox, error);
    if (status == CORE_OK)
        status = core_thread_start(&thread->thread, &options, run, thread, NULL, error);
    if (status != CORE_OK)
        server_mailbox_destroy(&thread->mailbox);
    return status;
}

void server_mailbox_thread_stop(struct server_mailbox_thread *thread)
{
    server_mailbox_post(&thread->mailbox, &thread->stop_message);
    pthread_join(thread->thread, NULL);
    server_mailbox_destroy(&thread->mailbox);
}
