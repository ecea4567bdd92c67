#include "partition/search/order.h"

#include <string.h>

#define DIGIT_BITS 11
#define DIGITS     (1U << DIGIT_BITS)

/* Which bits differ between keys: digits that are all the same need no pass. */
static uint64_t varying(const uint64_t *key, size_t count)
{
    uint64_t bits = 0;
    for (size_t i = 1; i < count; i++)
        bits |= key[i] ^ key[0];
    return bits;
}

static void pass(const uint64_t *from_key, const uint32_t *from, uint64_t *to_key, uint32_t *to, size_t count,
                 unsigned shift)
{
    size_t place[DIGITS] = {0};
    size_t sum = 0;
    for (size_t i = 0; i < count; i++)
        place[from_key[i] >> shift & (DIGITS - 1)]++;
    for (size_t digit = 0; digit < DIGITS; digit++) {
        size_t here = place[digit];
        place[digit] = sum;
        sum += here;
    }
    for (size_t i = 0; i < count; i++) {
        size_t at = place[from_key[i] >> shift & (DIGITS - 1)]++;
        to_key[at] = from_key[i];
        to[at] = from[i];
    }
}

void partition_order(uint32_t *order, uint64_t *key, size_t count, uint32_t *scratch, uint64_t *scratch_key)
{
    uint64_t bits = varying(key, count);
    uint64_t *keys[2] = {key, scratch_key};
    uint32_t *orders[2] = {order, scratch};
    unsigned now = 0;
    for (size_t i = 0; i < count; i++)
        order[i] = (uint32_t)i;
    for (unsigned shift = 0; shift < 64; shift += DIGIT_BITS) {
        if ((bits >> shift & (DIGITS - 1)) == 0)
            continue;
        pass(keys[now], orders[now], keys[!now], orders[!now], count, shift);
        now = !now;
    }
    if (now == 1)
        memcpy(order, scratch, count * sizeof *order);
}
