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
