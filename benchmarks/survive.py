"""MNIST on 8 real MPI processes, two of which are killed; against runs that nobody disturbs.

    DNASA_DATA=... python -m benchmarks.survive

Starts `mpirun --with-ft ulfm -n 8 dnasa train --data mnist --survive`, kills rank 2 after the first quarter of the steps and
rank 5 after half of them (SIGKILL), and lets the others finish. Then two undisturbed runs, simulated: of the 6 nodes that were
left, with their data alone, and of all 8.
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
from dnasa.experiments import tasks
from dnasa.records import Result
from dnasa.solve import solve

STEPS, VICTIMS = 1000, {250: 2, 500: 5}
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


def disturbed(folder: Path) -> Result:
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    mpirun = [str(BIN / "mpirun"), "--with-ft", "ulfm", "--oversubscribe", *root, "-n", "8"]
    words = f"train --data mnist --steps {STEPS} --evaluate 250 --survive --timeout 120 --out {folder}".split()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*mpirun, str(BIN / "dnasa"), *words], env=environment, stderr=subprocess.DEVNULL)
    waiting = dict(VICTIMS)
    while process.poll() is None:
        history = folder / "history.csv"
        reached = len(history.read_text().splitlines()) - 2 if history.exists() else -1
        for step in [step for step in waiting if 250 * reached >= step]:
            time.sleep(2)  # somewhere in the middle of the steps that follow
            victim = next(pid for pid in os.listdir("/proc") if pid.isdigit() and rank_of(pid) == str(waiting[step]))
            os.kill(int(victim), signal.SIGKILL)
            print(f"killed rank {waiting.pop(step)} after step {step}", flush=True)
        time.sleep(0.2)
    assert process.returncode == 0
    return Result.load(folder)


def undisturbed(nodes: list[int]) -> float:
    rows = load("mnist")
    shards: list[np.ndarray] = partition("iid", rows.labels, 8)
    graph = (
        topology.without(topology.ring(8), [n for n in range(8) if n not in nodes])
        if len(nodes) < 8
        else topology.ring(8)
    )
    problem = tasks.on_shards(rows, [shards[node] for node in nodes])
    return float(solve(problem, graph, steps=STEPS, evaluate=[STEPS]).final().test_accuracy.iloc[0])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        result = disturbed(Path(folder) / "run")
    lost = ", ".join(f"node {loss['nodes'][0]} at step {loss['step']}" for loss in result.settings["lost"])
    left = [n for n in range(8) if n not in VICTIMS.values()]
    print(f"8 processes, two killed ({lost}): {100 * result.final().test_accuracy.iloc[0]:.2f} %")
    print(f"undisturbed, the 6 that were left: {100 * undisturbed(left):.2f} %")
    print(f"undisturbed, all 8: {100 * undisturbed(list(range(8))):.2f} %")


if __name__ == "__main__":
    main()
