"""Faults of MPI processes in a run that survives them: `python tests/jobs/mpi_faults.py 0 1 2`, for the trials of these seeds.

Every process knows the plan: which kind of fault happens at which step, and to whom. The survivors must reach the end.
"""

import ctypes
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from launching import ENVIRONMENT, MPIRUN, PATIENCE

from dnasa import solve, topology
from dnasa.core import Array, Network
from dnasa.problems import LeastSquares
from dnasa.runs.result import Result

APART = 40  # steps between two faults
TIMEOUT = 5.0
VICTIMS = {"abort": 0, "segfault": 1, "kill": 1, "stop": 1, "deadlock": 1, "two at once": 2, "in recovery": 2}


class Fault(NamedTuple):
    step: int
    kind: str
    ranks: list[int]  # for an abort, the one that revokes the communicator


def plan(seed: int, processes: int, kinds: list[str]) -> list[Fault]:
    """These kinds in random order, as far as processes last: one must remain."""
    rng = np.random.default_rng(seed)
    left, faults = list(range(processes)), list[Fault]()
    for kind in rng.permutation(kinds).tolist():
        if len(left) > VICTIMS[kind]:
            ranks = rng.choice(left, max(VICTIMS[kind], 1), replace=False).tolist()
            faults.append(Fault(APART * (len(faults) + 1) + int(rng.integers(10)), kind, ranks))
            left = left if kind == "abort" else [rank for rank in left if rank not in ranks]
    return faults


def trial(seed: int, processes: int = 8, kinds: list[str] | None = None) -> dict[str, float]:
    """The seconds from each fault until all survivors have continued."""
    kinds = list(VICTIMS) if kinds is None else kinds
    faults = plan(seed, processes, kinds)
    with tempfile.TemporaryDirectory(prefix="dnasa-faults-") as folder:
        job = [sys.executable, __file__, "--job", folder, str(seed), str(processes), json.dumps(kinds)]
        command = [*MPIRUN, "--with-ft", "ulfm", "-n", str(processes), *job]
        done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr[-3000:]
        check(Result.load(Path(folder) / "run"), faults, processes, done.stderr)
        times = [json.loads(path.read_text()) for path in Path(folder).glob("times-*.json")]
    gone = {rank for fault in faults if fault.kind != "abort" for rank in fault.ranks}
    assert len(times) == processes - len(gone)
    return {fault.kind: max(t[str(fault.step + 10)] for t in times) - began(fault, done.stdout) for fault in faults}


def check(result: Result, faults: list[Fault], processes: int, errors: str) -> None:
    expected = [sorted(fault.ranks) for fault in faults if fault.kind != "abort"]
    lost = [node for loss in result.settings["lost"] for node in loss["nodes"]]
    assert lost == [rank for ranks in expected for rank in ranks]
    assert len(result.x) == processes - len(lost)
    assert result.history.test_loss.iloc[-1] < 0.5 * result.history.test_loss.iloc[0]
    hanging = {fault.ranks[0] for fault in faults if fault.kind in ("stop", "deadlock")}
    assert {
        int(node) for node in re.findall(r"No answer from node (\d+) for 5 s: the process was ended", errors)
    } == hanging


def began(fault: Fault, output: str) -> float:
    """When the first victim reported the fault."""
    return min(float(line.split()[2]) for line in output.splitlines() if line.startswith(f"fault {fault.step} "))


def job(folder: str, seed: str, processes: str, kinds: str) -> None:
    """What every process does."""
    from dnasa.networks import connect

    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    faults = [fault for fault in plan(int(seed), int(processes), json.loads(kinds)) if rank in fault.ranks]
    last = max(fault.step for fault in plan(int(seed), int(processes), json.loads(kinds)))
    graph, problem, times = topology.ring(int(processes)), LeastSquares(dim=6), {}
    network = connect(graph, "mpi", survive=True, timeout=TIMEOUT)
    transports = record_transports(network)
    original: Any = problem.gradient

    def gradient(x: Array, nodes: range, seeds: Sequence[int], t: int) -> Array:
        times[t] = time.time()
        if faults and t >= faults[0].step:
            inject(faults.pop(0), rank, transports, np.random.default_rng([int(seed), rank]))
        return original(x, nodes, seeds, t)

    problem.gradient = gradient  # type: ignore[method-assign]
    solve(problem, network, steps=last + APART, evaluate=10, progress=False, folder=f"{folder}/run")
    Path(folder, f"times-{rank}.json").write_text(json.dumps(times))


def record_transports(network: Network) -> list[Any]:
    """The one in use is the last."""
    from dnasa.networks import mpi

    at: Any = network.at
    transports = [at.__self__.transport]
    original = mpi.SurvivingTransport.shrink

    def shrink(self: Any) -> Any:
        transports.append(original(self))
        return transports[-1]

    mpi.SurvivingTransport.shrink = shrink  # type: ignore[method-assign]
    return transports


def inject(fault: Fault, rank: int, transports: list[Any], rng: np.random.Generator) -> None:
    if fault.kind == "in recovery" and rank != fault.ranks[0]:
        return kill_in_recovery(rng)
    print(f"fault {fault.step} {time.time()}\n", end="", flush=True)
    if fault.kind == "abort":
        transports[-1].comm.Revoke()
    elif fault.kind == "deadlock":
        ctypes.PyDLL(None).sleep(70)  # no other thread of this process can run meanwhile
    else:
        signals = {"segfault": signal.SIGSEGV, "stop": signal.SIGSTOP}
        os.kill(os.getpid(), signals.get(fault.kind, signal.SIGKILL))


def kill_in_recovery(rng: np.random.Generator) -> None:
    """End this process shortly after it has begun to recover, or when the new communicator has been made."""
    from dnasa.networks import mpi

    original = mpi.SurvivingTransport.shrink
    delay, early = rng.uniform(0, 0.8 * mpi.PAUSE), rng.random() < 0.5

    def kill(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def shrink(self: Any) -> Any:
        if early:
            threading.Timer(delay, kill).start()
        else:
            mpi.MPITransport._gather_processes = kill  # type: ignore[assignment, method-assign]
        return original(self)

    mpi.SurvivingTransport.shrink = shrink  # type: ignore[method-assign]


def main(seeds: list[int]) -> None:
    seconds = defaultdict(list)
    for seed in seeds:
        for kind, value in trial(seed).items():
            seconds[kind].append(value)
        print(f"seed {seed} done", flush=True)
    print("| fault | how often | seconds until all survivors continued: median | largest |\n|---|---|---|---|")
    for kind in VICTIMS:
        print(f"| {kind} | {len(seconds[kind])} | {statistics.median(seconds[kind]):.2f} | {max(seconds[kind]):.2f} |")


if __name__ == "__main__":
    if sys.argv[1] == "--job":
        job(*sys.argv[2:])
    else:
        main([int(word) for word in sys.argv[1:]])
