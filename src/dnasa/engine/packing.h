/* What quantize.h and residues.h need for all number types, and their blocks of float32 on ARM, where the compiler's loops are
   too slow. */

enum {
    BLOCK = 256,       /* numbers with one scale */
    PART = 64 * BLOCK, /* numbers of a thread's task */
    SPACED = 32,       /* numbers with one spacing */
    GROUP = 16,        /* blocks of them that are encoded together */
    SMALLEST = -100,   /* the smallest exponent of a spacing, and minus the largest */
    ROUNDINGS = 8      /* of the largest number, which a spacing has at least */
};

typedef struct {
    int bits;
    double offset, factor;
} Grid; /* of channels/modular.py */

#define TOP(bits) ((1 << ((bits)-1)) - 1) /* codes are whole numbers from -TOP to TOP, plus TOP */

static Py_ssize_t scale_bytes(Py_ssize_t width) { return 2 * ((width + BLOCK - 1) / BLOCK); }

static Py_ssize_t spaced_blocks(Py_ssize_t width) { return (width + SPACED - 1) / SPACED; }

static Py_ssize_t packed_bytes(Py_ssize_t width, int bits) { return (width * bits + 7) / 8; }

INLINE float from_bfloat16(uint16_t upper) {
    uint32_t word = (uint32_t)upper << 16;
    float value;
    memcpy(&value, &word, sizeof(value));
    return value;
}

INLINE uint16_t to_bfloat16(float value) {
    uint32_t word;
    memcpy(&word, &value, sizeof(word));
    return value == value ? (word + 0x7fff + (word >> 16 & 1)) >> 16 : 0x7fc0; /* to the nearest, halves to even */
}

#ifdef __aarch64__
#include <arm_neon.h>

INLINE float largest_neon(const float *x, int count) {
    float32x4_t most[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
    for (int k = 0; k < count; k += 16)
        for (int i = 0; i < 4; i++) most[i] = vmaxq_f32(most[i], vabsq_f32(vld1q_f32(x + k + 4 * i)));
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(most[0], most[1]), vmaxq_f32(most[2], most[3])));
}

/* Eight numbers, rounded. A division takes too long: q = x / scale to rounding, and q + (x - q scale) / scale is exact where it
   is a half, and on the same side of the next half as x / scale elsewhere. Adding an even number of at least 2^23 rounds as needed. */
INLINE uint8x16_t rounded_neon(const float *x, float scale, float inverse) {
    float32x4_t sums[2], middle = vdupq_n_f32(0x1.8p23f);
    for (int i = 0; i < 2; i++) {
        float32x4_t a = vld1q_f32(x + 4 * i), q = vmulq_n_f32(a, inverse);
        sums[i] = vaddq_f32(vfmaq_n_f32(q, vfmsq_n_f32(a, q, scale), inverse), middle);
    }
    return vreinterpretq_u8_u16(vuzp1q_u16(vreinterpretq_u16_f32(sums[0]), vreinterpretq_u16_f32(sums[1])));
}

/* Pack a block, if its scale has an inverse of full precision; no number is then rounded to more than TOP. */
INLINE int encode_neon(const float *x, float scale, int bits, uint8_t *packed) {
    if (!(scale > 0x1p-100f && scale < 0x1p100f)) return 0;
    float inverse = 1 / scale;
    uint8x16_t top = vdupq_n_u8(TOP(bits));
    for (int k = 0; k < BLOCK; k += 32) {
        uint8x16_t codes[2];
        for (int i = 0; i < 2; i++) {
            const float *from = x + k + 16 * i;
            __builtin_prefetch(from + 4 * BLOCK);
            codes[i] = vuzp1q_u8(rounded_neon(from, scale, inverse), rounded_neon(from + 8, scale, inverse));
            codes[i] = vaddq_u8(codes[i], top);
        }
        if (bits == 8) {
            vst1q_u8(packed + k, codes[0]);
            vst1q_u8(packed + k + 16, codes[1]);
        } else {
            uint16x8_t a = vreinterpretq_u16_u8(codes[0]), b = vreinterpretq_u16_u8(codes[1]);
            a = vsraq_n_u16(a, a, 4), b = vsraq_n_u16(b, b, 4);
            vst1q_u8(packed + k / 2, vuzp1q_u8(vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b)));
        }
    }
    return 1;
}

/* Sixteen numbers from their codes, which become the last bits of 2^23 + code. */
INLINE void numbers_neon(uint8x16_t codes, float scale, float32x4_t middle, float *out) {
    uint8x16_t zero = vdupq_n_u8(0);
    uint16x8_t upper = vdupq_n_u16(0x4b00);
    uint16x8_t halves[2] = {vreinterpretq_u16_u8(vzip1q_u8(codes, zero)), vreinterpretq_u16_u8(vzip2q_u8(codes, zero))};
    for (int i = 0; i < 2; i++) {
        float32x4_t a = vreinterpretq_f32_u16(vzip1q_u16(halves[i], upper));
        float32x4_t b = vreinterpretq_f32_u16(vzip2q_u16(halves[i], upper));
        vst1q_f32(out + 8 * i, vmulq_n_f32(vsubq_f32(a, middle), scale));
        vst1q_f32(out + 8 * i + 4, vmulq_n_f32(vsubq_f32(b, middle), scale));
    }
}

