"""Seeded trials of faults: kills, signals, damaged files, full disks, lost messages, lost processes.

    PYTHONPATH=tests python tests/jobs/faults.py [trials] [report.json]

Each trial compares the run that had the faults with an undisturbed one and counts lost updates: evaluations that are missing
or differ, nodes whose final iterates differ and, where processes die, steps that a surviving process did not take.
`make faults` runs all of them, `tests/runs/test_faults.py` one of each kind.
"""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from conftest import take_step
from launching import ENVIRONMENT, MPIRUN, PATIENCE

from dnasa import rules, topology
from dnasa.channels import exchange, faulty
from dnasa.channels.faulty import lossy
from dnasa.core import Array, Interrupted, Network, RunError
from dnasa.engine.loop import solve
from dnasa.networks import simulated
from dnasa.problems import LeastSquares
from dnasa.runs import checkpoints
from dnasa.runs.folder import RunFolder
from dnasa.runs.history import Record
from dnasa.runs.own_files import OwnFiles
from dnasa.runs.result import Result, parse_rows
from dnasa.topology import Topology


class Setting:
    """A small run drawn from the seed: rule, graph, stepsizes, seeds, checkpoints, evaluations, faults of the network."""

    def __init__(self, seed: int, steps: int = 150, unreliable: bool | None = None):
        rng = self.rng = np.random.default_rng([seed, 1])
        rule = rng.choice(["dnasa", "dasagt", "dsgt", "dsgd", "d2", "both"])
        self.rule = ["dnasa", "dsgt"] if rule == "both" else str(rule)
        self.graph = topology.random(int(rng.integers(3, 9)), p=0.6, seed=seed, weights="lazy")
        needs = self.rule != "dnasa"
        self.options: Any = {
            "steps": steps,
            "eta": [float(e) for e in rng.choice([0.001, 0.003, 0.01], rng.integers(1, 3), replace=False)]
            if needs
            else None,
            "seed": [int(s) for s in rng.choice(99, rng.integers(1, 3), replace=False)],
            "evaluate": int(rng.integers(7, 60)),
        }
        self.every = int(rng.integers(3, 40))
        faulty_links = rng.random() < 0.3 if unreliable is None else unreliable
        self.faults: Any = {"drop": float(rng.choice([0.2, 0.5]))} if faulty_links else None
        self.seed = seed

    def network(self) -> Network | Topology:
        if not self.faults:
            return self.graph
        return simulated.connect(self.graph, channel=faulty(**self.faults, seed=self.seed))

    def run(self, **more: Any) -> Result:
        problem = LeastSquares(dim=6)
        return solve(problem, self.network(), self.rule, progress=False, **self.options, **more)


def lost_updates(result: Result, expected: Result) -> int:
    """Evaluations that are missing or differ in any bit (but for the seconds), and nodes whose final iterates differ."""
    x, other = (np.reshape(r.x, (-1, np.shape(r.x)[-1])) for r in (result, expected))
    nodes = int((x != other).any(-1).sum()) if x.shape == other.shape else len(other)
    rows, others = (table(r.history) for r in (result, expected))
    return nodes + sum(a != b for a, b in zip_longest(rows, others))


def table(history: pd.DataFrame) -> list[str]:
    """Each row as text, to the last bit; a history in memory as one that was read from a file."""
    rows = parse_rows(history.drop(columns="seconds").to_csv(index=False))
    return [repr(row) for row in rows]


