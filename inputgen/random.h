/* Random numbers that are the same on every machine for the same seed.
 *
 * The generator is xoshiro256** (Blackman and Vigna, "Scrambled linear pseudorandom number generators", ACM
 * TOMS 2021), its state filled by splitmix64 (Steele, Lea and Flood, OOPSLA 2014), as its authors advise.
 * Distributions use only operations that IEEE 754 defines to the last bit (+ - * / and square root): even the
 * logarithm is our own, since C libraries differ in theirs. This folder is compiled without contraction of
 * floating-point expressions for the same reason. For workloads, never for keys. One owner at a time. */
#ifndef MILLRACE_INPUTGEN_RANDOM_H
#define MILLRACE_INPUTGEN_RANDOM_H

#include <stdint.h>

struct inputgen_random {
    uint64_t state[4]; /* never all zero */
};

void inputgen_random_seed(struct inputgen_random *random, uint64_t seed);

/* 64 random bits. */
uint64_t inputgen_random_next(struct inputgen_random *random);

/* Uniform in [0, 1), a multiple of 2^-53. */
double inputgen_random_uniform(struct inputgen_random *random);

/* Normal with mean 0 and standard deviation 1, by the polar form of Box and Muller's method (Marsaglia and
 * Bray 1964): a point uniform in the unit disc, its angle's cosine times sqrt(-2 ln s). */
double inputgen_random_normal(struct inputgen_random *random);

/* Exponential with mean 1, by inversion: -ln(1 - u). */
double inputgen_random_exponential(struct inputgen_random *random);

/* Natural logarithm of x > 0, within 2 units in the last place. */
double inputgen_random_log(double x);

#endif
