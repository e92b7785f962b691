/* Block momentum and quantisation of reference.py over tensors of float32. native.py compiles and
   calls these functions.

   They do the same operations in the same order, so results have the same bits. Sums of squares are
   added in another order; they are only logged and checked. No function allocates memory.

   A change here needs the same change in reference.py and in the signatures of native.py. tests/unit/test_block_kernels.py compares the bits. */

#include <math.h>
#include <float.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MAGNITUDE 0x7fffffffu

/* torch multiplies and adds with one rounding if the processor can. The compiler must not do this
   by itself in other places, hence -ffp-contract=off in native.py. */
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define MULTIPLY_ADD(a, b, c) fmaf(a, b, c)
#else
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
#endif

/* GROUP, GROUP4: elements of a quantisation group in int8 and in int4, as in
   quantisation_groups.py. SUMS: see add_squares. PIECE: elements that are still in the first-level
   cache when their squares are added. */
enum { GROUP = 512, GROUP4 = 128, HALF4 = GROUP4 / 2, SUMS = 32, PIECE = 1024 };

/* zeta = 1, zeta >= 0.5 and zeta < 0.5: torch.lerp rounds each differently. */
enum { ALL, MOST, LESS };

static inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float value_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Many sums at once: in a single one, each addition would wait for the one before. */
static inline void add_squares(double *restrict sums, const float *restrict values, int64_t numel) {
    int64_t i = 0;
    for (; i + SUMS <= numel; i += SUMS)
        for (int j = 0; j < SUMS; j++) sums[j] += (double)values[i + j] * (double)values[i + j];
    for (; i < numel; i++) sums[0] += (double)values[i] * (double)values[i];
}

static inline double total_of(const double *sums) {
    double total = 0;
    for (int j = 0; j < SUMS; j++) total += sums[j];
    return total;
}

double sum_of_squares(const float *values, int64_t numel) {
    double sums[SUMS] = {0};
    add_squares(sums, values, numel);
    return total_of(sums);
}

/* values <- values - (model + eta * update), where the last may be NULL. Returns their sum of
   squares. */
double subtract_start(float *restrict values, const float *restrict model,
                      const float *restrict update, int64_t numel, float eta) {
    double sums[SUMS] = {0};
    for (int64_t from = 0; from < numel; from += PIECE) {
        int64_t to = least(from + PIECE, numel);
        for (int64_t i = from; i < to; i++) values[i] -= model[i];
        for (int64_t i = from; update && i < to; i++)
            values[i] = MULTIPLY_ADD(-eta, update[i], values[i]);
        add_squares(sums, values + from, to - from);
    }
    return total_of(sums);
}

/* One form of `advance`; inlined, so that each of its forms is a loop without a branch. */
static inline void advanced(float *restrict mean, float *restrict model, float *restrict update,
                            int64_t numel, float eta, float zeta, double *squares, const int keeps,
                            const int ahead, const int adds, const int part) {
    double sums[SUMS] = {0}, of_mean[SUMS] = {0};
    float moved[PIECE];
    for (int64_t from = 0; from < numel; from += PIECE) {
        int64_t count = least(PIECE, numel - from);
        /* Before the start model overwrites the mean. */
        add_squares(of_mean, mean + from, count);
        for (int64_t k = 0; k < count; k++) {
            int64_t i = from + k;
            float old = keeps ? update[i] : 0.0f;
            float start = keeps && ahead ? MULTIPLY_ADD(eta, old, model[i]) : model[i];
            float gradient = mean[i] - start;
            float next = part == ALL    ? mean[i]
                         : part == MOST ? MULTIPLY_ADD(zeta - 1.0f, gradient, mean[i])
                                        : MULTIPLY_ADD(zeta, gradient, start);
            if (keeps && adds) next = MULTIPLY_ADD(eta, old, next);
            gradient *= zeta;
            if (keeps) update[i] = gradient = MULTIPLY_ADD(eta, old, gradient);
            model[i] = next;
            mean[i] = keeps && ahead ? MULTIPLY_ADD(eta, gradient, next) : next;
            moved[k] = gradient;
        }
        add_squares(sums, moved, count);
    }
    squares[0] = total_of(of_mean);
    squares[1] = total_of(sums);
}

/* block_momentum.advance_ from models; `update` is NULL where none is kept. `squares` gets the sums
   of the squares of the mean and of the update. */
void advance(float *mean, float *model, float *update, int64_t numel, float eta, float zeta,
             int ahead, int adds, double *squares) {
#define PART(k, a, o, part) \
    advanced(mean, model, update, numel, eta, zeta, squares, k, a, o, part)
#define FORM(k, a, o) (zeta == 1.0f  ? PART(k, a, o, ALL) \
                       : zeta < 0.5f ? PART(k, a, o, LESS) : PART(k, a, o, MOST))
    if (!update) FORM(0, 0, 0);
    else if (ahead) adds ? FORM(1, 1, 1) : FORM(1, 1, 0);
    else adds ? FORM(1, 0, 1) : FORM(1, 0, 0);
