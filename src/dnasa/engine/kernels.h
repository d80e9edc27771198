/* Included once for each number type (REAL).

   One step of D-NASA's family for all nodes of all runs, in place:

   x <- W[x - scale z]   u <- W[u + g - v]   z <- W[(1 - alpha) z + alpha (u + g - v)]   v <- g

   or of AdaNASA, whose y, m and z are in the places of u, z and v:

   z' = (1 - alpha) z + alpha g   y' = y + z' - z   m' = beta m + (1 - beta) g^2
   x <- W[x - eta y'/max(sqrt(m'), |y'|)]   y <- W[y']   m <- max(W[m'], 0)   z <- z'

   Columns are processed in tiles: the messages of all nodes stay in the cache until they are mixed, and every array is read
   from and written to main memory once. Squares are summed per tile, so that |z| does not depend on the number of threads. */

INLINE void NAME(messages)(const REAL *restrict x, const REAL *restrict u, const REAL *restrict z, REAL *restrict v,
                           const REAL *restrict g, REAL scale, REAL alpha, Py_ssize_t width, REAL *restrict new_x,
                           REAL *restrict new_u, REAL *restrict new_z) {
    for (Py_ssize_t k = 0; k < width; k++) {
        REAL tracked = u[k] + g[k] - v[k];
        new_x[k] = x[k] - scale * z[k];
        new_u[k] = tracked;
        new_z[k] = (1 - alpha) * z[k] + alpha * tracked;
        v[k] = g[k];
    }
}

INLINE void NAME(scaled_messages)(const REAL *restrict x, const REAL *restrict y, const REAL *restrict m, REAL *restrict z,
                                  const REAL *restrict g, REAL eta, double alpha, double beta, Py_ssize_t width,
                                  REAL *restrict new_x, REAL *restrict new_y, REAL *restrict new_m) {
    REAL z_old = 1 - alpha, z_new = alpha, m_old = beta, m_new = 1 - beta;
    for (Py_ssize_t k = 0; k < width; k++) {
        REAL average = z_old * z[k] + z_new * g[k], tracked = y[k] + average - z[k];
        REAL moment = m_old * m[k] + m_new * (g[k] * g[k]), root = SQRT(moment), size = fabs(tracked);
        REAL larger = root > size ? root : size;
        new_x[k] = x[k] - eta * (tracked / (larger == 0 ? 1 : larger));
        new_y[k] = tracked;
        new_m[k] = moment;
        z[k] = average;
    }
}

/* out = or, from the tenth neighbour on, += the weighted sum over `count` neighbours, three, six or nine. */
INLINE void NAME(mix_some)(REAL *restrict out, const REAL *rows, const int *neighbours, const REAL *weights, int count,
                           int first, Py_ssize_t width, Py_ssize_t stride) {
    const REAL *a[9];
    REAL w[9];
    for (int j = 0; j < count; j++) a[j] = rows + neighbours[j] * stride, w[j] = weights[j];
    for (Py_ssize_t k = 0; k < width; k++) {
        REAL sum = w[0] * a[0][k] + w[1] * a[1][k] + w[2] * a[2][k];
        if (count > 3) sum += w[3] * a[3][k] + w[4] * a[4][k] + w[5] * a[5][k];
        if (count > 6) sum += w[6] * a[6][k] + w[7] * a[7][k] + w[8] * a[8][k];
        out[k] = first ? sum : out[k] + sum;
    }
}

/* The weighted sum over a node's neighbours; `stride` is the distance between the rows of two nodes. */
INLINE void NAME(mix)(REAL *restrict out, const REAL *rows, const int *neighbours, const REAL *weights, int count,
                      Py_ssize_t width, Py_ssize_t stride) {
    int j = count < 9 ? count : 9;
    if (j == 3) NAME(mix_some)(out, rows, neighbours, weights, 3, 1, width, stride);
    else if (j == 6) NAME(mix_some)(out, rows, neighbours, weights, 6, 1, width, stride);
    else NAME(mix_some)(out, rows, neighbours, weights, 9, 1, width, stride);
    for (; j < count; j += 3) NAME(mix_some)(out, rows, neighbours + j, weights + j, 3, 0, width, stride);
}

INLINE int NAME(any_negative)(const REAL *numbers, int count) {
    int found = 0;
    for (int j = 0; j < count; j++) found |= numbers[j] < 0;
    return found;
}

/* a'b, summed in the same order with vectors of any width. */
INLINE REAL NAME(dot)(const REAL *a, const REAL *b, Py_ssize_t width) {
    REAL sum = 0;
    Py_ssize_t k = 0;
    if (width >= LANES) {
        REAL lanes[LANES] = {0};
        for (; k + LANES <= width; k += LANES)
            for (int i = 0; i < LANES; i++) lanes[i] += a[k + i] * b[k + i];
        for (int half = LANES / 2; half > 0; half /= 2)
            for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
        sum = lanes[0];
    }
    for (; k < width; k++) sum += a[k] * b[k];
    return sum;
}

