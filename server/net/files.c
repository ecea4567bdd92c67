#include "server/net/files.h"

#include "core/log.h"
#include "core/time.h"
#include "server/mailbox.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FILES_MAX 253 /* that one message can bring (SCM_MAX_FD of the kernel) */

#define STOP_LOOK_NS (10 * CORE_NS_PER_MS)
#define STOP_LOOKS   200

struct server_files {
    struct server_mailbox_thread thread;
    _Atomic uint32_t
        waiting; /* atomic: lists to be closed; raised by whoever gives one, lowered by the thread */
};

struct closing {
    struct server_message message; /* first member */
    size_t count;
    int files[];
};

core_status server_files_start(struct server_files **files, struct core_error *error)
{
    struct server_files *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the thread that closes files");
    core_status status = server_mailbox_thread_start(&fresh->thread, "files", 0, fresh, error);
    if (status != CORE_OK) {
        free(fresh);
        return status;
    }
    *files = fresh;
    return CORE_OK;
}

void server_files_stop(struct server_files *files)
{
    if (files == NULL)
        return;
    for (int looks = 0; atomic_load_explicit(&files->waiting, memory_order_acquire) > 0; looks++) {
        if (looks == STOP_LOOKS) {
            core_log(
                CORE_LOG_WARNING, "files.stuck",
                "what clients have sent does not let itself be closed; it is left to the end of the process");
            return; /* with its thread and its memory */
        }
        core_time_sleep_until(core_time_now_ns() + STOP_LOOK_NS);
    }
    server_mailbox_thread_stop(&files->thread);
    free(files);
}

/* A socket's close is not to linger. */
static void close_one(int file)
{
    const struct linger none = {.l_onoff = 0};
    (void)setsockopt(file, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    close(file);
}

static void close_all(void *owner, struct server_message *message)
{
    struct server_files *files = owner;
    struct closing *closing = (struct closing *)message;
    for (size_t i = 0; i < closing->count; i++)
        close_one(closing->files[i]);
    free(closing);
    atomic_fetch_sub_explicit(&files->waiting, 1, memory_order_release);
}

static void post(struct server_files *files, const int *list, size_t count)
{
    struct closing *closing = malloc(sizeof *closing + count * sizeof *list);
    if (closing == NULL) {
        for (size_t i = 0; i < count; i++)
            close_one(list[i]);
        return;
    }
    *closing = (struct closing){.message = {.run = close_all}, .count = count};
    memcpy(closing->files, list, count * sizeof *list);
    atomic_fetch_add_explicit(&files->waiting, 1, memory_order_relaxed);
    server_mailbox_post(&files->thread.mailbox, &closing->message);
}

void server_files_close(struct server_files *files, int file)
{
    post(files, &file, 1);
}

static size_t count_of(const struct cmsghdr *sent)
{
    if (sent == NULL || sent->cmsg_level != SOL_SOCKET || sent->cmsg_type != SCM_RIGHTS)
        return 0;
    return (sent->cmsg_len - CMSG_LEN(0)) / sizeof(int);
}

ssize_t server_files_receive(struct server_files *files, int socket, void *buffer, size_t bytes, int *kept)
{
    union {
        struct cmsghdr header;
        unsigned char room[CMSG_SPACE(FILES_MAX * sizeof(int))];
    } control;
    struct iovec all = {.iov_base = buffer, .iov_len = bytes};
    struct msghdr message = {
        .msg_iov = &all, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    const ssize_t got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    const struct cmsghdr *sent = got < 0 || message.msg_controllen == 0 ? NULL : CMSG_FIRSTHDR(&message);
    const size_t count = count_of(sent);
    int list[FILES_MAX];

    if (count == 0)
        return got;
    memcpy(list, CMSG_DATA(sent), count * sizeof *list);
    if (count == 1 && kept != NULL && *kept < 0) {
        *kept = list[0];
        return got;
    }
    post(files, list, count);
    errno = EPROTO;
    return -1;
}
