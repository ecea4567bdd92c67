/* Which GPUs the server has: those that the configuration asks for, the profile describes and the machine
 * has.
 *
 *   none       none
 *   listed     just these; it is an error if one is not there
 *   emulated   the profile's, each played by a child process; it is an error if that can not be
 *   auto       cards that are there and whose name the profile has; without any, or without the program, the
 *              CPU workers serve alone, and the log says what is missing */
#ifndef MILLRACE_SERVER_GPU_CARDS_H
#define MILLRACE_SERVER_GPU_CARDS_H

#include "core/status.h"

#include <stddef.h>

struct server;

/* What can be known without looking for cards: a program that is there, a profile with cards where the
 * configuration asks for some, and for emulated ones room for their batches. What fails here would fail at
 * the start. Where the configuration is only checked, the cards are looked for, too. */
CORE_CHECKED core_status server_gpu_cards_check(struct server *server, struct core_error *error);

/* Chooses the user of the cards' processes: the configured one; where none is and we are root, nobody. Fails
 * where the configured one is unknown or we may not start processes of others; where nobody can not be, a
 * warning says that they run as we do. */
CORE_CHECKED core_status server_gpu_cards_user(struct server *server, struct core_error *error);

/* Starts server->gpus, in the order of the profile, and takes out of server->profile the cards that are not
 * there. After server_gpu_cards_check, and after the I/O threads' structs are made, before they run. */
CORE_CHECKED core_status server_gpu_cards_start(struct server *server, struct core_error *error);

/* After all I/O threads: ends the children and the batchers. Then, after the planner, the rest. */
void server_gpu_cards_halt(struct server *server);
void server_gpu_cards_destroy(struct server *server);

/* The cards in the output of `millrace-gpu --list`: calls `card` with the index and name of each line that
 * has both. Pure. */
void server_gpu_cards_parse(const char *text, void (*card)(void *argument, unsigned index, const char *name),
                            void *argument);

#endif
