"""Seeded trials of faults: kills, signals, damaged files, full disks.

    PYTHONPATH=tests python tests/jobs/faults.py [trials] [report.json]

Each trial compares the run that had the faults with an undisturbed one and counts lost updates: evaluations that are missing
or differ, and nodes whose final iterates differ.
`make faults` runs all of them, `tests/runs/test_faults.py` one of each kind.
"""

import errno
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dnasa import topology
from dnasa.channels import faulty
from dnasa.core import Interrupted, RunError
from dnasa.engine.loop import solve
from dnasa.networks import simulated
from dnasa.problems import LeastSquares
from dnasa.runs import checkpoints
from dnasa.runs.folder import RunFolder
from dnasa.runs.history import Record
from dnasa.runs.own_files import OwnFiles
from dnasa.runs.result import Result, parse_rows


class Setting:
    """A small run drawn from the seed: rule, graph, stepsizes, seeds, checkpoints, evaluations, faults of the network."""

    def __init__(self, seed: int, steps: int = 150):
        rng = self.rng = np.random.default_rng([seed, 1])
        rule = rng.choice(["dnasa", "dasagt", "dsgt", "dsgd", "d2", "both"])
        self.rule = ["dnasa", "dsgt"] if rule == "both" else str(rule)
        self.graph = topology.random(int(rng.integers(3, 9)), p=0.6, seed=seed, weights="lazy")
        needs = self.rule != "dnasa"
        self.options: Any = {
            "steps": steps,
            "eta": [float(e) for e in rng.choice([0.001, 0.003, 0.01], rng.integers(1, 3), replace=False)] if needs else None,
            "seed": [int(s) for s in rng.choice(99, rng.integers(1, 3), replace=False)],
            "evaluate": int(rng.integers(7, 60)),
        }
        self.every = int(rng.integers(3, 40))
        drop = float(rng.choice([0.2, 0.5])) if rng.random() < 0.3 else 0.0
        channel = faulty(drop, seed=seed) if drop else None
        self.network = simulated.connect(self.graph, channel=channel)

    def run(self, **more: Any) -> Result:
        problem = LeastSquares(dim=6)
        return solve(problem, self.network, self.rule, progress=False, **self.options, **more)


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


def kill(seed: int, folder: Path, faults: Counter[str], number: signal.Signals = signal.SIGKILL, damage: bool = False) -> int:
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
    files = checkpoints.newest_first(folder / "checkpoints")[: int(rng.integers(0, 3))]
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
    for path in checkpoints.newest_first(folder / "checkpoints"):
        checkpoints.load(path)
    assert not list((folder / "checkpoints").glob(".*"))
    if RunFolder(folder).state == "done":  # the disk was full after the end of the run
        return lost_updates(Result.load(folder), expected)
    resume = (folder / "config.json").exists()
    return lost_updates(setting.run(folder=folder, resume=resume, record=Record(checkpoint_every=setting.every)), expected)


KINDS = {
    "killed and resumed": (kill, 70),
    "interrupted and resumed": (interrupt, 30),
    "killed, files damaged, resumed": (damage, 50),
    "disk full, resumed": (full_disk, 30),
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
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 180, sys.argv[2] if len(sys.argv) > 2 else None)
