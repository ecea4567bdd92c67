#include "inputgen/random.h"

#include <math.h>

static uint64_t rotate_left(uint64_t bits, unsigned by)
{
    return bits << by | bits >> (64 - by);
}

/* splitmix64: a counter in steps of the golden ratio, scrambled. */
static uint64_t splitmix_next(uint64_t *counter)
{
    uint64_t z = *counter += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

void inputgen_random_seed(struct inputgen_random *random, uint64_t seed)
{
    for (unsigned i = 0; i < 4; i++)
        random->state[i] = splitmix_next(&seed);
}

uint64_t inputgen_random_next(struct inputgen_random *random)
{
    uint64_t *state = random->state;
    const uint64_t result = rotate_left(state[1] * 5, 7) * 9;
    const uint64_t shifted = state[1] << 17;

    /* One step of the linear recurrence over 256 bits. */
    state[2] ^= state[0];
    state[3] ^= state[1];
    state[1] ^= state[2];
    state[0] ^= state[3];
    state[2] ^= shifted;
    state[3] = rotate_left(state[3], 45);
    return result;
}

double inputgen_random_uniform(struct inputgen_random *random)
{
    return (double)(inputgen_random_next(random) >> 11) * 0x1p-53;
}

/* x = m * 2^e with m in [1/sqrt 2, sqrt 2); ln m = 2 artanh((m - 1) / (m + 1)), whose argument is at most
 * 0.1716, so that twelve terms of the series reach the last bit. */
double inputgen_random_log(double x)
{
    const double ln_2_high = 0x1.62e42feep-1, ln_2_low = 0x1.a39ef35793c76p-33; /* high part exact times e */
    int exponent;
    double mantissa = frexp(x, &exponent);
    double series = 0;

    if (mantissa < 0.70710678118654752) {
        mantissa *= 2;
        exponent--;
    }
    const double s = (mantissa - 1) / (mantissa + 1);
    for (int odd = 23; odd >= 3; odd -= 2)
        series = (series + 1.0 / odd) * (s * s);
    return exponent * ln_2_high + (exponent * ln_2_low + (2 * s + 2 * s * series));
}

double inputgen_random_normal(struct inputgen_random *random)
{
    double x, y, square;

    do {
        x = 2 * inputgen_random_uniform(random) - 1;
        y = 2 * inputgen_random_uniform(random) - 1;
        square = x * x + y * y;
    } while (square >= 1 || square <= 0);
    return x * sqrt(-2 * inputgen_random_log(square) / square);
}

double inputgen_random_exponential(struct inputgen_random *random)
{
    return -inputgen_random_log(1 - inputgen_random_uniform(random));
}
