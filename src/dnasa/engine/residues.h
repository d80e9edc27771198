/* Included once for each number type (REAL, with as many bits as a WORD).

   Messages as channels/modular.py encodes and mixes them, bit for bit: the exponents of the spacings of all blocks of a row, one
   byte each, then the last 4 or 8 bits of each number, rounded to its grid. Encoding reads a row once from main memory; mixing
   reads the row and both payloads once for each neighbour. */

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

/* No product is fused with a sum: on x86-64 setup.py says so, and clang fuses none with a sum in another statement. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__x86_64__)
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")
#endif

/* Two to a power from -120 on; infinite where a REAL would be. */
INLINE REAL NAME(power)(int exponent) {
    int bias = (1 << (8 * sizeof(WORD) - DIGITS - 2)) - 1;
    WORD word = (WORD)(exponent > bias ? 2 * bias + 1 : exponent + bias) << DIGITS;
    REAL value;
    memcpy(&value, &word, sizeof(value));
    return value;
}

/* The larger of two numbers that are not negative, without a branch; the bits of NaN are above all others. */
INLINE REAL NAME(larger)(REAL a, REAL b) {
    WORD first, second;
    memcpy(&first, &a, sizeof(first));
    memcpy(&second, &b, sizeof(second));
    first = first > second ? first : second;
    memcpy(&a, &first, sizeof(a));
    return a;
}

/* Numbers of a block that are too large for a whole number type, or not finite. */
INLINE uint8_t NAME(huge_residue)(REAL whole, int bits) {
    double rest = fmod(whole, 1 << bits);
    return rest == rest ? (int)rest & ((1 << bits) - 1) : 0;
}

/* The exponent of a block's spacing: of the next power of two above what is wanted, or 0 where that is NaN. */
INLINE int NAME(spacing_exponent)(REAL most, REAL seen, int bits) {
    REAL least = NAME(larger)(most * (ROUNDINGS * EPSILON), NAME(power)(SMALLEST));
    REAL wanted = NAME(larger)(least, seen / (1 << bits / 2));
    WORD word;
    memcpy(&word, &wanted, sizeof(word));
    int exponent = (int)(word >> DIGITS) - (1 << (8 * sizeof(WORD) - DIGITS - 2)) + 2;
    exponent = exponent > 1 - SMALLEST ? 1 - SMALLEST : exponent;
    return wanted == wanted ? exponent : 0;
}

INLINE void NAME(encode_spaced)(const REAL *restrict x, REAL most, REAL spacing, REAL offset, int bits,
                                uint8_t *restrict packed) {
    uint8_t codes[SPACED];
    int fits = most < NAME(power)(110);
    if (fits)
        for (int k = 0; k < SPACED; k++) codes[k] = (uint8_t)(WHOLE)FLOOR(x[k] / spacing + offset);
    else
        for (int k = 0; k < SPACED; k++) codes[k] = NAME(huge_residue)(FLOOR(x[k] / spacing + offset), bits);
    if (bits == 8) memcpy(packed, codes, SPACED);
    else
        for (int k = 0; k < SPACED / 2; k++) packed[k] = (codes[2 * k] & 15) | codes[2 * k + 1] << 4;
}

/* Some blocks: what each has one of is computed for all of them in loops of its own, in vectors. */
INLINE void NAME(encode_blocks)(const REAL *x, const REAL *seen, int count, const Grid *grid, int bits, uint8_t *exponents,
                                uint8_t *packed) {
    REAL most[GROUP], spacing[GROUP], factor = (REAL)grid->factor, offset = (REAL)grid->offset;
    for (int b = 0; b < count; b++) most[b] = NAME(largest)(x + b * SPACED, SPACED);
    for (int b = 0; b < count; b++) {
        int exponent = NAME(spacing_exponent)(most[b], seen[b], bits);
        exponents[b] = exponent - SMALLEST;
        spacing[b] = factor * NAME(power)(exponent);
    }
    for (int b = 0; b < count; b++)
        NAME(encode_spaced)(x + b * SPACED, most[b], spacing[b], offset, bits, packed + b * SPACED * bits / 8);
}

