/* What residues.h needs for all number types, and its blocks of float32 on ARM, where the compiler's loops are too slow. */

enum {
    PART = 64 * 256, /* numbers of a thread's task */
    SPACED = 32,       /* numbers with one spacing */
    GROUP = 16,        /* blocks of them that are encoded together */
    SMALLEST = -100,   /* the smallest exponent of a spacing, and minus the largest */
    ROUNDINGS = 8      /* of the largest number, which a spacing has at least */
};

typedef struct {
    int bits;
    double offset, factor;
} Grid; /* of channels/modular.py */

static Py_ssize_t spaced_blocks(Py_ssize_t width) { return (width + SPACED - 1) / SPACED; }

static Py_ssize_t packed_bytes(Py_ssize_t width, int bits) { return (width * bits + 7) / 8; }

#ifdef __aarch64__
#include <arm_neon.h>

INLINE float largest_neon(const float *x, int count) {
    float32x4_t most[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
    for (int k = 0; k < count; k += 16)
        for (int i = 0; i < 4; i++) most[i] = vmaxq_f32(most[i], vabsq_f32(vld1q_f32(x + k + 4 * i)));
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(most[0], most[1]), vmaxq_f32(most[2], most[3])));
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

/* See mix_spaced. Codes become the last bits of 2^23 + code. */
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
