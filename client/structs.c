#include "client/structs.h"

#include <stdint.h>
#include <string.h>

static size_t size_of(const void *given)
{
    size_t size;
    memcpy(&size, given, sizeof size);
    return size;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

core_status client_struct_check(const void *given, size_t least_bytes, const char *name,
                                struct core_error *error)
{
    if (given == NULL || (size_of(given) >= least_bytes && size_of(given) <= CLIENT_STRUCT_BYTES_MAX))
        return CORE_OK;
    return core_error_set(error, CORE_INVALID, "struct %s: size is %zu, must be the struct's sizeof", name,
                          size_of(given));
}

core_status client_struct_read(void *own, size_t own_bytes, size_t least_bytes, const void *given,
                               const char *name, struct core_error *error)
{
    core_status status = client_struct_check(given, least_bytes, name, error);
    if (status)
        return status;
    const uint8_t *bytes = given;
    for (size_t at = own_bytes; at < size_of(given); at++)
        if (bytes[at] != 0)
            return core_error_set(error, CORE_UNSUPPORTED,
                                  "struct %s: byte %zu is set, and this library knows only %zu of it", name,
                                  at, own_bytes);
    const size_t known_bytes = smaller(size_of(given), own_bytes);
    memcpy(own, given, known_bytes);
    memset((uint8_t *)own + known_bytes, 0, own_bytes - known_bytes);
    return CORE_OK;
}

void client_struct_write(void *given, const void *own, size_t own_bytes)
{
    if (given == NULL)
        return;
    const size_t size = size_of(given), known_bytes = smaller(size, own_bytes);
    memcpy((uint8_t *)given + sizeof size, (const uint8_t *)own + sizeof size, known_bytes - sizeof size);
    memset((uint8_t *)given + known_bytes, 0, size - known_bytes);
}
