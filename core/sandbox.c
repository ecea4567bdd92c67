#include "core/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef __has_feature
#define __has_feature(feature) 0
#endif
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__ || __has_feature(address_sanitizer) ||       \
    __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SANITIZED true
#else
#define SANITIZED false
#endif

#define CALLS(list) (list), sizeof(list) / sizeof((list)[0])

/* What every thread does: computing, waiting, memory, and its end. */
static const int allowed_to_all[] = {
    SCMP_SYS(brk),
    SCMP_SYS(clock_getres),
    SCMP_SYS(clock_gettime),
    SCMP_SYS(clock_nanosleep),
    SCMP_SYS(close),
    SCMP_SYS(epoll_ctl),
    SCMP_SYS(epoll_pwait),
    SCMP_SYS(epoll_pwait2),
    SCMP_SYS(epoll_wait),
    SCMP_SYS(exit),
    SCMP_SYS(exit_group),
    SCMP_SYS(fcntl),
    SCMP_SYS(fstat),
    SCMP_SYS(futex),
    SCMP_SYS(getcpu),
    SCMP_SYS(getpid),
    SCMP_SYS(getrandom),
    SCMP_SYS(getrusage),
    SCMP_SYS(gettid),
    SCMP_SYS(gettimeofday),
    SCMP_SYS(madvise),
    SCMP_SYS(membarrier),
    SCMP_SYS(mlock),
    SCMP_SYS(mlock2),
    SCMP_SYS(mlockall),
    SCMP_SYS(mremap),
    SCMP_SYS(munlock),
    SCMP_SYS(munlockall),
    SCMP_SYS(munmap),
    SCMP_SYS(nanosleep),
    SCMP_SYS(poll),
    SCMP_SYS(ppoll),
    SCMP_SYS(read),
    SCMP_SYS(readv),
    SCMP_SYS(restart_syscall),
    SCMP_SYS(rseq),
    SCMP_SYS(rt_sigaction),
    SCMP_SYS(rt_sigprocmask),
    SCMP_SYS(rt_sigreturn),
    SCMP_SYS(sched_getaffinity),
    SCMP_SYS(sched_getparam),
    SCMP_SYS(sched_getscheduler),
    SCMP_SYS(sched_yield),
    SCMP_SYS(set_robust_list),
    SCMP_SYS(time),
    SCMP_SYS(timerfd_settime),
    SCMP_SYS(write),
    SCMP_SYS(writev),
};

/* Clients, the log and the service manager; keyring, certificates and /proc; sockets taken away at the end.
 */
static const int allowed_to_server[] = {
    SCMP_SYS(accept),      SCMP_SYS(accept4),      SCMP_SYS(access),     SCMP_SYS(faccessat),
    SCMP_SYS(faccessat2),  SCMP_SYS(fallocate),    SCMP_SYS(flock),      SCMP_SYS(getdents64),
    SCMP_SYS(getegid),     SCMP_SYS(geteuid),      SCMP_SYS(getgid),     SCMP_SYS(getpeername),
    SCMP_SYS(getsockname), SCMP_SYS(getsockopt),   SCMP_SYS(getuid),     SCMP_SYS(lseek),
    SCMP_SYS(lstat),       SCMP_SYS(memfd_create), SCMP_SYS(newfstatat), SCMP_SYS(open),
    SCMP_SYS(openat),      SCMP_SYS(pread64),      SCMP_SYS(readlink),   SCMP_SYS(readlinkat),
    SCMP_SYS(recvfrom),    SCMP_SYS(recvmsg),      SCMP_SYS(sendmmsg),   SCMP_SYS(sendmsg),
    SCMP_SYS(sendto),      SCMP_SYS(setsockopt),   SCMP_SYS(shutdown),   SCMP_SYS(stat),
    SCMP_SYS(statx),       SCMP_SYS(unlink),       SCMP_SYS(unlinkat),
};

