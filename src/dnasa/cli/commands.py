"""The command line: `dnasa train | compare | resume | runs | report | reproduce | topology | data`."""

import inspect
import os
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dnasa import networks
from dnasa.core import InputError, Interrupted, RunError, choose, whole
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
Out = Annotated[Path | None, typer.Option(help="Folder for config, history, checkpoints, iterates and figures.")]
CheckpointEvery = Annotated[
    int | None, typer.Option(help="Write a checkpoint every so many steps; `dnasa resume FOLDER` continues from it.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace the run that is in the folder.")]
Config = Annotated[Path | None, typer.Option(help="Repeat the run of this config.json; options given here win.")]
Survive = Annotated[
    bool, typer.Option("--survive", help="Go on without processes that die (mpirun --with-ft ulfm ...).")
]
Drop = Annotated[float, typer.Option(help="Simulated: each link fails in a step with this probability.")]
Away = Annotated[float, typer.Option(help="Simulated: each node is out of reach for this share of the time.")]
Stale = Annotated[int, typer.Option(help="Simulated: what a node hears of another is up to so many steps old.")]


@app.command()
def train(
    context: typer.Context,
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
    drop: Drop = 0.0,
    away: Away = 0.0,
    stale: Stale = 0,
    survive: Survive = False,
    out: Out = None,
    checkpoint_every: CheckpointEvery = None,
    force: Force = False,
    config: Config = None,
) -> None:
    """Train one model on many nodes."""
    from dnasa.solve import solve

    if config is not None:
        return repeat(context, config)
    if local_accuracy and problem is not None:
        raise InputError("--local-accuracy needs a classification problem: leave --problem out.")
    prepare(trace.parent if trace else None)
    task, graph, shared = prepared(context)
    result = solve(task, graph, rule, eta=eta, overlap=overlap, trace=trace, **shared)
    console.quiet = result.rank != 0
    say_losses(result)
    console.print(
        closing_table(result.history, f"{RULES[rule].title} on {problem or data}: {nodes} nodes, {describe(graph)}")
    )
    if local_accuracy:
        tested: Any = task
        each = ", ".join(f"{100 * float(a):.2f} %" for a in tested.accuracies(result.x).reshape(-1))
        say(f"Test accuracy of each node's own model: {each}")
    say(where_the_time_went(result))
    if out is not None and result.rank == 0:
        show_files(out, result.plot())
    for lost in result.runs.diverged.dropna():
        remedy = (
            "try a smaller --eta, or --rule dnasa, which needs none" if RULES[rule].needs_eta else "look at the data"
        )
        fail(1, f"The run diverged at step {lost}: {remedy}.")


@app.command()
def compare(
    context: typer.Context,
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
    drop: Drop = 0.0,
    away: Away = 0.0,
    stale: Stale = 0,
    survive: Survive = False,
    out: Out = None,
    checkpoint_every: CheckpointEvery = None,
    force: Force = False,
    config: Config = None,
) -> None:
    """Run several rules over a grid of stepsizes and seeds, all side by side, with D-NASA beside the best of each."""
    from dnasa.experiments import tuning
    from dnasa.plots import panels, save_figure
    from dnasa.solve import solve

    if config is not None:
        return repeat(context, config)
    names, grid = split(rules), numbers(etas)
    task, graph, shared = prepared(context)
    result = solve(task, graph, names, eta=grid, **shared)
    console.quiet = result.rank != 0
    say_losses(result)
    title = f"{problem or data}: {nodes} nodes, {describe(graph)}, {steps:,} steps, {seeds} seed{'s' * (seeds > 1)}"
    metric = "test_accuracy" if "test_accuracy" in result.history else "test_loss"
    table = tuning.grid(result, metric)
    console.print(frame_table(tuning.summary(result, table, metric), title))
    if out is not None and result.rank == 0:
        show_files(out, tuning.draw_winners(result, table, metric))
        figure, axes = panels(1, width=6)
        tuning.draw_stepsizes(axes[0, 0], table, SHOWN[metric], log=metric == "test_loss")
        axes[0, 0].legend(fontsize=8)
        say(f"Saved {save_figure(figure, out / 'stepsizes.png')}.")
    if result.runs.diverged.notna().all():
        fail(1, "Every run diverged: try smaller --etas, or add dnasa, which needs none.")


