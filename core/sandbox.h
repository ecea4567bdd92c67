/* What a process may still ask the kernel for once it has started: a seccomp filter for all its threads, and
 * for the processes that it starts. It can not be taken back.
 *
 * A call that is forbidden fails with EPERM, and the kernel writes it to its audit log with the process and
 * the number of the call (type=SECCOMP), where the system has such a log. The process is not killed for it:
 * an attacker inside of it gains nothing in either case, but a library that only probes for a call, as its
 * next version may, would end a working server.
 *
 * Builds with a sanitizer have none: its run-time traces its own process, and starts others. */
#ifndef MILLRACE_CORE_SANDBOX_H
#define MILLRACE_CORE_SANDBOX_H

#include "core/status.h"

enum core_sandbox_mode { CORE_SANDBOX_AUTO, CORE_SANDBOX_OFF, CORE_SANDBOX_REQUIRED };

enum core_sandbox_role {
    CORE_SANDBOX_SERVER,       /* without cards: what it does is known, and all else is forbidden: also to run
                                  programs, to make processes, and memory with code */
    CORE_SANDBOX_SERVER_CARDS, /* its children inherit the filter, and what a card's driver needs is known to
                                  nobody: what no driver of a card has a use for is forbidden */
    CORE_SANDBOX_CARD,         /* the process of an emulated card: as SERVER, and no files, no sockets */
    CORE_SANDBOX_CARD_DRIVER   /* of a card, which is open: as SERVER_CARDS, and programs, sockets, signals to
                                  others are forbidden, too */
};

/* Enters it, if the mode is not OFF. CORE_UNSUPPORTED or CORE_SYSTEM with the reason: there is none.
 * Allocates. The caller has no_new_privs. */
CORE_CHECKED core_status core_sandbox_enter(enum core_sandbox_role role, enum core_sandbox_mode mode,
                                            struct core_error *error);

/* Whether this build and this kernel have it. CORE_UNSUPPORTED with the reason. */
CORE_CHECKED core_status core_sandbox_check(struct core_error *error);

#endif
