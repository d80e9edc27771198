"""The compiled part is optional: where there is no C compiler, everything works without it, more slowly."""

import sys
from pathlib import Path

import numpy as np
from setuptools import Extension, setup

OPENMP = ["-fopenmp"] if sys.platform == "linux" else []

setup(
    ext_modules=[
        Extension(
            "dnasa.compiled",
            ["src/dnasa/compiled.c"],
            depends=["src/dnasa/kernels.h"],
            include_dirs=[np.get_include()],
            library_dirs=[str(Path(np.__file__).parent / "random" / "lib")],
            libraries=["npyrandom", "m"],
            extra_compile_args=["-O3", "-funroll-loops", *OPENMP],
            extra_link_args=OPENMP,
            optional=True,
        )
    ]
)