@app.command()
def reproduce(
    figure: Annotated[str, typer.Argument(help="fig1 to fig6, theory, heterogeneity, or faults.")],
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


@app.command()
def resume(folder: Annotated[Path, typer.Argument(help="Folder of a run begun with --out.")]) -> None:
    """Continue a run from its newest checkpoint, on whatever processes this command is started with."""
    from dnasa.records import RunFolder

    kept = RunFolder(folder, resume=True)
    kept.check()
    command, options = read_options(kept.config, folder / "config.json")
    survive = options.get("survive") and networks.may_survive()
    call(command, options | {"out": str(folder), "engine": None, "survive": survive}, {RESUMED: True})


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(help="Folder with the folders of runs.")] = Path("runs"),
) -> None:
    """A table of all runs in a folder: rule, data, nodes, state, last metrics."""
    from dnasa.experiments import kept

    wide = Console(width=max(console.width, 110)) if not console.is_terminal else console
    wide.print(frame_table(kept.table(folder), f"Runs in {folder}"))


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="Folder of a run that has ended.")]) -> None:
    """What a run did: its settings, its course, who was lost, and where its time went."""
    from dnasa.records import Result, RunFolder

    result, kept = Result.load(folder), RunFolder(folder, resume=True)
    options = kept.config.get("options")
    options = options if isinstance(options, dict) else {}
    settings = Table(title=escape(f"{folder}: {kept.state}"), show_header=False)
    for name, value in options.items():
        if value not in (None, False):
            settings.add_row(escape(name.replace("_", "-")), escape(str(value)))
    console.print(settings)
    for label, some in result.history.groupby([name for name in ("rule", "schedule", "eta") if name in result.history]):
        console.print(closing_table(some, " ".join(map(str, label))))
    say_losses(result)
    say(where_the_time_went(result))


# ---------------------------------------------------------------- run folders and configs

RESUMED = "dnasa.resumed"
NOT_KEPT = ("out", "force", "config")


def make_run_folder(context: typer.Context, out: Path | None, force: bool) -> Any:
    """The run's folder with all options in its config; checked before the work begins."""
    from dnasa.records import RunFolder

    if out is None:
        return None
    restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0" and (out / "config.json").exists()
    if restarted or (context.obj or {}).get(RESUMED):
        return RunFolder(out, resume=True)
    options = {name: kept_value(name, value) for name, value in context.params.items() if name not in NOT_KEPT}
    folder = RunFolder(out, {"command": context.info_name, "options": options}, force=force)
    if networks.launched_rank() == 0:
        folder.check()
    return folder


def kept_value(name: str, value: Any) -> Any:
    """As JSON, with files of the user's findable from anywhere."""
    if isinstance(value, Path) or (name == "data" and Path(value).suffix in (".csv", ".npz", ".gz")):
        return str(Path(value).resolve())
    return value


def read_options(config: dict[str, Any], where: Path) -> tuple[str, dict[str, Any]]:
    """The command and options in a config, checked as far as the command line itself will not."""
    command, options = config.get("command"), config.get("options")
    if command not in ("train", "compare") or not isinstance(options, dict):
        raise InputError(f"{where} is not the config of a run of dnasa: it must have a command and options.")
    for name, value in options.items():
        if value is not None and not isinstance(value, (str, int, float, bool)):
            raise InputError(f"{where}: {name} must be a text, a number, true or false, not {value!r:.40}.")
    return command, {name: value for name, value in options.items() if name not in NOT_KEPT}


def repeat(context: typer.Context, config: Path) -> None:
    """Run a config, with what was given on the command line in place of what it says."""
    from dnasa.records import read_json

    command, options = read_options(read_json(config, "There is no such config"), config)
    if command != context.info_name:
        raise InputError(f"{config} is of `dnasa {command}`, not of `dnasa {context.info_name}`.")
    given = {
        name: kept_value(name, value)
        for name, value in context.params.items()
        if name != "config" and getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    }
    if "data" in given:
        options.pop("problem", None)
    if given.get("rule") in RULES and not RULES[given["rule"]].needs_eta:
        options.pop("eta", None)
    if "out" not in given:
        options.pop("checkpoint_every", None)
    call(command, options | given, None)


def call(command: str, options: dict[str, Any], obj: dict[str, Any] | None) -> None:
    """Through the command line's own checks."""
    words = [command]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            words.append(f"{option}={value}")
    app(words, standalone_mode=False, obj=obj)


# ---------------------------------------------------------------- from options to objects


def prepared(context: typer.Context) -> tuple["Problem", "Topology", dict[str, Any]]:
    """What `train` and `compare` do alike: the problem, the graph, and what both tell `solve`."""
    given = SimpleNamespace(**context.params)
    folder = make_run_folder(context, given.out, given.force)
    graph = make_topology(given.topology, given.nodes, given.weights)
    network = make_network(graph, given)
    shared = {
        "steps": given.steps,
        "schedule": given.schedule,
        "seed": seed_range(given.seed, given.seeds),
        "evaluate": given.evaluate,
        "network": network,
        "folder": folder,
        "checkpoint_every": given.checkpoint_every,
    }
    return make_problem(network, given), graph, shared


def prepare(out: Path | None) -> None:
    """A folder that cannot be written to is better known before the work than after it."""
    if out is not None:
        from dnasa.records import make_folder

        make_folder(out)


