/* The extension module dnasa.compiled: kernels for fused.py, randomness.py, channels/modular.py
   and problems/least_squares.py.

   Arrays are passed as buffers. One that is not contiguous, of another type or of another length than the sizes say raises
   ValueError. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <float.h>
#include <math.h>
#include <numpy/random/bitgen.h>
#include <numpy/random/distributions.h>
#ifdef _OPENMP
#include <omp.h>
#include <pthread.h>
#define THREAD omp_get_thread_num()
#define MAX_THREADS (forked ? 1 : omp_get_max_threads())
#else
#define THREAD 0
#define MAX_THREADS 1
#endif

/* On x86-64 the functions with loops are compiled for several instruction sets, and the processor's is chosen at run time.
   All give the same bits: sums have a fixed order, and there no product is fused with a sum (-ffp-contract=off). */
#ifndef CLONES
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif
#endif
#ifdef __GNUC__
#define INLINE static inline __attribute__((always_inline)) /* into each clone of its caller */
#else
#define INLINE static inline
#endif

static int forked = 0; /* OpenMP's threads do not exist in a forked process, which would wait for them forever */

enum {
    MIN_PARALLEL_SIZE = 1 << 15, /* numbers below which one thread is faster than several */
    NARROW_TILE = 32             /* columns up to which the overhead of a loop exceeds its work */
};

#define LANES (64 / (int)sizeof(REAL)) /* partial sums of a sum, as many as the widest vectors have numbers */

static int threads_for(double numbers) { return numbers < MIN_PARALLEL_SIZE ? 1 : MAX_THREADS; }

typedef enum { PLAIN, NORMALIZED, SCALED, KINDS } Kind; /* D-ASAGT, D-NASA, AdaNASA */

typedef struct {
    void *x, *u, *z, *v;            /* (runs, nodes, dim); AdaNASA's x, y, m and z */
    const double *eta;              /* (runs, nodes) */
    const double *alpha, *beta;     /* (runs,) */
    double *norms;                  /* |z|, (runs, nodes) */
    const int *starts, *neighbours; /* W in CSR form, rows padded to multiples of three entries */
    const void *weights;
    void *scratch;                  /* (threads, 3, nodes, width) */
    double *squares;                /* (runs, tiles, nodes) */
    Py_ssize_t runs, nodes, dim, width, threads;
    int kind, is_double;
} Step;

typedef struct {
    const void *x, *y, *m, *z, *g;  /* (rows, dim) */
    const void *start, *step;       /* (rows, sample), (rows,) */
    void *S, *A, *scratch;          /* (rows, sample), (rows,), (rows, sample) */
    const double *beta;             /* (rows / nodes,) */
    Py_ssize_t nodes, dim, every, sample;
} Radius;

enum { CHUNK = 64 }; /* sampled coordinates that are gathered at a time */

static Py_ssize_t tiles_per_run(const Step *step) { return (step->dim + step->width - 1) / step->width; }

enum {
    PART = 64 * 256,   /* numbers of a thread's task */
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

#define REAL float
#define WORD uint32_t
#define SQRT sqrtf
#define FLOOR floorf
#define DIGITS 23
#define EPSILON FLT_EPSILON
#define WHOLE int32_t
#define NAME(what) what##_float
#include "kernels.h"
#include "radius.h"
#include "residues.h"
#undef REAL
#undef WORD
#undef SQRT
#undef FLOOR
#undef DIGITS
#undef EPSILON
#undef WHOLE
#undef NAME
#define REAL double
#define WORD uint64_t
#define SQRT sqrt
#define FLOOR floor
#define DIGITS 52
#define EPSILON DBL_EPSILON
#define WHOLE int64_t
#define NAME(what) what##_double
#include "kernels.h"
#include "radius.h"
#include "residues.h"
#undef WORD

/* ---------------------------------------------------------------- checked arguments */

/* The product of two sizes, or -1 where one is not positive or the arrays of such a size would not fit in memory. */
static Py_ssize_t product(Py_ssize_t a, Py_ssize_t b) {
    return a > 0 && b > 0 && a <= PY_SSIZE_T_MAX / 16 / b ? a * b : -1;
}

typedef struct {
    const char *name, *letters; /* the letters that the buffer protocol may give this type */
    Py_ssize_t size;
} Type;

static const Type FLOAT = {"float32", "f", sizeof(float)}, DOUBLE = {"float64", "d", sizeof(double)};
static const Type BYTE = {"uint8", "B", 1}, INT = {"int32", "il", sizeof(int)};
static const Type WORD = {"uint64", "LQ", sizeof(uint64_t)};

static const Type *real(int is_double) { return is_double ? &DOUBLE : &FLOAT; }

/* A contiguous buffer of numbers of this type; `flags` is 0 or PyBUF_WRITABLE. On failure the view is empty. */
static int get_array(PyObject *object, Py_buffer *view, const char *name, const Type *type, int flags) {
    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | flags) != 0) {
        PyErr_Format(PyExc_ValueError, "%s is not a contiguous%s array", name, flags ? " writable" : "");
        return 0;
    }
    const char *format = view->format;
    if (format && format[0] && !format[1] && strchr(type->letters, format[0]) && view->itemsize == type->size) return 1;
    PyErr_Format(PyExc_ValueError, "%s is not an array of %s", name, type->name);
    PyBuffer_Release(view);
    return 0;
}

