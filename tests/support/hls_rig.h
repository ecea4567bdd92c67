/* `millrace hls` without its command line: folders of its own, a server (hls_server.h), and its turns. */
#ifndef TESTS_SUPPORT_HLS_RIG_H
#define TESTS_SUPPORT_HLS_RIG_H

#include "client/hls/hls.h"
#include "tests/support/hls_server.h"

struct hls_rig {
    char folder[64]; /* in it: in, out, keys */
    struct hls_server server;
    struct core_options_server address;
    struct hls hls;
};

/* A server that does what *server says (NULL: nothing odd), and an hls that is given keys by draw, a new one every two
 * segments. with_input: files come from the folder in, else by hls_put alone. Aborts if that can not be set up. */
void hls_rig_start(struct hls_rig *rig, const struct hls_server *server, bool with_input);
void hls_rig_stop(struct hls_rig *rig); /* and all of it is removed */

/* A process that begins, and goes on with the output of the one before, which is gone. */
void hls_rig_again(struct hls_rig *rig);

/* What was said since the last call. */
const char *hls_rig_said(void);

/* hls_put of a text; the test aborts if it is not taken. */
void hls_rig_put(struct hls_rig *rig, const char *path, const char *text);
/* Writes a file below the rig's folder. */
void hls_rig_write(const struct hls_rig *rig, const char *path, const char *text);

/* Turns until the output's file has these words in it, some seconds at most; false: it never had. */
bool hls_rig_await(struct hls_rig *rig, const char *path, const char *words);
void hls_rig_turn(struct hls_rig *rig, unsigned count); /* so often, each with a poll of 1 ms at most */
bool hls_rig_has(const struct hls_rig *rig, const char *path, const char *words); /* of the output */

/* Is the output's file that text, encrypted under the key that its playlist names for it? */
bool hls_rig_is_cipher(const struct hls_rig *rig, const char *playlist, const char *path, const char *text);

#endif