def make_topology(name: str, nodes: int, weights: str | None) -> "Topology":
    from dnasa import topology

    return topology.make(name, nodes, weights)


def make_network(graph: "Topology", given: SimpleNamespace) -> "Network":
    """The network; only the first of several processes speaks from here on."""
    engine = given.engine or networks.detect()
    if given.drop or given.away or given.stale:
        from dnasa.networks import faulty

        if engine != "simulated" or given.rounds != 1:
            raise InputError(
                "--drop, --away and --stale are simulated, one exchange per step: leave out --engine and --rounds."
            )
        return faulty.connect(graph, given.drop, given.away, given.stale, given.seed, given.wire)
    network = networks.connect(graph, engine, given.rounds, given.timeout, given.device, given.wire, given.survive)
    running.engine = engine
    console.quiet = network.rank != 0
    return network


def make_problem(network: "Network", given: SimpleNamespace) -> "Problem":
    if given.batch is not None and given.batch < 1:
        raise InputError(f"--batch must be at least 1, not {given.batch}.")
    if given.dtype not in (None, "float32", "float64"):
        raise InputError(f"Unknown dtype '{given.dtype}'. Choose from: float32, float64.")
    if given.problem is not None:
        idle = {"--target": given.target, "--shard-dir": given.shard_dir, "--partition": given.partition != "iid"}
        idle |= {"--loss-scale": given.loss_scale != "1", "--device": given.device != "cpu"}
        for option, value in idle.items():
            if value:
                raise InputError(f"{option} belongs to --data: it does nothing with --problem.")
        from dnasa.problems.least_squares import LeastSquares

        spike = choose("problem", given.problem, {"least_squares": False, "spike": True})
        return LeastSquares(spike=spike, batch=given.batch or 1, dtype=given.dtype or "float64")
    from dnasa.experiments import tasks

    options: Any = {
        "batch": given.batch or tasks.BATCH,
        "loss_scale": given.loss_scale,
        "dtype": given.dtype or "float32",
        "device": given.device,
    }
    if given.shard_dir is not None:
        from dnasa.data import from_shards

        return tasks.on_shards(*from_shards(given.shard_dir, network.here, network.nodes, given.target), **options)
    return tasks.classification(given.data, network.nodes, given.partition, target=given.target, **options)


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


def closing_table(rows: "pd.DataFrame", title: str) -> Table:
    """The run at its start, at a few moments between, and at its end; the mean over several seeds."""
    history = rows.groupby("step").mean(numeric_only=True).reset_index()
    picks = sorted({round(i * (len(history) - 1) / 5) for i in range(6)})
    columns = [name for name in SHOWN if name in history]
    return frame_table(history.iloc[picks][columns].rename(columns=SHOWN), title)


def frame_table(frame: "pd.DataFrame", title: str) -> Table:
    table = Table(title=escape(title))
    for name in frame:
        table.add_column(str(name), justify="right" if frame[name].dtype.kind in "fiu" else "left")
    for row in zip(*(frame[name] for name in frame), strict=True):
        table.add_row(*(cell(name, value) for name, value in zip(frame, row, strict=True)))
    return table


def cell(name: Any, value: Any) -> str:
    if isinstance(value, str):
        return escape(value)
    if value is None or value != value:
        return "-"
    if "accuracy" in str(name):
        return f"{100 * value:.2f} %"
    return f"{value:.3g}" if isinstance(value, float) else f"{value:,}"


def say(text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def say_losses(result: "Result") -> None:
    for loss in result.settings.get("lost", []):
        nodes = ", ".join(map(str, loss["nodes"]))
        say(f"Lost at step {loss['step']}: nodes {nodes} and their data; the others went on.")


def where_the_time_went(result: "Result") -> str:
    timing = result.settings["timing"]
    spent = {name.removesuffix("_seconds"): value for name, value in timing.items() if name.endswith("_seconds")}
    if not spent["exchange"]:  # a fast path does both at once
        spent = {("rule and exchange" if kind == "rule" else kind): spent[kind] for kind in spent if kind != "exchange"}
    parts = ", ".join(f"{kind} {seconds:.2f} s" for kind, seconds in spent.items())
    if "messages_per_step" not in timing:
        return f"Time: {parts}."
    sent = f"{timing['messages_per_step']:.3g} messages and {timing['bytes_per_step']:,.0f} bytes sent per step"
    return f"Time of rank 0: {parts}; {sent}."


def show_files(out: Path, figure: "Figure") -> None:
    from dnasa.plots import save_figure

    save_figure(figure, out / "history.png")
    say(f"Saved {out}/history.csv, x.safetensors, config.json and history.png.")


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
    except MemoryError:
        fail(2, "There is not enough memory for this: use fewer nodes, a smaller batch or fewer seeds.")
    except Interrupted as interruption:
        fail(130, str(interruption))
    except RunError as error:
        fail(1, str(error))
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