/* Adds the weighted difference, and returns the largest number of spacings in it. */
INLINE uint8_t NAME(mix_codes)(const REAL *x, const uint8_t *own, const uint8_t *theirs, uint8_t scale, uint8_t own_scale,
                               REAL weight, REAL spacing, int bits, REAL *out) {
    int half = 1 << (bits - 1);
    uint8_t apart[SPACED], most = 0;
    if (bits == 8)
        for (int k = 0; k < SPACED; k++) apart[k] = theirs[k] * scale - own[k] * own_scale + half;
    else
        for (int k = 0; k < SPACED / 2; k++) {
            apart[2 * k] = ((theirs[k] & 15) * scale - (own[k] & 15) * own_scale + half) & 15;
            apart[2 * k + 1] = ((theirs[k] >> 4) * scale - (own[k] >> 4) * own_scale + half) & 15;
        }
    for (int k = 0; k < SPACED; k++) apart[k] = apart[k] == 0 ? half : apart[k];
    for (int k = 0; k < SPACED; k++) {
        uint8_t size = apart[k] < half ? half - apart[k] : apart[k] - half;
        most = size > most ? size : most;
    }
#ifdef __GNUC__
#pragma GCC ivdep
#endif
    for (int k = 0; k < SPACED; k++) { /* `out` may be `x` */
        REAL difference = (REAL)((int)apart[k] - half) * spacing;
        REAL change = weight * difference;
        out[k] = x[k] + change;
    }
    return most;
}

/* Differences are known in units of the finer spacing, modulo all levels; half of these counts as 0. */
INLINE void NAME(mix_blocks)(const REAL *x, const uint8_t *own, const uint8_t *theirs, const uint8_t *own_exponents,
                             const uint8_t *exponents, int count, REAL weight, const Grid *grid, int bits, REAL *out,
                             REAL *seen) {
    REAL spacing[GROUP], near[GROUP], factor = (REAL)grid->factor;
    uint8_t scale[GROUP], own_scale[GROUP], most[GROUP];
    int bytes = SPACED * bits / 8;
    for (int b = 0; b < count; b++) {
        int a = own_exponents[b], e = exponents[b], finer = e < a ? e : a;
        scale[b] = e - finer < bits ? 1 << (e - finer) : 0;
        own_scale[b] = a - finer < bits ? 1 << (a - finer) : 0;
        spacing[b] = factor * NAME(power)(finer + SMALLEST);
        near[b] = NAME(power)(e + SMALLEST + bits / 2 - 2);
    }
    for (int b = 0; b < count; b++)
        most[b] = NAME(mix_codes)(x + b * SPACED, own + b * bytes, theirs + b * bytes, scale[b], own_scale[b], weight,
                                  spacing[b], bits, out + b * SPACED);
    for (int b = 0; b < count; b++) {
        int doubtful = most[b] >= 3 << (bits - 3);
        REAL found = NAME(larger)(near[b], (REAL)(most[b] << doubtful) * spacing[b]);
        seen[b] = NAME(larger)(seen[b], found);
    }
}

INLINE void NAME(encode_spaced_row)(const REAL *x, const REAL *seen, Py_ssize_t width, const Grid *grid, int bits,
                                    uint8_t *exponents, uint8_t *packed) {
    while (width >= SPACED) {
        int count = width < GROUP * SPACED ? (int)(width / SPACED) : GROUP;
        NAME(encode_blocks)(x, seen, count, grid, bits, exponents, packed);
        width -= count * SPACED, x += count * SPACED, packed += count * SPACED * bits / 8, seen += count, exponents += count;
    }
    if (width == 0) return;
    REAL padded[SPACED] = {0};
    uint8_t bytes[SPACED];
    memcpy(padded, x, width * sizeof(REAL));
    NAME(encode_blocks)(padded, seen, 1, grid, bits, exponents, bytes);
    if (bits == 4 && width % 2) bytes[width / 2] &= 15;
    memcpy(packed, bytes, packed_bytes(width, bits));
}

