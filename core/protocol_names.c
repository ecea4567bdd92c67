#include "core/protocol.h"

#include <stddef.h>

const char *protocol_error_name(enum protocol_error code)
{
    switch (code) {
    case PROTOCOL_ERROR_MALFORMED:
        return "malformed";
    case PROTOCOL_ERROR_OVERSIZED:
        return "oversized";
    case PROTOCOL_ERROR_UNKNOWN_TYPE:
        return "unknown type";
    case PROTOCOL_ERROR_STATE:
        return "state";
    case PROTOCOL_ERROR_VERSION:
        return "version";
    case PROTOCOL_ERROR_STREAM:
        return "stream";
    case PROTOCOL_ERROR_SEQUENCE:
        return "sequence";
    case PROTOCOL_ERROR_TIMEOUT:
        return "timeout";
    case PROTOCOL_ERROR_LIMIT:
        return "limit";
    case PROTOCOL_ERROR_SHUTDOWN:
        return "shutdown";
    }
    return "unknown";
}

const char *protocol_refusal_name(enum protocol_refusal code)
{
    switch (code) {
    case PROTOCOL_REFUSED_CAPACITY:
        return "capacity";
    case PROTOCOL_REFUSED_SPEC:
        return "spec";
    case PROTOCOL_REFUSED_LIMIT:
        return "limit";
    case PROTOCOL_REFUSED_KEY:
        return "key";
    case PROTOCOL_REFUSED_IV:
        return "iv";
    case PROTOCOL_REFUSED_DRAINING:
        return "draining";
    case PROTOCOL_REFUSED_INTERNAL:
        return "internal";
    case PROTOCOL_REFUSED_STREAM:
        return "stream";
    case PROTOCOL_REFUSED_BUSY:
        return "busy";
    }
    return "unknown";
}

const char *protocol_limit_name(enum protocol_limit limit)
{
    static const char *const names[] = {
        [PROTOCOL_LIMIT_NONE] = "none",
        [PROTOCOL_LIMIT_DEADLINE] = "deadline",
        [PROTOCOL_LIMIT_CPU_UTILISATION] = "cpu-utilisation",
        [PROTOCOL_LIMIT_CPU_DEMAND] = "cpu-demand",
        [PROTOCOL_LIMIT_IO] = "io",
        [PROTOCOL_LIMIT_GPU_COPY] = "gpu-copy",
        [PROTOCOL_LIMIT_GPU_KERNEL] = "gpu-kernel",
        [PROTOCOL_LIMIT_GPU_LATENCY] = "gpu-latency",
        [PROTOCOL_LIMIT_GPU_MEMORY] = "gpu-memory",
        [PROTOCOL_LIMIT_GPU_OUT] = "gpu-out",
        [PROTOCOL_LIMIT_RESERVE] = "reserve",
        [PROTOCOL_LIMIT_BACKUP] = "backup",
    };
    return (size_t)limit < sizeof names / sizeof *names ? names[limit] : "unknown";
}

const char *protocol_result_name(enum protocol_result_status status)
{
    switch (status) {
    case PROTOCOL_RESULT_OK:
        return "ok";
    case PROTOCOL_RESULT_NOT_BLOCKS:
        return "not blocks";
    case PROTOCOL_RESULT_TOO_LONG:
        return "too long";
    case PROTOCOL_RESULT_KEY_SPENT:
        return "key spent";
    case PROTOCOL_RESULT_FAILED:
        return "failed";
    case PROTOCOL_RESULT_BROKEN:
        return "broken";
    case PROTOCOL_RESULT_FORGED:
        return "forged";
    }
    return "unknown";
}

const char *protocol_notice_name(enum protocol_notice_kind kind)
{
    switch (kind) {
    case PROTOCOL_NOTICE_DEGRADED:
        return "degraded";
    case PROTOCOL_NOTICE_RESTORED:
        return "restored";
    case PROTOCOL_NOTICE_LEAVING:
        return "leaving";
    case PROTOCOL_NOTICE_MOVED:
        return "moved";
    }
    return "unknown";
}
