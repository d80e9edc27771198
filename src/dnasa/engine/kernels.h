/* Included once for each kind of number (REAL).

   One step of D-NASA's family for all nodes of all runs, in place:

   x <- W[x - scale z]   u <- W[u + g - v]   z <- W[(1 - alpha) z + alpha (u + g - v)]

   Columns are taken a tile at a time: what the nodes would send stays in the nearest cache until it is mixed, and every
   array passes through memory once. Sums are made tile by tile, so that they do not depend on the number of threads. */

static void NAME(draft)(const REAL *restrict x, const REAL *restrict u, const REAL *restrict z, const REAL *restrict v,
                        const REAL *restrict g, REAL scale, REAL alpha, long width, REAL *restrict new_x,
                        REAL *restrict new_u, REAL *restrict new_z) {
    for (long k = 0; k < width; k++) {
        REAL tracked = u[k] + g[k] - v[k];
        new_x[k] = x[k] - scale * z[k];
        new_u[k] = tracked;
        new_z[k] = (1 - alpha) * z[k] + alpha * tracked;
    }
}

/* The weighted sum of a node's neighbours, three at a time; `node` is how far apart their numbers lie. */
static void NAME(mix)(REAL *restrict to, const REAL *from, const int *who, const REAL *weight, int count, long width,
                      long node) {
    for (int j = 0; j < count; j += 3) {
        const REAL *restrict a = from + who[j] * node, *restrict b = from + who[j + 1] * node;
        const REAL *restrict c = from + who[j + 2] * node;
        REAL wa = weight[j], wb = weight[j + 1], wc = weight[j + 2];
        if (j == 0)
            for (long k = 0; k < width; k++) to[k] = wa * a[k] + wb * b[k] + wc * c[k];
        else
            for (long k = 0; k < width; k++) to[k] += wa * a[k] + wb * b[k] + wc * c[k];
    }
}

static double NAME(squares)(const REAL *z, long width) {
    REAL sum = 0;
    for (long k = 0; k < width; k++) sum += z[k] * z[k];
    return sum;
}

static void NAME(tile)(const Job *job, long run, long first, long width, REAL *draft, double *squares) {
    long at = run * job->nodes * job->dim + first;
    int narrow = width <= NARROW; /* then the three drafts of a node lie together, and one sum mixes them */
    long node = narrow ? 3 * width : width, apart = narrow ? width : job->nodes * width;
    REAL *x = (REAL *)job->x + at, *u = (REAL *)job->u + at, *z = (REAL *)job->z + at;
    const REAL *v = (const REAL *)job->v + at, *g = (const REAL *)job->g + at, *weights = job->weights;
    double eta = job->eta[run], *length = job->lengths + run * job->nodes;
    for (long i = 0, row = 0; i < job->nodes; i++, row += job->dim) {
        double scale = !job->normalised ? eta : length[i] == 0 ? 0 : eta / length[i]; /* z/|z| is 0 where z is */
        REAL *to = draft + i * node;
        NAME(draft)(x + row, u + row, z + row, v + row, g + row, scale, job->alpha[run], width, to, to + apart, to + 2 * apart);
    }
    for (long i = 0, row = 0; i < job->nodes; i++, row += job->dim) {
        int begin = job->starts[i], count = job->starts[i + 1] - begin;
        const int *who = job->neighbours + begin;
        if (narrow) {
            REAL mixed[3 * NARROW];
            NAME(mix)(mixed, draft, who, weights + begin, count, node, node);
            memcpy(x + row, mixed, width * sizeof(REAL));
            memcpy(u + row, mixed + width, width * sizeof(REAL));
            memcpy(z + row, mixed + 2 * width, width * sizeof(REAL));
        } else {
            NAME(mix)(x + row, draft, who, weights + begin, count, width, node);
            NAME(mix)(u + row, draft + apart, who, weights + begin, count, width, node);
            NAME(mix)(z + row, draft + 2 * apart, who, weights + begin, count, width, node);
        }
        squares[i] = NAME(squares)(z + row, width);
    }
}

static void NAME(measure)(const Job *job, long run, long first, long width, REAL *draft, double *squares) {
    const REAL *z = (const REAL *)job->z + run * job->nodes * job->dim + first;
    for (long i = 0; i < job->nodes; i++) squares[i] = NAME(squares)(z + i * job->dim, width);
}

static void NAME(run)(const Job *job, int stepping) {
    long tiles = (job->dim + job->width - 1) / job->width, tasks = job->runs * tiles;
#pragma omp parallel for schedule(static) num_threads(forked ? 1 : job->threads)
    for (long task = 0; task < tasks; task++) {
        long first = task % tiles * job->width, width = job->dim - first < job->width ? job->dim - first : job->width;
        REAL *draft = (REAL *)job->drafts + THREAD * 3 * job->nodes * job->width;
        (stepping ? NAME(tile) : NAME(measure))(job, task / tiles, first, width, draft, job->squares + task * job->nodes);
    }
}

/* g = the mean over the batch of 2 X (X'x - Y); every row of `pairs` is X with Y behind it. */
static void NAME(least_squares)(const REAL *pairs, const REAL *at, REAL *gradients, long runs, long nodes, long batch, long dim) {
#pragma omp parallel for schedule(static) num_threads(threads_for(runs * nodes * batch * dim))
    for (long task = 0; task < runs * nodes; task++) {
        const REAL *x = at + task * dim, *rows = pairs + task % nodes * batch * (dim + 1);
        REAL *restrict g = gradients + task * dim;
        for (long b = 0; b < batch; b++) {
            const REAL *restrict row = rows + b * (dim + 1);
            REAL residual = 0;
            for (long k = 0; k < dim; k++) residual += row[k] * x[k];
            REAL factor = 2 * (residual - row[dim]) / batch;
            if (b == 0)
                for (long k = 0; k < dim; k++) g[k] = factor * row[k];
            else
                for (long k = 0; k < dim; k++) g[k] += factor * row[k];
        }
    }
}
