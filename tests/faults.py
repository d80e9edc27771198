"""Seeded trials of everything that can go wrong with a run; each ends as if nothing had happened, or with the right error.

    python tests/faults.py [trials] [report.json]

`make faults` runs all of them, `tests/test_faults.py` a few of each kind.
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
from pathlib import Path

import numpy as np
import pandas as pd
from launching import ENVIRONMENT, MPIRUN

from dnasa import checkpoints, records, rules, topology
from dnasa.core import Interrupted, RunError
from dnasa.networks import faulty
from dnasa.problems import LeastSquares
from dnasa.solve import solve


class Setting:
    """A small run drawn from the seed: rule, graph, stepsizes, seeds, checkpoints, evaluations, faults of the network."""

    def __init__(self, seed: int, steps: int = 150, unreliable: bool | None = None):
        rng = self.rng = np.random.default_rng([seed, 1])
        rule = rng.choice(["dnasa", "dasagt", "dsgt", "dsgd", "d2", "both"])
        self.rule = ["dnasa", "dsgt"] if rule == "both" else str(rule)
        self.graph = topology.random(int(rng.integers(3, 9)), p=0.6, seed=seed, weights="lazy")
        needs = self.rule != "dnasa"
        self.options = {
            "steps": steps,
            "eta": [float(e) for e in rng.choice([0.001, 0.003, 0.01], rng.integers(1, 3), replace=False)]
            if needs
            else None,
            "seed": [int(s) for s in rng.integers(0, 99, rng.integers(1, 3))],
            "evaluate": int(rng.integers(7, 60)),
        }
        self.every = int(rng.integers(3, 40))
        shaky = rng.random() < 0.3 if unreliable is None else unreliable
        self.faults = (
            {
                "drop": float(rng.choice([0, 0.2, 0.5])),
                "away": float(rng.choice([0, 0.2])),
                "stale": int(rng.integers(0, 4)),
            }
            if shaky
            else None
        )
        self.seed = seed

    def network(self):
        return faulty.connect(self.graph, **self.faults, seed=self.seed) if self.faults else None

    def run(self, **more):
        problem = LeastSquares(dim=6)
        return solve(problem, self.graph, self.rule, network=self.network(), progress=False, **self.options, **more)


def same(result, expected):
    """To the last bit, but for the seconds."""
    np.testing.assert_array_equal(result.x, expected.x)
    drop = {"columns": "seconds"}
    pd.testing.assert_frame_equal(
        result.history.drop(**drop), expected.history.drop(**drop), check_exact=True, check_dtype=False
    )


def in_child(work) -> int:
    """Run in a forked process; its exit code, or minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
            work()
            code = 0
        except (Interrupted, KeyboardInterrupt):  # the latter before the first step
            code = 130
        except RunError:
            code = 3
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def struck(rng, signal_number=signal.SIGKILL):
    """From here on, this process is struck at a random moment: some file operations or gradients from now."""
    left = [int(rng.integers(1, 160))]

    def strike(*args, call, **more):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal_number)
        return call(*args, **more)

    for owner, name in ((os, "fsync"), (os, "replace"), (records.RunFolder, "_append"), (LeastSquares, "gradient")):
        call = getattr(owner, name)
        setattr(owner, name, lambda *args, call=call, **more: strike(*args, call=call, **more))


# ---------------------------------------------------------------- the trials


def kill(seed: int, folder: Path, faults: Counter, number=signal.SIGKILL, damage: bool = False) -> None:
    """Killed at any moment, as often as it likes, and resumed each time."""
    setting = Setting(seed)
    expected = setting.run()
    rng = np.random.default_rng([seed, 2])
    for attempt in range(6):
        more = {
            "folder": folder,
            "resume": attempt > 0 and (folder / "config.json").exists(),
            "checkpoint_every": setting.every,
        }

        def work(more=more, attempt=attempt):
            if attempt < 5:
                struck(np.random.default_rng([seed, 3, attempt]), number)
            setting.run(**more)

        code = in_child(work)
        if code == 0:
            break
        assert code in (-signal.SIGKILL, 130), code
        faults["kills" if code < 0 else "interruptions"] += 1
        if (folder / "status.json").exists() and records.RunFolder(folder).state == "done":
            break  # killed when all was done
        if damage:
            damage_files(folder, rng, faults)
    same(records.Result.load(folder), flat(expected))
    assert records.RunFolder(folder, resume=True).state == "done"


