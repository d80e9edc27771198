"""A run of five sites on one machine: messages of 16 bits, and secure summation without masks and with them.

OMP_NUM_THREADS=1 PYTHONPATH=tests/helpers:tests/jobs python benchmarks/masking.py
"""

import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

from local_sites import write_sites
from sklearn.datasets import load_digits
from torch import nn

import dnasa
from dnasa.networks import masks, sites  # noqa: F401 (imported once, not by each process on this machine's cores)

SITES, STEPS = 5, 100
KINDS: dict[str, dict[str, Any]] = {
    "16 bits": {"compress": "bfloat16"},
    "no masks": {"private": True},
    "masks": {"private": True},
}


def run(file: Path, kind: str, reports: Any) -> None:
    if kind == "no masks":
        masks.agreed = lambda rank, *_: masks.Masks(rank, {})
    digits = load_digits()
    shards = [range(node, 1500, SITES) for node in range(SITES)]
    problem = dnasa.problems.Classification(
        lambda: nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)),
        *(digits.data[:1500].astype("float32") / 16, digits.target[:1500], [list(rows) for rows in shards]),  # type: ignore[arg-type]
        *(digits.data[1500:].astype("float32") / 16, digits.target[1500:]),
        dtype="float32",
    )
    network = dnasa.connect(sites=file, **KINDS[kind])
    began = time.perf_counter()
    dnasa.solve(problem, network, "adanasa", steps=STEPS, evaluate=[STEPS], progress=False)
    reports.put((time.perf_counter() - began, network.processes.traffic.bytes / STEPS))


def main() -> None:
    fork = multiprocessing.get_context("fork")
    for kind in [*KINDS] * 3:
        with tempfile.TemporaryDirectory() as folder:
            reports: Any = fork.Queue()
            files = write_sites(Path(folder), SITES)
            processes = [fork.Process(target=run, args=(file, kind, reports), daemon=True) for file in files]
            for process in processes:
                process.start()
            seconds, size = reports.get(timeout=200)
            for process in processes:
                process.join()
            print(f"{kind}: {seconds:.1f} s, {size:,.0f} bytes sent per step", flush=True)


if __name__ == "__main__":
    main()
