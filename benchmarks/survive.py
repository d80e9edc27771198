"""MNIST on 8 real MPI processes, two of which are killed, against undisturbed runs.

    DNASA_DATA=... python -m benchmarks.survive

Starts `mpirun --with-ft ulfm -n 8 dnasa train --data mnist --survive`, kills rank 2 after the first quarter of the steps and
rank 5 after half of them (SIGKILL), and lets the others finish. Then two undisturbed runs, simulated: of the 6 remaining
nodes with their data alone, and of all 8.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from dnasa import topology
from dnasa.data import load, partition
from dnasa.engine.loop import solve
from dnasa.runs.result import Result
from dnasa.tasks import tasks

STEPS, KILLED = 1000, {250: 2, 500: 5}  # rank by step
BIN = Path(sys.executable).parent


def rank_of(pid: str) -> str | None:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    if b"--survive" not in words or b"mpirun" in words or b"prterun" in words:
        return None
    return next((v.split(b"=")[1].decode() for v in variables if v.startswith(b"OMPI_COMM_WORLD_RANK=")), None)


def killed_run(folder: Path) -> Result:
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    mpirun = [str(BIN / "mpirun"), "--with-ft", "ulfm", "--oversubscribe", *root, "-n", "8"]
    words = f"train --data mnist --steps {STEPS} --evaluate 250 --survive --timeout 120 --out {folder}".split()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*mpirun, str(BIN / "dnasa"), *words], env=environment, stderr=subprocess.DEVNULL)
    pending = dict(KILLED)
    while process.poll() is None:
        history = folder / "history.csv"
        reached = len(history.read_text().splitlines()) - 2 if history.exists() else -1
        for step in [step for step in pending if 250 * reached >= step]:
            time.sleep(2)  # so that it dies during the following steps
            rank = str(pending.pop(step))
            process_id = next(pid for pid in os.listdir("/proc") if pid.isdigit() and rank_of(pid) == rank)
            os.kill(int(process_id), signal.SIGKILL)
            print(f"killed rank {rank} after step {step}", flush=True)
        time.sleep(0.2)
    assert process.returncode == 0
    return Result.load(folder)


def undisturbed_accuracy(nodes: list[int]) -> float:
    rows = load("mnist")
    shards: list[np.ndarray] = partition("iid", rows.labels, 8)
    lost = [node for node in range(8) if node not in nodes]
    graph = topology.without(topology.ring(8), lost) if lost else topology.ring(8)
    problem = tasks.on_shards(rows, [shards[node] for node in nodes])
    return float(solve(problem, graph, steps=STEPS, evaluate=[STEPS]).final().test_accuracy.iloc[0])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        result = killed_run(Path(folder) / "run")
    lost = ", ".join(f"node {loss['nodes'][0]} at step {loss['step']}" for loss in result.settings["lost"])
    remaining = [n for n in range(8) if n not in KILLED.values()]
    print(f"8 processes, two killed ({lost}): {100 * result.final().test_accuracy.iloc[0]:.2f} %")
    print(f"undisturbed, the 6 remaining nodes: {100 * undisturbed_accuracy(remaining):.2f} %")
    print(f"undisturbed, all 8: {100 * undisturbed_accuracy(list(range(8))):.2f} %")


if __name__ == "__main__":
    main()