INLINE int decode_neon(const uint8_t *packed, float scale, int bits, float *out) {
    float32x4_t middle = vdupq_n_f32(0x1p23f + TOP(bits));
    if (bits == 8)
        for (int k = 0; k < BLOCK; k += 16) numbers_neon(vld1q_u8(packed + k), scale, middle, out + k);
    else
        for (int k = 0; k < BLOCK; k += 32) {
            uint8x16_t both = vld1q_u8(packed + k / 2), even = vandq_u8(both, vdupq_n_u8(15)), odd = vshrq_n_u8(both, 4);
            numbers_neon(vzip1q_u8(even, odd), scale, middle, out + k);
            numbers_neon(vzip2q_u8(even, odd), scale, middle, out + k + 16);
        }
    return 1;
}

/* The last bits of 32 numbers, rounded down to whole spacings; x / spacing is to the nearest but for one number in millions. */
INLINE int residues_neon(const float *x, float spacing, float inverse, float offset, int bits, uint8_t *packed) {
    uint8x16_t codes[2];
    for (int i = 0; i < 2; i++) {
        uint16x8_t halves[2];
        for (int j = 0; j < 2; j++) {
            int32x4_t whole[2];
            for (int k = 0; k < 2; k++) {
                float32x4_t a = vld1q_f32(x + 16 * i + 8 * j + 4 * k), q = vmulq_n_f32(a, inverse);
                q = vfmaq_n_f32(q, vfmsq_n_f32(a, q, spacing), inverse);
                whole[k] = vcvtmq_s32_f32(vaddq_f32(q, vdupq_n_f32(offset)));
            }
            halves[j] = vuzp1q_u16(vreinterpretq_u16_s32(whole[0]), vreinterpretq_u16_s32(whole[1]));
        }
        codes[i] = vuzp1q_u8(vreinterpretq_u8_u16(halves[0]), vreinterpretq_u8_u16(halves[1]));
    }
    if (bits == 8) {
        vst1q_u8(packed, codes[0]);
        vst1q_u8(packed + 16, codes[1]);
    } else vst1q_u8(packed, vsliq_n_u8(vuzp1q_u8(codes[0], codes[1]), vuzp2q_u8(codes[0], codes[1]), 4));
    return 1;
}

INLINE void codes_neon(const uint8_t *packed, int bits, uint8x16_t *codes) {
    if (bits == 8) codes[0] = vld1q_u8(packed), codes[1] = vld1q_u8(packed + 16);
    else {
        uint8x16_t both = vld1q_u8(packed), even = vandq_u8(both, vdupq_n_u8(15)), odd = vshrq_n_u8(both, 4);
        codes[0] = vzip1q_u8(even, odd), codes[1] = vzip2q_u8(even, odd);
    }
}

/* See mix_spaced. Codes become the last bits of 2^23 + code, as in numbers_neon. */
INLINE int mix_neon(const float *x, const uint8_t *own, const uint8_t *theirs, uint8_t scale, uint8_t own_scale, float weight,
                    float spacing, int bits, float *out, uint8_t *largest) {
    uint8x16_t codes[2], own_codes[2], zero = vdupq_n_u8(0), half = vdupq_n_u8(1 << (bits - 1)), most = zero;
    uint16x8_t upper = vdupq_n_u16(0x4b00);
    float32x4_t middle = vdupq_n_f32(0x1p23f + (1 << (bits - 1))), factor = vdupq_n_f32(weight);
    codes_neon(theirs, bits, codes);
    codes_neon(own, bits, own_codes);
    for (int i = 0; i < 2; i++) {
        uint8x16_t apart = vmlaq_u8(half, codes[i], vdupq_n_u8(scale));
        apart = vmlsq_u8(apart, own_codes[i], vdupq_n_u8(own_scale));
        if (bits == 4) apart = vandq_u8(apart, vdupq_n_u8(15));
        apart = vbslq_u8(vceqzq_u8(apart), half, apart);
        most = vmaxq_u8(most, vabdq_u8(apart, half));
        uint16x8_t halves[2] = {vreinterpretq_u16_u8(vzip1q_u8(apart, zero)), vreinterpretq_u16_u8(vzip2q_u8(apart, zero))};
        for (int j = 0; j < 4; j++) {
            uint16x8_t both = j % 2 ? vzip2q_u16(halves[j / 2], upper) : vzip1q_u16(halves[j / 2], upper);
            float32x4_t difference = vmulq_n_f32(vsubq_f32(vreinterpretq_f32_u16(both), middle), spacing);
            int k = 16 * i + 4 * j;
            vst1q_f32(out + k, vaddq_f32(vld1q_f32(x + k), vmulq_f32(difference, factor)));
        }
    }
    *largest = vmaxvq_u8(most);
    return 1;
}
#endif