def flat(result):
    """As it is read back: without categories of pandas that a file does not keep."""
    return records.Result(
        result.x, pd.DataFrame(records.parse_rows(result.history.to_csv(index=False))), result.runs, {}
    )


def interrupt(seed: int, folder: Path, faults: Counter) -> None:
    """Ctrl-C: the step is finished, a checkpoint written."""
    kill(seed, folder, faults, signal.SIGINT)


def damage(seed: int, folder: Path, faults: Counter) -> None:
    """Killed, and its newest files truncated or changed before it is resumed."""
    kill(seed, folder, faults, damage=True)


def damage_files(folder: Path, rng, faults: Counter) -> None:
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


def full_disk(seed: int, folder: Path, faults: Counter) -> None:
    """No room from some write on: the right error, the last good checkpoint left, and the run goes on when there is room."""
    setting = Setting(seed)
    expected = setting.run()
    after = int(np.random.default_rng([seed, 4]).integers(4, 30))

    def work():
        left = [after]
        sync = os.fsync

        def full(number):
            left[0] -= 1
            if left[0] <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync(number)

        os.fsync = full
        setting.run(folder=folder, checkpoint_every=setting.every)

    code = in_child(work)
    assert code in (0, 3), code
    if code == 3:
        faults["full disks"] += 1
        for path in checkpoints.found(folder / "checkpoints"):
            checkpoints.load(path)
        assert not list((folder / "checkpoints").glob(".*"))
        if records.RunFolder(folder).state == "done":  # the disk was full when all was done
            return same(records.Result.load(folder), flat(expected))
        resume = (folder / "config.json").exists()
        same(setting.run(folder=folder, resume=resume, checkpoint_every=setting.every), expected)


def lost_messages(seed: int, folder: Path, faults: Counter) -> None:
    """W stays symmetric and doubly stochastic, the tracker's mean stays the gradients' mean, and a run repeats exactly."""
    setting = Setting(seed, steps=60, unreliable=True)
    network = setting.network()
    for t in range(60):
        weights = network.memory.weights(t).toarray()
        np.testing.assert_allclose(weights, weights.T, atol=1e-15)
        np.testing.assert_allclose(weights.sum(0), 1, atol=1e-12)
        assert weights.min() >= 0
        faults["lost messages"] += int((setting.graph.sparse.toarray() > 0).sum() - (weights > 0).sum())
    if not setting.faults["stale"]:
        rule = rules.dnasa(lambda t: 0.1, lambda t: 0.5)
        rng = np.random.default_rng(seed)
        state = rule.init(rng.standard_normal((1, 1, setting.graph.nodes, 4)))
        for t in range(40):
            state = rule.step(state, rng.standard_normal(state.x.shape), network.at(t), t)
            np.testing.assert_allclose(state.u.mean(-2), state.v.mean(-2), atol=1e-12)
    same(setting.run(), setting.run())


def mpi_survive(seed: int, folder: Path, faults: Counter) -> None:
    """Processes die at random steps; the others go on to the end."""
    rng = np.random.default_rng([seed, 5])
    processes = int(rng.integers(3, 7))
    dying = {int(rank): int(rng.integers(5, 250)) for rank in rng.choice(processes, rng.integers(1, 3), replace=False)}
    done = mpi(processes, "survive", seed, folder, json.dumps(dying), ft=True)
    assert done.returncode == 0, done.stderr[-1500:]
    faults["lost processes"] += len(dying)
    result = records.Result.load(folder)
    gone = [node for loss in result.settings["lost"] for node in loss["nodes"]]
    assert sorted(gone) == sorted(node for rank in dying for node in (2 * rank, 2 * rank + 1))
    assert len(result.x) == 2 * processes - len(gone)
    history = result.history
    assert history.step.tolist() == list(range(0, 301, 30))
    assert history.nodes.iloc[-1] == len(result.x)
    assert history.test_loss.iloc[-1] < 0.5 * history.test_loss.iloc[0]
    assert np.isfinite(result.x).all()