def in_child(work: Callable[[], object]) -> int:
    """Run in a forked process; its exit code, or minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
            signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
            work()
            code = 0
        except (Interrupted, KeyboardInterrupt):  # the latter before the first step
            code = 130
        except RunError:
            code = 3
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def signal_later(rng: np.random.Generator, signal_number: signal.Signals = signal.SIGKILL) -> None:
    """This process gets the signal at a random moment: some file operations or gradients from now."""
    left = [int(rng.integers(1, 160))]

    def call_or_signal(*args: Any, call: Callable[..., Any], **more: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal_number)
        return call(*args, **more)

    for owner, name in ((os, "fsync"), (os, "replace"), (OwnFiles, "append"), (LeastSquares, "gradient")):
        call = getattr(owner, name)
        setattr(owner, name, lambda *args, call=call, **more: call_or_signal(*args, call=call, **more))


# ---------------------------------------------------------------- the trials


def kill(
    seed: int, folder: Path, faults: Counter[str], number: signal.Signals = signal.SIGKILL, damage: bool = False
) -> int:
    """Killed at random moments, up to five times, and resumed each time."""
    setting = Setting(seed)
    expected = setting.run()
    rng = np.random.default_rng([seed, 2])
    for attempt in range(6):
        more = {
            "folder": folder,
            "resume": attempt > 0 and (folder / "config.json").exists(),
            "record": Record(checkpoint_every=setting.every),
        }

        def work(more: dict[str, Any] = more, attempt: int = attempt) -> None:
            if attempt < 5:
                signal_later(np.random.default_rng([seed, 3, attempt]), number)
            setting.run(**more)

        code = in_child(work)
        if code == 0:
            break
        assert code in (-signal.SIGKILL, 130), code
        faults["kills" if code < 0 else "interruptions"] += 1
        if (folder / "status.json").exists() and RunFolder(folder).state == "done":
            break  # killed after the end of the run
        if damage:
            damage_files(folder, rng, faults)
    assert RunFolder(folder, resume=True).state == "done"
    return lost_updates(Result.load(folder), expected)


def interrupt(seed: int, folder: Path, faults: Counter[str]) -> int:
    """Ctrl-C: the step is finished, a checkpoint written."""
    return kill(seed, folder, faults, signal.SIGINT)


def damage(seed: int, folder: Path, faults: Counter[str]) -> int:
    """Killed, and its newest files truncated or changed before it is resumed."""
    return kill(seed, folder, faults, damage=True)


def damage_files(folder: Path, rng: np.random.Generator, faults: Counter[str]) -> None:
    files = checkpoints.found(folder / "checkpoints")[: int(rng.integers(0, 3))]
    if rng.random() < 0.2 and (folder / "history.csv").exists():
        files.append(folder / "history.csv")
    for path in files:
        data = bytearray(path.read_bytes())
        if not data:
            continue
        if rng.random() < 0.5:
            del data[int(rng.integers(0, len(data))) :]
        else:
            data[int(rng.integers(0, len(data)))] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(data)
        faults["damaged files"] += 1


def full_disk(seed: int, folder: Path, faults: Counter[str]) -> int:
    """The disk is full from some write on: a RunError, the last good checkpoint stays, and the run continues later."""
    setting = Setting(seed)
    expected = setting.run()
    after = int(np.random.default_rng([seed, 4]).integers(4, 30))

    def work() -> None:
        left = [after]
        sync = os.fsync

        def full(number: int) -> None:
            left[0] -= 1
            if left[0] <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync(number)

        os.fsync = full  # type: ignore[assignment]
        setting.run(folder=folder, record=Record(checkpoint_every=setting.every))

    code = in_child(work)
    assert code in (0, 3), code
    if code == 0:
        return lost_updates(Result.load(folder), expected)
    faults["full disks"] += 1
    for path in checkpoints.found(folder / "checkpoints"):
        checkpoints.load(path)
    assert not list((folder / "checkpoints").glob(".*"))
    if RunFolder(folder).state == "done":  # the disk was full after the end of the run
        return lost_updates(Result.load(folder), expected)
    resume = (folder / "config.json").exists()
    return lost_updates(
        setting.run(folder=folder, resume=resume, record=Record(checkpoint_every=setting.every)), expected
    )


def lost_messages(seed: int, folder: Path, faults: Counter[str]) -> int:
    """W stays symmetric and doubly stochastic, the tracker's mean stays the gradients', and a run repeats exactly."""
    setting = Setting(seed, steps=60, unreliable=True)
    for t in range(60):
        weights = lossy(setting.graph.sparse, t, setting.faults["drop"], seed).toarray()
        np.testing.assert_allclose(weights, weights.T, atol=1e-15)
        np.testing.assert_allclose(weights.sum(0), 1, atol=1e-12)
        assert weights.min() >= 0
        faults["lost messages"] += int((setting.graph.sparse.toarray() > 0).sum() - (weights > 0).sum())
    network: Any = setting.network()
    rng = np.random.default_rng(seed)
    plain = Network(network.nodes, lambda messages, t: exchange(network, (), messages, t)[0], network.mean)
    rule = rules.dnasa(lambda t: 0.1, lambda t: 0.5)
    state = rule.init(rng.standard_normal((1, 1, setting.graph.nodes, 4)))
    for t in range(40):
        state = take_step(rule, state, lambda x, t: rng.standard_normal(x.shape), plain, t)
        np.testing.assert_allclose(state.u.mean(-2), state.v.mean(-2), atol=1e-12)
    return lost_updates(setting.run(), setting.run())


def mpi_survive(seed: int, folder: Path, faults: Counter[str]) -> int:
    """Processes die at random steps; the others continue to the end."""
    rng = np.random.default_rng([seed, 5])
    processes = int(rng.integers(3, 7))
    dying = {int(rank): int(rng.integers(5, 250)) for rank in rng.choice(processes, rng.integers(1, 3), replace=False)}
    done = mpi(processes, "survive", seed, folder, json.dumps(dying), ft=True)
    assert done.returncode == 0, done.stderr[-1500:]
    faults["lost processes"] += len(dying)
    result = Result.load(folder)
    gone = [node for loss in result.settings["lost"] for node in loss["nodes"]]
    assert sorted(gone) == sorted(node for rank in dying for node in (2 * rank, 2 * rank + 1))
    assert len(result.x) == 2 * processes - len(gone)
    history = result.history
    assert history.step.tolist() == list(range(0, 301, 30))
    assert history.nodes.iloc[-1] == len(result.x)
    assert history.test_loss.iloc[-1] < 0.5 * history.test_loss.iloc[0]
    assert np.isfinite(result.x).all()
    taken = [set(json.loads(path.read_text())) for path in folder.parent.glob("steps-*.json")]
    assert len(taken) == processes - len(dying)
    return sum(len(set(range(300)) - steps) for steps in taken)


def mpi_resume(seed: int, folder: Path, faults: Counter[str]) -> int:
    """All processes die; the run is continued by another number of them, or by the simulator, to the same end."""
    rng = np.random.default_rng([seed, 6])
    first, second = (int(n) for n in rng.choice([1, 2, 3, 4, 6], 2, replace=False))
    dying = {0: int(rng.integers(20, 250))}
    done = mpi(first, "die", seed, folder, json.dumps(dying))
    assert done.returncode != 0
    faults["lost processes"] += first
    if not (folder / "config.json").exists():
        return 0
    again = mpi(second, "resume", seed, folder, "{}")
    assert again.returncode == 0, again.stderr[-1500:]
    expected = job(seed)
    result = Result.load(folder)
    rows = pd.merge(result.history, expected.history, on="step", how="outer", suffixes=("", "_expected"))
    wrong = ~np.isclose(rows.test_loss, rows.test_loss_expected, rtol=1e-8)
    return int(wrong.sum()) + int((~np.isclose(result.x, expected.x, rtol=0, atol=1e-10)).any(-1).sum())


def mpi(
    processes: int, what: str, seed: int, folder: Path, dying: str, ft: bool = False
) -> subprocess.CompletedProcess[str]:
    words = [*MPIRUN, *(["--with-ft", "ulfm"] if ft else []), "-n", str(processes), sys.executable, __file__]
    return subprocess.run(
        [*words, what, str(seed), str(folder), dying], capture_output=True, text=True, env=ENVIRONMENT, timeout=PATIENCE
    )


def job(seed: int, what: str = "alone", folder: Path = Path(), dying: dict[str, Any] | None = None) -> Result:
    """What every process of the MPI trials does."""
    from dnasa.networks import connect

    engine = "simulated" if what == "alone" else "mpi"
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
    size = int(os.environ.get("OMPI_COMM_WORLD_SIZE", 1))
    graph = topology.ring(2 * size if what == "survive" else 6)
    original, steps = LeastSquares.gradient, []
    problem: Any = LeastSquares(dim=6)

    def gradient(self: LeastSquares, x: Array, nodes: range, seeds: Sequence[int], t: int) -> Array:
        steps.append(t)
        if len(steps) == (dying or {}).get(str(rank)):
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, x, nodes, seeds, t)

    problem.gradient = gradient.__get__(problem)
    network = connect(graph, engine, survive=what == "survive", timeout=60)
    storage: Any = (
        {} if what == "alone" else {"folder": folder, "record": Record(checkpoint_every=17), "resume": what == "resume"}
    )
    result = solve(problem, network, steps=300, evaluate=30, seed=seed, progress=False, **storage)
    if what == "survive":
        (folder.parent / f"steps-{rank}.json").write_text(json.dumps(steps))
    return result


KINDS = {
    "killed and resumed": (kill, 70),
    "interrupted and resumed": (interrupt, 30),
    "killed, files damaged, resumed": (damage, 50),
    "disk full, resumed": (full_disk, 30),
    "lost messages": (lost_messages, 30),
    "MPI processes lost, survived": (mpi_survive, 15),
    "MPI killed, resumed by other processes": (mpi_resume, 15),
}


def trial(kind: str, seed: int, faults: Counter[str]) -> int:
    """One trial; its number of lost updates."""
    folder = Path(tempfile.mkdtemp(prefix="dnasa-faults-"))
    try:
        return KINDS[kind][0](seed, folder / "run", faults)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(trials: int, report: str | None) -> None:
    total = sum(count for _, count in KINDS.values())
    rows, began = [], time.time()
    for kind, (_, count) in KINDS.items():
        faults: Counter[str] = Counter()
        done, lost = max(1, round(count * trials / total)), 0
        for seed in range(done):
            try:
                lost += trial(kind, seed, faults)
            except BaseException:
                print(f"FAILED: {kind}, seed {seed}", flush=True)
                raise
        assert faults, f"{kind}: no fault was injected"
        rows.append({"kind": kind, "trials": done, "faults injected": dict(faults), "lost updates": lost})
        injected = ", ".join(f"{number} {name}" for name, number in faults.items())
        print(f"| {kind} | {done} | {injected} | {lost} |", flush=True)
    print(f"{sum(int(str(row['trials'])) for row in rows)} trials in {time.time() - began:.0f} s.")
    if report:
        Path(report).write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 4:
        job(int(sys.argv[2]), sys.argv[1], Path(sys.argv[3]), json.loads(sys.argv[4]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 240, sys.argv[2] if len(sys.argv) > 2 else None)
