"""A CSV of a million rows: the time and memory of `data.load` against those of pandas.read_csv alone, in one run.

`python -m benchmarks.tables` writes the file into a temporary folder; `--rows` and `--columns` change its size. Each side is a
process of its own, so that its peak memory is its own.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

REPEATS = 3


def write(path: Path, rows: int, columns: int) -> None:
    import pandas as pd

    generator = np.random.default_rng(0)
    for first in range(0, rows, 100_000):
        part = generator.standard_normal((min(100_000, rows - first), columns))
        frame = pd.DataFrame(part, columns=[f"x{j}" for j in range(columns)]).assign(kind=part[:, 0] > 0)
        frame.to_csv(path, index=False, mode="a", header=not first, float_format="%.6g")


def read(how: str, path: str) -> None:
    """In a process of its own: seconds and peak memory, without that of the imports."""
    import pandas as pd

    from dnasa import data

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    result = pd.read_csv(path) if how == "pandas" else data.load(path, "kind")
    seconds = time.perf_counter() - began
    megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert len(result)
    print(seconds, megabytes)


def measure(how: str, path: Path) -> tuple[float, float]:
    command = [sys.executable, "-m", "benchmarks.tables", "--read", how, str(path)]
    seconds, megabytes = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(seconds), float(megabytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--read", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        return read(*given.read)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        write(path, given.rows, given.columns)
        print(f"{given.rows:,} rows, {given.columns} columns of numbers, {path.stat().st_size / 1e6:,.0f} MB")
        pairs = [(measure("pandas", path), measure("dnasa", path)) for _ in range(REPEATS)]
    theirs, ours = (
        [statistics.median(column) for column in zip(*side, strict=True)] for side in zip(*pairs, strict=True)
    )
    print(f"pandas.read_csv  {theirs[0]:.2f} s, {theirs[1]:,.0f} MB")
    print(f"dnasa.data.load  {ours[0]:.2f} s, {ours[1]:,.0f} MB")
    print(f"ratio            {ours[0] / theirs[0]:.2f}    {ours[1] / theirs[1]:.2f}")


if __name__ == "__main__":
    main()
