"""The command line: `dnasa train | compare | reproduce | topology | data`."""

import inspect
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from dnasa import networks
from dnasa.core import InputError, RunError, choose, whole
from dnasa.rules import RULES

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from dnasa.core import Network
    from dnasa.problems import Problem
    from dnasa.records import Result
    from dnasa.topology import Topology

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Decentralized training with no server, no shared data and no stepsize to tune.",
)
console = Console()

UsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")

DataName = Annotated[
    str,
    typer.Option(
        "--data", help="digits, mnist, a9a, miniboone, covertype, or your own .npz or .csv file (see `dnasa data`)."
    ),
]
Target = Annotated[str | None, typer.Option(help="Label column of your own .csv file.")]
PartitionName = Annotated[str, typer.Option("--partition", help="Who gets which rows: iid, by_label, dirichlet(0.1).")]
LossScale = Annotated[str, typer.Option(help="Factor on the training loss; 1/n gives the paper's stepsize axis.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
ProblemName = Annotated[
    str | None, typer.Option("--problem", help="Instead of data, a synthetic problem: least_squares or spike.")
]
Nodes = Annotated[int, typer.Option(help="Number of nodes.")]
TopologyName = Annotated[
    str,
    typer.Option(
        help="Who talks to whom: ring, ladder, complete, random, star, path, grid, torus, hypercube, exponential, "
        "one_peer, paper_random."
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        help="Mixing weights: laplacian, metropolis, max_degree or lazy. Default: 1/3 on the ring, else laplacian."
    ),
]
Schedule = Annotated[
    str | None,
    typer.Option(
        help="Stepsize schedule: diminishing (default) or fixed; constant for rules with a stepsize; "
        "parameter-free or parameter-free-fixed for dsgt."
    ),
]
Steps = Annotated[int, typer.Option(help="Number of steps.")]
Batch = Annotated[
    int | None, typer.Option(help="Samples per node and step. Default: 32 for data, 1 for least squares.")
]
Seed = Annotated[int, typer.Option(help="Seed of the samples and the starting point; the first of several.")]
Seeds = Annotated[int, typer.Option(help="How many seeds to run side by side: seed, seed + 1, ...")]
Evaluate = Annotated[int | None, typer.Option(help="Measure every so many steps. Default: 50 times or fewer.")]
Rounds = Annotated[int, typer.Option(help="Exchanges per step.")]
Dtype = Annotated[str | None, typer.Option(help="float32 or float64. Default: float32 for data, else float64.")]
Engine = Annotated[
    str | None,
    typer.Option(
        help="simulated, mpi or torch. Default: how this process was started (mpirun, torchrun, or by itself)."
    ),
]
Timeout = Annotated[float, typer.Option(help="Seconds without an answer after which a process counts as lost.")]
Wire = Annotated[str | None, typer.Option(help="Send numbers in 16 bits: bfloat16 or float16. Default: as they are.")]
Trace = Annotated[Path | None, typer.Option(help="Write a timeline of the first steps for Chrome or Perfetto (JSON).")]
ShardDir = Annotated[
    Path | None,
    typer.Option(
        help="Folder with node-0.npz (or .csv), node-1.npz, ... and test.npz: a process reads its own nodes' files only."
    ),
]
Out = Annotated[Path | None, typer.Option(help="Folder for history.csv, x.safetensors, figures and settings.")]


@app.command()
def train(
    data: DataName = "digits",
    target: Target = None,
    partition: PartitionName = "iid",
    problem: ProblemName = None,
    nodes: Nodes = 8,
    topology: TopologyName = "ring",
    weights: Weights = None,
    rule: Annotated[str, typer.Option(help=f"Method: {', '.join(RULES)}.")] = "dnasa",
    eta: Annotated[float | None, typer.Option(help="Stepsize, for rules that need one; dnasa needs none.")] = None,
    schedule: Schedule = None,
    steps: Steps = 1000,
    batch: Batch = None,
    seed: Seed = 0,
    seeds: Seeds = 1,
    evaluate: Evaluate = None,
    rounds: Rounds = 1,
    loss_scale: LossScale = "1",
    dtype: Dtype = None,
    device: Device = "cpu",
    engine: Engine = None,
    timeout: Timeout = 30.0,
    wire: Wire = None,
    overlap: Annotated[
        bool, typer.Option("--overlap", help="Exchange while the next gradient is computed (dnasa, dasagt).")
    ] = False,
    trace: Trace = None,
    shard_dir: ShardDir = None,
    local_accuracy: Annotated[
        bool, typer.Option("--local-accuracy", help="Also test every node's own model at the end.")
    ] = False,
    out: Out = None,
) -> None:
    """Train one model on many nodes."""
    from dnasa.solve import solve

    if local_accuracy and problem is not None:
        raise InputError("--local-accuracy needs a classification problem: leave --problem out.")
    prepare(out)
    prepare(trace.parent if trace else None)
    graph = make_topology(topology, nodes, weights)
    network = make_network(graph, engine, rounds, timeout, device, wire)
    task = make_problem(data, target, partition, problem, network, shard_dir, batch, loss_scale, dtype, device)
    result = solve(
        task,
        graph,
        rule,
        steps=steps,
        eta=eta,
        schedule=schedule,
        seed=seed_range(seed, seeds),
        evaluate=evaluate,
        network=network,
        overlap=overlap,
        trace=trace,
    )
    console.print(closing_table(result, f"{RULES[rule].title} on {problem or data}: {nodes} nodes, {describe(graph)}"))
    if local_accuracy:
        tested: Any = task
        each = ", ".join(f"{100 * float(a):.2f} %" for a in tested.accuracies(result.x).reshape(-1))
        say(f"Test accuracy of each node's own model: {each}")
    say(where_the_time_went(result))
    if out is not None and network.rank == 0:
        write(result, out, result.plot())
    for lost in result.runs.diverged.dropna():
        remedy = (
            "try a smaller --eta, or --rule dnasa, which needs none" if RULES[rule].needs_eta else "look at the data"
        )
        fail(1, f"The run diverged at step {lost}: {remedy}.")


@app.command()
def compare(
    data: DataName = "digits",
    target: Target = None,
    partition: PartitionName = "iid",
    problem: ProblemName = None,
    nodes: Nodes = 8,
    topology: TopologyName = "ring",
    weights: Weights = None,
    rules: Annotated[str, typer.Option(help=f"Methods, separated by commas, from: {', '.join(RULES)}.")] = (
        "dsgd,dsgt,dasagt,dnasa"
    ),
    etas: Annotated[str, typer.Option(help="Stepsizes for the rules that need one, separated by commas.")] = (
        "0.01,0.03,0.1,0.3,1,3"
    ),
    schedule: Schedule = None,
    steps: Steps = 1000,
    batch: Batch = None,
    seed: Seed = 0,
    seeds: Seeds = 1,
    evaluate: Evaluate = None,
    rounds: Rounds = 1,
    loss_scale: LossScale = "1",
    dtype: Dtype = None,
    device: Device = "cpu",
    engine: Engine = None,
    timeout: Timeout = 30.0,
    wire: Wire = None,
    shard_dir: ShardDir = None,
    out: Out = None,
) -> None:
    """Run several rules over a grid of stepsizes and seeds, all side by side, with D-NASA beside the best of each."""
    from dnasa.experiments import tuning
    from dnasa.plots import panels, save_figure
    from dnasa.solve import solve

    names, grid = split(rules), numbers(etas)
    prepare(out)
    graph = make_topology(topology, nodes, weights)
    network = make_network(graph, engine, rounds, timeout, device, wire)
    task = make_problem(data, target, partition, problem, network, shard_dir, batch, loss_scale, dtype, device)
    result = solve(
        task,
        graph,
        names,
        steps=steps,
        eta=grid,
        schedule=schedule,
        seed=seed_range(seed, seeds),
        evaluate=evaluate,
        network=network,
    )
    title = f"{problem or data}: {nodes} nodes, {describe(graph)}, {steps:,} steps, {seeds} seed{'s' * (seeds > 1)}"
    metric = "test_accuracy" if "test_accuracy" in result.history else "test_loss"
    table = tuning.grid(result, metric)
    console.print(frame_table(tuning.summary(result, table, metric), title))
    if out is not None and network.rank == 0:
        write(result, out, tuning.draw_winners(result, table, metric))
        figure, axes = panels(1, width=6)
        tuning.draw_stepsizes(axes[0, 0], table, SHOWN[metric], log=metric == "test_loss")
        axes[0, 0].legend(fontsize=8)
        say(f"Saved {save_figure(figure, out / 'stepsizes.png')}.")
    if result.runs.diverged.notna().all():
        fail(1, "Every run diverged: try smaller --etas, or add dnasa, which needs none.")


@app.command()
def reproduce(
    figure: Annotated[str, typer.Argument(help="fig1 to fig6, theory, or heterogeneity.")],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer steps and seeds; the figure says so.")] = False,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda, for fig3 on. Default: cuda where there is one.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the figure and its numbers.")] = Path("figures"),
) -> None:
    """Reproduce a figure of the paper: picture, numbers, and what they show in words."""
    from dnasa import experiments

    module = experiments.figure(figure)
    prepare(out)
    on_data = "device" in inspect.signature(module.run).parameters
    if device is not None and not on_data:
        raise InputError(f"{figure} runs on the CPU: leave --device out.")
    report = module.run(quick=quick, device=device or best_device()) if on_data else module.run(quick=quick)
    for table in report.tables.values():
        console.print(frame_table(table, report.title))
    for line in report.findings:
        say(line)
    for picture in report.save(out):
        say(f"Saved {picture} and its numbers in {out}.")


