/* Included once for each number type (REAL, with as many bits as a WORD).

   Rows of numbers as channels/codecs.py quantizes them: the scales of all blocks of a row, in bfloat16, then a code of 4 or 8
   bits for each number. A block stays in the cache between its two passes: a row is read once, a payload written once. */

/* The largest absolute value. The bits of NaN are above those of infinity. */
INLINE REAL NAME(largest)(const REAL *x, int count) {
    WORD most = 0;
    for (int k = 0; k < count; k++) {
        WORD word;
        memcpy(&word, x + k, sizeof(word));
        word &= (WORD)-1 >> 1;
        most = word > most ? word : most;
    }
    REAL value;
    memcpy(&value, &most, sizeof(value));
    return value;
}

/* x / scale, rounded to the nearest whole number, halves to even; the code of NaN is 0. */
INLINE void NAME(encode_block)(const REAL *restrict x, REAL scale, int bits, uint8_t *restrict packed) {
    uint8_t codes[BLOCK];
    REAL top = TOP(bits);
    for (int k = 0; k < BLOCK; k++) {
        REAL whole = RINT(x[k] / scale);
        whole = whole > top ? top : whole < -top ? -top : whole;
        codes[k] = whole == whole ? (int)(whole + top) : 0;
    }
    if (bits == 8) memcpy(packed, codes, BLOCK);
    else
        for (int k = 0; k < BLOCK / 2; k++) packed[k] = codes[2 * k] | codes[2 * k + 1] << 4;
}

INLINE void NAME(decode_block)(const uint8_t *restrict packed, REAL scale, int bits, REAL *restrict out) {
    int top = TOP(bits);
    if (bits == 8)
        for (int k = 0; k < BLOCK; k++) out[k] = (REAL)(packed[k] - top) * scale;
    else
        for (int k = 0; k < BLOCK / 2; k++) {
            out[2 * k] = (REAL)((packed[k] & 15) - top) * scale;
            out[2 * k + 1] = (REAL)((packed[k] >> 4) - top) * scale;
        }
}

INLINE void NAME(encode_scaled)(const REAL *x, int bits, uint8_t *scales, uint8_t *packed) {
    uint16_t half = to_bfloat16((float)(LARGEST(x, BLOCK) / TOP(bits)));
    float scale = half == 0 ? 1 : from_bfloat16(half);
    memcpy(scales, &half, 2);
    if (!QUICK_ENCODE(x, scale, bits, packed)) NAME(encode_block)(x, scale, bits, packed);
}

INLINE void NAME(decode_scaled)(const uint8_t *scales, const uint8_t *packed, int bits, REAL *out) {
    uint16_t half;
    memcpy(&half, scales, 2);
    float scale = from_bfloat16(half);
    if (!QUICK_DECODE(packed, scale, bits, out)) NAME(decode_block)(packed, scale, bits, out);
}

INLINE void NAME(encode_row)(const REAL *x, Py_ssize_t width, int bits, uint8_t *scales, uint8_t *packed) {
    for (; width >= BLOCK; width -= BLOCK, x += BLOCK, scales += 2, packed += packed_bytes(BLOCK, bits))
        NAME(encode_scaled)(x, bits, scales, packed);
    if (width == 0) return;
    REAL padded[BLOCK] = {0};
    uint8_t bytes[BLOCK];
    memcpy(padded, x, width * sizeof(REAL));
    NAME(encode_scaled)(padded, bits, scales, bytes);
    if (bits == 4 && width % 2) bytes[width / 2] &= 15;
    memcpy(packed, bytes, packed_bytes(width, bits));
}

INLINE void NAME(decode_row)(const uint8_t *scales, const uint8_t *packed, Py_ssize_t width, int bits, REAL *out) {
    for (; width >= BLOCK; width -= BLOCK, scales += 2, packed += packed_bytes(BLOCK, bits), out += BLOCK)
        NAME(decode_scaled)(scales, packed, bits, out);
    if (width == 0) return;
    REAL numbers[BLOCK];
    uint8_t bytes[BLOCK] = {0};
    memcpy(bytes, packed, packed_bytes(width, bits));
    NAME(decode_scaled)(scales, bytes, bits, numbers);
    memcpy(out, numbers, width * sizeof(REAL));
}

/* Loops for one number of bits are faster than one that asks for it. */
CLONES static void NAME(encode_part)(const REAL *x, Py_ssize_t width, int bits, uint8_t *scales, uint8_t *packed) {
    if (bits == 4) NAME(encode_row)(x, width, 4, scales, packed);
    else NAME(encode_row)(x, width, 8, scales, packed);
}

CLONES static void NAME(decode_part)(const uint8_t *scales, const uint8_t *packed, Py_ssize_t width, int bits, REAL *out) {
    if (bits == 4) NAME(decode_row)(scales, packed, width, 4, out);
    else NAME(decode_row)(scales, packed, width, 8, out);
}

/* All rows of an array to their payloads, or back. */
static void NAME(quantize)(REAL *numbers, uint8_t *payloads, Py_ssize_t rows, Py_ssize_t width, int bits, int back) {
    Py_ssize_t parts = (width + PART - 1) / PART, scales = scale_bytes(width), size = scales + packed_bytes(width, bits);
#pragma omp parallel for schedule(static) num_threads(threads_for((double)rows *width))
    for (Py_ssize_t task = 0; task < rows * parts; task++) {
        Py_ssize_t first = task % parts * PART, count = width - first < PART ? width - first : PART;
        REAL *part = numbers + task / parts * width + first;
        uint8_t *payload = payloads + task / parts * size;
        uint8_t *scale = payload + scale_bytes(first), *packed = payload + scales + packed_bytes(first, bits);
        if (back) NAME(decode_part)(scale, packed, count, bits, part);
        else NAME(encode_part)(part, count, bits, scale, packed);
    }
}
