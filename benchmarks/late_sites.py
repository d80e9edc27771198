"""Seconds to an accuracy of real sites, with and without waiting: one of 8 is 5 times slower, links of 10 to 200 ms lose 2 % of
all frames.

    python -m benchmarks.late_sites                              # as root, MNIST, about half an hour on two cores
    python -m benchmarks.late_sites --rules adanasa --runs "waits, ring|late=16" --steps 120

Each site is a process in a network namespace of its own (`benchmarks.machines`), joined to the others by TLS. A gradient takes
20 ms longer than it needs, at the slow site 100 ms. Every half a second each site saves its answer; the mean of all sites'
latest answers is tested afterwards. The target is what the first run of a rule ends with, minus one point. Prints a row for
each run.
"""

import argparse
import ctypes
import multiprocessing
import os
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import dnasa
from benchmarks.late import MODELS, RUNS, described
from benchmarks.machines import NEEDS, Machines, address, machines, permitted
from dnasa.arrays import to_numpy
from dnasa.data import load, partition
from dnasa.engine.loop import Run
from dnasa.networks.sites import leave
from dnasa.sites.keys import make_authority, make_site
from dnasa.tasks.tasks import on_shards
from dnasa.topology import make

SITES = 8
PAUSES = [0.02] * (SITES - 1) + [0.1]  # seconds
EVERY = 0.5  # seconds between two answers that are saved
FORKS: Any = multiprocessing.get_context("fork")


class Job(NamedTuple):
    problem: Any
    folder: Path
    graph: str
    rule: str
    options: dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist", choices=MODELS)
    parser.add_argument("--partition", default="iid")
    parser.add_argument("--rules", default="adanasa,dnasa")
    parser.add_argument("--runs", default="|".join(RUNS), help="separated by |")
    parser.add_argument("--steps", type=int, default=200)
    given = parser.parse_args()
    if not permitted():
        print(f"Skipped: {NEEDS}.")
        return
    rows = load(given.data)
    shards = partition(given.partition, rows.labels, SITES)
    problem = on_shards(rows, shards, model=MODELS[given.data], train_metrics=False)
    with tempfile.TemporaryDirectory() as folder, machines(SITES, Path(folder)) as made:
        made.limit(1000, 10, highest=200, loss=0.02)
        write_keys(Path(folder))
        for rule in given.rules.split(","):
            target = None
            for name in given.runs.split("|"):
                graph, factor, options = RUNS[name]
                steps = round(factor * given.steps)
                seconds, accuracy = measure(made, Job(problem, Path(folder), graph, rule, {"steps": steps} | options))
                target = accuracy[-1] - 0.01 if target is None else target
                title = f"{given.data}, {given.partition}, {rule} | {name} | {steps} steps"
                print(f"{title}, {described(seconds, accuracy, target)}", flush=True)


def write_keys(folder: Path) -> None:
    make_authority(folder / "keys")
    lines = [f"site{j} = '{address(j)}:7400'" for j in range(SITES)]
    for i in range(SITES):
        make_site(folder / "keys", f"site{i}")
        (folder / f"{i}.toml").write_text("\n".join([f"keys = 'keys/site{i}'", "[sites]", *lines]))


def measure(made: Machines, job: Job) -> tuple[np.ndarray, np.ndarray]:
    """The seconds since the first gradient, and the accuracy of the mean answer at those times."""
    processes = [FORKS.Process(target=train, args=(job, i, made.names[i])) for i in range(SITES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0, "A site has failed: its error is above."
    saved = [np.load(job.folder / f"{i}.npz") for i in range(SITES)]
    each = [(file["times"], file["answers"]) for file in saved]
    begin, end = min(times[0] for times, _ in each), max(times[-1] for times, _ in each)
    moments = np.arange(begin, end + EVERY, EVERY)
    means = [np.mean([latest(*own, moment) for own in each], 0) for moment in moments]
    found = [float(job.problem.accuracies(torch.as_tensor(x)[None, None])) for x in means]
    return moments - begin, np.array(found)


def latest(times: np.ndarray, answers: np.ndarray, moment: float) -> np.ndarray:
    return answers[max(int(np.searchsorted(times, moment, "right")) - 1, 0)]


# ---------------------------------------------------------------- a site


def train(job: Job, i: int, machine: str) -> None:
    with open(f"/run/netns/{machine}") as namespace:
        assert ctypes.CDLL(None).setns(namespace.fileno(), 0) == 0
    times: list[float] = []
    answers: list[np.ndarray] = []
    gradient: Any = Run._gradient

    def save(run: Run) -> None:
        times.append(time.time())
        answers.append(to_numpy(run.recorder.answers(run.stepper.snapshots))[0, 0, 0].copy())

    def slow_gradient(run: Run, *given: Any) -> Any:
        if not times or time.time() > times[-1] + EVERY:
            save(run)
        time.sleep(PAUSES[i])
        return gradient(run, *given)

    setattr(Run, "_gradient", slow_gradient)  # noqa: B010
    setattr(Run, "_warn_if_nothing_was_sent", save)  # noqa: B010 (called after the last step)
    graph = make(job.graph, SITES)
    network = dnasa.connect(graph, sites=job.folder / f"{i}.toml", timeout=60)
    steps = job.options["steps"]
    dnasa.solve(job.problem, graph, job.rule, network=network, evaluate=[steps], progress=False, **job.options)
    np.savez(job.folder / f"{i}.npz", times=times, answers=answers)
    leave(network.membership.survivors.__self__.members)  # type: ignore[union-attr]
    os._exit(0)  # not what the parent would do at its exit


if __name__ == "__main__":
    main()
