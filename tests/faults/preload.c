/* A library that is loaded before all others into the programs that tools/faults tests, and makes one of their
 * calls fail. It stands in the way of every call of the program and its libraries to the functions below; the
 * next one of that name, of the C library or of a sanitizer, does the work.
 *
 * A call fails only in a way in which the kernel lets it fail: what is not a socket, file or pipe (an eventfd, a
 * timer) is never read or written wrong, and EAGAIN is for descriptors that do not wait.
 *
 * MILLRACE_FAULTS names the page (page.h). Without it, or in a program that the page does not name, all calls
 * go through. */
#include "tests/faults/page.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static struct faults_page *page; /* NULL: not for this program */
/* The loader gives it its place at the start: nothing is allocated when a thread first asks. */
static _Thread_local bool inside __attribute__((tls_model("initial-exec")));

/* The next function of this name. */
#define NEXT(name)                                                                                           \
    static __typeof__(&(name)) next;                                                                         \
    if (next == NULL)                                                                                        \
    next = (__typeof__(&(name)))find(#name)

static void *find(const char *name)
{
    const bool before = inside;
    inside = true;
    void *function = dlsym(RTLD_NEXT, name);
    inside = before;
    return function;
}

/* ---- which call is it? ---- */

struct call {
    enum faults_class class;
    uint32_t kinds;
};

extern const char __ehdr_start __attribute__((visibility("hidden"))); /* where this library begins */
#define OWN_BYTES  65536
#define OWN_FRAMES 6

static bool is_own(uint64_t address)
{
    return address - (uint64_t)(uintptr_t)&__ehdr_start < OWN_BYTES;
}

static uint64_t stack_of(uint64_t frame[FAULTS_FRAMES], uint32_t *frames)
{
    void *address[FAULTS_FRAMES + OWN_FRAMES];
    uint64_t hash = 1469598103934665603u;
    const int count = backtrace(address, FAULTS_FRAMES + OWN_FRAMES);
    *frames = 0;
    for (int at = 0; at < count && *frames < FAULTS_FRAMES; at++) {
        const uint64_t next = (uint64_t)(uintptr_t)address[at];
        if (is_own(next))
            continue;
        frame[*frames] = next;
        hash = (hash ^ frame[(*frames)++]) * 1099511628211u;
    }
    return hash | 1;
}

static void record(const struct call *call, uint64_t stack, const uint64_t *frame, uint32_t frames)
{
    for (uint32_t tries = 0; tries < FAULTS_SITES; tries++) {
        struct faults_site *site = &page->sites[(stack + tries) % FAULTS_SITES];
        uint64_t there = 0;
        if (atomic_compare_exchange_strong(&site->stack, &there, stack)) {
            site->class = call->class;
            site->frames = frames;
            memcpy(site->frame, frame, sizeof site->frame);
        } else if (there != stack)
            continue;
        site->kinds |= call->kinds;
        atomic_fetch_add(&site->calls, 1);
        return;
    }
}

static bool is_chosen(const struct call *call, uint64_t number, uint64_t stack)
{
    uint32_t none = 0;
    if (call->class != page->class || (call->kinds & (1u << page->kind)) == 0)
        return false;
    if (page->stack == 0)
        return number >= page->first && number <= page->last;
    if (page->last != 0 && atomic_load(&page->fired) != 0)
        return true;
    return stack == page->stack && atomic_compare_exchange_strong(&page->fired, &none, 1);
}

static bool decide(const struct call *call)
{
    uint64_t frame[FAULTS_FRAMES] = {0};
    uint32_t frames = 0;
    const uint64_t number = atomic_fetch_add(&page->calls[call->class], 1) + 1;
    const uint64_t stack =
        page->records || page->stack != 0 || number == page->first ? stack_of(frame, &frames) : 0;
    if (page->records)
        record(call, stack, frame, frames);
    if (page->records || !is_chosen(call, number, stack))
        return false;
    if (stack == page->stack || number == page->first) {
        page->fired_frames = frames;
        memcpy(page->fired_frame, frame, sizeof frame);
    }
    atomic_store(&page->fired, 1);
    return true;
}

/* Must this call fail? */
static bool fails(enum faults_class class, uint32_t kinds)
{
    const struct call call = {class, kinds};
    if (page == NULL || inside || atomic_load_explicit(&page->armed, memory_order_relaxed) == 0)
        return false;
    const int error = errno;
    inside = true;
    const bool failed = decide(&call);
    inside = false;
    errno = error;
    return failed;
}

static bool has_none_left(enum faults_class class)
{
    return fails(class, 1u << FAULTS_NONE_LEFT);
}

/* ---- the start ---- */

static bool is_named(void)
{
    char name[64] = "";
    const int file = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
    const ssize_t got = file < 0 ? -1 : read(file, name, sizeof name - 1);
    if (file >= 0)
        (void)close(file);
    name[strcspn(name, "\n")] = '\0';
    return got > 0 && strncmp(name, page->program, sizeof page->program - 1) == 0;
}

__attribute__((constructor)) static void begin(void)
{
    void *frame[4];
    const char *path = getenv("MILLRACE_FAULTS");
    const int file = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing is left of a run that is cut off */
    inside = true;
    (void)backtrace(frame, 4); /* loads what it needs */
    page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    (void)close(file);
    if (page == MAP_FAILED || !is_named())
        page = NULL;
    inside = false;
}

/* What this thread does from now on is the test's own, or no longer. */
void faults_own(bool own);
void faults_own(bool own)
{
    inside = own;
}

/* ---- memory ---- */

static void *no_memory(void)
{
    errno = ENOMEM;
    return NULL;
}

/* dlsym may ask for memory while the real calloc is looked for: that is served from here, and never freed. */
static void *early(size_t bytes)
{
    static _Alignas(16) char room[16384];
    static size_t used;
    void *block = room + used;
    used += (bytes + 15) / 16 * 16;
    return used <= sizeof room ? block : NULL;
}

void *malloc(size_t bytes)
{
    static bool looking;
    static void *(*next)(size_t);
    if (next == NULL) {
        if (looking)
            return early(bytes);
        looking = true;
        next = (void *(*)(size_t))find("malloc");
        looking = false;
    }
    return has_none_left(FAULTS_ALLOCATION) ? no_memory() : next(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    static bool looking;
    static void *(*next)(size_t, size_t);
    if (next == NULL) {
        if (looking)
            return early(count * bytes);
        looking = true;
        next = (void *(*)(size_t, size_t))find("calloc");
        looking = false;
    }
    return has_none_left(FAULTS_ALLOCATION) ? no_memory() : next(count, bytes);
}

void *realloc(void *block, size_t bytes)
{
    NEXT(realloc);
    return has_none_left(FAULTS_ALLOCATION) ? no_memory() : next(block, bytes);
}

void *reallocarray(void *block, size_t count, size_t bytes)
{
    NEXT(reallocarray);
    return has_none_left(FAULTS_ALLOCATION) ? no_memory() : next(block, count, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    NEXT(aligned_alloc);
    return has_none_left(FAULTS_ALLOCATION) ? no_memory() : next(alignment, bytes);
}

int posix_memalign(void **block, size_t alignment, size_t bytes)
{
    NEXT(posix_memalign);
    return has_none_left(FAULTS_ALLOCATION) ? ENOMEM : next(block, alignment, bytes);
}

/* ---- descriptors ---- */

static int no_descriptor(void)
{
    errno = EMFILE;
    return -1;
}

#define OPENS(name, parameters, arguments)                                                                   \
    int name parameters                                                                                      \
    {                                                                                                        \
        NEXT(name);                                                                                          \
        return has_none_left(FAULTS_DESCRIPTOR) ? no_descriptor() : next arguments;                          \
    }

int eventfd(unsigned count, int flags);
int timerfd_create(int clock, int flags);
int memfd_create(const char *name, unsigned flags);
int signalfd(int descriptor, const sigset_t *mask, int flags);

OPENS(socket, (int domain, int type, int protocol), (domain, type, protocol))
OPENS(socketpair, (int domain, int type, int protocol, int pair[2]), (domain, type, protocol, pair))
OPENS(accept4, (int listener, struct sockaddr *address, socklen_t *length, int flags),
      (listener, address, length, flags))
OPENS(eventfd, (unsigned count, int flags), (count, flags))
OPENS(timerfd_create, (int clock, int flags), (clock, flags))
OPENS(epoll_create1, (int flags), (flags))
OPENS(memfd_create, (const char *name, unsigned flags), (name, flags))
OPENS(signalfd, (int descriptor, const sigset_t *mask, int flags), (descriptor, mask, flags))
OPENS(pipe2, (int pair[2], int flags), (pair, flags))

int open(const char *path, int flags, ...)
{
    va_list rest;
    NEXT(open);
    va_start(rest, flags);
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return has_none_left(FAULTS_DESCRIPTOR) ? no_descriptor() : next(path, flags, mode);
}

FILE *fopen(const char *path, const char *mode)
{
    NEXT(fopen);
    return has_none_left(FAULTS_DESCRIPTOR) ? (no_descriptor(), NULL) : next(path, mode);
}

int epoll_ctl(int poller, int operation, int descriptor, struct epoll_event *event)
{
    NEXT(epoll_ctl);
    if (operation == EPOLL_CTL_ADD && has_none_left(FAULTS_DESCRIPTOR)) {
        errno = ENOSPC;
        return -1;
    }
    return next(poller, operation, descriptor, event);
}

/* ---- maps, locks, sizes ---- */

static int refused(int error)
{
    errno = error;
    return -1;
}

void *mmap(void *address, size_t bytes, int protection, int flags, int descriptor, off_t offset)
{
    NEXT(mmap);
    return has_none_left(FAULTS_MAP) ? (no_memory(), MAP_FAILED)
                                     : next(address, bytes, protection, flags, descriptor, offset);
}

int mlock(const void *address, size_t bytes)
{
    NEXT(mlock);
    return has_none_left(FAULTS_MAP) ? refused(ENOMEM) : next(address, bytes);
}

int mlockall(int flags)
{
    NEXT(mlockall);
    return has_none_left(FAULTS_MAP) ? refused(ENOMEM) : next(flags);
}

int madvise(void *address, size_t bytes, int advice)
{
    NEXT(madvise);
    return has_none_left(FAULTS_MAP) ? refused(ENOMEM) : next(address, bytes, advice);
}

int mprotect(void *address, size_t bytes, int protection)
{
    NEXT(mprotect);
    return has_none_left(FAULTS_MAP) ? refused(ENOMEM) : next(address, bytes, protection);
}

int ftruncate(int descriptor, off_t bytes)
{
    NEXT(ftruncate);
    return has_none_left(FAULTS_MAP) ? refused(ENOSPC) : next(descriptor, bytes);
}

/* ---- threads and processes ---- */

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                   void *argument)
{
    NEXT(pthread_create);
    return has_none_left(FAULTS_THREAD) ? EAGAIN : next(thread, attributes, start, argument);
}

/* Only a sanitizer asks, as a thread begins, and gives up where the C library has no memory to tell. */
int pthread_getattr_np(pthread_t thread, pthread_attr_t *attributes)
{
    NEXT(pthread_getattr_np);
    const bool before = inside;
    inside = true;
    const int status = next(thread, attributes);
    inside = before;
    return status;
}

int posix_spawn(pid_t *process, const char *path, const posix_spawn_file_actions_t *actions,
                const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[])
{
    NEXT(posix_spawn);
    return has_none_left(FAULTS_THREAD) ? EAGAIN
                                        : next(process, path, actions, attributes, arguments, environment);
}

/* ---- bytes ---- */

static uint32_t kinds_of(int descriptor)
{
    struct stat about;
    if (page == NULL || inside || fstat(descriptor, &about) != 0)
        return 0;
    uint32_t kinds = 1u << FAULTS_INTERRUPTED | 1u << FAULTS_SHORT | 1u << FAULTS_BROKEN;
    if (!S_ISSOCK(about.st_mode) && !S_ISREG(about.st_mode) && !S_ISFIFO(about.st_mode))
        return 0;
    if (!S_ISREG(about.st_mode) && (fcntl(descriptor, F_GETFL) & O_NONBLOCK) != 0)
        kinds |= 1u << FAULTS_AGAIN;
    return kinds;
}

static int error_of(int descriptor)
{
    struct stat about;
    switch (page->kind) {
    case FAULTS_INTERRUPTED:
        return EINTR;
    case FAULTS_AGAIN:
        return EAGAIN;
    default:
        return fstat(descriptor, &about) == 0 && S_ISSOCK(about.st_mode) ? ECONNRESET : EIO;
    }
}

/* `one`: the call with room for one byte. */
#define MOVES(class, name, parameters, arguments, one)                                                       \
    ssize_t name parameters                                                                                  \
    {                                                                                                        \
        NEXT(name);                                                                                          \
        const uint32_t kinds = kinds_of(descriptor);                                                         \
        if (kinds == 0 || !fails(class, kinds))                                                              \
            return next arguments;                                                                           \
        if (page->kind == FAULTS_SHORT)                                                                      \
            return one;                                                                                      \
        return refused(error_of(descriptor));                                                                \
    }

static struct iovec first_byte(const struct iovec *parts, int count)
{
    int at = 0;
    while (at + 1 < count && parts[at].iov_len == 0)
        at++;
    return (struct iovec){count > 0 ? parts[at].iov_base : NULL, count > 0 && parts[at].iov_len > 0};
}

static ssize_t send_first(ssize_t (*next)(int, const struct msghdr *, int), int descriptor,
                          const struct msghdr *message, int flags)
{
    struct iovec part = first_byte(message->msg_iov, (int)message->msg_iovlen);
    struct msghdr shorter = *message;
    shorter.msg_iov = &part;
    shorter.msg_iovlen = 1;
    return next(descriptor, &shorter, flags);
}

MOVES(FAULTS_READ, read, (int descriptor, void *room, size_t bytes), (descriptor, room, bytes),
      next(descriptor, room, bytes > 0))
MOVES(FAULTS_READ, pread, (int descriptor, void *room, size_t bytes, off_t offset),
      (descriptor, room, bytes, offset), next(descriptor, room, bytes > 0, offset))
MOVES(FAULTS_READ, recv, (int descriptor, void *room, size_t bytes, int flags),
      (descriptor, room, bytes, flags), next(descriptor, room, bytes > 0, flags))
MOVES(FAULTS_WRITE, write, (int descriptor, const void *from, size_t bytes), (descriptor, from, bytes),
      next(descriptor, from, bytes > 0))
MOVES(FAULTS_WRITE, send, (int descriptor, const void *from, size_t bytes, int flags),
      (descriptor, from, bytes, flags), next(descriptor, from, bytes > 0, flags))
MOVES(FAULTS_WRITE, sendmsg, (int descriptor, const struct msghdr *message, int flags),
      (descriptor, message, flags), send_first(next, descriptor, message, flags))

ssize_t readv(int descriptor, const struct iovec *parts, int count)
{
    NEXT(readv);
    const uint32_t kinds = kinds_of(descriptor);
    struct iovec part = first_byte(parts, count);
    if (kinds == 0 || !fails(FAULTS_READ, kinds))
        return next(descriptor, parts, count);
    return page->kind == FAULTS_SHORT ? next(descriptor, &part, 1) : refused(error_of(descriptor));
}

ssize_t writev(int descriptor, const struct iovec *parts, int count)
{
    NEXT(writev);
    const uint32_t kinds = kinds_of(descriptor);
    struct iovec part = first_byte(parts, count);
    if (kinds == 0 || !fails(FAULTS_WRITE, kinds))
        return next(descriptor, parts, count);
    return page->kind == FAULTS_SHORT ? next(descriptor, &part, 1) : refused(error_of(descriptor));
}

/* ---- waiting ---- */

static bool is_interrupted(void)
{
    return fails(FAULTS_POLL, 1u << FAULTS_INTERRUPTED);
}

int poll(struct pollfd *descriptors, nfds_t count, int timeout_ms)
{
    NEXT(poll);
    return is_interrupted() ? refused(EINTR) : next(descriptors, count, timeout_ms);
}

int ppoll(struct pollfd *descriptors, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
    NEXT(ppoll);
    return is_interrupted() ? refused(EINTR) : next(descriptors, count, timeout, mask);
}

int epoll_wait(int poller, struct epoll_event *events, int most, int timeout_ms)
{
    NEXT(epoll_wait);
    return is_interrupted() ? refused(EINTR) : next(poller, events, most, timeout_ms);
}