INLINE void NAME(mix_spaced_row)(const REAL *x, const uint8_t *own, const uint8_t *theirs, const uint8_t *own_exponents,
                                 const uint8_t *exponents, REAL weight, Py_ssize_t width, const Grid *grid, int bits, REAL *out,
                                 REAL *seen) {
    while (width >= SPACED) {
        int count = width < GROUP * SPACED ? (int)(width / SPACED) : GROUP, bytes = count * SPACED * bits / 8;
        NAME(mix_blocks)(x, own, theirs, own_exponents, exponents, count, weight, grid, bits, out, seen);
        width -= count * SPACED, x += count * SPACED, out += count * SPACED, own += bytes, theirs += bytes;
        own_exponents += count, exponents += count, seen += count;
    }
    if (width == 0) return;
    REAL padded[SPACED] = {0};
    uint8_t codes[2][SPACED] = {{0}};
    memcpy(padded, x, width * sizeof(REAL));
    memcpy(codes[0], own, packed_bytes(width, bits));
    memcpy(codes[1], theirs, packed_bytes(width, bits));
    if (bits == 4 && width % 2) codes[0][width / 2] &= 15, codes[1][width / 2] &= 15;
    NAME(mix_blocks)(padded, codes[0], codes[1], own_exponents, exponents, 1, weight, grid, bits, padded, seen);
    memcpy(out, padded, width * sizeof(REAL));
}

/* Loops for one number of bits are faster than one that asks for it. */
CLONES static void NAME(encode_spaced_part)(const REAL *x, const REAL *seen, Py_ssize_t width, const Grid *grid,
                                            uint8_t *exponents, uint8_t *packed) {
    if (grid->bits == 4) NAME(encode_spaced_row)(x, seen, width, grid, 4, exponents, packed);
    else NAME(encode_spaced_row)(x, seen, width, grid, 8, exponents, packed);
}

CLONES static void NAME(mix_spaced_part)(const REAL *x, const uint8_t *own, const uint8_t *theirs, const uint8_t *own_exponents,
                                         const uint8_t *exponents, REAL weight, Py_ssize_t width, const Grid *grid, REAL *out,
                                         REAL *seen) {
    if (grid->bits == 4) NAME(mix_spaced_row)(x, own, theirs, own_exponents, exponents, weight, width, grid, 4, out, seen);
    else NAME(mix_spaced_row)(x, own, theirs, own_exponents, exponents, weight, width, grid, 8, out, seen);
}

/* All rows of an array to their payloads. */
static void NAME(encode_residues)(const REAL *numbers, const REAL *seen, uint8_t *payloads, Py_ssize_t rows, Py_ssize_t width,
                                  const Grid *grid) {
    Py_ssize_t parts = (width + PART - 1) / PART, blocks = spaced_blocks(width), size = blocks + packed_bytes(width, grid->bits);
#pragma omp parallel for schedule(static) num_threads(threads_for((double)rows *width))
    for (Py_ssize_t task = 0; task < rows * parts; task++) {
        Py_ssize_t row = task / parts, first = task % parts * PART, count = width - first < PART ? width - first : PART;
        uint8_t *payload = payloads + row * size;
        NAME(encode_spaced_part)(numbers + row * width + first, seen + row * blocks + first / SPACED, count, grid,
                                 payload + first / SPACED, payload + blocks + packed_bytes(first, grid->bits));
    }
}

/* All rows with one neighbour of each; there is a weight for each node, and `out` may be `numbers`. */
static void NAME(mix_residues)(const REAL *numbers, const uint8_t *own, const uint8_t *theirs, const REAL *weights, REAL *out,
                               REAL *seen, Py_ssize_t rows, Py_ssize_t nodes, Py_ssize_t width, const Grid *grid) {
    Py_ssize_t parts = (width + PART - 1) / PART, blocks = spaced_blocks(width), size = blocks + packed_bytes(width, grid->bits);
#pragma omp parallel for schedule(static) num_threads(threads_for((double)rows *width))
    for (Py_ssize_t task = 0; task < rows * parts; task++) {
        Py_ssize_t row = task / parts, first = task % parts * PART, count = width - first < PART ? width - first : PART;
        Py_ssize_t block = first / SPACED, place = row * size + blocks + packed_bytes(first, grid->bits);
        NAME(mix_spaced_part)(numbers + row * width + first, own + place, theirs + place, own + row * size + block,
                              theirs + row * size + block, weights[row % nodes], count, grid, out + row * width + first,
                              seen + row * blocks + block);
    }
}

#if defined(__GNUC__) && !defined(__clang__) && !defined(__x86_64__)
#pragma GCC pop_options
#endif