/* The same, of exactly `count` numbers. */
static int get_sized(PyObject *object, Py_buffer *view, const char *name, const Type *type, int flags, Py_ssize_t count) {
    if (count < 0) {
        PyErr_Format(PyExc_ValueError, "the sizes of %s are not positive, or too large", name);
        return 0;
    }
    if (!get_array(object, view, name, type, flags)) return 0;
    if (view->len / type->size == count) return 1;
    PyErr_Format(PyExc_ValueError, "%s has %zd numbers instead of %zd", name, view->len / type->size, count);
    PyBuffer_Release(view);
    return 0;
}

static void release_all(Py_buffer *views, int count) {
    for (int i = 0; i < count; i++) PyBuffer_Release(views + i); /* does nothing for views that were never filled */
}

/* ---------------------------------------------------------------- steps */

static int all_zero(const char *bytes, size_t count) { return bytes[0] == 0 && memcmp(bytes, bytes + 1, count - 1) == 0; }

/* Norms from the sums of squares; whether all are exact: no square of theirs overflowed or underflowed. */
static int update_norms(const Step *step) {
    Py_ssize_t tiles = tiles_per_run(step);
    size_t row = step->dim * (step->is_double ? sizeof(double) : sizeof(float));
    double low = step->is_double ? 1e-140 : 1e-12, high = step->is_double ? 1e140 : 1e15;
    int safe = 1;
    for (Py_ssize_t run = 0; run < step->runs; run++)
        for (Py_ssize_t i = 0; i < step->nodes; i++) {
            double sum = 0;
            for (Py_ssize_t tile = 0; tile < tiles; tile++) sum += step->squares[(run * tiles + tile) * step->nodes + i];
            double norm = step->norms[run * step->nodes + i] = sqrt(sum);
            int zero = norm == 0 && all_zero((const char *)step->z + (run * step->nodes + i) * row, row);
            safe &= zero || !(norm < low || norm > high);
        }
    return safe;
}

enum { X, U, Z, V, ETA, ALPHA, BETA, NORMS, STARTS, NEIGHBOURS, WEIGHTS, SCRATCH, SQUARES, ARRAYS };

typedef struct {
    Step step;
    Py_buffer views[ARRAYS];
} Prepared;

static const char *PREPARED = "dnasa.compiled.prepared";

static void release_prepared(PyObject *capsule) {
    Prepared *prepared = PyCapsule_GetPointer(capsule, PREPARED);
    release_all(prepared->views, ARRAYS);
    PyMem_Free(prepared);
}

/* Whether the rows of W are complete, padded, and name existing nodes only. */
static int check_rows(const Step *step, Py_ssize_t entries) {
    const int *starts = step->starts;
    int good = starts[0] == 0;
    for (Py_ssize_t i = 0; good && i < step->nodes; i++)
        good = starts[i] < starts[i + 1] && (starts[i + 1] - starts[i]) % 3 == 0;
    for (Py_ssize_t j = 0; good && j < entries; j++) good = step->neighbours[j] >= 0 && step->neighbours[j] < step->nodes;
    if (!good) PyErr_SetString(PyExc_ValueError, "starts and neighbours are not the padded rows of a matrix of all nodes");
    return good;
}

