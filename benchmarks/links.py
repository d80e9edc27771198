"""Loss against seconds on slow links, for AdaNASA, D-NASA, DDP, DiLoCo and NoLoCo.

    python -m benchmarks.links                    # as root: 4 nodes, a GPT, three links, below ten minutes on two cores
    python -m benchmarks.links --full             # everything, more than an hour
    python -m benchmarks.links --nodes 8 --links 100:20 --methods ddp,adanasa,diloco-10 --steps 300

Each node is a process in a network namespace of its own (`benchmarks.machines`), joined by gloo. On the link "100:20" each node
sends at most 100 Mbit/s, and what it sends arrives 20 ms later. All nodes share the cores of this machine: the method "alone",
without messages, shows what the gradients take.

All methods are synchronous, so their iterates do not depend on the link. The loss after each step is therefore computed once,
in the simulator (`benchmarks.links_curves`, on a GPU where there is one), and the seconds per step are measured on each link,
from a few steps, by new processes, since TCP remembers how fast a connection was. AdamW's learning rate is the best of `--lrs`
by the last loss, for each method that has it.

Writes curves.csv (the loss after each number of steps), links.csv (seconds per step, those that `dnasa train --clock` predicts
where a gradient takes the seconds of "alone", and the bytes that a node sends per step),
targets.csv (seconds to `--loss`, by default the loss that DDP ends with) and links.png to `--out`.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

import dnasa
from benchmarks import links_curves
from benchmarks.links_node import ALONE, METHODS, OURS
from benchmarks.machines import NEEDS, Machines, machines, permitted
from dnasa.problems import Custom

ROOT = Path(__file__).parents[1]
FULL: dict[str, Any] = {
    "nodes": [4, 8],
    "links": [f"{rate}:{delay}" for rate in (1000, 100, 10) for delay in (1, 20, 100)],
    "tasks": ["gpt", "resnet"],
    "divisions": ["iid", "heterogeneous"],
    "methods": list(METHODS),
    "steps": 600,
}
TASKS, DIVISIONS = FULL["tasks"], FULL["divisions"]
Ask = Callable[..., dict[str, Any]]


class Link(NamedTuple):
    rate: float  # Mbit/s
    delay: float  # ms

    def __str__(self) -> str:
        return f"{self.rate:g} Mbit/s, {self.delay:g} ms"


# ---------------------------------------------------------------- processes


@contextmanager
def nodes_of(made: Machines) -> Iterator[Ask]:
    """A process on each machine; `ask(...)` gives all of them a job and returns the result."""
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    common = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "eth0",
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # addresses have no names here
        "MASTER_ADDR": made.names[0],
        "MASTER_PORT": "29500",
        "WORLD_SIZE": str(len(made.names)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }
    pipes: Any = {"stdin": subprocess.PIPE, "text": True, "start_new_session": True}
    processes = [
        subprocess.Popen(
            made.on(rank, sys.executable, "-m", "benchmarks.links_node"),
            env=common | {"RANK": str(rank)},
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            **pipes,
        )
        for rank in range(len(made.names))
    ]

    def ask(**options: Any) -> dict[str, Any]:
        for process in processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # a process that has failed; the others will notice
                process.stdin.write(json.dumps(options) + "\n")
                process.stdin.flush()
        assert processes[0].stdout is not None
        line = processes[0].stdout.readline()
        if not line:
            raise SystemExit(f"The nodes have failed, with the job {options}: their errors are above.")
        return json.loads(line)

    try:
        yield ask
    finally:
        for process in reversed(processes):  # rank 0 last: without it, the others would complain
            process.kill()
        for process in processes:
            process.wait()


# ---------------------------------------------------------------- measurements


def tuned_curves(options: argparse.Namespace) -> pd.DataFrame:
    """The loss after each number of steps, with the best learning rate, of all methods; several at a time."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shared: Any = {"steps": options.steps, "evaluate": options.evaluate, "device": device, "seed": options.seed}
    workers = ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn"))
    found: dict[tuple[Any, ...], pd.DataFrame] = {}
    with workers:
        for curve in as_completed([workers.submit(links_curves.curve, **job, **shared) for job in jobs(options)]):
            new = curve.result()
            first, loss = new.iloc[0], last_loss(new)
            key = (first.task, first.division, first.nodes, first.method)
            print(
                f"{', '.join(map(str, key))}, lr {first.lr:g}: loss {loss:.3f} after {options.steps} steps", flush=True
            )
            if key not in found or loss < last_loss(found[key]):
                found[key] = new
    return pd.concat(found.values())


