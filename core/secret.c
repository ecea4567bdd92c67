#include "core/secret.h"

#include "core/buddy.h"
#include "core/realtime.h"

#include <openssl/crypto.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#define OPENSSL_BLOCK_BYTES_MIN 16 /* no smaller block leaves OpenSSL's heap */

static struct {
    uint8_t *memory; /* NULL: not set up */
    size_t bytes;
    bool locked;
    pthread_mutex_t lock;
    struct core_buddy buddy; /* of CORE_SECRET_BLOCK_BYTES_MIN each; guarded by lock */
} heap;

static struct {
    bool is_ours; /* set up here, and not by who else is in the process */
    bool locked;
} openssl;

/* The smallest order whose blocks have room for so many bytes. */
static uint32_t order_of(size_t bytes)
{
    uint32_t order = 0;
    while ((size_t)CORE_SECRET_BLOCK_BYTES_MIN << order < bytes)
        order++;
    return order;
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

static core_status check_size(size_t heap_bytes, struct core_error *error)
{
    if (heap_bytes == 0 || heap_bytes > SIZE_MAX / 4)
        return core_error_set(error, CORE_INVALID, "a secure heap of %zu bytes is not possible", heap_bytes);
    return CORE_OK;
}

/* Maps it between two pages that nobody may touch. *locked: in memory, and in no core dump. */
static uint8_t *map(size_t bytes, bool *locked)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *guarded =
        mmap(NULL, bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (guarded == MAP_FAILED)
        return NULL;
    if (mprotect(guarded + page, bytes, PROT_READ | PROT_WRITE) != 0) {
        (void)munmap(guarded, bytes + 2 * page);
        return NULL;
    }
    /* Where it is locked it is there from now on, in large pages if there are any: a key is found with a shorter walk
     * of the page table. Later none is made, while threads with deadlines read. */
    (void)madvise(guarded + page, bytes, MADV_HUGEPAGE);
    *locked = mlock(guarded + page, bytes) == 0 && madvise(guarded + page, bytes, MADV_DONTDUMP) == 0;
    (void)madvise(guarded + page, bytes, MADV_NOHUGEPAGE);
    (void)madvise(guarded + page, bytes, MADV_WIPEONFORK); /* what a fork would copy is not locked */
    return guarded + page;
}

core_status core_secret_init(size_t heap_bytes, bool *locked, struct core_error *error)
{
    core_status status = check_size(heap_bytes, error);
    if (status == CORE_OK && heap.memory == NULL)
        status = core_dumps_forbid(error);
    *locked = heap.locked;
    return status == CORE_OK ? core_secret_reserve(heap_bytes, locked, error) : status;
}

core_status core_secret_reserve(size_t heap_bytes, bool *locked, struct core_error *error)
{
    const uint32_t page_order = order_of((size_t)sysconf(_SC_PAGESIZE));

    *locked = heap.locked;
    core_status status = check_size(heap_bytes, error);
    if (status != CORE_OK || heap.memory != NULL)
        return status;
    const uint32_t order = order_of(heap_bytes) > page_order ? order_of(heap_bytes) : page_order;
    heap.bytes = (size_t)CORE_SECRET_BLOCK_BYTES_MIN << order;
    if (core_buddy_init(&heap.buddy, order) == CORE_OK)
        heap.memory = map(heap.bytes, &heap.locked);
    if (heap.memory == NULL) {
        core_buddy_free(&heap.buddy);
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a secure heap of %zu bytes", heap_bytes);
    }
    core_mutex_init(&heap.lock);
    *locked = heap.locked;
    return CORE_OK;
}

core_status core_secret_init_openssl(size_t heap_bytes, bool *locked, struct core_error *error)
{
    size_t bytes = OPENSSL_BLOCK_BYTES_MIN;

    *locked = openssl.locked;
    core_status status = check_size(heap_bytes, error);
    if (status != CORE_OK || CRYPTO_secure_malloc_initialized())
        return status;
    while (bytes < heap_bytes)
        bytes *= 2;
    /* 1: all granted; 2: set up, but the guard pages, mlock or MADV_DONTDUMP were refused. */
    int made = CRYPTO_secure_malloc_init(bytes, OPENSSL_BLOCK_BYTES_MIN);
    openssl.is_ours = made != 0;
    *locked = openssl.locked = made == 1;
    if (made == 0)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for OpenSSL's secure heap of %zu bytes",
                              heap_bytes);
    return CORE_OK;
}

void core_secret_end(void)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (openssl.is_ours && CRYPTO_secure_malloc_done() == 1)
        openssl.is_ours = openssl.locked = false;
    if (heap.memory == NULL)
        return;
    (void)munmap(heap.memory - page, heap.bytes + 2 * page);
    core_buddy_free(&heap.buddy);
    pthread_mutex_destroy(&heap.lock);
    heap.memory = NULL;
    heap.locked = false;
}

bool core_secret_holds(const void *memory)
{
    return heap.memory != NULL && (uintptr_t)memory - (uintptr_t)heap.memory < heap.bytes;
}

void *core_secret_alloc(size_t bytes)
{
    if (heap.memory == NULL)
        return calloc(1, bytes);
    if (bytes > heap.bytes)
        return NULL;
    pthread_mutex_lock(&heap.lock);
    size_t place = core_buddy_take(&heap.buddy, order_of(bytes));
    pthread_mutex_unlock(&heap.lock);
    /* zero: it was never used, or wiped by who did */
    return place == CORE_BUDDY_NONE ? NULL : heap.memory + place * CORE_SECRET_BLOCK_BYTES_MIN;
}

void core_secret_free(void *block, size_t bytes)
{
    if (block == NULL)
        return;
    core_secret_wipe(block, bytes);
    if (!core_secret_holds(block)) {
        free(block);
        return;
    }
    size_t place = (size_t)((uint8_t *)block - heap.memory) / CORE_SECRET_BLOCK_BYTES_MIN;
    pthread_mutex_lock(&heap.lock);
    core_buddy_give(&heap.buddy, place, order_of(bytes));
    pthread_mutex_unlock(&heap.lock);
}

void core_secret_wipe(void *memory, size_t bytes)
{
    OPENSSL_cleanse(memory, bytes);
}
