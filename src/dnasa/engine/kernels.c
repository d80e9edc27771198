/* The compiled parts of fused.py, randomness.py and problems/least_squares.py.

   Arrays come as buffers, in one piece; that they have the sizes named is the care of whoever hands them over. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <numpy/random/bitgen.h>
#include <numpy/random/distributions.h>
#ifdef _OPENMP
#include <omp.h>
#include <pthread.h>
#define THREAD omp_get_thread_num()
#define MOST_THREADS (forked ? 1 : omp_get_max_threads())
#else
#define THREAD 0
#define MOST_THREADS 1
#endif

static int forked = 0; /* OpenMP's threads do not follow into a forked process, and it would wait for them */

enum {
    WORTH_THREADS = 1 << 15, /* numbers in an array from which on more than one core is worth waking */
    NARROW = 32              /* columns of a tile up to which starting a loop costs more than running it */
};

static int threads_for(Py_ssize_t numbers) { return numbers < WORTH_THREADS ? 1 : MOST_THREADS; }

typedef struct {
    void *x, *u, *z;                      /* (runs, nodes, dim) */
    const void *v, *g;                    /* the last gradient and this one */
    const double *eta, *alpha;            /* of each run */
    double *lengths;                      /* |z| of each node, before and after */
    const int *starts, *neighbours;       /* W row by row, its neighbours in threes */
    const void *weights;
    void *drafts;                         /* room for three arrays of (nodes, width) for each thread */
    double *squares;                      /* room for (runs, tiles, nodes) */
    Py_ssize_t runs, nodes, dim, width, threads;
    int normalised, wide;
} Job;

#define REAL float
#define NAME(what) what##_float
#include "kernels.h"
#undef REAL
#undef NAME
#define REAL double
#define NAME(what) what##_double
#include "kernels.h"

static int all_zero(const char *bytes, size_t count) {
    return count == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, count - 1) == 0);
}

/* Whether all lengths are to be trusted: none so small or large that its square leaves the range of the numbers. */
static int add_up(const Job *job) {
    long tiles = (job->dim + job->width - 1) / job->width;
    double low = job->wide ? 1e-140 : 1e-12, high = job->wide ? 1e140 : 1e15;
    int ordinary = 1;
    for (long run = 0; run < job->runs; run++)
        for (long i = 0; i < job->nodes; i++) {
            double sum = 0;
            for (long tile = 0; tile < tiles; tile++) sum += job->squares[(run * tiles + tile) * job->nodes + i];
            double length = job->lengths[run * job->nodes + i] = sqrt(sum);
            size_t size = job->dim * (job->wide ? sizeof(double) : sizeof(float));
            int zero = length == 0 && all_zero((const char *)job->z + (run * job->nodes + i) * size, size);
            ordinary &= zero || !(length < low || length > high);
        }
    return ordinary;
}

enum { ARRAYS = 11 };

typedef struct {
    Job job;
    Py_buffer held[ARRAYS];
} Work;

static void release(PyObject *capsule) {
    Work *work = PyCapsule_GetPointer(capsule, NULL);
    for (int i = 0; i < ARRAYS; i++) PyBuffer_Release(work->held + i); /* those never taken are NULL, and left alone */
    PyMem_Free(work);
}

static PyObject *prepare(PyObject *self, PyObject *args) {
    Work *work = PyMem_Calloc(1, sizeof(Work));
    if (work == NULL) return PyErr_NoMemory();
    Job *job = &work->job;
    Py_buffer *at = work->held;
    PyObject *capsule = PyCapsule_New(work, NULL, release);
    if (capsule == NULL || !PyArg_ParseTuple(args, "w*w*w*w*w*w*y*y*y*w*w*nnnnpp", at, at + 1, at + 2, at + 3, at + 4, at + 5, at + 6,
                                             at + 7, at + 8, at + 9, at + 10, &job->runs, &job->nodes, &job->dim, &job->width,
                                             &job->normalised, &job->wide)) {
        memset(at, 0, sizeof work->held); /* what was taken of a bad list has been given back already */
        Py_XDECREF(capsule);
        return NULL;
    }
    job->x = at[0].buf, job->u = at[1].buf, job->z = at[2].buf;
    job->eta = at[3].buf, job->alpha = at[4].buf, job->lengths = at[5].buf;
    job->starts = at[6].buf, job->neighbours = at[7].buf, job->weights = at[8].buf;
    job->drafts = at[9].buf, job->squares = at[10].buf;
    job->threads = at[9].len / (3 * job->nodes * job->width * (job->wide ? sizeof(double) : sizeof(float)));
    return capsule;
}