def jobs(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A job for each curve."""
    methods = [name for name in options.methods if name != ALONE]
    for task, division, nodes, method in itertools.product(options.tasks, options.divisions, options.nodes, methods):
        for lr in options.lrs if METHODS[method].tuned else [0.0]:
            yield {"task": task, "division": division, "nodes": nodes, "method": method, "lr": lr}


def last_loss(curve: pd.DataFrame) -> float:
    return float(np.nan_to_num(curve.loss.iloc[-1], nan=np.inf))


def measure(options: argparse.Namespace) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
    """Curves and seconds per step, all that is known after each link."""
    curves = tuned_curves(options)
    seconds: list[dict[str, Any]] = []
    for count in options.nodes:
        with tempfile.TemporaryDirectory() as folder, machines(count, Path(folder)) as made:
            for link in [Link(*map(float, text.split(":"))) for text in options.links]:
                made.limit(*link)
                with nodes_of(made) as ask:
                    for task in options.tasks:
                        seconds += timed(ask, task, count, link, options)
                yield curves, pd.DataFrame(seconds)


def timed(ask: Ask, task: str, count: int, link: Link, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds per step of each method, measured and predicted."""
    print(f"{task}, {count} nodes, {link}", flush=True)
    rows, compute = [], None
    for method in sorted(options.methods, key=lambda name: name != ALONE):
        job = {"task": task, "method": method}
        found = ask(**job, lr=options.lrs[0], seconds=options.seconds)
        if method == ALONE:
            compute = found["seconds"]
        found["predicted"] = predicted(method, count, link, compute, found.pop("parameters"))
        rows.append({**job, "nodes": count, **link._asdict(), **found})
        line = f"  {method:14s} {found['seconds']:8.3f} s, predicted {found['predicted']:8.3f} s"
        print(f"{line}, {found['bytes'] / 1e6:7.3f} MB per step", flush=True)
    return rows


def predicted(method: str, nodes: int, link: Link, compute: float | None, parameters: int) -> float:
    """What the clock says of a step, for our methods and where `compute`, the seconds of a gradient, is known."""
    given = METHODS[method].options
    if given is None or compute is None:
        return np.nan
    options, every = OURS | given, METHODS[method].every
    run = dnasa.solve(
        Custom(lambda x, node, rng: 0 * x, np.zeros(parameters, np.float32), nodes=nodes),
        steps=3 * every,
        evaluate=every,
        overlap=options["rule"] == "dnasa",
        progress=False,
        clock={"compute": compute, "bandwidth": link.rate, "latency": link.delay},
        **options,
    )
    return float(run.history.clock_seconds.diff().iloc[-1]) / every


# ---------------------------------------------------------------- results


def by_seconds(curves: pd.DataFrame, links: pd.DataFrame) -> pd.DataFrame:
    """The curves on every link, against seconds."""
    joined = curves.merge(links.drop(columns="steps"), on=["task", "nodes", "method"])
    return joined.assign(time=joined.step * joined.seconds)


def first_time(times: Any, losses: Any, target: float) -> float:
    """When the loss is `target` for the first time, between two points on a line; infinite if never."""
    times, losses = np.asarray(times, float), np.asarray(losses, float)
    reached = np.flatnonzero(losses <= target)
    if not len(reached):
        return np.inf
    i = reached[0]
    if i == 0 or not np.isfinite(losses[i - 1]):
        return float(times[i])
    share = (losses[i - 1] - target) / (losses[i - 1] - losses[i])
    return float(times[i - 1] + share * (times[i] - times[i - 1]))


def targets(curves: pd.DataFrame, links: pd.DataFrame, loss: float | None) -> pd.DataFrame:
    """Seconds to `loss`, by default what DDP ends with; where DDP is not measured, the best last loss."""
    out = []
    for keys, rows in by_seconds(curves, links).groupby(["task", "division", "nodes", "rate", "delay"], sort=False):
        last = rows.groupby("method", sort=False).loss.last()
        target = loss if loss is not None else last.get("ddp", last.min())
        for method, points in rows.groupby("method", sort=False):
            first = points.iloc[0]
            out.append(
                dict(zip(["task", "division", "nodes", "rate", "delay"], keys, strict=True))
                | {"method": method, "lr": first.lr, "last_loss": last[method], "target": target}
                | {"seconds_to_target": first_time(points.time, points.loss, target)}
                | {"seconds_per_step": first.seconds, "bytes_per_step": first.bytes}
            )
    return pd.DataFrame(out)


COLOURS = {
    "adanasa": "#0072b2",
    "adanasa-1": "#56b4e9",
    "adanasa-bits": "#009e73",
    "adanasa-5": "#cc79a7",
    "adanasa-5-bits": "#882255",
    "adanasa-ring": "#999933",
    "adanasa-8bit": "#bbbb55",
    "dnasa": "#999999",
    "ddp": "#000000",
    "diloco": "#d55e00",
    "noloco": "#e69f00",
}


def draw(curves: pd.DataFrame, links: pd.DataFrame, path: Path) -> None:
    """A panel for each link, task, division and number of nodes; DiLoCo and NoLoCo with the H that ends best."""
    from dnasa.comparing.plots import panels, save_figure

    points = by_seconds(curves, links)
    every = list(points.groupby(["task", "division", "nodes", "rate", "delay"], sort=False))
    columns = min(2, len(every))
    figure, axes = panels(columns, -(-len(every) // columns))
    labels: dict[str, Any] = {}
    for axis, ((task, division, nodes, rate, delay), some) in zip(axes.flat, every, strict=False):
        for method in sorted(best_of_each_kind(some), key=list(METHODS).index):
            line = some[(some.method == method) & (some.step > 0)]
            kind = METHODS[method].local
            name = method if kind is None else method.partition("-")[0]
            (drawn,) = axis.plot(line.time, line.loss, color=COLOURS[name], lw=1.4, marker="o", ms=4, markevery=[-1])
            labels[METHODS[method].title if kind is None else f"{kind.__name__}, best H"] = drawn
        axis.set(xscale="log", xlabel="seconds", ylabel="test loss")
        axis.set_title(f"{task}, {division}, {nodes} nodes: {Link(rate, delay)}", fontsize=10)
    for axis in axes.flat[len(every) :]:
        axis.remove()
    figure.legend([*labels.values()], [*labels], loc="outside lower center", ncols=3, fontsize=9)
    save_figure(figure, path)


def best_of_each_kind(points: pd.DataFrame) -> list[str]:
    """All methods, of those that differ in H alone the one with the lowest last loss."""
    last = points.groupby("method", sort=False).loss.last().sort_values()
    kinds = [METHODS[method].local or method for method in last.index]
    return list(last.index[~pd.Index(kinds).duplicated()])


# ---------------------------------------------------------------- the command


def parse(words: list[str]) -> argparse.Namespace:
    def texts(value: str) -> list[str]:
        return value.split(",")

    def numbers(value: str) -> list[float]:
        return [float(word) for word in value.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all nodes, links, tasks, divisions and methods")
    parser.add_argument("--nodes", type=lambda value: [int(word) for word in value.split(",")], default=[4])
    parser.add_argument("--links", type=texts, default=["1000:1", "100:20", "10:100"], help="Mbit/s:ms, ...")
    parser.add_argument("--tasks", type=texts, default=["gpt"], help=", ".join(TASKS))
    parser.add_argument("--divisions", type=texts, default=["iid"], help=", ".join(DIVISIONS))
    parser.add_argument(
        "--methods", type=texts, default=[name for name in METHODS if not name.endswith(("-25", "-50"))]
    )
    parser.add_argument("--lrs", type=numbers, default=[1e-3, 3e-3, 1e-2], help="AdamW's learning rates")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--evaluate", type=int, default=10, help="steps from one evaluation to the next")
    parser.add_argument("--seed", type=int, default=0, help="of the curves")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each method is measured on each link")
    parser.add_argument("--loss", type=float, help="the loss of targets.csv")
    parser.add_argument("--out", type=Path, default=Path("runs/links"))
    if "--full" in words:
        parser.set_defaults(**FULL)
    options = parser.parse_args(words)
    for name, known in (("tasks", TASKS), ("divisions", DIVISIONS), ("methods", METHODS)):
        if unknown := set(getattr(options, name)) - set(known):
            parser.error(f"unknown {name}: {', '.join(sorted(unknown))}. Choose from: {', '.join(known)}")
    if not all(re.fullmatch(r"[\d.]+:[\d.]+", link) for link in options.links):
        parser.error("write --links as Mbit/s:ms, such as 100:20,10:100")
    if any(count < 2 or count % 2 for count in options.nodes):
        parser.error("--nodes must be even numbers: NoLoCo's nodes meet in pairs")
    if options.steps % options.evaluate:
        parser.error("--steps must be a multiple of --evaluate, so that the last loss is that of the last step")
    return options


def skip_reason() -> str | None:
    if not permitted():
        return NEEDS
    return None if shutil.which("tc") else "the limits of links need tc, of iproute2"


def main(words: list[str]) -> None:
    options = parse(words)
    if reason := skip_reason():
        print(f"Skipped: {reason}.")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the machines are removed, as after Ctrl-C
    options.out.mkdir(parents=True, exist_ok=True)
    for curves, links in measure(options):
        reached = targets(curves, links, options.loss)
        for name, table in (("curves", curves), ("links", links), ("targets", reached)):
            table.to_csv(options.out / f"{name}.csv", index=False)
        draw(curves, links, options.out / "links.png")
    print(reached.to_string(index=False, float_format=lambda value: f"{value:.4g}"))


if __name__ == "__main__":
    main(sys.argv[1:])