CLONES static void NAME(step_tile)(const Step *step, const REAL *gradients, Py_ssize_t run, Py_ssize_t first, Py_ssize_t width,
                            REAL *scratch, double *squares) {
    Py_ssize_t offset = run * step->nodes * step->dim + first;
    int narrow = width <= NARROW_TILE; /* then the three messages of a node are adjacent, and one sum mixes them */
    Py_ssize_t stride = narrow ? 3 * width : width, next = narrow ? width : step->nodes * width;
    REAL *x = (REAL *)step->x + offset, *u = (REAL *)step->u + offset;
    REAL *z = (REAL *)step->z + offset, *v = (REAL *)step->v + offset;
    const REAL *g = gradients + offset, *weights = step->weights;
    const double *eta = step->eta + run * step->nodes, *norms = step->norms + run * step->nodes;
    for (Py_ssize_t i = 0, row = 0; i < step->nodes; i++, row += step->dim) {
        REAL *out = scratch + i * stride;
        if (step->kind == SCALED) {
            NAME(scaled_messages)(x + row, u + row, z + row, v + row, g + row, eta[i], step->alpha[run], step->beta[run],
                                  width, out, out + next, out + 2 * next);
            continue;
        }
        double scale = step->kind == PLAIN ? eta[i] : norms[i] == 0 ? 0 : eta[i] / norms[i]; /* z/|z| is 0 where z is 0 */
        NAME(messages)(x + row, u + row, z + row, v + row, g + row, scale, step->alpha[run], width, out, out + next,
                       out + 2 * next);
    }
    for (Py_ssize_t i = 0, row = 0; i < step->nodes; i++, row += step->dim) {
        int begin = step->starts[i], count = step->starts[i + 1] - begin;
        const int *neighbours = step->neighbours + begin;
        if (narrow) {
            REAL mixed[3 * NARROW_TILE];
            NAME(mix)(mixed, scratch, neighbours, weights + begin, count, stride, stride);
            memcpy(x + row, mixed, width * sizeof(REAL));
            memcpy(u + row, mixed + width, width * sizeof(REAL));
            memcpy(z + row, mixed + 2 * width, width * sizeof(REAL));
        } else if (step->nodes == 1) { /* W is 1 */
            memcpy(x, scratch, width * sizeof(REAL));
            memcpy(u, scratch + next, width * sizeof(REAL));
            memcpy(z, scratch + 2 * next, width * sizeof(REAL));
        } else {
            NAME(mix)(x + row, scratch, neighbours, weights + begin, count, width, stride);
            NAME(mix)(u + row, scratch + next, neighbours, weights + begin, count, width, stride);
            NAME(mix)(z + row, scratch + 2 * next, neighbours, weights + begin, count, width, stride);
        }
        if (step->kind == NORMALIZED) squares[i] = NAME(dot)(z + row, z + row, width);
        if (step->kind == SCALED && NAME(any_negative)(weights + begin, count)) /* as several rounds have: m may be, too */
            for (Py_ssize_t k = 0; k < width; k++) z[row + k] = z[row + k] < 0 ? 0 : z[row + k];
    }
}

CLONES static void NAME(measure_tile)(const Step *step, Py_ssize_t run, Py_ssize_t first, Py_ssize_t width,
                                      double *squares) {
    const REAL *z = (const REAL *)step->z + run * step->nodes * step->dim + first;
    for (Py_ssize_t i = 0; i < step->nodes; i++, z += step->dim) squares[i] = NAME(dot)(z, z, width);
}

/* All tiles of all runs: a step where there are gradients, otherwise only the sums of squares. */
static void NAME(all_tiles)(const Step *step, const REAL *gradients) {
    Py_ssize_t tiles = tiles_per_run(step), tasks = step->runs * tiles;
#pragma omp parallel for schedule(static) num_threads(forked ? 1 : step->threads)
    for (Py_ssize_t task = 0; task < tasks; task++) {
        Py_ssize_t run = task / tiles, first = task % tiles * step->width, left = step->dim - first;
        Py_ssize_t width = left < step->width ? left : step->width;
        REAL *scratch = (REAL *)step->scratch + THREAD * 3 * step->nodes * step->width;
        double *squares = step->squares + task * step->nodes;
        if (gradients != NULL) NAME(step_tile)(step, gradients, run, first, width, scratch, squares);
        else NAME(measure_tile)(step, run, first, width, squares);
    }
}

/* g = the mean over the batch of 2 X (X'x - Y); every row is X followed by Y. */
CLONES static void NAME(batch_gradient)(const REAL *restrict row, const REAL *restrict x, REAL *restrict g,
                                        Py_ssize_t batch, Py_ssize_t dim) {
    for (Py_ssize_t b = 0; b < batch; b++, row += dim + 1) {
        REAL factor = 2 * (NAME(dot)(row, x, dim) - row[dim]) / batch;
        if (b == 0)
            for (Py_ssize_t k = 0; k < dim; k++) g[k] = factor * row[k];
        else
            for (Py_ssize_t k = 0; k < dim; k++) g[k] += factor * row[k];
    }
}

static void NAME(least_squares)(const REAL *pairs, const REAL *points, REAL *gradients, Py_ssize_t runs, Py_ssize_t nodes,
                                Py_ssize_t batch, Py_ssize_t dim) {
#pragma omp parallel for schedule(static) num_threads(threads_for((double)runs * nodes * batch * dim))
    for (Py_ssize_t task = 0; task < runs * nodes; task++)
        NAME(batch_gradient)(pairs + task % nodes * batch * (dim + 1), points + task * dim, gradients + task * dim, batch, dim);
}
