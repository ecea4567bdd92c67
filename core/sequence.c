#include "core/sequence.h"

#include <assert.h>
#include <string.h>

#define POLLS_MAX 100 /* at a record that is being written */

void core_sequence_write(_Atomic uint32_t *changes, _Atomic uint64_t *words, const void *record, size_t count)
{
    uint64_t plain[CORE_SEQUENCE_WORDS];
    uint32_t before = atomic_load_explicit(changes, memory_order_relaxed); /* one writer */

    assert(count <= CORE_SEQUENCE_WORDS);
    memcpy(plain, record, count * sizeof plain[0]);
    atomic_store_explicit(changes, before + 1, memory_order_relaxed);
    /* release: who sees one of these words (acquire) sees the odd count, too */
    for (size_t i = 0; i < count; i++)
        atomic_store_explicit(&words[i], plain[i], memory_order_release);
    /* release: all words before the even count */
    atomic_store_explicit(changes, before + 2, memory_order_release);
}

bool core_sequence_read(const _Atomic uint32_t *changes, const _Atomic uint64_t *words, void *record,
                        size_t count)
{
    uint64_t plain[CORE_SEQUENCE_WORDS];

    assert(count <= CORE_SEQUENCE_WORDS);
    for (int looks = 0; looks < POLLS_MAX; looks++) {
        /* acquire: the words are those of this count or later */
        uint32_t before = atomic_load_explicit(changes, memory_order_acquire);
        if (before == 0)
            return false; /* empty */
        /* acquire: the count is looked at again after them; see the writer */
        for (size_t i = 0; i < count; i++)
            plain[i] = atomic_load_explicit(&words[i], memory_order_acquire);
        if (before % 2 == 0 && atomic_load_explicit(changes, memory_order_relaxed) == before) {
            memcpy(record, plain, count * sizeof plain[0]);
            return true;
        }
    }
    return false;
}
