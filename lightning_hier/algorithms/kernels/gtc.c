/* GTC's passes of gtc.py over tensors of float32. native.py compiles and calls these
   functions.

   They do the same operations in the same order, so results have the same bits. No function
   allocates memory. tests/unit/test_gtc_kernels.py compares the bits with the equations. */

#include <stdint.h>
#include <string.h>

#define INDEX 0x7fffffffu
#define SIGN 0x80000000u
#define INFINITE 0x7f800000u

/* BLOCK: elements that are selected together. CROWDED: selected elements of a block above which a
   loop without branches is used. CHUNK: elements of `decode` that stay in the cache for all
   workers. PER_WORD: elements in a word of a bitmap. */
enum { BLOCK = 256, CROWDED = 16, CHUNK = 8192, PER_WORD = 16 };

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* One block of `encode`; inlined, so that the length of all blocks but the last is a constant. */
static inline int64_t encode_block(float *restrict v, const float *restrict r, int count,
                                   float scale, uint32_t limit, uint32_t base,
                                   int32_t *restrict words) {
    uint8_t exceeds[BLOCK];
    uint64_t eight[BLOCK / 8], sum = 0;
    if (scale != 1.0f)
        for (int i = 0; i < count; i++) v[i] /= scale;
    for (int i = 0; i < count; i++) v[i] += r[i];
    for (int i = 0; i < count; i++) exceeds[i] = (bits_of(v[i]) & INDEX) > limit;
    for (int i = count; i < BLOCK; i++) exceeds[i] = 0;
    memcpy(eight, exceeds, sizeof eight);
    for (int i = 0; i < BLOCK / 8; i++) sum += eight[i]; /* eight sums of at most 32 in a word */
    if (!sum) return 0; /* most blocks at a low density */
    int64_t found = 0;
    /* Add the eight bytes of `sum`, in pairs and then by a product. */
    sum = (sum & 0x00ff00ff00ff00ffu) + (sum >> 8 & 0x00ff00ff00ff00ffu);
    if (sum * 0x0001000100010001u >> 48 > CROWDED) {
        /* Without a branch, which would often be mispredicted: each word is written, and kept if
           it is selected. */
        for (int i = 0; i < count; i++) {
            words[found] = (int32_t)((base + (uint32_t)i) | (bits_of(v[i]) & SIGN));
            found += exceeds[i];
        }
        return found;
    }
    /* The lowest set bit is the first selected element, on little-endian processors only. */
    for (int i = 0; i < BLOCK / 8; i++)
        for (uint64_t left = eight[i]; left; left &= left - 1) {
            int j = 8 * i + (__builtin_ctzll(left) >> 3);
            words[found++] = (int32_t)((base + (uint32_t)j) | (bits_of(v[j]) & SIGN));
        }
    return found;
}

/* values <- values / scale + residual, of the elements `start` and following of a tensor; `words`
   has room for `numel`. Returns the number of words; clears `finite` if a selected value is not. */
int64_t encode(float *values, const float *residual, int64_t numel, float scale, float threshold,
               int64_t start, int32_t *words, int *finite) {
    int64_t found = 0, from = 0;
    uint32_t most = 0, limit = bits_of(threshold);
    /* Values that are not finite are always selected, so it is enough to check selected ones. */
    if (limit >= INFINITE) limit = INFINITE - 1;
    for (; from + BLOCK <= numel; from += BLOCK)
        found += encode_block(values + from, residual + from, BLOCK, scale, limit,
                              (uint32_t)(start + from), words + found);
    found += encode_block(values + from, residual + from, (int)(numel - from), scale, limit,
                          (uint32_t)(start + from), words + found);
    for (int64_t k = 0; k < found; k++) {
        uint32_t magnitude = bits_of(values[((uint32_t)words[k] & INDEX) - start]) & INDEX;
        if (magnitude > most) most = magnitude;
    }
    if (most >= INFINITE) *finite = 0;
    return found;
}

/* Add the signs of a worker's words in [from, to); returns the place of the first word after them. */
static inline int64_t add_words(float *values, const int32_t *words, int64_t at, int64_t count,
                                int64_t to) {
    for (; at < count && ((uint32_t)words[at] & INDEX) < to; at++)
        values[(uint32_t)words[at] & INDEX] += words[at] < 0 ? -1.0f : 1.0f;
    return at;
}

/* Add the signs of a worker's bitmap in [from, to). */
static inline void add_bitmap(float *restrict values, const int32_t *restrict bitmap, int64_t from,
                              int64_t to) {
    for (; from < to; from += PER_WORD) {
        uint32_t codes = (uint32_t)bitmap[from / PER_WORD];
        int64_t count = to - from < PER_WORD ? to - from : PER_WORD;
        for (int64_t i = 0; i < count; i++)
            values[from + i] += (float)((int)(codes >> 2 * i & 1) - (int)(codes >> 2 * i >> 1 & 1));
    }
}

/* residual <- values - sent; values <- the signs of all rows, summed, times each factor.
   `at` holds a zero for each row: words are in ascending order, so each chunk goes on where the one
   before has ended. */
void decode(float *restrict values, float *restrict residual, int64_t numel, float threshold,
            const int32_t *own, int64_t own_count, const int32_t *const *rows,
            const int64_t *counts, int64_t *at, int64_t workers, const float *factors,
            int64_t factor_count, int bitmaps) {
    int64_t sent = 0;
    for (int64_t from = 0; from < numel; from += CHUNK) {
        int64_t to = numel - from < CHUNK ? numel : from + CHUNK;
        memcpy(residual + from, values + from, sizeof(float) * (size_t)(to - from));
        for (; sent < own_count && ((uint32_t)own[sent] & INDEX) < to; sent++)
            residual[(uint32_t)own[sent] & INDEX] -= own[sent] < 0 ? -threshold : threshold;
        memset(values + from, 0, sizeof(float) * (size_t)(to - from));
        for (int64_t p = 0; p < workers; p++)
            if (bitmaps) add_bitmap(values, rows[p], from, to);
            else at[p] = add_words(values, rows[p], at[p], counts[p], to);
        for (int64_t f = 0; workers && f < factor_count; f++)
            for (int64_t i = from; i < to; i++) values[i] *= factors[f];
    }
}
