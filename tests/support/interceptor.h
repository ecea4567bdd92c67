/* Stands between a client and a real server, on one connection: what the client sends passes as it is, what
 * the server sends passes frame by frame through a function that may change it, keep it back or add to it. */
#ifndef TESTS_SUPPORT_INTERCEPTOR_H
#define TESTS_SUPPORT_INTERCEPTOR_H

#include "core/address.h"
#include "tests/support/fake_server.h"

/* A frame of the server's; header and body may be changed in place. The function writes to `client`, by
 * interceptor_pass or else, what is to get through. */
typedef void interceptor_edit(void *argument, int client, struct protocol_header *header, uint8_t *body);

struct interceptor {
    struct fake_server front; /* front.address: to connect to instead of the server */
    struct core_address server;
    interceptor_edit *edit;
    void *argument;
};

/* Aborts the test program if it can not be set up. */
void interceptor_start(struct interceptor *interceptor, const struct core_address *server,
                       interceptor_edit *edit, void *argument);
void interceptor_join(struct interceptor *interceptor); /* after the client has gone */

void interceptor_pass(int client, const struct protocol_header *header, const uint8_t *body);

#endif
