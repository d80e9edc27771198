/* Included once for each number type.

   What AdaNASA learns its radius from (rules/adanasa.py): every k-th coordinate of each row. Sums have a fixed order, in double
   precision. */

enum { NAME(SUMS) = 8 }; /* partial sums of a sum */

/* a / max(root, |a|), and 0 where both are 0; NaN stays. */
INLINE REAL NAME(scaled)(REAL a, REAL root) {
    REAL size = a < 0 ? -a : a;
    size = size > root ? size : root;
    return a / (size == 0 ? 1 : size);
}

INLINE double NAME(total)(const double *sums) {
    double total = 0;
    for (int k = 0; k < NAME(SUMS); k++) total += sums[k];
    return total;
}

/* g / sqrt(m') into p, h into q, and x(0) - x into way, of some sampled coordinates. */
INLINE void NAME(directions)(const Radius *a, Py_ssize_t at, const REAL *start, REAL beta, int count, REAL *restrict p,
                             REAL *restrict q, REAL *restrict way) {
    const REAL *x = a->x, *y = a->y, *m = a->m, *z = a->z, *g = a->g;
    REAL root[CHUNK];
    for (int k = 0; k < count; k++) {
        Py_ssize_t i = at + k * a->every;
        p[k] = g[i];
        q[k] = g[i] + y[i] - z[i];
        root[k] = beta * m[i] + (1 - beta) * (g[i] * g[i]);
        way[k] = start[k] - x[i];
    }
    for (int k = count; k < CHUNK; k++) p[k] = q[k] = root[k] = way[k] = 0;
    for (int k = 0; k < CHUNK; k++) {
        root[k] = SQRT(root[k]);
        p[k] /= root[k] == 0 ? 1 : root[k];
        q[k] = NAME(scaled)(q[k], root[k]);
    }
}

/* S <- S + step h/|h| and A <- A + step/|h| dot(g / sqrt(m'), x(0) - x) */
static CLONES void NAME(learn_row)(const Radius *a, Py_ssize_t row) {
    const REAL *start = (const REAL *)a->start + row * a->sample;
    REAL *S = (REAL *)a->S + row * a->sample, *A = (REAL *)a->A + row;
    REAL *direction = (REAL *)a->scratch + row * a->sample, step = ((const REAL *)a->step)[row];
    REAL p[CHUNK], q[CHUNK], way[CHUNK];
    double qq[NAME(SUMS)] = {0}, dot[NAME(SUMS)] = {0};
    for (Py_ssize_t j = 0; j < a->sample; j += CHUNK) {
        int count = a->sample - j < CHUNK ? (int)(a->sample - j) : CHUNK;
        NAME(directions)(a, row * a->dim + j * a->every, start + j, (REAL)a->beta[row / a->nodes], count, p, q, way);
        for (int k = 0; k < CHUNK; k++) {
            qq[k % NAME(SUMS)] += (double)q[k] * q[k];
            dot[k % NAME(SUMS)] += (double)p[k] * way[k];
        }
        memcpy(direction + j, q, count * sizeof(REAL));
    }
    double length = sqrt(NAME(total)(qq));
    REAL factor = step / (REAL)(length == 0 ? 1 : length);
    for (Py_ssize_t j = 0; j < a->sample; j++) S[j] += factor * direction[j];
    *A += factor * (REAL)NAME(total)(dot);
}

static void NAME(learn)(const Radius *a, Py_ssize_t rows) {
#pragma omp parallel for schedule(static) num_threads(threads_for((double)rows *a->sample))
    for (Py_ssize_t row = 0; row < rows; row++) NAME(learn_row)(a, row);
}
