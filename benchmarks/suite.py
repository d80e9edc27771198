"""The times that users wait, as ratios to lower bounds (floors) measured in the same run.

    python -m benchmarks.suite                 # a table, and benchmarks/results.json with the machine described
    python -m benchmarks.suite --check         # fails if a ratio is 30 % worse than in the committed results, or a goal lost

Ratios, because machines differ; medians of interleaved measurements, because noise then affects all equally.
"""

import argparse
import ctypes
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks import networks, update
from dnasa import topology
from dnasa.engine.loop import solve
from dnasa.problems import LeastSquares

RESULTS = Path(__file__).with_name("results.json")
WORSE = 1.3  # times the committed ratio: slower than that fails the check


class Row(NamedTuple):
    what: str
    floor: str
    seconds: float
    floor_seconds: float
    goal: float

    @property
    def ratio(self) -> float:
        return self.seconds / self.floor_seconds


def steps_on_networks() -> list[Row]:
    rows = []
    for name, rounds, goal in (("a9a network", 400, 1.4), ("LeNet", 25, 0.7)):
        problem = networks.make_problem(name)
        works = networks.forward_backward(problem), networks.dnasa_step(problem, 1)
        plain, one = networks.medians(*works, rounds=rounds)
        rows.append(Row(f"D-NASA step, {name}, 8 x 32", "shared-weight forward/backward of the 256 samples", one, plain, goal))
    return rows


def updates() -> list[Row]:
    rows = []
    for name, dim, calls, goal in (("LeNet size", 25_010, 40, 2.0), ("10 million parameters", 10_000_000, 1, 1.6)):
        taken = update.measure(dim, "cpu", calls)
        rows.append(Row(f"update and exchange, 8 nodes, {name}", "copy of the 8 arrays", taken["fused"], taken["copy"], goal))
    return rows


def compiled_loop() -> Callable[[int], None] | None:
    """The least-squares loop in C, or None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    source, target = Path(__file__).with_name("least_squares.c"), Path(tempfile.mkdtemp()) / "loop.so"
    libraries = Path(np.random.__file__).parent / "lib"
    include = [f"-I{np.get_include()}", f"-I{sysconfig.get_paths()['include']}"]
    flags = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC", *include]
    subprocess.run([compiler, *flags, str(source), "-o", str(target), f"-L{libraries}", "-lnpyrandom", "-lm"], check=True)
    library, bits = ctypes.CDLL(str(target)), np.random.SFC64(0)
    x, theta = np.zeros((20, 100)), np.ones(100)
    generator = ctypes.cast(bits.ctypes.bit_generator, ctypes.c_void_p)

    def run(steps: int, owner: Any = bits) -> None:  # the generator lives in the memory of `bits`
        arrays = [ctypes.c_void_p(a.ctypes.data) for a in (theta, x)]
        library.run(generator, 20, 100, steps, ctypes.c_double(0.1), *arrays)

    return run


def least_squares() -> list[Row]:
    loop = compiled_loop()
    if loop is None:
        return []
    rows = []
    for runs, steps, goal in ((1, 10_000, 1.5), (60, 400, 1.5)):
        taken = [(solve_seconds(steps, runs) - solve_seconds(64, runs), timed(loop, runs * 200)) for _ in range(5)]
        ours = statistics.median(whole for whole, _ in taken) / (steps - 64)
        floor = statistics.median(whole for _, whole in taken) / 200
        what = f"least squares, 20 nodes x 100, {runs} run{'s' * (runs > 1)}, a step with its samples"
        rows.append(Row(what, "the same loop in C, on one core", ours, floor, goal))
    return rows


def solve_seconds(steps: int, runs: int) -> float:
    return timed(solve, LeastSquares(), topology.ring(20), steps=steps, seed=range(runs), evaluate=[steps])


FIRST_STEP = """
import os, sys
from dnasa.cli import main
from dnasa.engine.run import Run
sys.argv[1:] = ["train", "--data", "mnist"]
Run._evaluate = lambda *args: os._exit(0)  # the first evaluation comes after the first step
main()
"""


LIBRARIES = "import numpy, scipy.sparse, networkx"
FIRST_FLOOR = f"""
import gzip, os
{LIBRARIES}, pandas, torch, typer
for name in ("train", "t10k"):
    packed = gzip.open(os.path.join(os.environ["DNASA_DATA"], "mnist", name + "-images-idx3-ubyte.gz"))
    pixels = numpy.frombuffer(packed.read(), numpy.uint8, offset=16).astype(numpy.float32)
    pixels /= 255
    pixels -= 0.1307
    pixels /= 0.3081
"""


def start_up() -> list[Row]:
    """Each command in turn with the imports and the reading that it needs, since the same machine is slower on some days."""
    commands = [
        ("import dnasa", ["-c", "import dnasa"], LIBRARIES, LIBRARIES, 0.5),
        ("dnasa --help", ["-m", "dnasa", "--help"], LIBRARIES, LIBRARIES, 1.2),
    ]
    if Path(os.environ.get("DNASA_DATA", ""), "mnist").is_dir():
        floor = "the imports, and reading and standardizing the images"
        commands.append(("dnasa train --data mnist, to the end of the first step", ["-c", FIRST_STEP], FIRST_FLOOR, floor, 1.3))
    rows = []
    for what, words, program, name, goal in commands:
        taken = [(python_seconds(*words), python_seconds("-c", program)) for _ in range(9)]
        ours, floor = (statistics.median(column) for column in zip(*taken, strict=True))
        rows.append(Row(what, name, ours, floor, goal))
    return rows


def python_seconds(*words: str) -> float:
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    return timed(subprocess.run, [sys.executable, *words], env=environment, capture_output=True, check=True)


def timed(work: Callable[..., object], *args: Any, **more: Any) -> float:
    began = time.perf_counter()
    work(*args, **more)
    return time.perf_counter() - began


def machine() -> dict[str, str]:
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def table(rows: list[Row]) -> str:
    lines = ["| what | floor | time | floor's time | ratio | goal | |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        met = "met" if row.ratio <= row.goal else "**missed**"
        times = f"{1e3 * row.seconds:.3g} ms | {1e3 * row.floor_seconds:.3g} ms"
        lines.append(f"| {row.what} | {row.floor} | {times} | {row.ratio:.2f} | {row.goal} | {met} |")
    return "\n".join(lines)


def check(rows: list[Row]) -> int:
    committed = {row["what"]: row["ratio"] for row in json.loads(RESULTS.read_text())["rows"]}
    known = [(row, committed[row.what]) for row in rows if row.what in committed]
    worse = [(row, before, before <= row.goal < row.ratio) for row, before in known if slower(row, before)]
    for row, before, lost in worse:
        goal = f" The goal of {row.goal} is lost." if lost else ""
        print(f"{row.what}: {row.ratio:.2f} times its floor, {before:.2f} in the committed results.{goal}")
    print("Slower than before." if worse else "No slower than before.")
    return 1 if worse else 0


def slower(row: Row, before: float) -> bool:
    """Much slower than the committed ratio, or a goal that was met is lost."""
    return row.ratio > WORSE * before or before <= row.goal < row.ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed results, and write nothing")
    chosen = parser.parse_args()
    rows = [*steps_on_networks(), *updates(), *least_squares(), *start_up()]
    print(table(rows))
    if chosen.check:
        return check(rows)
    saved = [row._asdict() | {"ratio": round(row.ratio, 3)} for row in rows]
    RESULTS.write_text(json.dumps({"machine": machine(), "rows": saved}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
