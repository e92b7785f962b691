/* Loops of the codecs over tensors of float32. native.py compiles and calls them.

   They round as quantisation.py and sparse_codec.py do, so every rank decodes the same bits. No
   function allocates memory. A change here needs the same change there and in the signatures of
   native.py. tests/unit/test_codec_loops.py compares the bits. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* torch multiplies and adds with one rounding if the processor can. The compiler must not do this
   by itself in other places, hence -ffp-contract=off in native.py. */
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define MULTIPLY_ADD(a, b, c) fmaf(a, b, c)
#else
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
#endif

/* Elements of a quantisation group in int8 and in int4, as in quantisation.py. */
enum { GROUP = 512, GROUP4 = 128, HALF4 = GROUP4 / 2 };

/* Without the sign, floating-point numbers are in the order of their bits as integers, in which NaN
   is greater than all. */
static inline int32_t magnitude(float value) {
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits & 0x7fffffff;
}

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* values <- values + weight * plus. */
static inline void add_weighted(float *restrict values, const float *restrict plus, int64_t numel,
                                float weight) {
    for (int64_t i = 0; i < numel; i++) values[i] = MULTIPLY_ADD(weight, plus[i], values[i]);
}

/* The scale of `numel` elements in steps up to `largest`, and in `factor` its reciprocal, or 0. */
static inline float scale_of(const float *restrict v, int numel, float largest, float *factor) {
    int32_t most = 0;
    for (int i = 0; i < numel; i++) most = magnitude(v[i]) > most ? magnitude(v[i]) : most;
    float scale;
    memcpy(&scale, &most, sizeof scale);
    scale /= largest;
    /* Its product with `largest` stays below FLT_MAX for finite groups. */
    float limit = (float)(0.999999 * (double)FLT_MAX / (double)largest);
    if (most < 0x7f800000 && scale > limit) scale = limit;
    /* 0 for groups of zeros and for scales whose reciprocal may overflow. NaN stays NaN. */
    scale *= (float)(scale >= FLT_MIN);
    *factor = isfinite(scale) && scale > 0.0f ? 1.0f / scale : 0.0f;
    return scale;
}

/* QuantisedCodec.encode_ of bytes; `numel` is a multiple of GROUP. */
void encode_int8(float *restrict values, int64_t numel, const float *restrict plus,
                 int64_t plus_numel, float weight, float *restrict scales, int8_t *restrict out) {
    for (int64_t from = 0; from < numel; from += GROUP) {
        float *v = values + from, factor;
        if (plus_numel > from)
            add_weighted(v, plus + from, least(GROUP, plus_numel - from), weight);
        float scale = scale_of(v, GROUP, 127.0f, &factor);
        for (int i = 0; i < GROUP; i++) {
            float step = rintf(v[i] * factor); /* ties to even, as torch.round */
            out[from + i] = (int8_t)(int32_t)step;
            v[i] -= step * scale;
        }
        scales[from / GROUP] = scale;
    }
}

/* QuantisedCodec.encode_ of half bytes; `numel` is a multiple of GROUP4. A half byte holds a step
   plus 8, hence 136 = 16 * 8 + 8. Byte i of a group holds elements i and i + 64, so both halves are
   contiguous. */
void encode_int4(float *restrict values, int64_t numel, const float *restrict plus,
                 int64_t plus_numel, float weight, float *restrict scales, uint8_t *restrict out) {
    for (int64_t from = 0; from < numel; from += GROUP4) {
        float *v = values + from, factor;
        if (plus_numel > from)
            add_weighted(v, plus + from, least(GROUP4, plus_numel - from), weight);
        float scale = scale_of(v, GROUP4, 7.0f, &factor);
        for (int i = 0; i < HALF4; i++) {
            float lower = rintf(v[i] * factor), upper = rintf(v[i + HALF4] * factor);
            out[from / 2 + i] = (uint8_t)(int32_t)(upper * 16.0f + lower + 136.0f);
            v[i] -= lower * scale;
            v[i + HALF4] -= upper * scale;
        }
        scales[from / GROUP4] = scale;
    }
}

/* QuantisedCodec.decode of bytes of the first `numel` elements. */
void decode_int8(float *restrict values, int64_t numel, const float *restrict scales,
                 const int8_t *restrict steps, int add) {
    for (int64_t from = 0; from < numel; from += GROUP) {
        float scale = scales[from / GROUP], *v = values + from;
        int64_t count = least(GROUP, numel - from);
        if (add)
            for (int64_t i = 0; i < count; i++) v[i] += (float)steps[from + i] * scale;
        else
            for (int64_t i = 0; i < count; i++) v[i] = (float)steps[from + i] * scale;
    }
}

/* QuantisedCodec.decode of half bytes; `numel` is a multiple of GROUP4. */
void decode_int4(float *restrict values, int64_t numel, const float *restrict scales,
                 const uint8_t *restrict packed, int add) {
    for (int64_t from = 0; from < numel; from += GROUP4) {
        float scale = scales[from / GROUP4], *v = values + from, read[GROUP4];
        for (int i = 0; i < HALF4; i++) {
            int both = packed[from / 2 + i];
            read[i] = (float)((both & 15) - 8) * scale;
            read[i + HALF4] = (float)((both >> 4) - 8) * scale;
        }
        for (int i = 0; i < GROUP4; i++) v[i] = add ? v[i] + read[i] : read[i];
    }
}

/* BFloat16Codec.encode_: to the nearest, ties to even; finite numbers stay finite. Every NaN becomes
   0x7fc0, as in torch. `numel` is a multiple of GROUP. */
void encode_bfloat16(float *restrict values, int64_t numel, const float *restrict plus,
                     int64_t plus_numel, float weight, uint16_t *restrict out) {
    for (int64_t from = 0; from < numel; from += GROUP) {
        if (plus_numel > from)
            add_weighted(values + from, plus + from, least(GROUP, plus_numel - from), weight);
        for (int64_t i = from; i < from + GROUP; i++) {
            uint32_t bits;
            memcpy(&bits, values + i, sizeof bits);
            uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
            if ((bits & 0x7fffffffu) > 0x7f800000u) rounded = 0x7fc0u;
            rounded -= (rounded & 0x7fffu) == 0x7f80u && (bits & 0x7fffffffu) < 0x7f800000u;
            out[i] = (uint16_t)rounded;
            uint32_t wide = rounded << 16;
            float read;
            memcpy(&read, &wide, sizeof read);
            values[i] -= read;
        }
    }
}

/* A loop without a branch, which the compiler vectorises. */
static inline int32_t count_above(const float *restrict row, int64_t length, int32_t limit) {
    int32_t count = 0;
    for (int64_t i = 0; i < length; i++) count += magnitude(row[i]) > limit;
    return count;
}

/* SparseCodec: for each row, the offsets of its `number` largest magnitudes, in ascending order. Of
   equal magnitudes, the first are taken. */
void largest(const float *restrict values, int64_t rows, int64_t length, int64_t number,
             int16_t *restrict out) {
    for (int64_t r = 0; r < rows; r++) {
        const float *row = values + r * length;
        /* The greatest limit that at least `number` elements reach, one bit after the other: at
           most 31 passes over a row that stays in the cache, and no sort. */
        int32_t limit = 0;
        int64_t reached = length;
        for (int bit = 30; bit >= 0 && reached > number; bit--) {
            int32_t higher = limit | 1 << bit;
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
