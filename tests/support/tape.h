/* The bytes of a sequence of operations: what is left of them. */
#ifndef MILLRACE_TESTS_TAPE_H
#define MILLRACE_TESTS_TAPE_H

#include <stddef.h>
#include <stdint.h>

struct tape {
    const uint8_t *bytes;
    size_t left;
};

/* The next byte; 0 behind the end. */
static inline uint32_t take(struct tape *tape)
{
    if (tape->left == 0)
        return 0;
    tape->left--;
    return *tape->bytes++;
}

/* The next `most` bytes, or as many as are left; *count: so many. */
static inline const uint8_t *take_bytes(struct tape *tape, size_t most, size_t *count)
{
    const uint8_t *bytes = tape->bytes;
    *count = most < tape->left ? most : tape->left;
    tape->bytes += *count;
    tape->left -= *count;
    return bytes;
}

#endif