static int get_state(Step *step, Py_buffer *views, PyObject **objects) {
    static const char *names[] = {"x", "u", "z", "v"};
    Py_ssize_t rows = product(step->runs, step->nodes), size = product(rows, step->dim);
    for (int i = X; i <= V; i++)
        if (!get_sized(objects[i], views + i, names[i], real(step->is_double), PyBUF_WRITABLE, size)) return 0;
    if (!get_sized(objects[ETA], views + ETA, "eta", &DOUBLE, 0, rows) ||
        !get_sized(objects[ALPHA], views + ALPHA, "alpha", &DOUBLE, 0, step->runs) ||
        !get_sized(objects[BETA], views + BETA, "beta", &DOUBLE, 0, step->runs))
        return 0;
    step->x = views[X].buf, step->u = views[U].buf, step->z = views[Z].buf, step->v = views[V].buf;
    step->eta = views[ETA].buf, step->alpha = views[ALPHA].buf, step->beta = views[BETA].buf;
    return 1;
}

static int get_weights(Step *step, Py_buffer *views, PyObject **objects) {
    if (!get_sized(objects[STARTS], views + STARTS, "starts", &INT, 0, step->nodes + 1)) return 0;
    step->starts = views[STARTS].buf;
    Py_ssize_t entries = step->starts[step->nodes];
    if (!get_sized(objects[NEIGHBOURS], views + NEIGHBOURS, "neighbours", &INT, 0, entries) ||
        !get_sized(objects[WEIGHTS], views + WEIGHTS, "weights", real(step->is_double), 0, entries))
        return 0;
    step->neighbours = views[NEIGHBOURS].buf, step->weights = views[WEIGHTS].buf;
    return check_rows(step, entries);
}

static int get_workspace(Step *step, Py_buffer *views, PyObject **objects) {
    if (step->kind < 0 || step->kind >= KINDS) {
        PyErr_SetString(PyExc_ValueError, "there is no such kind of step");
        return 0;
    }
    if (step->width < 1 || step->width > step->dim) {
        PyErr_SetString(PyExc_ValueError, "the width of a tile must be from 1 to dim");
        return 0;
    }
    Py_ssize_t rows = product(step->runs, step->nodes), share = product(product(step->nodes, step->width), 3);
    if (!get_sized(objects[NORMS], views + NORMS, "norms", &DOUBLE, PyBUF_WRITABLE, rows) ||
        !get_sized(objects[SQUARES], views + SQUARES, "squares", &DOUBLE, PyBUF_WRITABLE, product(rows, tiles_per_run(step))) ||
        !get_array(objects[SCRATCH], views + SCRATCH, "scratch", real(step->is_double), PyBUF_WRITABLE))
        return 0;
    step->norms = views[NORMS].buf, step->squares = views[SQUARES].buf, step->scratch = views[SCRATCH].buf;
    step->threads = share < 0 ? 0 : views[SCRATCH].len / real(step->is_double)->size / share;
    if (step->threads < 1) PyErr_SetString(PyExc_ValueError, "scratch is too small for one thread");
    return step->threads >= 1;
}

static PyObject *prepare(PyObject *self, PyObject *args) {
    Prepared *prepared = PyMem_Calloc(1, sizeof(Prepared));
    if (prepared == NULL) return PyErr_NoMemory();
    PyObject *capsule = PyCapsule_New(prepared, PREPARED, release_prepared);
    if (capsule == NULL) {
        PyMem_Free(prepared);
        return NULL;
    }
    Step *step = &prepared->step;
    PyObject *o[ARRAYS];
    if (PyArg_ParseTuple(args, "OOOOOOOOOOOOOnnnnip", o + X, o + U, o + Z, o + V, o + ETA, o + ALPHA, o + BETA, o + NORMS,
                         o + STARTS, o + NEIGHBOURS, o + WEIGHTS, o + SCRATCH, o + SQUARES, &step->runs, &step->nodes,
                         &step->dim, &step->width, &step->kind, &step->is_double) &&
        get_state(step, prepared->views, o) && get_weights(step, prepared->views, o) && get_workspace(step, prepared->views, o))
        return capsule;
    Py_DECREF(capsule);
    return NULL;
}

static PyObject *run(const Step *step, const void *gradients) {
    int safe;
    Py_BEGIN_ALLOW_THREADS
    if (step->is_double) all_tiles_double(step, gradients);
    else all_tiles_float(step, gradients);
    safe = step->kind != NORMALIZED || update_norms(step);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(safe);
}

