/* A whole server inside the test program, on sockets of its own: unix, tcp, or what the test configures. */
#ifndef MILLRACE_TESTS_SERVER_H
#define MILLRACE_TESTS_SERVER_H

#include "config/profile.h"
#include "config/server.h"
#include "server/server.h"

#include <stdint.h>

struct test_server {
    struct server *server;
    struct config_server *config;
    struct config_profile profile;
    char folder[64]; /* private; what lies in it is removed with the server */
};

/* A machine on which nothing costs anything: admission says yes to nearly all. */
extern const struct config_profile test_profile_generous;
/* The figures of config/profiles/cpu-only.yaml: for tests of admission. */
extern const struct config_profile test_profile_real;

/* The private folder, for files that the configuration names (relative paths are meant from there). */
void test_server_prepare(struct test_server *server);

/* Starts it (after test_server_prepare or without). `yaml` is put behind defaults for every top-level key
 * that it does not have itself: a Unix and a TCP listener, no real-time threads, IPsec-MB, and answers that
 * do not depend on what else the machine does (overload). Aborts the program if the server does not start. */
void test_server_start(struct test_server *server, const char *yaml, const struct config_profile *profile);
uint64_t test_server_stop(struct test_server *server); /* packets lost */

const struct core_address *test_server_unix(const struct test_server *server); /* listener 0 */
const struct core_address *test_server_tcp(const struct test_server *server);  /* listener 1 */

/* Writes a file of mode 0600 into the private folder. */
void test_server_write(const struct test_server *server, const char *name, const char *text);

#endif