/* The kernel's larger surfaces, and power over other processes and over the machine. */
static const int denied_to_all[] = {
    SCMP_SYS(_sysctl),
    SCMP_SYS(acct),
    SCMP_SYS(add_key),
    SCMP_SYS(adjtimex),
    SCMP_SYS(bpf),
    SCMP_SYS(chroot),
    SCMP_SYS(clock_adjtime),
    SCMP_SYS(clock_settime),
    SCMP_SYS(create_module),
    SCMP_SYS(delete_module),
    SCMP_SYS(fanotify_init),
    SCMP_SYS(finit_module),
    SCMP_SYS(fsconfig),
    SCMP_SYS(fsmount),
    SCMP_SYS(fsopen),
    SCMP_SYS(fspick),
    SCMP_SYS(init_module),
    SCMP_SYS(io_uring_enter),
    SCMP_SYS(io_uring_register),
    SCMP_SYS(io_uring_setup),
    SCMP_SYS(ioperm),
    SCMP_SYS(iopl),
    SCMP_SYS(kcmp),
    SCMP_SYS(kexec_file_load),
    SCMP_SYS(kexec_load),
    SCMP_SYS(keyctl),
    SCMP_SYS(mount),
    SCMP_SYS(mount_setattr),
    SCMP_SYS(move_mount),
    SCMP_SYS(name_to_handle_at),
    SCMP_SYS(open_by_handle_at),
    SCMP_SYS(open_tree),
    SCMP_SYS(perf_event_open),
    SCMP_SYS(personality),
    SCMP_SYS(pidfd_getfd),
    SCMP_SYS(pivot_root),
    SCMP_SYS(process_madvise),
    SCMP_SYS(process_vm_readv),
    SCMP_SYS(process_vm_writev),
    SCMP_SYS(ptrace),
    SCMP_SYS(quotactl),
    SCMP_SYS(reboot),
    SCMP_SYS(request_key),
    SCMP_SYS(setdomainname),
    SCMP_SYS(sethostname),
    SCMP_SYS(setns),
    SCMP_SYS(settimeofday),
    SCMP_SYS(swapoff),
    SCMP_SYS(swapon),
    SCMP_SYS(syslog),
    SCMP_SYS(umount2),
    SCMP_SYS(unshare),
    SCMP_SYS(uselib),
    SCMP_SYS(userfaultfd),
    SCMP_SYS(vhangup),
};

static const int denied_to_card[] = {
    SCMP_SYS(accept),
    SCMP_SYS(accept4),
    SCMP_SYS(bind),
    SCMP_SYS(connect),
    SCMP_SYS(execve),
    SCMP_SYS(execveat),
    SCMP_SYS(fork),
    SCMP_SYS(kill),
    SCMP_SYS(listen),
    SCMP_SYS(pidfd_send_signal),
    SCMP_SYS(rt_sigqueueinfo),
    SCMP_SYS(rt_tgsigqueueinfo),
    SCMP_SYS(capset),
    SCMP_SYS(setfsgid),
    SCMP_SYS(setfsuid),
    SCMP_SYS(setgid),
    SCMP_SYS(setregid),
    SCMP_SYS(setresgid),
    SCMP_SYS(setresuid),
    SCMP_SYS(setreuid),
    SCMP_SYS(setuid),
    SCMP_SYS(setgroups),
    SCMP_SYS(socket),
    SCMP_SYS(socketpair),
    SCMP_SYS(tkill),
    SCMP_SYS(vfork),
};

static int add_all(scmp_filter_ctx filter, uint32_t action, const int *calls, size_t count)
{
    int failed = 0;
    for (size_t i = 0; i < count && failed == 0; i++)
        failed = seccomp_rule_add(filter, action, calls[i], 0);
    return failed;
}

/* The macros of libseccomp leave a member out, which Clang warns of. */
static struct scmp_arg_cmp argument(unsigned number, enum scmp_compare how, scmp_datum_t a, scmp_datum_t b)
{
    return (struct scmp_arg_cmp){.arg = number, .op = how, .datum_a = a, .datum_b = b};
}

/* Memory without code; signals to itself, as abort sends one; limits as they are. */
static int allow_harmless(scmp_filter_ctx filter)
{
    const struct scmp_arg_cmp no_code = argument(2, SCMP_CMP_MASKED_EQ, PROT_EXEC, 0);
    int failed = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 1, no_code);
    if (failed == 0)
        failed = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1, no_code);
    if (failed == 0)
        failed = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1,
                                  argument(0, SCMP_CMP_EQ, (scmp_datum_t)getpid(), 0));
    if (failed == 0)
        failed =
            seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(prlimit64), 1, argument(2, SCMP_CMP_EQ, 0, 0));
    return failed;
}