static PyObject *step(PyObject *self, PyObject *args) {
    PyObject *capsule, *gradients;
    if (!PyArg_ParseTuple(args, "OO", &capsule, &gradients)) return NULL;
    Prepared *prepared = PyCapsule_GetPointer(capsule, PREPARED);
    if (prepared == NULL) return NULL;
    const Step *step = &prepared->step;
    Py_buffer g;
    if (!get_sized(gradients, &g, "g", real(step->is_double), 0, step->runs * step->nodes * step->dim)) return NULL;
    PyObject *safe = run(step, g.buf);
    PyBuffer_Release(&g);
    return safe;
}

static PyObject *measure(PyObject *self, PyObject *capsule) {
    Prepared *prepared = PyCapsule_GetPointer(capsule, PREPARED);
    return prepared == NULL ? NULL : run(&prepared->step, NULL);
}

/* ---------------------------------------------------------------- radius */

static PyObject *learn(PyObject *self, PyObject *args) {
    enum { X, Y, M, Z, G, START, STEP, BETA, S, A, SCRATCH, COUNT };
    PyObject *o[COUNT];
    Py_buffer v[COUNT] = {{0}};
    Py_ssize_t runs, nodes, dim, every;
    int is_double;
    if (!PyArg_ParseTuple(args, "OOOOOOOOOOOnnnnp", o + X, o + Y, o + M, o + Z, o + G, o + START, o + STEP, o + BETA, o + S,
                          o + A, o + SCRATCH, &runs, &nodes, &dim, &every, &is_double))
        return NULL;
    if (every < 1) {
        PyErr_SetString(PyExc_ValueError, "every must be positive");
        return NULL;
    }
    const Type *type = real(is_double);
    Py_ssize_t rows = product(runs, nodes), sample = dim > 0 ? (dim - 1) / every + 1 : 0, size = product(rows, sample);
    int good = get_sized(o[BETA], v + BETA, "beta", &DOUBLE, 0, runs);
    for (int k = X; good && k <= G; k++) good = get_sized(o[k], v + k, "an array of the state", type, 0, product(rows, dim));
    good = good && get_sized(o[START], v + START, "start", type, 0, size) &&
           get_sized(o[STEP], v + STEP, "step", type, 0, rows) && get_sized(o[S], v + S, "S", type, PyBUF_WRITABLE, size) &&
           get_sized(o[A], v + A, "A", type, PyBUF_WRITABLE, rows) &&
           get_sized(o[SCRATCH], v + SCRATCH, "scratch", type, PyBUF_WRITABLE, size);
    if (good) {
        Radius radius = {v[X].buf, v[Y].buf, v[M].buf,       v[Z].buf,    v[G].buf, v[START].buf, v[STEP].buf, v[S].buf,
                         v[A].buf, v[SCRATCH].buf, v[BETA].buf, nodes, dim,      every,        sample};
        Py_BEGIN_ALLOW_THREADS
        if (is_double) learn_double(&radius, rows);
        else learn_float(&radius, rows);
        Py_END_ALLOW_THREADS
    }
    release_all(v, COUNT);
    if (!good) return NULL;
    Py_RETURN_NONE;
}

/* ---------------------------------------------------------------- least squares */

static PyObject *least_squares(PyObject *self, PyObject *args) {
    PyObject *pairs, *x, *g;
    Py_buffer views[3] = {{0}};
    Py_ssize_t runs, nodes, batch, dim;
    int is_double;
    if (!PyArg_ParseTuple(args, "OOOnnnnp", &pairs, &x, &g, &runs, &nodes, &batch, &dim, &is_double)) return NULL;
    const Type *type = real(is_double);
    Py_ssize_t size = product(product(runs, nodes), dim);
    int good = get_sized(g, views, "g", type, PyBUF_WRITABLE, size) && get_sized(x, views + 1, "x", type, 0, size) &&
               get_sized(pairs, views + 2, "pairs", type, 0, product(product(nodes, batch), dim + 1));
    if (good) {
        Py_BEGIN_ALLOW_THREADS
        if (is_double) least_squares_double(views[2].buf, views[1].buf, views[0].buf, runs, nodes, batch, dim);
        else least_squares_float(views[2].buf, views[1].buf, views[0].buf, runs, nodes, batch, dim);
        Py_END_ALLOW_THREADS
    }
    release_all(views, 3);
    if (!good) return NULL;
    Py_RETURN_NONE;
}