static PyObject *run(Job *job, int stepping) {
    int ordinary;
    Py_BEGIN_ALLOW_THREADS
    (job->wide ? run_double : run_float)(job, stepping);
    ordinary = add_up(job);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(ordinary);
}

static PyObject *step(PyObject *self, PyObject *args) {
    PyObject *capsule;
    Py_buffer v, g;
    if (!PyArg_ParseTuple(args, "Oy*y*", &capsule, &v, &g)) return NULL;
    Work *work = PyCapsule_GetPointer(capsule, NULL);
    PyObject *ordinary = NULL;
    if (work != NULL) {
        work->job.v = v.buf, work->job.g = g.buf;
        ordinary = run(&work->job, 1);
    }
    PyBuffer_Release(&v);
    PyBuffer_Release(&g);
    return ordinary;
}

static PyObject *measure(PyObject *self, PyObject *capsule) {
    Work *work = PyCapsule_GetPointer(capsule, NULL);
    return work == NULL ? NULL : run(&work->job, 0);
}

static PyObject *least_squares(PyObject *self, PyObject *args) {
    Py_buffer pairs, x, g;
    Py_ssize_t runs, nodes, batch, dim;
    int wide;
    if (!PyArg_ParseTuple(args, "y*y*w*nnnnp", &pairs, &x, &g, &runs, &nodes, &batch, &dim, &wide)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (wide) least_squares_double(pairs.buf, x.buf, g.buf, runs, nodes, batch, dim);
    else least_squares_float(pairs.buf, x.buf, g.buf, runs, nodes, batch, dim);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&pairs);
    PyBuffer_Release(&x);
    PyBuffer_Release(&g);
    Py_RETURN_NONE;
}

/* NumPy's SFC64, many streams of it: each from its own four words, as randomness.py makes them. */
typedef struct {
    uint64_t a, b, c, counter;
    int has_half;
    uint32_t half;
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
    if ((s->has_half = !s->has_half)) {
        uint64_t both = next_64(state);
        s->half = both >> 32;
        return (uint32_t)both;
    }
    return s->half;
}

static double next_unit(void *state) { return (next_64(state) >> 11) * (1.0 / 9007199254740992.0); }

static PyObject *normals(PyObject *self, PyObject *args) {
    Py_buffer words, out;
    Py_ssize_t streams, length;
    int wide;
    if (!PyArg_ParseTuple(args, "y*w*nnp", &words, &out, &streams, &length, &wide)) return NULL;
    Py_ssize_t size = out.len ? out.len / (streams * length) : 0;
    Py_BEGIN_ALLOW_THREADS
#pragma omp parallel for schedule(static) num_threads(threads_for(streams * length * size / 8))
    for (Py_ssize_t i = 0; i < streams; i++) {
        const uint64_t *word = (const uint64_t *)words.buf + 4 * i;
        Stream stream = {word[0], word[1], word[2], word[3], 0, 0};
        bitgen_t bits = {&stream, next_64, next_32, next_unit, next_64};
        for (Py_ssize_t t = 0; t < length; t++) {
            void *to = (char *)out.buf + (t * streams + i) * size;
            if (wide) random_standard_normal_fill(&bits, size / sizeof(double), to);
            else random_standard_normal_fill_f(&bits, size / sizeof(float), to);
        }
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&words);
    PyBuffer_Release(&out);
    Py_RETURN_NONE;
}

static PyObject *threads(PyObject *self, PyObject *numbers) {
    Py_ssize_t count = PyLong_AsSsize_t(numbers);
    return PyErr_Occurred() ? NULL : PyLong_FromLong(threads_for(count));
}

#ifdef _OPENMP
static void in_child(void) { forked = 1; }
#endif

static PyMethodDef methods[] = {
    {"prepare", prepare, METH_VARARGS, "All that stays the same from step to step."},
    {"step", step, METH_VARARGS, "Take a step in place; whether the next can divide by |z|."},
    {"measure", measure, METH_O, "Measure |z| exactly as a step does, no more."},
    {"least_squares", least_squares, METH_VARARGS, "Fill g with the gradients at x."},
    {"normals", normals, METH_VARARGS, "Fill (length, streams, ...) with what each stream draws, step by step."},
    {"threads", threads, METH_O, "How many threads arrays of so many numbers are worth."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "compiled", NULL, -1, methods};
PyMODINIT_FUNC PyInit_compiled(void) {
#ifdef _OPENMP
    pthread_atfork(NULL, NULL, in_child);
#endif
    return PyModule_Create(&module);
}