#undef FORM
#undef PART
}

/* One form of `advance_by`. */
static inline void advanced_by(float *restrict gradient, float *restrict model,
                               float *restrict update, int64_t numel, float eta, float zeta,
                               double *squares, const int keeps, const int ahead,
                               const int adds, const int inside) {
    double sums[SUMS] = {0}, of_mean[SUMS] = {0};
    float moved[PIECE];
    for (int64_t from = 0; from < numel; from += PIECE) {
        int64_t count = least(PIECE, numel - from);
        add_squares(of_mean, gradient + from, count);
        for (int64_t k = 0; k < count; k++) {
            int64_t i = from + k;
            float step = gradient[i] * zeta, next = model[i];
            if (keeps && adds) next = MULTIPLY_ADD(eta, update[i], next);
            float sum = keeps ? MULTIPLY_ADD(eta, update[i], step) : step;
            if (keeps) update[i] = sum;
            step = keeps && inside ? MULTIPLY_ADD(eta, sum, step) : sum;
            model[i] = next = next + step;
            gradient[i] = keeps && ahead ? MULTIPLY_ADD(eta, step, next) : next;
            moved[k] = step;
        }
        add_squares(sums, moved, count);
    }
    squares[0] = total_of(of_mean);
    squares[1] = total_of(sums);
}

/* block_momentum.advance_ from updates; as `advance`. */
void advance_by(float *gradient, float *model, float *update, int64_t numel, float eta, float zeta,
                int ahead, int adds, int inside, double *squares) {
#define FORM(k, a, s, i) advanced_by(gradient, model, update, numel, eta, zeta, squares, k, a, s, i)
    if (!update) FORM(0, 0, 0, 0);
    else if (inside) FORM(1, 0, 0, 1);
    else if (ahead) adds ? FORM(1, 1, 1, 0) : FORM(1, 1, 0, 0);
    else FORM(1, 0, 0, 0);
#undef FORM
}

/* values <- values + weight * plus. */
static inline void add_weighted(float *restrict values, const float *restrict plus, int64_t numel,
                                float weight) {
    for (int64_t i = 0; i < numel; i++) values[i] = MULTIPLY_ADD(weight, plus[i], values[i]);
}

/* The scale of `numel` elements in steps up to `largest`, and in `factor` its reciprocal, or 0. */
static inline float scale_of(const float *restrict v, int numel, float largest, float *factor) {
    uint32_t most = 0; /* compared as bits, in which NaN is greater than all */
    for (int i = 0; i < numel; i++) {
        uint32_t magnitude = bits_of(v[i]) & MAGNITUDE;
        most = magnitude > most ? magnitude : most;
    }
    float scale = value_of(most) / largest;
    /* Its product with `largest` stays below FLT_MAX for finite groups. */
    float limit = (float)(0.999999 * (double)FLT_MAX / (double)largest);
    if (most < 0x7f800000u && scale > limit) scale = limit;
    /* 0 for groups of zeros and for scales whose reciprocal may overflow. NaN stays NaN. */
    scale *= (float)(scale >= FLT_MIN);
    *factor = isfinite(scale) && scale > 0.0f ? 1.0f / scale : 0.0f;
    return scale;
}

/* Int8Codec.encode_; `numel` is a multiple of GROUP. */
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

/* Int4Codec.encode_; `numel` is a multiple of GROUP4. A half byte holds a step plus 8, hence
   136 = 16 * 8 + 8. Byte i of a group holds elements i and i + 64, so both halves are
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

/* Int8Codec.decode of the first `numel` elements. */
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

/* Int4Codec.decode; `numel` is a multiple of GROUP4. */
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
   0x7fc0, as in torch. */
void encode_bfloat16(float *restrict values, int64_t numel, const float *restrict plus,
                     int64_t plus_numel, float weight, uint16_t *restrict out) {
    for (int64_t from = 0; from < numel; from += PIECE) {
        int64_t count = least(PIECE, numel - from);
        if (plus_numel > from)
            add_weighted(values + from, plus + from, least(count, plus_numel - from), weight);
        for (int64_t i = from; i < from + count; i++) {
            uint32_t bits = bits_of(values[i]);
            uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
            if ((bits & MAGNITUDE) > 0x7f800000u) rounded = 0x7fc0u;
            rounded -= (rounded & 0x7fffu) == 0x7f80u && (bits & MAGNITUDE) < 0x7f800000u;
            out[i] = (uint16_t)rounded;
            values[i] -= value_of(rounded << 16);
        }
    }
}
