"""Builds the optional extension `dnasa.compiled`: without a C compiler everything works, more slowly."""

import sys
from pathlib import Path

import numpy as np
from setuptools import Extension, setup

OPENMP = ["-fopenmp"] if sys.platform == "linux" else []
# Sums may be reordered, which vectorizing them requires.
REORDER_SUMS = ["-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math"]
# Vectorizing a square root requires that it does not report errors.
PLAIN_ROOTS = ["-fno-math-errno"]

setup(
    ext_modules=[
        Extension(
            "dnasa.compiled",
            ["src/dnasa/engine/kernels.c"],
            depends=["src/dnasa/engine/kernels.h"],
            include_dirs=[np.get_include()],
            library_dirs=[str(Path(np.__file__).parent / "random" / "lib")],
            libraries=["npyrandom", "m"],
            extra_compile_args=["-O3", "-funroll-loops", *REORDER_SUMS, *PLAIN_ROOTS, *OPENMP],
            extra_link_args=OPENMP,
            optional=True,
        )
    ]
)
