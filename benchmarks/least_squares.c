/* The same loop in compiled code: D-NASA on the paper's least squares, ring of n nodes, batch 1, sampling included.
   The normal numbers are NumPy's own (libnpyrandom), so that both draw alike. */
#include <math.h>
#include <numpy/random/bitgen.h>
#include <numpy/random/distributions.h>
#include <stdlib.h>
#include <string.h>

static void ring(const double *in, double *out, int n, int d) {
    for (int i = 0; i < n; i++) {
        const double *left = in + (long)((i + n - 1) % n) * d, *own = in + (long)i * d, *right = in + (long)((i + 1) % n) * d;
        double *to = out + (long)i * d;
        for (int k = 0; k < d; k++) to[k] = (left[k] + own[k] + right[k]) * (1.0 / 3.0);
    }
}

void run(bitgen_t *bits, int n, int d, int steps, double noise, const double *theta, double *x) {
    size_t size = (size_t)n * d * sizeof(double);
    double *u = calloc(1, size), *v = calloc(1, size), *z = calloc(1, size), *sample = malloc(d * sizeof(double));
    double *px = malloc(size), *pu = malloc(size), *pz = malloc(size);
    for (int t = 0; t < steps; t++) {
        double eta = t ? pow(n, 0.25) / pow(t, 0.75) : 0, alpha = t ? fmin(1, sqrt((double)n / t)) : 0;
        for (int i = 0; i < n; i++) {
            long at = (long)i * d;
            double residual = 0, length = 0;
            random_standard_normal_fill(bits, d, sample);
            for (int k = 0; k < d; k++) residual += sample[k] * (x[at + k] - theta[k]);
            residual -= noise * random_standard_normal(bits);
            for (int k = 0; k < d; k++) length += z[at + k] * z[at + k];
            double scale = length > 0 ? eta / sqrt(length) : 0;
            for (int k = 0; k < d; k++) {
                double g = 2 * residual * sample[k], tracked = u[at + k] + g - v[at + k];
                v[at + k] = g;
                px[at + k] = x[at + k] - scale * z[at + k];
                pu[at + k] = tracked;
                pz[at + k] = (1 - alpha) * z[at + k] + alpha * tracked;
            }
        }
        ring(px, x, n, d);
        ring(pu, u, n, d);
        ring(pz, z, n, d);
    }
    free(u); free(v); free(z); free(sample); free(px); free(pu); free(pz);
}