def mpi_resume(seed: int, folder: Path, faults: Counter) -> None:
    """All processes die; the run is continued by another number of them, or by the simulator, to the same end."""
    rng = np.random.default_rng([seed, 6])
    first, second = (int(n) for n in rng.choice([1, 2, 3, 4, 6], 2, replace=False))
    dying = {0: int(rng.integers(20, 250))}
    done = mpi(first, "die", seed, folder, json.dumps(dying))
    assert done.returncode != 0
    faults["lost processes"] += first
    if not (folder / "config.json").exists():
        return
    again = mpi(second, "resume", seed, folder, "{}")
    assert again.returncode == 0, again.stderr[-1500:]
    expected = job(seed)
    result = records.Result.load(folder)
    np.testing.assert_allclose(result.x, expected.x, rtol=0, atol=1e-10)
    assert result.history.step.tolist() == expected.history.step.tolist()


def mpi(processes: int, what: str, seed: int, folder: Path, dying: str, ft: bool = False):
    words = [*MPIRUN, *(["--with-ft", "ulfm"] if ft else []), "-n", str(processes), sys.executable, __file__]
    return subprocess.run(
        [*words, what, str(seed), str(folder), dying], capture_output=True, text=True, env=ENVIRONMENT, timeout=90
    )


def job(seed: int, what: str = "alone", folder: Path | None = None, dying: dict | None = None):
    """What every process of the MPI trials does."""
    from dnasa.networks import connect

    engine = "simulated" if what == "alone" else "mpi"
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
    size = int(os.environ.get("OMPI_COMM_WORLD_SIZE", 1))
    graph = topology.ring(2 * size if what == "survive" else 6)
    problem, original, steps = LeastSquares(dim=6), LeastSquares.gradient, [0]

    def gradient(self, *args):
        steps[0] += 1
        if steps[0] == (dying or {}).get(str(rank)):
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, *args)

    problem.gradient = gradient.__get__(problem)
    network = connect(graph, engine, survive=what == "survive", timeout=20)
    keep = {} if what == "alone" else {"folder": folder, "checkpoint_every": 17, "resume": what == "resume"}
    return solve(problem, graph, steps=300, evaluate=30, seed=seed, network=network, progress=False, **keep)


KINDS = {
    "killed and resumed": (kill, 70),
    "interrupted and resumed": (interrupt, 30),
    "killed, files damaged, resumed": (damage, 50),
    "disk full, resumed": (full_disk, 30),
    "messages lost, late, nodes away": (lost_messages, 30),
    "MPI processes lost, survived": (mpi_survive, 15),
    "MPI killed, resumed by other processes": (mpi_resume, 15),
}


def trial(kind: str, seed: int, faults: Counter) -> None:
    folder = Path(tempfile.mkdtemp(prefix="dnasa-faults-"))
    try:
        KINDS[kind][0](seed, folder / "run", faults)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(trials: int, report: str | None) -> None:
    whole = sum(count for _, count in KINDS.values())
    rows, began = [], time.time()
    for kind, (_, count) in KINDS.items():
        faults: Counter = Counter()
        done = max(1, round(count * trials / whole))
        for seed in range(done):
            try:
                trial(kind, seed, faults)
            except BaseException:
                print(f"FAILED: {kind}, seed {seed}", flush=True)
                raise
        rows.append({"kind": kind, "trials": done, "faults injected": dict(faults), "lost updates": 0})
        injected = ", ".join(f"{number} {name}" for name, number in faults.items())
        print(f"| {kind} | {done} | {injected} | 0 |", flush=True)
    print(
        f"{sum(row['trials'] for row in rows)} trials in {time.time() - began:.0f} s, all as if nothing had happened."
    )
    if report:
        Path(report).write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 4:
        job(int(sys.argv[2]), sys.argv[1], Path(sys.argv[3]), json.loads(sys.argv[4]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 240, sys.argv[2] if len(sys.argv) > 2 else None)
