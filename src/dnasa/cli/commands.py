"""The commands."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import dnasa
from dnasa.cli import configs, inputs, pictures, plugins, rendering, trained
from dnasa.cli.data import show_data
from dnasa.cli.exits import fail
from dnasa.cli.fit import fit
from dnasa.cli.options import GRAPHS, OF_COMPARE, OF_TRAIN, Options, split, takes
from dnasa.cli.rendering import console, print_line, print_table
from dnasa.cli.sites import keys, sites
from dnasa.cli.study import study
from dnasa.core import InputError
from dnasa.files import make_folder
from dnasa.reproduce import FIGURES
from dnasa.rules.registry import DEFAULT_RULE, PRIVATE_METHOD, find
from dnasa.runs.own_files import OwnFiles

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Decentralized training with no server, no shared data and no stepsize to tune.",
)


def show_version(wanted: bool) -> None:
    if wanted:
        print_line(f"dnasa {dnasa.__version__}")
        raise typer.Exit


@app.callback()
def begin(
    version: Annotated[bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    console.quiet = False  # several commands may run in one process


@app.command()
@takes(every_but=OF_COMPARE)
def train(context: typer.Context, options: Options) -> None:
    """Train one model on many nodes."""
    inputs.set_output(options)
    if options.config is not None:
        return configs.repeat(context, options.config)
    plugins.load(options.plugin, [options.rule], "--rule")  # before what is slow to import
    from dnasa.engine.loop import check, solve

    if options.dry_run:
        options = inputs.of_dry_run(options)
    if options.epsilon is not None and options.model != "linear" and not configs.explicit(context).keys() & PRIVATE_METHOD:
        context.params |= PRIVATE_METHOD  # for the config
        options = replace(options, **PRIVATE_METHOD)
    begun = inputs.begin(context, options, [options.rule])
    options, folder = begun.options, begun.folder
    method = inputs.method(options)
    source, shared = inputs.prepare(begun, check=partial(check, **method))
    network = shared["network"]
    result = trained.saved(shared) or solve(source.problem, **method, **shared)
    if options.dry_run:
        trained.save(None, source, result, network)
        inputs.set_output(options, writes=True)
        return rendering.print_dry_run(network, options.steps)
    inputs.set_output(options, result.writes)
    names = network.processes.names or source.sites
    rendering.print_lost_nodes(result.settings, names)
    from dnasa.comparing.run_table import experiment  # only now, since it imports pandas

    setting = experiment(vars(options) | source.altered, rendering.graph_title(begun.graph), network.settings.rounds)
    seeds = f", mean of {options.seeds} seeds" if options.seeds > 1 else ""
    rendering.print_history(result.history, f"{find(options.rule).title} on {setting}{seeds}")
    rendering.print_kept(result)
    if options.compress or options.every > 1:
        last = result.history[result.history.step == result.history.step.max()]
        print_line(f"Sent by all nodes: {last.messages.mean():,.0f} messages, {last.bytes.mean():,.0f} bytes.")
    print_line(rendering.timing_line(result))
    if folder is not None:
        if result.writes:
            pictures.save_history(folder.path, result)
        trained.save(folder.path, source, result, network)
        if folder.journal is not None:
            folder.journal.write(int(result.history.step.max()))  # also what the tests of the model sent
    lost = result.runs[result.runs.diverged.notna()]
    if len(lost):
        smaller = f"try a smaller --eta, or --rule {DEFAULT_RULE}, which needs none"
        remedy = smaller if find(options.rule).needs_eta else "check the data for values that are not finite"
        fail(1, rendering.divergence(lost.diverged.iloc[0], lost.diverged_node.iloc[0], remedy, names))


@app.command()
@takes(every_but=OF_TRAIN)
def compare(context: typer.Context, options: Options) -> None:
    """Compare rules over a grid of stepsizes and seeds, all side by side, with D-NASA and AdaNASA next to the best of each.

    Stepsizes are chosen on a held-out tenth of the training rows; for streaming problems, on other seeds.
    """
    inputs.set_output(options)
    if options.config is not None:
        return configs.repeat(context, options.config)
    names = split(options.rules)
    plugins.load(options.plugin, names)  # before what is slow to import
    from dnasa.comparing.grid import check_axes, grid_of
    from dnasa.comparing.grid import compare as run_comparison
    from dnasa.comparing.run_table import experiment, setup

    grid = inputs.stepsizes(options.etas, names)
    kinds = pictures.formats(options.format, options.style)
    if "clock" in split(options.x):
        raise InputError("--x clock needs links, which a study has (key clock), or dnasa.connect(clock=...) in Python.")
    check_axes(split(options.x), ("steps", "epochs", "samples", "bytes"))
    if options.latex and options.out is None:
        raise InputError("--latex writes table.tex into the folder of the run: give --out.")
    begun = inputs.begin(context, options, names)
    grid_of(names, grid, options.schedule, options.extend)  # finds mistakes before data is read
    if options.etas != Options.etas and not any(find(name).needs_eta for name in names):
        raise InputError("--etas has no effect, since these rules need no stepsize: leave it out, or add a rule such as dsgd.")
    options, graph = begun.options, begun.graph
    source, shared = inputs.prepare(begun, validate=True)
    chosen: Any = {name: getattr(options, name) for name in ("metric", "extend", "schedule")}
    comparison = run_comparison(source.problem, rules=names, etas=grid, x=split(options.x), **chosen, **shared)
    inputs.set_output(options, comparison.rank == 0)
    rendering.print_lost_nodes(comparison.settings, list(shared["network"].processes.names) or source.sites)
    title = partial(experiment, vars(options) | source.altered, rounds=shared["network"].settings.rounds)
    print_table(comparison.table(), title(graph=rendering.graph_title(graph)))
    for line in comparison.notes():
        print_line(line)
    if options.out is not None and comparison.rank == 0:
        figures: Any = {
            "curves": (comparison.draw_curves, comparison.curves()),
            "stepsizes": (comparison.draw_stepsizes, comparison.stepsizes()),
        }
        details = f" ({graph.sequence or f'weights {graph.weighting}'})" if graph.sequence or graph.weighting else ""
        setting = f"{title(graph=f'{graph.name} graph{details}')}, {setup(source.model, source.problem.batch)}"
        words = setting, options.out.resolve().name
        latex: Any = {f"{name}.tex": partial(comparison.caption, name, *words) for name in figures}
        latex["table.tex"] = partial(comparison.latex, *words)
        pictures.save_results(options.out, figures, comparison.summary(), latex if options.latex else {}, kinds, options.style)
    if comparison.all_diverged:
        fail(1, f"Every run diverged: try smaller --etas, or add {DEFAULT_RULE}, which needs none.")


app.command()(study)


@app.command()
@takes("format", "style")
def reproduce(
    figure: Annotated[str, typer.Argument(help=f"{', '.join(FIGURES)}.")],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer steps and seeds; the figure says so.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda, for fig3 on. Default: cuda where there is one.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the figure and its numbers.")] = Path("figures"),
    *,
    options: Options,
) -> None:
    """Reproduce a figure of the paper: picture and numbers."""
    from dnasa import reproduce as figures
    from dnasa.comparing.style import context as drawn_in

    make, kinds = figures.figure(figure), pictures.formats(options.format, options.style)
    own = OwnFiles(make_folder(out))
    own.check_free(path.name for path in out.glob(f"{figure}[.-]*") if not path.is_dir())
    if device is not None and figure in figures.ON_CPU:
        raise InputError(f"{figure} runs on the CPU: leave --device out.")
    on_device = {}
    if figure not in figures.ON_CPU:
        import torch

        on_device["device"] = device or ("cuda" if torch.cuda.is_available() else "cpu")
    with drawn_in(options.style):
        report = make(quick, **on_device)
        saved = report.save(out, kinds)
    for name, table in report.tables.items():
        print_table(table, report.title if len(report.tables) == 1 else f"{name}: {report.title}")
    for line in report.notes:
        print_line(line)
    for picture in saved:
        print_line(f"Saved {picture} and its numbers in {out}.")


@app.command("topology")
@takes("nodes", "weights", "plugin", "style")
def show_topology(
    name: Annotated[str | None, typer.Argument(help=f"The graph: {GRAPHS}.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the graph to this file (.png, .svg, .pdf).")] = None,
    *,
    options: Options,
) -> None:
    """List the graphs and weights, or show a graph: edges, degrees, rho, W when small, and with --plot a drawing."""
    import numpy as np

    from dnasa.cli import graphs
    from dnasa.topology import make

    plugins.load(options.plugin)
    if name is None:
        if plot:
            raise InputError("--plot draws one graph: name it, as in `dnasa topology ring --plot ring.png`.")
        print_table(graphs.graph_table(), f"Graphs of {graphs.NODES} nodes")
        return print_table(graphs.weight_table(), f"--weights, and rho of {graphs.NODES} nodes")
    graph = make(name, options.nodes, options.weights)
    if plot:
        from dnasa.comparing.drawn_graphs import figure_of_topology
        from dnasa.comparing.plots import save_figure
        from dnasa.comparing.style import context as drawn_in

        if graph.nodes > 2000:
            raise InputError(f"A drawing of {graph.nodes:,} nodes shows nothing: use at most 2,000 with --plot.")
        with drawn_in(options.style):
            save_figure(figure_of_topology(graph), plot)
    print_table(graphs.graph_rows(graph), name)
    for t, each in enumerate(graph.each if graph.nodes <= 16 else ()):
        if each is not graph:
            print_line(f"W of step {t}:")
        with np.printoptions(precision=3, suppress=True, linewidth=rendering.width(160)):
            print_line(str(each.sparse.toarray()))
    if plot:
        print_line(f"Saved {plot}.")


app.command("data")(show_data)


@app.command()
@takes("plugin", "trust", "quiet", "log_json")
def resume(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Folder of a run begun with --out.")],
    model: Annotated[str | None, typer.Option(help="The run's own model, where its file is now: my_file.py:make.")] = None,
    *,
    options: Options,
) -> None:
    """Continue a run from its newest checkpoint, on whatever processes this command is started with."""
    from dnasa.runs.folder import RunFolder

    inputs.set_output(options)
    run = RunFolder(folder, resume=True)
    command, stored = configs.read_options(context, run.config, folder / "config.json")
    missing = [name for name in pictures.names(command, stored) if not (folder / name).exists()]
    if not (run.state == "done" and missing):  # what comes after the last step may be missing
        run.check()
    configs.resume(context, folder, command, stored)


@app.command()
def runs(folder: Annotated[Path, typer.Argument(help="Folder with the folders of runs.")] = Path("runs")) -> None:
    """A table of all runs in a folder: rule, data, nodes, state, and the metrics of its answer."""
    from dnasa.comparing import run_table

    print_table(run_table.table(folder), f"Runs in {folder}")


app.command()(fit)
app.command()(trained.report)
app.command()(trained.predict)
app.command()(trained.export)
app.add_typer(keys, name="keys")
app.add_typer(sites, name="sites")