/* ---------------------------------------------------------------- residues */

static int check_grid(const Grid *grid) {
    if (grid->bits == 4 || grid->bits == 8) return 1;
    PyErr_SetString(PyExc_ValueError, "numbers have codes of 4 or 8 bits");
    return 0;
}

static Py_ssize_t payload_size(Py_ssize_t rows, Py_ssize_t width, int bits) {
    return product(rows, width) < 0 ? -1 : rows * (spaced_blocks(width) + packed_bytes(width, bits));
}

static PyObject *encode_residues(PyObject *self, PyObject *args) {
    PyObject *numbers, *seen, *payloads;
    Py_buffer views[3] = {{0}};
    Py_ssize_t rows, width;
    Grid grid;
    int is_double;
    if (!PyArg_ParseTuple(args, "OOOnniddp", &numbers, &seen, &payloads, &rows, &width, &grid.bits, &grid.offset, &grid.factor,
                          &is_double) ||
        !check_grid(&grid))
        return NULL;
    const Type *type = real(is_double);
    int good = get_sized(numbers, views, "numbers", type, 0, product(rows, width)) &&
               get_sized(seen, views + 1, "seen", type, 0, product(rows, spaced_blocks(width))) &&
               get_sized(payloads, views + 2, "payloads", &BYTE, PyBUF_WRITABLE, payload_size(rows, width, grid.bits));
    if (good) {
        Py_BEGIN_ALLOW_THREADS
        if (is_double) encode_residues_double(views[0].buf, views[1].buf, views[2].buf, rows, width, &grid);
        else encode_residues_float(views[0].buf, views[1].buf, views[2].buf, rows, width, &grid);
        Py_END_ALLOW_THREADS
    }
    release_all(views, 3);
    if (!good) return NULL;
    Py_RETURN_NONE;
}

static PyObject *mix_residues(PyObject *self, PyObject *args) {
    enum { NUMBERS, OWN, THEIRS, FACTORS, OUT, SEEN, COUNT };
    PyObject *o[COUNT];
    Py_buffer views[COUNT] = {{0}};
    Py_ssize_t runs, nodes, width;
    Grid grid;
    int is_double;
    if (!PyArg_ParseTuple(args, "OOOOOOnnniddp", o + NUMBERS, o + OWN, o + THEIRS, o + FACTORS, o + OUT, o + SEEN, &runs,
                          &nodes, &width, &grid.bits, &grid.offset, &grid.factor, &is_double) ||
        !check_grid(&grid))
        return NULL;
    const Type *type = real(is_double);
    Py_ssize_t rows = product(runs, nodes), count = product(rows, width), size = payload_size(rows, width, grid.bits);
    int good = get_sized(o[NUMBERS], views + NUMBERS, "numbers", type, 0, count) &&
               get_sized(o[OWN], views + OWN, "own", &BYTE, 0, size) &&
               get_sized(o[THEIRS], views + THEIRS, "theirs", &BYTE, 0, size) &&
               get_sized(o[FACTORS], views + FACTORS, "weights", type, 0, nodes) &&
               get_sized(o[OUT], views + OUT, "out", type, PyBUF_WRITABLE, count) &&
               get_sized(o[SEEN], views + SEEN, "seen", type, PyBUF_WRITABLE, product(rows, spaced_blocks(width)));
    if (good) {
        Py_BEGIN_ALLOW_THREADS
        if (is_double)
            mix_residues_double(views[NUMBERS].buf, views[OWN].buf, views[THEIRS].buf, views[FACTORS].buf, views[OUT].buf,
                                views[SEEN].buf, rows, nodes, width, &grid);
        else
            mix_residues_float(views[NUMBERS].buf, views[OWN].buf, views[THEIRS].buf, views[FACTORS].buf, views[OUT].buf,
                               views[SEEN].buf, rows, nodes, width, &grid);
        Py_END_ALLOW_THREADS
    }
    release_all(views, COUNT);
    if (!good) return NULL;
    Py_RETURN_NONE;
}

/* ---------------------------------------------------------------- random numbers */

/* NumPy's SFC64: many streams, each started from the four words that randomness.py derives. */
typedef struct {
    uint64_t a, b, c, counter;
    int has_uint32;
    uint32_t uinteger;
} Stream;