@app.command("topology")
def show_topology(
    name: Annotated[str, typer.Argument(help="Name of the graph, e.g. ring.")],
    nodes: Nodes = 8,
    weights: Weights = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the graph to this file (.png, .svg, .pdf).")] = None,
) -> None:
    """Show a graph: nodes, edges, degrees, rho, its weights when small, and a drawing."""
    import numpy as np

    graph = make_topology(name, nodes, weights)
    table = Table(title=f"{name}", show_header=False)
    degrees = graph.degrees
    rows = {
        "nodes": f"{graph.nodes:,}",
        "edges": f"{graph.messages // 2:,}",
        "degrees": f"{degrees.min()} to {degrees.max()}" if degrees.min() < degrees.max() else f"{degrees.max()}",
        "rho": f"{graph.rho:.6g}",
        "smallest eigenvalue": f"{graph.smallest_eigenvalue:.6g}",
        "stored as": "dense matrix" if isinstance(graph.weights, np.ndarray) else "sparse matrix",
    }
    for key, value in rows.items():
        table.add_row(key, value)
    console.print(table)
    if graph.nodes <= 16:
        with np.printoptions(precision=3, suppress=True, linewidth=160):
            console.print(graph.sparse.toarray(), highlight=False)
    if plot:
        from dnasa.plots import draw_topology, panels, save_figure

        if graph.nodes > 2000:
            raise InputError(f"A drawing of {graph.nodes:,} nodes shows nothing: use at most 2,000 with --plot.")
        figure, axes = panels(1)
        draw_topology(axes[0, 0], graph)
        say(f"Saved {save_figure(figure, plot)}.")


