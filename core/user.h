/* A user and its groups, as the system's data base has them, and the change of a process to that user, for
 * good. Numbers alone go from the process that looks a user up to the one that becomes it: a library of the
 * data base is never loaded where the change is made. */
#ifndef MILLRACE_CORE_USER_H
#define MILLRACE_CORE_USER_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define CORE_USER_GROUPS_MAX 64
#define CORE_USER_TEXT_BYTES (11 * (CORE_USER_GROUPS_MAX + 1)) /* each with what comes behind it */

struct core_user {
    uid_t number;
    gid_t groups[CORE_USER_GROUPS_MAX]; /* the first is its own, the others those that it is a member of */
    int group_count;                    /* 1 at least */
};

/* The user of this name, or, where there is none and it is a number, of this number. CORE_NOT_FOUND;
 * CORE_INVALID: in more groups than there is room for. May read files and ask other processes. */
CORE_CHECKED core_status core_user_find(const char *name, struct core_user *user, struct core_error *error);

/* Whether this process may start others that become another user, and still end them and see them end with it
 * (CAP_SETUID, CAP_SETGID, CAP_KILL). */
bool core_user_may_change(void);

/* "number:group[,group...]"; returns text. */
char *core_user_text(const struct core_user *user, char text[CORE_USER_TEXT_BYTES]);
/* And back. CORE_INVALID. */
CORE_CHECKED core_status core_user_parse(const char *text, struct core_user *user);

/* Makes this process that user, in its groups and no others, without a capability, and looks whether it is.
 * There is no way back. What must be asked for with the old rights comes before (a priority, limits); what
 * the kernel takes away with them comes after (PR_SET_PDEATHSIG, PR_SET_DUMPABLE). Only where the process has
 * no other thread: capabilities are the thread's own. */
CORE_CHECKED core_status core_user_become(const struct core_user *user, struct core_error *error);

#endif
