"""The commands."""

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from dnasa.cli import configs, inputs, options, pictures, plugins, trained
from dnasa.cli.exits import fail
from dnasa.cli.rendering import (
    console,
    describe,
    divergence,
    frame_table,
    graph_rows,
    history_table,
    print_fitting,
    print_line,
    print_lost_nodes,
    print_wide,
    settings_table,
    timing_line,
)
from dnasa.cli.study import study
from dnasa.core import InputError
from dnasa.files import make_folder
from dnasa.rules import RULES
from dnasa.runs.own_files import OwnFiles

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Decentralized training with no server, no shared data and no stepsize to tune.",
)


@app.callback()
def begin() -> None:
    console.quiet = False  # several commands may run in one process


@app.command()
def train(
    context: typer.Context,
    data: options.DataName = "digits",
    target: options.Target = None,
    columns: options.Columns = None,
    drop_columns: options.DropColumns = None,
    id_column: options.IdColumn = None,
    separator: options.Separator = None,
    no_header: options.NoHeader = False,
    task: options.Task = None,
    no_standardise: options.NoStandardise = False,
    partition: options.PartitionName = "iid",
    partition_seed: options.PartitionSeed = None,
    model: options.ModelName = None,
    problem: options.ProblemName = None,
    nodes: options.Nodes = 8,
    topology: options.TopologyName = "ring",
    weights: options.Weights = None,
    weights_by: options.WeightsBy = None,
    class_weight: options.ClassWeight = None,
    rule: options.RuleName = "dnasa",
    plugin: options.Plugin = None,
    eta: options.Eta = None,
    schedule: options.Schedule = None,
    steps: options.Steps = 1000,
    stop: options.Stop = None,
    batch: options.Batch = None,
    seed: options.Seed = 0,
    seeds: options.Seeds = 1,
    evaluate: options.Evaluate = None,
    rounds: options.Rounds = 1,
    loss_scale: options.LossScale = "1",
    dtype: options.Dtype = None,
    device: options.Device = "cpu",
    engine: options.Engine = None,
    timeout: options.Timeout = 30.0,
    message_dtype: options.MessageDtype = None,
    compress: options.Compress = None,
    overlap: options.Overlap = False,
    trace: options.Trace = None,
    shard_dir: options.ShardDir = None,
    local_accuracy: options.LocalAccuracy = False,
    drop: options.Drop = 0.0,
    away: options.Away = 0.0,
    stale: options.Stale = 0,
    survive: options.Survive = False,
    out: options.Out = None,
    checkpoint_every: options.CheckpointEvery = None,
    force: options.Force = False,
    config: options.Config = None,
    trust: options.Trust = False,
    tensorboard: options.Tensorboard = False,
    quiet: options.Quiet = False,
    log_json: options.LogJson = False,
) -> None:
    """Train one model on many nodes."""
    from dnasa import logging
    from dnasa.comparing.run_table import experiment
    from dnasa.engine.loop import solve

    inputs.set_output(context)
    if config is not None:
        return configs.repeat(context, config)
    if local_accuracy and problem is not None:
        raise InputError("--local-accuracy needs a classification problem: leave --problem out.")
    if trace is not None:
        make_folder(trace.parent)
    if tensorboard and out is None:
        raise InputError("--tensorboard writes into the folder of the run: give --out.")
    thresholds = inputs.thresholds(stop or ())
    callback = logging.tensorboard(out / "tensorboard", OwnFiles(out)) if tensorboard and out else None
    made, graph, shared = inputs.prepare(context)
    tested: Any = made.problem
    if local_accuracy and not hasattr(tested, "accuracies"):
        raise InputError("--local-accuracy cannot test this model and data: leave it out.")
    result = trained.saved(shared) or solve(
        tested, graph, rule, eta=eta, overlap=overlap, trace=trace, stop=thresholds, callback=callback, **shared
    )
    inputs.set_output(context, result.rank)
    print_lost_nodes(result.settings, made.sites)
    title = f"{RULES[rule].title} on {experiment(context.params, describe(graph))}"
    console.print(history_table(result.history, title))
    if local_accuracy:
        import torch

        accuracies = tested.accuracies(torch.as_tensor(result.x)).reshape(-1)
        each = ", ".join(f"{100 * float(a):.2f} %" for a in accuracies)
        print_line(f"Test accuracy of each node's own model: {each}")
    print_line(timing_line(result))
    if out is not None and result.rank == 0:
        pictures.save_history(out, result)
    if out is not None:
        trained.save(out, made, result, shared["network"])
    lost = result.runs[result.runs.diverged.notna()]
    if len(lost):
        own = "try a smaller --eta, or --rule dnasa, which needs none"
        remedy = own if RULES[rule].needs_eta else "check the data for values that are not finite"
        fail(1, divergence(lost.diverged.iloc[0], lost.diverged_node.iloc[0], remedy, made.sites))


