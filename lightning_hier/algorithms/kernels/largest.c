/* TorchKernels.largest over tensors of float32. native.py compiles and calls it. */

#include <stdint.h>
#include <string.h>

/* Without the sign, floating-point numbers are in the order of their bits as integers, in which NaN
   is greater than all. */
static inline int32_t magnitude(float value) {
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits & 0x7fffffff;
}

/* A loop without a branch, which the compiler vectorises. */
static inline int32_t count_above(const float *restrict row, int64_t length, int32_t limit) {
    int32_t count = 0;
    for (int64_t i = 0; i < length; i++) count += magnitude(row[i]) > limit;
    return count;
}

/* For each row, the offsets of its `number` largest magnitudes, in ascending order. Of equal
   magnitudes, the first are taken. */
void largest(const float *restrict values, int64_t rows, int64_t length, int64_t number,
             int16_t *restrict out) {
    for (int64_t r = 0; r < rows; r++) {
        const float *row = values + r * length;
        /* The greatest limit that at least `number` elements reach, one bit after the other: at
           most 31 passes over a row that stays in the cache, and no sort. */
        int32_t limit = 0;
        int64_t reached = length;
        for (int bit = 30; bit >= 0 && reached > number; bit--) {
            int32_t higher = limit | (int32_t)(1u << bit);
            int32_t count = count_above(row, length, higher - 1);
            if (count >= number) limit = higher, reached = count;
        }
        /* If more than `number` reach it, those above it, and the first of those that equal it. */
        int64_t equal = reached == number ? length : number;
        if (reached > number) equal -= count_above(row, length, limit);
        for (int64_t i = 0; i < length; i++) {
            int32_t bits = magnitude(row[i]);
            if (bits < limit) continue;
            if (bits == limit && equal-- <= 0) continue;
            *out++ = (int16_t)i;
        }
    }
}
