"""The compiled part is optional: where there is no C compiler, everything works without it, more slowly."""

import sys
from pathlib import Path

import numpy as np
from setuptools import Extension, setup

OPENMP = ["-fopenmp"] if sys.platform == "linux" else []
ANY_ORDER = [
    "-fassociative-math",
    "-fno-signed-zeros",
    "-fno-trapping-math",
]  # of the terms of a sum, as vectors need it

setup(
    ext_modules=[
        Extension(
            "dnasa.compiled",
            ["src/dnasa/compiled.c"],
            depends=["src/dnasa/kernels.h"],
            include_dirs=[np.get_include()],
            library_dirs=[str(Path(np.__file__).parent / "random" / "lib")],
            libraries=["npyrandom", "m"],
            extra_compile_args=["-O3", "-funroll-loops", *ANY_ORDER, *OPENMP],
            extra_link_args=OPENMP,
            optional=True,
        )
    ]
)
