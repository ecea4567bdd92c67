#include "bench/analyses/exact.h"

#include <assert.h>

/* ---- natural numbers ---- */

static void natural_set(struct analyses_natural *x, uint64_t value)
{
    for (x->limbs = 0; value > 0; value >>= 32)
        x->limb[x->limbs++] = (uint32_t)value;
}

static int natural_compare(const struct analyses_natural *x, const struct analyses_natural *y)
{
    if (x->limbs != y->limbs)
        return x->limbs < y->limbs ? -1 : 1;
    for (size_t i = x->limbs; i-- > 0;)
        if (x->limb[i] != y->limb[i])
            return x->limb[i] < y->limb[i] ? -1 : 1;
    return 0;
}

static void natural_add(struct analyses_natural *x, const struct analyses_natural *y)
{
    uint64_t carry = 0;

    for (size_t i = 0; i < x->limbs || i < y->limbs || carry > 0; i++) {
        assert(i < ANALYSES_EXACT_LIMBS);
        carry += (i < x->limbs ? (uint64_t)x->limb[i] : 0) + (i < y->limbs ? y->limb[i] : 0);
        if (i >= x->limbs)
            x->limbs = i + 1;
        x->limb[i] = (uint32_t)carry;
        carry >>= 32;
    }
}

/* x = greater - less. */
static void natural_subtract(struct analyses_natural *x, const struct analyses_natural *greater,
                             const struct analyses_natural *less)
{
    uint64_t borrow = 0;
    size_t limbs = 0;

    for (size_t i = 0; i < greater->limbs; i++) {
        const uint64_t take = (i < less->limbs ? (uint64_t)less->limb[i] : 0) + borrow;
        borrow = greater->limb[i] < take;
        x->limb[i] = (uint32_t)(greater->limb[i] + (borrow << 32) - take);
        if (x->limb[i] > 0)
            limbs = i + 1;
    }
    x->limbs = limbs;
}

static void natural_multiply(struct analyses_natural *product, const struct analyses_natural *x,
                             const struct analyses_natural *y)
{
    struct analyses_natural result = {.limbs = x->limbs > 0 && y->limbs > 0 ? x->limbs + y->limbs : 0};

    assert(result.limbs <= ANALYSES_EXACT_LIMBS);
    for (size_t i = 0; i < x->limbs && result.limbs > 0; i++) {
        uint64_t carry = 0;
        for (size_t j = 0; j < y->limbs; j++) {
            carry += (uint64_t)x->limb[i] * y->limb[j] + result.limb[i + j];
            result.limb[i + j] = (uint32_t)carry;
            carry >>= 32;
        }
        result.limb[i + y->limbs] = (uint32_t)carry;
    }
    while (result.limbs > 0 && result.limb[result.limbs - 1] == 0)
        result.limbs--;
    *product = result;
}

/* ---- fractions ---- */

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

void analyses_exact_set(struct analyses_exact *x, int64_t over, int64_t under)
{
    const int64_t size = over < 0 ? -over : over, divisor = common_divisor(under, size);

    assert(under > 0);
    x->negative = over < 0;
    natural_set(&x->over, (uint64_t)(size / divisor));
    natural_set(&x->under, (uint64_t)(under / divisor));
}

void analyses_exact_add(struct analyses_exact *x, int64_t over, int64_t under)
{
    struct analyses_exact y;
    struct analyses_natural other;

    analyses_exact_set(&y, over, under);
    natural_multiply(&other, &y.over, &x->under);
    if (natural_compare(&x->under, &y.under) == 0) /* often: denominators do not grow then */
        other = y.over;
    else {
        natural_multiply(&x->over, &x->over, &y.under);
        natural_multiply(&x->under, &x->under, &y.under);
    }
    if (x->negative == y.negative) {
        natural_add(&x->over, &other);
    } else if (natural_compare(&x->over, &other) >= 0) {
        natural_subtract(&x->over, &x->over, &other);
    } else {
        natural_subtract(&x->over, &other, &x->over);
        x->negative = y.negative;
    }
}

int analyses_exact_compare(const struct analyses_exact *x, const struct analyses_exact *y)
{
    struct analyses_natural left, right;
    const bool x_below = x->negative && x->over.limbs > 0, y_below = y->negative && y->over.limbs > 0;

    if (x_below != y_below)
        return x_below ? -1 : 1;
    natural_multiply(&left, &x->over, &y->under);
    natural_multiply(&right, &y->over, &x->under);
    return x_below ? natural_compare(&right, &left) : natural_compare(&left, &right);
}

int analyses_exact_compare_to(const struct analyses_exact *x, int64_t over, int64_t under)
{
    struct analyses_exact y;

    analyses_exact_set(&y, over, under);
    return analyses_exact_compare(x, &y);
}
