#include "core/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The header's hints for the analyzer. */
#undef core_error_set
#undef core_error_prefix
#undef core_error_errno

const char *core_status_text(core_status status)
{
    switch (status) {
    case CORE_OK:
        return "ok";
    case CORE_INVALID:
        return "invalid";
    case CORE_NO_MEMORY:
        return "no memory";
    case CORE_SYSTEM:
        return "system error";
    case CORE_FULL:
        return "full";
    case CORE_NOT_FOUND:
        return "not found";
    case CORE_REFUSED:
        return "refused";
    case CORE_AGAIN:
        return "try again";
    case CORE_CLOSED:
        return "closed";
    case CORE_MISMATCH:
        return "mismatch";
    case CORE_DENIED:
        return "denied";
    case CORE_TIMEOUT:
        return "timed out";
    case CORE_UNSUPPORTED:
        return "unsupported";
    case CORE_IN_USE:
        return "in use";
    }
    return "unknown status";
}

/* Formats into a buffer of its own first: arguments may point into error itself. */
static void error_write(struct core_error *error, const char *format, va_list arguments)
{
    struct core_error written;
    if (vsnprintf(written.text, sizeof written.text, format, arguments) < 0)
        written.text[0] = '\0';
    *error = written;
}

/* Appends as much of the text as there is room for. */
static void error_append(struct core_error *error, const char *text)
{
    const size_t length = strlen(error->text);
    snprintf(error->text + length, sizeof error->text - length, "%s", text);
}

core_status core_error_set(struct core_error *error, core_status status, const char *format, ...)
{
    if (error) {
        va_list arguments;
        va_start(arguments, format);
        error_write(error, format, arguments);
        va_end(arguments);
    }
    return status;
}

core_status core_error_errno(struct core_error *error, const char *format, ...)
{
    const int number = errno;
    if (error) {
        char buffer[128];
        va_list arguments;
        va_start(arguments, format);
        error_write(error, format, arguments);
        va_end(arguments);
        error_append(error, ": ");
        error_append(error, strerror_r(number, buffer, sizeof buffer)); /* GNU's: returns the text */
    }
    errno = number;
    return CORE_SYSTEM;
}

core_status core_error_prefix(struct core_error *error, core_status status, const char *format, ...)
{
    if (error) {
        const struct core_error sentence = *error;
        va_list arguments;
        va_start(arguments, format);
        error_write(error, format, arguments);
        va_end(arguments);
        error_append(error, ": ");
        error_append(error, sentence.text);
    }
    return status;
}
