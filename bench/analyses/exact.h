/* Fractions of any size that sums of utilisations need: the verdict of a test at its very bound is not a matter of
 * rounding. Values, no memory is allocated. */
#ifndef MILLRACE_ANALYSES_EXACT_H
#define MILLRACE_ANALYSES_EXACT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ANALYSES_EXACT_LIMBS 640 /* of 32 bits: 256 denominators of 40 bits fit twice */

struct analyses_natural {
    size_t limbs; /* without leading zeros; 0 is none */
    uint32_t limb[ANALYSES_EXACT_LIMBS];
};

struct analyses_exact {
    bool negative;
    struct analyses_natural over, under; /* over / under */
};

/* x = over / under, under 1 or more. */
void analyses_exact_set(struct analyses_exact *x, int64_t over, int64_t under);

/* x += over / under. */
void analyses_exact_add(struct analyses_exact *x, int64_t over, int64_t under);

/* -1, 0, 1: is x less than, equal to, more than y? */
int analyses_exact_compare(const struct analyses_exact *x, const struct analyses_exact *y);
int analyses_exact_compare_to(const struct analyses_exact *x, int64_t over, int64_t under);

#endif