@app.command("data")
def show_data(
    name: Annotated[
        str | None, typer.Argument(help="A dataset, or your own .npz or .csv file; without one, list all.")
    ] = None,
    target: Target = None,
    partition: PartitionName = "iid",
    nodes: Nodes = 8,
    plot: Annotated[Path | None, typer.Option(help="Draw the class table of the nodes to this file.")] = None,
) -> None:
    """List the datasets: where they come from, shapes, class shares; or show how one is divided among nodes."""
    from dnasa import data as room
    from dnasa.experiments import division

    if name is None:
        console.print(frame_table(division.datasets(), "Datasets"))
        return
    rows = room.load(name, target)
    shards = room.partition(partition, rows.labels, nodes)
    table = division.class_frame(rows, shards)
    console.print(frame_table(division.describe(rows), f"{rows.name}, from {rows.source}"))
    console.print(frame_table(table, f"Rows of each class at each of {nodes} nodes, {partition}"))
    if plot:
        from dnasa.plots import save_figure

        say(f"Saved {save_figure(division.draw(table, rows.name, partition), plot)}.")


# ---------------------------------------------------------------- from options to objects


def prepare(out: Path | None) -> None:
    """A folder that cannot be written to is better known before the work than after it."""
    if out is not None:
        from dnasa.records import make_folder

        make_folder(out)


def make_topology(name: str, nodes: int, weights: str | None) -> "Topology":
    from dnasa import topology

    return topology.make(name, nodes, weights)


def make_network(
    graph: "Topology", engine: str | None, rounds: int, timeout: float, device: str, wire: str | None
) -> "Network":
    """The network; only the first of several processes speaks from here on."""
    network = networks.connect(graph, engine, rounds, timeout, device, wire)
    running.engine = engine or networks.detect()
    console.quiet = network.rank != 0
    return network


def make_problem(
    data: str,
    target: str | None,
    partition: str,
    problem: str | None,
    network: "Network",
    shard_dir: Path | None,
    batch: int | None,
    loss_scale: str,
    dtype: str | None,
    device: str,
) -> "Problem":
    if batch is not None and batch < 1:
        raise InputError(f"--batch must be at least 1, not {batch}.")
    if dtype not in (None, "float32", "float64"):
        raise InputError(f"Unknown dtype '{dtype}'. Choose from: float32, float64.")
    if problem is not None:
        given = {"--target": target, "--shard-dir": shard_dir, "--partition": partition != "iid"}
        given |= {"--loss-scale": loss_scale != "1", "--device": device != "cpu"}
        for option, value in given.items():
            if value:
                raise InputError(f"{option} belongs to --data: it does nothing with --problem.")
        from dnasa.problems.least_squares import LeastSquares

        spike = choose("problem", problem, {"least_squares": False, "spike": True})
        return LeastSquares(spike=spike, batch=batch or 1, dtype=dtype or "float64")
    from dnasa.experiments import tasks

    options: Any = {
        "batch": batch or tasks.BATCH,
        "loss_scale": loss_scale,
        "dtype": dtype or "float32",
        "device": device,
    }
    if shard_dir is not None:
        from dnasa.data import from_shards

        return tasks.on_shards(*from_shards(shard_dir, network.here, network.nodes, target), **options)
    return tasks.classification(data, network.nodes, partition, target=target, **options)