@app.command()
def compare(
    context: typer.Context,
    data: options.DataName = "digits",
    target: options.Target = None,
    columns: options.Columns = None,
    drop_columns: options.DropColumns = None,
    id_column: options.IdColumn = None,
    separator: options.Separator = None,
    no_header: options.NoHeader = False,
    task: options.Task = None,
    no_standardise: options.NoStandardise = False,
    partition: options.PartitionName = "iid",
    partition_seed: options.PartitionSeed = None,
    model: options.ModelName = None,
    problem: options.ProblemName = None,
    nodes: options.Nodes = 8,
    topology: options.TopologyName = "ring",
    weights: options.Weights = None,
    weights_by: options.WeightsBy = None,
    class_weight: options.ClassWeight = None,
    rules: options.RuleNames = "dsgd,dsgt,dasagt,adanasa,dnasa",
    plugin: options.Plugin = None,
    etas: options.Etas = "0.01,0.03,0.1,0.3,1,3",
    extend: options.Extend = False,
    schedule: options.Schedule = None,
    steps: options.Steps = 1000,
    batch: options.Batch = None,
    seed: options.Seed = 0,
    seeds: options.Seeds = 1,
    metric: options.ComparedMetric = None,
    x: options.XAxis = "steps",
    evaluate: options.Evaluate = None,
    rounds: options.Rounds = 1,
    loss_scale: options.LossScale = "1",
    dtype: options.Dtype = None,
    device: options.Device = "cpu",
    engine: options.Engine = None,
    timeout: options.Timeout = 30.0,
    message_dtype: options.MessageDtype = None,
    compress: options.Compress = None,
    shard_dir: options.ShardDir = None,
    drop: options.Drop = 0.0,
    away: options.Away = 0.0,
    stale: options.Stale = 0,
    survive: options.Survive = False,
    out: options.Out = None,
    format: options.PictureFormat = "png",
    latex: options.Latex = False,
    checkpoint_every: options.CheckpointEvery = None,
    force: options.Force = False,
    config: options.Config = None,
    trust: options.Trust = False,
    quiet: options.Quiet = False,
    log_json: options.LogJson = False,
) -> None:
    """Compare rules over a grid of stepsizes and seeds, all side by side, with D-NASA and AdaNASA next to the best of each.

    Stepsizes are chosen on validation rows, a tenth of the training rows that is held out, or, for streaming problems,
    on other seeds; the results are those on the test rows.
    """
    from dnasa.comparing.comparison import compare as run_comparison
    from dnasa.comparing.run_table import experiment

    inputs.set_output(context)
    if config is not None:
        return configs.repeat(context, config)
    names, grid = inputs.split(rules), inputs.numbers(etas)
    inputs.check_comparison(context)
    made, graph, shared = inputs.prepare(context, validate=True)
    comparison = run_comparison(made.problem, graph, names, grid, metric=metric, x=x, extend=extend, **shared)
    inputs.set_output(context, comparison.rank)
    print_lost_nodes(comparison.settings, made.sites)
    title = experiment(context.params, describe(graph))
    print_wide(frame_table(comparison.table(), title))
    for line in comparison.notes():
        print_line(line)
    if out is not None and comparison.rank == 0:
        pictures.save_comparison(out, comparison, pictures.formats(format), latex, title)
        print_line(f"Saved {', '.join(pictures.names('compare', context.params))} and all runs in {out}.")
    if comparison.all_diverged:
        fail(1, "Every run diverged: try smaller --etas, or add dnasa, which needs none.")


app.command()(study)


@app.command()
def reproduce(
    figure: Annotated[
        str,
        typer.Argument(
            help="fig1 to fig6, theory, guidance, heterogeneity, faults, fidelity, compression, networks, robustness, "
            "or finetuning."
        ),
    ],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer steps and seeds; the figure says so.")] = False,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda, for fig3 on. Default: cuda where there is one.")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            help="One part of fidelity, compression, networks, robustness or finetuning: mnist, cifar10/ring/iid, ..."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the figure and its numbers.")] = Path("figures"),
) -> None:
    """Reproduce a figure of the paper or another study: picture, numbers, and findings."""
    from dnasa import reproduce as experiments

    module = experiments.figure(figure)
    own = OwnFiles(make_folder(out))
    own.check_free(path.name for path in out.glob(f"{figure}[.-]*") if not path.is_dir())
    known = inspect.signature(module.run).parameters
    if device is not None and "device" not in known:
        raise InputError(f"{figure} runs on the CPU: leave --device out.")
    if only is not None and "only" not in known:
        raise InputError(f"{figure} has no parts: leave --only out.")
    given = {"quick": quick, "only": only, "folder": out}
    if "device" in known:
        given["device"] = device or inputs.best_device()
    report = module.run(**{name: value for name, value in given.items() if name in known})
    for name, table in report.tables.items():
        console.print(frame_table(table, report.title if len(report.tables) == 1 else f"{name}: {report.title}"))
    for line in report.findings:
        print_line(line)
    for picture in report.save(out):
        print_line(f"Saved {picture} and its numbers in {out}.")


