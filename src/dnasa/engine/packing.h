/* What quantize.h and residues.h need for all number types, and quantize.h's blocks of float32 on ARM, where the compiler's loops are too slow. */

enum {
    BLOCK = 256,      /* numbers with one scale */
    PART = 64 * BLOCK, /* numbers of a thread's task */
    SPACED = 32,      /* numbers with one spacing, */
    GROUP = 16,       /* blocks of them that are encoded together */
    SMALLEST = -100,  /* its smallest exponent, and minus its largest */
    ROUNDINGS = 8     /* of the largest number, which a spacing has at least */
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

INLINE float largest_neon(const float *x) {
    float32x4_t most[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
    for (int k = 0; k < BLOCK; k += 16)
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

/* x / y, all but always to the nearest. */
INLINE float quotient_neon(float x, float y, float inverse) {
    float q = x * inverse;
    return fmaf(fmaf(-q, y, x), inverse, q);
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
#endif