def best_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def seed_range(seed: int, seeds: int) -> range:
    first, count = whole("A seed", seed, low=0), whole("--seeds", seeds, high=100_000)
    return range(first, first + count)


def split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in split(text)]
    except ValueError:
        raise InputError(f"--etas takes numbers separated by commas, such as 0.1,1,10; not '{text}'.") from None


def describe(graph: "Topology") -> str:
    return f"{graph.name} (rho = {graph.rho:.3f})"


# ---------------------------------------------------------------- from results to words


SHOWN = {
    "step": "step",
    "train_loss": "train loss",
    "test_loss": "test loss",
    "test_accuracy": "test accuracy",
    "grad_norm": "gradient norm",
    "consensus": "consensus",
    "seconds": "seconds",
}


def closing_table(result: "Result", title: str) -> Table:
    """The run at its start, at a few moments between, and at its end; the mean over several seeds."""
    history = result.history.groupby("step").mean(numeric_only=True).reset_index()
    picks = sorted({round(i * (len(history) - 1) / 5) for i in range(6)})
    columns = [name for name in SHOWN if name in history]
    return frame_table(history.iloc[picks][columns].rename(columns=SHOWN), title)


def frame_table(frame: "pd.DataFrame", title: str) -> Table:
    table = Table(title=title)
    for name in frame:
        table.add_column(str(name), justify="right" if frame[name].dtype.kind in "fiu" else "left")
    for row in zip(*(frame[name] for name in frame), strict=True):
        table.add_row(*(cell(name, value) for name, value in zip(frame, row, strict=True)))
    return table


def cell(name: Any, value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None or value != value:
        return "-"
    if "accuracy" in str(name):
        return f"{100 * value:.2f} %"
    return f"{value:.3g}" if isinstance(value, float) else f"{value:,}"


def say(text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def where_the_time_went(result: "Result") -> str:
    timing = result.settings["timing"]
    kinds = [name.removesuffix("_seconds") for name in timing if name.endswith("_seconds")]
    parts = ", ".join(f"{kind} {timing[f'{kind}_seconds']:.2f} s" for kind in kinds)
    if "messages_per_step" not in timing:
        return f"Time: {parts}."
    sent = f"{timing['messages_per_step']:.3g} messages and {timing['bytes_per_step']:,.0f} bytes sent per step"
    return f"Time of rank 0: {parts}; {sent}."


def write(result: "Result", out: Path, figure: "Figure") -> None:
    from dnasa.plots import save_figure

    result.save(out)
    save_figure(figure, out / "history.png")
    say(f"Saved {out}/history.csv, x.safetensors and history.png.")


class Running:
    """Which engine is running, for the case that it must be left in a hurry."""

    engine = "simulated"


running = Running()


def fail(code: int, message: str) -> NoReturn:
    """One line, and an end that no other process waits for."""
    rank = networks.launched_rank()
    if rank and running.engine == "simulated":
        time.sleep(3)  # a mistake that all processes share is the first one's to report: it ends the others
    print(f"Error: {f'rank {rank}: ' if rank else ''}{message}", file=sys.stderr, flush=True)
    if running.engine != "simulated":
        networks.leave(running.engine, code)
    raise SystemExit(code)


def main() -> None:
    """A user's mistake ends in one line and exit code 2, a run that failed in one line and exit code 1."""
    try:
        sys.exit(app(standalone_mode=False))
    except InputError as error:
        fail(2, str(error))
    except RunError as error:
        fail(1, str(error))
    except MemoryError:
        fail(2, "There is not enough memory for this: use fewer nodes, a smaller batch or fewer seeds.")
    except (KeyboardInterrupt, typer.Abort):
        fail(130, "Interrupted.")
    except UsageError as error:
        if not error.format_message():  # the help was printed instead
            sys.exit(2)
        where = error.ctx.command_path if error.ctx else "dnasa"
        fail(2, f"{error.format_message().rstrip('.')}. Try '{where} --help'.")
    except Exception:
        if running.engine == "simulated":
            raise
        traceback.print_exc()
        fail(1, "An unexpected error, see above.")


if __name__ == "__main__":
    main()
