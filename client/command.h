/* The `millrace` command: one file a subcommand, and what they share. Everything here runs on one thread. */
#ifndef MILLRACE_CLIENT_COMMAND_H
#define MILLRACE_CLIENT_COMMAND_H

#include "client/millrace.h"
#include "core/options.h"
#include "core/stream.h"
#include "core/value.h"

#include <argp.h>
#include <jansson.h>

enum command_exit {
    COMMAND_OK = 0,
    COMMAND_FAILED = 1,  /* could not connect, read, write, or the server broke off */
    COMMAND_USAGE = 2,   /* the command line, a key or a file is not as it must be */
    COMMAND_REFUSED = 3, /* the server does not admit the stream */
    COMMAND_MISSED = 4,  /* all is done, but deadlines were missed */
    COMMAND_SIGNAL = 128 /* and the number of the signal that stopped it, as shells have it */
};
#define COMMAND_EXIT_HELP                                                                                    \
    "Exit status: 0 done; 1 failed (no connection, reading, writing, or the server broke off); 2 the "       \
    "command "                                                                                               \
    "line or a file it names is wrong; 3 the server refused the stream; 4 done, but deadlines were missed; " \
    "128 and the number of a signal: stopped by it, as 130 by Ctrl-C."

/* Subcommands: argv[0] is "millrace <name>". */
int command_encrypt(int argc, char **argv);
int command_hls(int argc, char **argv);
int command_ts(int argc, char **argv);
int command_query(int argc, char **argv);
int command_status(int argc, char **argv);
int command_ping(int argc, char **argv);

/* ---- what is said (command_output.c) ---- */

/* From now on, JSON: the parsers of --json call it. */
void command_want_json(void);
bool command_wants_json(void);

/* Says what went wrong, and returns exit: "millrace: <sentence>" on standard error, or, where JSON is wanted,
 * {"error": {"message": "<sentence>"}} on standard output. */
int command_fail(enum command_exit exit, const char *format, ...) CORE_PRINTF(2, 3);
json_t *command_pack_error(const char *text); /* {"message": ...} */

/* Prints the object (NULL: there was no memory for it) and releases it: COMMAND_OK, or COMMAND_FAILED. */
int command_print_json(json_t *object);

/* Prints a refusal with its offers, as command_fail; returns COMMAND_REFUSED. */
int command_print_refused(const struct millrace_open *open, const struct millrace_refused *refused);
/* Adds code, constraint and offer. 0, or -1 for want of memory. */
int command_pack_refused(json_t *object, const struct millrace_open *open,
                         const struct millrace_refused *refused);

/* ---- the connection (command_options.c) ---- */

/* What the options say of TLS; it points to them. */
struct millrace_tls command_tls(const struct core_options_server *server);
CORE_CHECKED core_status command_connect_within(const struct core_options_server *server, int timeout_ms,
                                                struct millrace **connection, struct core_error *error);
/* Connects, or says why not; NULL then. */
struct millrace *command_connect(const struct core_options_server *server);

/* ---- what a stream is to be (command_options.c) ---- */

struct command_contract {
    struct core_stream_spec spec; /* but for its interval; packet_bytes, cipher: 0 until it is settled */
    double rate_bits_per_s;       /* 0: not given; infinity: the highest that the server admits */
    bool has_padding, has_iv_kind;
    bool pad_end; /* no padding by the server, PKCS#7 by us, at the end of all */
    enum millrace_key_kind key_kind;
    uint8_t key[MILLRACE_KEY_NAME_BYTES_MAX]; /* or its name */
    uint32_t key_bytes;
    bool has_iv;
    uint8_t iv[CORE_BLOCK_BYTES];
};
extern const struct argp command_contract_argp; /* input: struct command_contract */

void command_contract_init(struct command_contract *contract);
/* Fills in what is not given and follows from the rest. CORE_INVALID with the reason, in the terms of the options,
 * if no server could take it. */
CORE_CHECKED core_status command_contract_settle(struct command_contract *contract, struct core_error *error);
/* The contract as the protocol has it; points into `contract`. An open rate becomes the shortest interval
 * that the server's WELCOME allows. CORE_INVALID with the reason. */
CORE_CHECKED core_status command_contract_open(const struct command_contract *contract,
                                               const struct millrace_welcome *welcome,
                                               struct millrace_open *open, struct core_error *error);

bool command_rate_is_open(const struct command_contract *contract);

/* For a contract with an open rate: asks the server for the highest rate that it would admit now and makes it
 * the contract's. CORE_REFUSED with *refused if there is none. */
CORE_CHECKED core_status command_best_rate(struct millrace *connection, int timeout_ms,
                                           struct millrace_open *open, struct millrace_refused *refused,
                                           struct core_error *error);

/* ---- a page over plain HTTP (command_http.c) ---- */

/* GET path from a server at `address`; *body is the caller's to free, terminated. Anything but status 200 is
 * CORE_INVALID. */
CORE_CHECKED core_status command_http_get(const char *address, const char *path, int timeout_ms, char **body,
                                          size_t *body_bytes, struct core_error *error);

/* Finds the body in a whole answer, which is terminated; CORE_INVALID if it is none, cut off, or not of
 * status 200. */
CORE_CHECKED core_status command_http_body(const char *answer, size_t bytes, const char **body,
                                           struct core_error *error);

#endif
