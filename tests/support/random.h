/* A small generator for tests: the same numbers for the same seed on every machine (splitmix64). */
#ifndef MILLRACE_TESTS_RANDOM_H
#define MILLRACE_TESTS_RANDOM_H

#include <stdint.h>

struct test_random {
    uint64_t state;
};

static inline uint64_t test_random_next(struct test_random *random)
{
    uint64_t z = random->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Uniform in [low, high]. */
static inline int64_t test_random_in(struct test_random *random, int64_t low, int64_t high)
{
    return low + (int64_t)(test_random_next(random) % ((uint64_t)(high - low) + 1));
}

/* As likely to be between 1 and 2 as between 1000 and 2000: octave first, then uniform in [low, high]. */
static inline int64_t test_random_log(struct test_random *random, int64_t low, int64_t high)
{
    int64_t octaves = 0;
    while (low << octaves < high)
        octaves++;
    int64_t from = low << (octaves > 0 ? test_random_in(random, 0, octaves - 1) : 0);
    int64_t to = from > high / 2 ? high : 2 * from;
    return test_random_in(random, from, to);
}

static inline int test_random_chance(struct test_random *random, int percent)
{
    return test_random_in(random, 1, 100) <= percent;
}

#endif