/* Sockets to the journal and the service manager; how much there is to be read, and how much a peer has not
 * taken yet. */
static int allow_server(scmp_filter_ctx filter)
{
    int failed = add_all(filter, SCMP_ACT_ALLOW, CALLS(allowed_to_server));
    if (failed == 0)
        failed = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(socket), 2,
                                  argument(0, SCMP_CMP_EQ, AF_UNIX, 0),
                                  argument(1, SCMP_CMP_MASKED_EQ, 0xf, SOCK_DGRAM));
    if (failed == 0)
        failed = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1,
                                  argument(1, SCMP_CMP_EQ, FIONREAD, 0));
    if (failed == 0)
        failed = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1,
                                  argument(1, SCMP_CMP_EQ, SIOCOUTQ, 0));
    return failed;
}

/* What it may do to itself it may not do to others, nor give itself more. */
static int forbid_card(scmp_filter_ctx filter, uint32_t forbidden)
{
    int failed = add_all(filter, forbidden, CALLS(denied_to_card));
    if (failed == 0)
        failed = seccomp_rule_add(filter, forbidden, SCMP_SYS(tgkill), 1,
                                  argument(0, SCMP_CMP_NE, (scmp_datum_t)getpid(), 0));
    if (failed == 0)
        failed = seccomp_rule_add(filter, forbidden, SCMP_SYS(prlimit64), 1, argument(2, SCMP_CMP_NE, 0, 0));
    return failed;
}

static int rules_fill(scmp_filter_ctx filter, enum core_sandbox_role role, uint32_t forbidden)
{
    int failed;
    switch (role) {
    case CORE_SANDBOX_SERVER:
    case CORE_SANDBOX_CARD:
        failed = add_all(filter, SCMP_ACT_ALLOW, CALLS(allowed_to_all));
        if (failed == 0)
            failed = allow_harmless(filter);
        return failed == 0 && role == CORE_SANDBOX_SERVER ? allow_server(filter) : failed;
    case CORE_SANDBOX_CARD_DRIVER:
        failed = forbid_card(filter, forbidden);
        return failed == 0 ? add_all(filter, forbidden, CALLS(denied_to_all)) : failed;
    case CORE_SANDBOX_SERVER_CARDS:
        return add_all(filter, forbidden, CALLS(denied_to_all));
    }
    return -EINVAL;
}

core_status core_sandbox_check(struct core_error *error)
{
    if (SANITIZED)
        return core_error_set(error, CORE_UNSUPPORTED, "a build with a sanitizer has no sandbox");
    if (seccomp_api_get() < 3) /* all threads at once (Linux 3.17), and the log (4.14) */
        return core_error_set(error, CORE_UNSUPPORTED,
                              "the kernel lacks seccomp filters (CONFIG_SECCOMP_FILTER, Linux 4.14)");
    return CORE_OK;
}

core_status core_sandbox_enter(enum core_sandbox_role role, enum core_sandbox_mode mode,
                               struct core_error *error)
{
    const bool lists_allowed = role == CORE_SANDBOX_SERVER || role == CORE_SANDBOX_CARD;
    const uint32_t forbidden = SCMP_ACT_ERRNO(EPERM);
    if (mode == CORE_SANDBOX_OFF)
        return CORE_OK;
    core_status status = core_sandbox_check(error);
    if (status != CORE_OK)
        return status;
    scmp_filter_ctx filter = seccomp_init(lists_allowed ? forbidden : SCMP_ACT_ALLOW);
    if (filter == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a seccomp filter");
    int failed = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1);
    if (failed == 0)
        failed = seccomp_attr_set(filter, SCMP_FLTATR_CTL_LOG, 1);
    if (failed == 0)
        failed = rules_fill(filter, role, forbidden);
    if (failed == 0)
        failed = seccomp_load(filter);
    seccomp_release(filter);
    if (failed == 0)
        return CORE_OK;
    errno = -failed;
    return core_error_errno(error, "can not load a seccomp filter");
}
