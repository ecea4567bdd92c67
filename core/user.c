#include "core/user.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WORDS _LINUX_CAPABILITY_U32S_3

/* ---- the data base ---- */

/* Decimal digits up to `end`, which follow at once. (uid_t)-1 means nobody, or no change. */
static bool number_parse(const char *text, char **end, unsigned *number)
{
    errno = 0;
    const unsigned long value = strtoul(text, end, 10);
    *number = (unsigned)value;
    return *text >= '0' && *text <= '9' && errno == 0 && value < UINT32_MAX;
}

static const struct passwd *entry_find(const char *name)
{
    char *end;
    unsigned number;
    errno = 0; /* which getpw... set only where they fail otherwise than by finding none */
    const struct passwd *entry = getpwnam(name);
    if (entry == NULL && number_parse(name, &end, &number) && *end == '\0')
        entry = getpwuid(number);
    return entry;
}

core_status core_user_find(const char *name, struct core_user *user, struct core_error *error)
{
    const struct passwd *entry = entry_find(name);
    if (entry == NULL)
        return core_error_set(error, CORE_NOT_FOUND,
                              "there is no user '%.64s'; `getent passwd` lists those that there are", name);
    user->number = entry->pw_uid;
    user->group_count = CORE_USER_GROUPS_MAX;
    if (getgrouplist(entry->pw_name, entry->pw_gid, user->groups, &user->group_count) < 0)
        return core_error_set(error, CORE_INVALID, "user '%.64s' is in more than %d groups; name another",
                              name, CORE_USER_GROUPS_MAX);
    return CORE_OK;
}

/* ---- as text ---- */

char *core_user_text(const struct core_user *user, char text[CORE_USER_TEXT_BYTES])
{
    int used = snprintf(text, CORE_USER_TEXT_BYTES, "%u", user->number);
    for (int i = 0; i < user->group_count; i++)
        used += snprintf(text + used, CORE_USER_TEXT_BYTES - (size_t)used, "%c%u", i == 0 ? ':' : ',',
                         user->groups[i]);
    return text;
}

core_status core_user_parse(const char *text, struct core_user *user)
{
    char *end;
    if (!number_parse(text, &end, &user->number))
        return CORE_INVALID;
    for (user->group_count = 0; *end == (user->group_count == 0 ? ':' : ','); user->group_count++)
        if (user->group_count == CORE_USER_GROUPS_MAX ||
            !number_parse(end + 1, &end, &user->groups[user->group_count]))
            return CORE_INVALID;
    return *end == '\0' && user->group_count > 0 ? CORE_OK : CORE_INVALID;
}

/* ---- the change ---- */

static bool capabilities_get(struct __user_cap_data_struct sets[WORDS])
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    return syscall(SYS_capget, &header, sets) == 0;
}

bool core_user_may_change(void)
{
    const uint32_t needed = 1U << CAP_SETUID | 1U << CAP_SETGID | 1U << CAP_KILL;
    struct __user_cap_data_struct sets[WORDS];
    return capabilities_get(sets) && (sets[0].effective & needed) == needed;
}

/* Of all sets: what a process of root hands down (inheritable) stays otherwise, and where it said so
 * (SECBIT_NO_SETUID_FIXUP) all of it. */
static bool capabilities_drop(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    const struct __user_cap_data_struct none[WORDS] = {{0}};
    return syscall(SYS_capset, &header, none) == 0;
}

static bool has_capabilities(void)
{
    struct __user_cap_data_struct sets[WORDS];
    if (!capabilities_get(sets))
        return true;
    for (int i = 0; i < WORDS; i++)
        if ((sets[i].effective | sets[i].permitted | sets[i].inheritable) != 0)
            return true;
    return false;
}

static bool ids_are(const struct core_user *user)
{
    const uid_t uid = user->number;
    const gid_t gid = user->groups[0];
    uid_t real, effective, saved;
    gid_t real_group, effective_group, saved_group;
    return getresuid(&real, &effective, &saved) == 0 && real == uid && effective == uid && saved == uid &&
           getresgid(&real_group, &effective_group, &saved_group) == 0 && real_group == gid &&
           effective_group == gid && saved_group == gid && getgroups(0, NULL) == user->group_count;
}

core_status core_user_become(const struct core_user *user, struct core_error *error)
{
    const uid_t uid = user->number;
    const gid_t gid = user->groups[0];
    if (setgroups((size_t)user->group_count, user->groups) != 0 || setresgid(gid, gid, gid) != 0 ||
        setresuid(uid, uid, uid) != 0 || !capabilities_drop())
        return core_error_errno(error, "can not change to user %u and group %u", uid, gid);
    if (!ids_are(user) || has_capabilities())
        return core_error_set(error, CORE_DENIED,
                              "after the change to user %u and group %u there are other ids, groups or "
                              "capabilities left",
                              uid, gid);
    return CORE_OK;
}
