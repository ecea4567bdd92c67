/* What tools/faults and the library that it preloads (preload.c) share: a file of this size and shape, mapped
 * by both. The script knows the same offsets. */
#ifndef MILLRACE_TESTS_FAULTS_PAGE_H
#define MILLRACE_TESTS_FAULTS_PAGE_H

#include <stdatomic.h>
#include <stdint.h>

#define FAULTS_SITES  8192
#define FAULTS_FRAMES 10

/* What a call is about. */
enum faults_class {
    FAULTS_ALLOCATION,
    FAULTS_DESCRIPTOR, /* that opens or watches one */
    FAULTS_MAP,        /* and lock, and size */
    FAULTS_THREAD,     /* and process */
    FAULTS_READ,
    FAULTS_WRITE,
    FAULTS_POLL,
    FAULTS_CLASSES
};

/* How a call can fail. The first three classes and threads have FAULTS_NONE_LEFT alone. */
enum faults_kind {
    FAULTS_NONE_LEFT,   /* no memory, descriptors, room or processes: errno as the call has it */
    FAULTS_INTERRUPTED, /* EINTR */
    FAULTS_SHORT,       /* one byte is read or written */
    FAULTS_BROKEN,      /* of a socket ECONNRESET, of a file or pipe EIO */
    FAULTS_AGAIN,       /* EAGAIN, of descriptors that do not wait */
    FAULTS_KINDS
};

struct faults_site {
    _Atomic uint64_t stack; /* hash of the frames; 0: free */
    uint32_t class, kinds;  /* kinds: a bit for each that can be, by what its descriptor is */
    _Atomic uint32_t calls;
    uint32_t frames;
    uint64_t frame[FAULTS_FRAMES];
};

struct faults_page {
    char program[16]; /* whose calls, by the system's name of the process */
    _Atomic uint32_t armed;
    uint32_t records; /* every call and its site are entered */
    uint32_t class, kind;
    uint64_t first, last; /* calls of the class that fail, from 1 on; 0: none by number */
    uint64_t stack;       /* or the first call from here, and (last > 0) all after it; 0: by number */
    _Atomic uint32_t fired;
    uint32_t fired_frames;
    uint64_t fired_frame[FAULTS_FRAMES];
    _Atomic uint64_t calls[FAULTS_CLASSES]; /* while armed */
    struct faults_site sites[FAULTS_SITES];
};

#endif