static uint64_t next_64(void *state) {
    Stream *s = state;
    uint64_t out = s->a + s->b + s->counter++;
    s->a = s->b ^ (s->b >> 11);
    s->b = s->c + (s->c << 3);
    s->c = (s->c << 24 | s->c >> 40) + out;
    return out;
}

static uint32_t next_32(void *state) {
    Stream *s = state;
    if ((s->has_uint32 = !s->has_uint32)) {
        uint64_t both = next_64(state);
        s->uinteger = both >> 32;
        return (uint32_t)both;
    }
    return s->uinteger;
}

static double next_uniform(void *state) { return (next_64(state) >> 11) * (1.0 / 9007199254740992.0); }

/* `out` is (length, streams, size); `words` become the states after the draws. */
static void draw_normals(uint64_t *words, void *out, Py_ssize_t streams, Py_ssize_t length, Py_ssize_t size,
                         int is_double) {
#pragma omp parallel for schedule(static) num_threads(threads_for((double)streams * length * size))
    for (Py_ssize_t i = 0; i < streams; i++) {
        uint64_t *word = words + 4 * i;
        Stream stream = {word[0], word[1], word[2], word[3], 0, 0};
        bitgen_t bits = {&stream, next_64, next_32, next_uniform, next_64};
        for (Py_ssize_t t = 0; t < length; t++) {
            Py_ssize_t offset = (t * streams + i) * size;
            if (is_double) random_standard_normal_fill(&bits, size, (double *)out + offset);
            else random_standard_normal_fill_f(&bits, size, (float *)out + offset);
        }
        word[0] = stream.a, word[1] = stream.b, word[2] = stream.c, word[3] = stream.counter;
    }
}

static PyObject *normals(PyObject *self, PyObject *args) {
    PyObject *words, *out;
    Py_buffer views[2] = {{0}};
    Py_ssize_t streams, length;
    int is_double;
    if (!PyArg_ParseTuple(args, "OOnnp", &words, &out, &streams, &length, &is_double)) return NULL;
    Py_ssize_t samples = product(streams, length);
    int good = get_sized(words, views, "words", &WORD, PyBUF_WRITABLE, product(streams, 4)) &&
               get_array(out, views + 1, "out", real(is_double), PyBUF_WRITABLE);
    Py_ssize_t numbers = good ? views[1].len / real(is_double)->size : 0;
    if (good && (samples < 0 || numbers % samples != 0)) {
        PyErr_Format(PyExc_ValueError, "out has %zd numbers, not a multiple of streams x length", numbers);
        good = 0;
    }
    if (good) {
        Py_BEGIN_ALLOW_THREADS
        draw_normals(views[0].buf, views[1].buf, streams, length, numbers / samples, is_double);
        Py_END_ALLOW_THREADS
    }
    release_all(views, 2);
    if (!good) return NULL;
    Py_RETURN_NONE;
}

/* ---------------------------------------------------------------- module */

static PyObject *threads(PyObject *self, PyObject *numbers) {
    Py_ssize_t count = PyLong_AsSsize_t(numbers);
    return PyErr_Occurred() ? NULL : PyLong_FromLong(threads_for(count));
}

#ifdef _OPENMP
static void after_fork_in_child(void) { forked = 1; }
#endif

static PyMethodDef methods[] = {
    {"prepare", prepare, METH_VARARGS, "Check the arrays of a state and hold them for the steps to come."},
    {"step", step, METH_VARARGS, "Take a step in place; whether the next one can divide by |z|, if it has to."},
    {"measure", measure, METH_O, "Compute |z| exactly as a step does; whether a step can divide by it."},
    {"learn", learn, METH_VARARGS, "Add a step to what AdaNASA's radius is learned from."},
    {"least_squares", least_squares, METH_VARARGS, "Fill g with the gradients at x."},
    {"encode_residues", encode_residues, METH_VARARGS, "Fill payloads with the last bits of the numbers, rounded."},
    {"mix_residues", mix_residues, METH_VARARGS, "Fill out with the numbers, mixed with one neighbour of each row."},
    {"normals", normals, METH_VARARGS, "Fill (length, streams, ...) with standard normal numbers of each stream."},
    {"threads", threads, METH_O, "The number of threads used for arrays with this many numbers."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "compiled", NULL, -1, methods};
PyMODINIT_FUNC PyInit_compiled(void) {
#ifdef _OPENMP
    pthread_atfork(NULL, NULL, after_fork_in_child);
#endif
    return PyModule_Create(&module);
}
