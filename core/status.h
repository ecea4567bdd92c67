/* What a function that can fail returns, and the sentence that tells a person why.
 *
 * A core_status must be checked. Functions whose failure a person will read also take a struct core_error
 * (may be NULL) and fill it with what failed, where, and what to do. */
#ifndef MILLRACE_CORE_STATUS_H
#define MILLRACE_CORE_STATUS_H

#define CORE_CHECKED         __attribute__((warn_unused_result))
#define CORE_PRINTF(fmt, va) __attribute__((format(printf, fmt, va)))

typedef enum core_status {
    CORE_OK = 0,
    CORE_INVALID,     /* an argument, a file or a frame breaks its rules */
    CORE_NO_MEMORY,   /* allocation failed or a configured budget is used up */
    CORE_SYSTEM,      /* a system call failed; the error text has errno's words */
    CORE_FULL,        /* a bounded queue or table has no room now */
    CORE_NOT_FOUND,   /* no such name, file or stream */
    CORE_REFUSED,     /* admission said no */
    CORE_AGAIN,       /* nothing to do now; try when the descriptor is ready */
    CORE_CLOSED,      /* the peer or the object is gone */
    CORE_MISMATCH,    /* bytes differ from what they must be */
    CORE_DENIED,      /* permission or policy forbids it */
    CORE_TIMEOUT,     /* did not happen in the time given */
    CORE_UNSUPPORTED, /* this build or machine can not do it */
    CORE_IN_USE       /* somebody else has it */
} core_status;

/* Static, lower-case text of a status ("invalid", "no memory", ...). */
const char *core_status_text(core_status status);

struct core_error {
    char text[512];
};

/* Writes the formatted sentence into error (if not NULL) and returns status, so that a failing function can
 * `return core_error_set(error, CORE_INVALID, "...")`. */
core_status core_error_set(struct core_error *error, core_status status, const char *format, ...)
    CORE_PRINTF(3, 4);

/* The same with ": <strerror(errno)>" appended; returns CORE_SYSTEM. */
core_status core_error_errno(struct core_error *error, const char *format, ...) CORE_PRINTF(2, 3);

/* Puts "<formatted prefix>: " before the sentence already in error; returns status. */
core_status core_error_prefix(struct core_error *error, core_status status, const char *format, ...)
    CORE_PRINTF(3, 4);

#ifdef __clang_analyzer__ /* it sees one file at a time, so it is told here what they return */
#define core_error_set(error, status, ...)    ((void)core_error_set(error, status, __VA_ARGS__), (status))
#define core_error_prefix(error, status, ...) ((void)core_error_prefix(error, status, __VA_ARGS__), (status))
#define core_error_errno(error, ...)          ((void)core_error_errno(error, __VA_ARGS__), CORE_SYSTEM)
#endif

#endif
