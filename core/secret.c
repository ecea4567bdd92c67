#include "core/secret.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#define BLOCK_BYTES_MIN 16 /* no smaller block leaves the secure heap */

static size_t power_of_two_above(size_t bytes)
{
    size_t power = BLOCK_BYTES_MIN;
    while (power < bytes)
        power *= 2;
    return power;
}

static core_status core_dumps_forbid(struct core_error *error)
{
    const struct rlimit none = {0, 0};
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0)
        return core_error_errno(error, "can not forbid core dumps (PR_SET_DUMPABLE)");
    if (setrlimit(RLIMIT_CORE, &none) != 0)
        return core_error_errno(error, "can not forbid core dumps (RLIMIT_CORE)");
    return CORE_OK;
}

core_status core_secret_init(size_t heap_bytes, bool *locked, struct core_error *error)
{
    static bool first_locked;

    *locked = first_locked;
    if (heap_bytes == 0 || heap_bytes > SIZE_MAX / 4)
        return core_error_set(error, CORE_INVALID, "a secure heap of %zu bytes is not possible", heap_bytes);
    if (CRYPTO_secure_malloc_initialized())
        return CORE_OK;
    const core_status status = core_dumps_forbid(error);
    if (status != CORE_OK)
        return status;
    /* 1: all granted; 2: set up, but the guard pages, mlock or MADV_DONTDUMP were refused. */
    switch (CRYPTO_secure_malloc_init(power_of_two_above(heap_bytes), BLOCK_BYTES_MIN)) {
    case 1:
        *locked = first_locked = true;
        return CORE_OK;
    case 2:
        return CORE_OK;
    default:
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a secure heap of %zu bytes", heap_bytes);
    }
}

void *core_secret_alloc(size_t bytes)
{
    ERR_set_mark(); /* a full heap must not leave an entry for the next SSL_get_error to trip over */
    void *block = OPENSSL_secure_zalloc(bytes);
    ERR_pop_to_mark();
    return block;
}

void core_secret_free(void *block, size_t bytes)
{
    OPENSSL_secure_clear_free(block, bytes);
}

void core_secret_wipe(void *memory, size_t bytes)
{
    OPENSSL_cleanse(memory, bytes);
}
