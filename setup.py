"""Builds the optional extension `dnasa.compiled`: without a C compiler everything works, more slowly."""

import platform
import sys
from pathlib import Path

import numpy as np
from setuptools import Extension, setup

if sys.platform == "win32":
    FLAGS, MATH = ["/O2", "/std:c11"], []
else:
    # Vectorizing requires that square roots report no errors and that comparisons do not trap.
    # No -march=native: folders are shared between machines.
    FLAGS, MATH = ["-O3", "-funroll-loops", "-fno-math-errno", "-fno-trapping-math"], ["m"]
    if platform.machine() == "x86_64":  # not all of these processors have fused products, and all shall give the same bits
        FLAGS.append("-ffp-contract=off")
OPENMP = ["-fopenmp"] if sys.platform == "linux" else []

setup(
    ext_modules=[
        Extension(
            "dnasa.compiled",
            ["src/dnasa/engine/kernels.c"],
            depends=[f"src/dnasa/engine/{name}.h" for name in ("kernels", "radius", "residues")],
            include_dirs=[np.get_include()],
            library_dirs=[str(Path(np.__file__).parent / "random" / "lib")],
            libraries=["npyrandom", *MATH],
            extra_compile_args=[*FLAGS, *OPENMP],
            extra_link_args=OPENMP,
            optional=True,
        )
    ]
)
