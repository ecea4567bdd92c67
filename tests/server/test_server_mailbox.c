/* The mailbox between threads. Run under ThreadSanitizer too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "server/mailbox.h"
#include "tests/support/require.h"

#define SENDERS  4
#define MESSAGES 20000 /* of each sender */

struct letter {
    struct server_message message; /* first member */
    uint32_t sender, number;
};

struct owner {
    struct server_mailbox mailbox;
    uint32_t next[SENDERS]; /* number expected of each sender */
    uint32_t received;
};

static void receive(void *argument, struct server_message *message)
{
    struct owner *owner = argument;
    struct letter *letter = (struct letter *)message;
    TEST_REQUIRE(letter->number == owner->next[letter->sender]);
    owner->next[letter->sender]++;
    owner->received++;
    free(letter);
}

static void post(struct owner *owner, uint32_t sender, uint32_t number)
{
    struct letter *letter = malloc(sizeof *letter);
    TEST_REQUIRE(letter != NULL);
    *letter = (struct letter){.message.run = receive, .sender = sender, .number = number};
    server_mailbox_post(&owner->mailbox, &letter->message);
}

struct sender {
    pthread_t thread;
    struct owner *owner;
    uint32_t index;
};

static void *send_all(void *argument)
{
    struct sender *sender = argument;
    for (uint32_t i = 0; i < MESSAGES; i++)
        post(sender->owner, sender->index, i);
    return NULL;
}

static void every_message_once_and_in_order_per_sender(void **state)
{
    static struct owner owner;
    struct sender senders[SENDERS];
    (void)state;

    assert_int_equal(server_mailbox_init(&owner.mailbox, NULL), CORE_OK);
    for (uint32_t i = 0; i < SENDERS; i++) {
        senders[i] = (struct sender){.owner = &owner, .index = i};
        assert_int_equal(pthread_create(&senders[i].thread, NULL, send_all, &senders[i]), 0);
    }
    while (owner.received < SENDERS * MESSAGES) /* a lost wake-up would hang here */
        server_mailbox_wait(&owner.mailbox, &owner, -1);
    for (uint32_t i = 0; i < SENDERS; i++) {
        assert_int_equal(pthread_join(senders[i].thread, NULL), 0);
        assert_int_equal(owner.next[i], MESSAGES);
    }
    server_mailbox_destroy(&owner.mailbox);
}

static bool readable(const struct server_mailbox *mailbox)
{
    struct pollfd ready = {.fd = mailbox->descriptor, .events = POLLIN};
    return poll(&ready, 1, 0) == 1;
}

static void the_descriptor_tells_of_waiting_messages(void **state)
{
    static struct owner owner;
    (void)state;

    assert_int_equal(server_mailbox_init(&owner.mailbox, NULL), CORE_OK);
    assert_false(readable(&owner.mailbox));
    post(&owner, 0, 0);
    post(&owner, 0, 1);
    assert_true(readable(&owner.mailbox));
    server_mailbox_run(&owner.mailbox, &owner);
    assert_false(readable(&owner.mailbox));
    assert_int_equal(owner.received, 2);
    server_mailbox_run(&owner.mailbox, &owner); /* empty: returns at once */
    assert_int_equal(owner.received, 2);
    server_mailbox_destroy(&owner.mailbox);
}

static void post_again(void *argument, struct server_message *message)
{
    struct owner *owner = argument;
    struct letter *letter = (struct letter *)message;
    owner->received++;
    if (letter->number-- > 0)
        server_mailbox_post(&owner->mailbox, message);
    else
        free(letter);
}

static void a_message_may_be_posted_while_another_runs(void **state)
{
    static struct owner owner;
    struct letter *letter = malloc(sizeof *letter);
    (void)state;

    assert_non_null(letter);
    assert_int_equal(server_mailbox_init(&owner.mailbox, NULL), CORE_OK);
    *letter = (struct letter){.message.run = post_again, .number = 9};
    server_mailbox_post(&owner.mailbox, &letter->message);
    for (int runs = 1; runs <= 10; runs++) {
        assert_true(readable(&owner.mailbox));
        server_mailbox_run(&owner.mailbox, &owner);
        assert_int_equal(owner.received, runs);
    }
    assert_false(readable(&owner.mailbox));
    server_mailbox_destroy(&owner.mailbox);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_message_once_and_in_order_per_sender),
        cmocka_unit_test(the_descriptor_tells_of_waiting_messages),
        cmocka_unit_test(a_message_may_be_posted_while_another_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