@app.command("topology")
def show_topology(
    name: Annotated[str, typer.Argument(help="Name of the graph, e.g. ring, or one of a plugin.")],
    nodes: options.Nodes = 8,
    weights: options.Weights = None,
    plugin: options.Plugin = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the graph to this file (.png, .svg, .pdf).")] = None,
) -> None:
    """Show a graph: nodes, edges, degrees, rho, its weights when small, and a drawing."""
    import numpy as np

    from dnasa.topology import make

    plugins.load(plugin or ())
    graph = make(name, nodes, weights)
    console.print(settings_table(graph_rows(graph), name))
    for t, each in enumerate(getattr(graph, "each", [graph]) if graph.nodes <= 16 else ()):
        if each is not graph:
            print_line(f"W of step {t}:")
        with np.printoptions(precision=3, suppress=True, linewidth=160):
            print_line(str(each.sparse.toarray()))
    if plot:
        from dnasa.plots import draw_topology, panels, save_figure

        if graph.nodes > 2000:
            raise InputError(f"A drawing of {graph.nodes:,} nodes shows nothing: use at most 2,000 with --plot.")
        figure, axes = panels(1)
        draw_topology(axes[0, 0], graph)
        print_line(f"Saved {save_figure(figure, plot)}.")


@app.command("data")
def show_data(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="A dataset, or a file or folder of your own; without one, list all datasets.")
    ] = None,
    target: options.Target = None,
    columns: options.Columns = None,
    drop_columns: options.DropColumns = None,
    id_column: options.IdColumn = None,
    separator: options.Separator = None,
    no_header: options.NoHeader = False,
    task: options.Task = None,
    no_standardise: options.NoStandardise = False,
    partition: options.PartitionName = "iid",
    nodes: options.Nodes = 8,
    shard_dir: options.ShardDir = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the class table of the nodes to this file.")] = None,
) -> None:
    """List the datasets, or show how one of them or your own file is read and divided among nodes."""
    from dnasa.cli.data import print_data
    from dnasa.tasks import datasets

    if name is None and shard_dir is None:
        return print_fitting(datasets.datasets(), "Datasets")
    if name is not None and shard_dir is not None:
        raise InputError("A dataset and --shard-dir cannot be combined: leave one of them out.")
    rows, table = print_data(context)
    if plot:
        if rows.vocabulary or rows.task != "classification":
            raise InputError("These rows have no classes to draw: leave --plot out.")
        from dnasa.plots import save_figure

        how = "as its files are" if shard_dir else partition
        print_line(f"Saved {save_figure(datasets.draw(table, rows.name, how), plot)}.")


@app.command()
def resume(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Folder of a run begun with --out.")],
    plugin: options.Plugin = None,
    model: Annotated[
        str | None, typer.Option(help="The run's own model, where its file is now: my_file.py:make.")
    ] = None,
    trust: options.Trust = False,
    quiet: options.Quiet = False,
    log_json: options.LogJson = False,
) -> None:
    """Continue a run from its newest checkpoint, on whatever processes this command is started with."""
    from dnasa.runs.folder import RunFolder

    inputs.set_output(context)
    run = RunFolder(folder, resume=True)
    command, given = configs.read_options(context, run.config, folder / "config.json")
    missing = pictures.missing(folder, command, given)
    if not (run.state == "done" and missing):  # what comes after the last step may be missing
        run.check()
    configs.resume(context, folder, run.config)


@app.command()
def rendezvous(
    port: Annotated[
        int, typer.Option(help="The port on which the processes find each other.", min=1, max=65535)
    ] = 29500,
) -> None:
    """Keep the list of processes for runs with dnasa.connect(graph, join="HOST:PORT"), until interrupted."""
    import threading

    from dnasa.networks.rendezvous import serve

    store = serve(port)
    print_line(f"Processes can join at port {store.port}. Models and data do not pass here. Stop with Ctrl-C.")
    threading.Event().wait()


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(help="Folder with the folders of runs.")] = Path("runs"),
) -> None:
    """A table of all runs in a folder: rule, data, nodes, state, last metrics."""
    from dnasa.comparing import run_table

    print_wide(frame_table(run_table.table(folder), f"Runs in {folder}"))


app.command()(trained.report)
app.command()(trained.watch)
app.command()(trained.predict)
app.command()(trained.export)
