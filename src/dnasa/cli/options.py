"""The options that commands share: a field of `Options` each, in panels and in the order of the help."""

# ruff: noqa: RUF009 (option makes a field)

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import typer

from dnasa.channels.compressed import COMPRESSIONS
from dnasa.rules.registry import COMPARED, DEFAULT_RULE, RULES
from dnasa.rules.schedules import ETA

NO_ETA = [name for name in RULES if not RULES[name].needs_eta]
MEANING = f"What eta means depends on the schedule: {'; '.join(f'{name} {spec.formula}' for name, spec in ETA.items())}."
DATA = "digits, mnist, a9a, miniboone, covertype, cifar10, shakespeare, code"
MODELS = "linear, mlp:128,64,relu,dropout=0.1, lenet, resnet:16,group, gpt:2,96,64"
GRAPHS = (  # their registry imports networkx, too much for every start
    "ring, ladder, complete, random, star, path, grid, torus, hypercube, exponential, exact, paper_random; directed_ring, "
    "directed_exponential for sgp and push_dsgt; or one of a plugin"
)


def option(panel: str, default: Any, help: str, **more: Any) -> Any:
    """A field that is an option: its panel in the help, its default, its help, and what else `typer.Option` takes."""
    return field(default=default, metadata={"rich_help_panel": panel, "help": help} | more)


basic, of_data, method, messages, processes, output, figures = (
    partial(option, panel)
    for panel in ("Options", "Data", "Method", "Messages", "Processes and sites", "Output", "Figures and tables")
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user chose. Options that a command does not take have their defaults."""

    data: str = basic("digits", f"{DATA}; or your own file or folder (`dnasa data FILE` shows how it is read).")
    target: str | None = basic(None, "Target column of your own table, by name or position from 0.")
    nodes: int = basic(8, "Number of nodes. By default that of the data, if it has its own nodes.")
    topology: str | None = basic(None, f"The graph: {GRAPHS}. Default: exact; ring where W must not change.")
    rule: str = basic(DEFAULT_RULE, f"Method: {', '.join(RULES)}, or a rule of a plugin; on clipped gradients, as clip:1+dsgt.")
    rules: str = basic(
        ",".join(COMPARED),
        f"Methods, separated by commas: {', '.join(RULES)}, or rules of plugins; each may name its schedule, as dsgt:cosine.",
    )
    eta: float | None = basic(None, f"Stepsize, for rules that need one; {' and '.join(NO_ETA)} need none. {MEANING}")
    etas: str = basic(
        "0.01,0.03,0.1,0.3,1,3", f"Stepsizes for the rules that need one; after dadam= those of D-Adam. {MEANING}"
    )
    steps: int = basic(1000, "Number of steps.")
    batch: int | None = basic(None, "Samples per node and step. Default: 32 for data, 1 for least squares.")
    seed: int = basic(0, "Seed of the samples, the starting point and the partition; the first of several.")
    seeds: int = basic(1, "How many seeds to run side by side: seed, seed + 1, ...")
    device: str = basic("cpu", "cpu or cuda.")
    out: Path | None = basic(None, "Folder for config, history, checkpoints, iterates and figures.")

    model: str | None = of_data(None, f"{MODELS} or your own, my_file.py:make. Default: what suits the data.")
    problem: str | None = of_data(None, "Instead of data, a synthetic problem: least_squares, spike or robust_regression.")
    partition: str = of_data("iid", "How rows are divided: iid, contiguous, by_label, dirichlet(0.1); tokens: by_node.")
    shard_dir: Path | None = of_data(
        None,
        "Folder with node-0.csv (or another format, or a folder), node-1.csv, ... and perhaps test.csv: a process reads "
        "only the files of its own nodes. With --sites, the folder with this site's own table, under any name.",
    )
    task: str | None = of_data(None, "classification or regression. Default: what the target looks like.")
    drop_columns: str | None = of_data(None, "Columns of your own table to leave out, as a,b,c.")
    id_column: str | None = of_data(None, "Column that names the rows: not an input, and repeated in predictions.")
    labels: str | None = of_data(None, "Classes of the target, as no,yes, or what its labels mean, as no=0,yes=1; no others.")
    recode: Path | None = of_data(
        None, "TOML file: columns, units, spellings, missing values, labels. Applied first, and kept."
    )
    min_count: int = of_data(5, "With --shard-dir, no category, class or statistic of fewer rows leaves a site; at least 2.")
    epsilon: float | None = of_data(
        None, "Differential privacy: noise so that the run tells at most this much of any training row (docs/privacy.md)."
    )
    delta: float | None = of_data(
        None, "With --epsilon, the probability that it tells more; below 1 / rows of the smallest node. Default: 1e-5."
    )
    class_weight: str | None = of_data(None, "balanced: each class counts the same in the training loss.")
    weights_by: str | None = of_data(
        None, "How much nodes count: rows, as if all rows were in one place (default with --shard-dir), or nodes, all the same."
    )
    early_stopping: bool | None = of_data(
        None,
        "Hold out a tenth of the training rows, stop when the loss on them no longer improves, and keep the best model. "
        "Default of `dnasa train` on your own tables, unless they have few rows or the run is short.",
    )

    schedule: str | None = method(
        None,
        "Stepsize schedule: diminishing (default) or fixed; constant or cosine for rules with a stepsize (cosine is "
        "the default of `dnasa train` for rules with momentum). Some rules have others, docs/methods.md names them.",
    )
    extend: bool = method(False, "Continue the grid, at most 8 times, where the best stepsize is at an edge of it.")
    weight_decay: float = method(
        0.0, "Decoupled weight decay, as in AdamW: in each step the model shrinks by the stepsize times this number."
    )
    weights: str | None = method(
        None, "Mixing weights: laplacian (default, but 1/3 on a ring), metropolis, best_constant, fastest, lazy."
    )
    dtype: str | None = method(None, "float32 or float64. Default: float32 for data, else float64.")
    plugin: list[Path] | None = method(
        None, "Python file with your own rules or graphs (docs/extending.md); may be given several times."
    )

    rounds: str | None = messages(
        None, "Mixing rounds per exchange, or exact: as many as an exact average needs. Default: 2 on the graph exact, else 1."
    )
    every: int = messages(1, "Exchange only at every N-th step.")
    compress: str | None = messages(
        None,
        f"Compress messages: {', '.join(COMPRESSIONS)}; numbers as in topk:0.01, "
        "feedback:2, moniqua:8,4,8/8 (docs/compression.md). moniqua and 16 bits suit changing graphs, feedback complete ones.",
    )
    private: bool = messages(
        False, "Secure summation: others see sums over all nodes, never the model or gradient of one (docs/privacy.md)."
    )
    drop: float = messages(0.0, "Simulated fault: each link fails in a step with this probability.")
    clock: Path | None = messages(
        None,
        "Predict the seconds on real links (column clock_seconds): a TOML file with compute (seconds per gradient), bandwidth "
        "(Mbit/s that a node sends) and latency (ms).",
    )
    late: int | None = messages(
        None,
        "Nodes do not wait for each other, at the speeds of --clock: an exchange may last for this many further steps. "
        "--steps is then the mean of the nodes' steps, and the default graph exponential.",
    )

    engine: str | None = processes(
        None, "simulated, mpi or torch. Default: how this process was started (mpirun, torchrun, or by itself)."
    )
    sites: Path | None = processes(
        None, "TOML file that lists the sites: this process is one of them, and trains with the others over TLS."
    )
    timeout: float = processes(30.0, "Seconds without an answer after which a site counts as lost.")
    again: bool = processes(
        False, "With --sites, tell and test again of nearly the same rows as an earlier run or fit (SECURITY.md)."
    )
    dry_run: bool = processes(
        False, "Send nothing, and show what this process would send in the first steps: to whom, arrays, bytes."
    )

    evaluate: int | None = output(None, "Evaluate every N steps. Default: up to 50 times; to compare, 5 to 100, by their cost.")
    checkpoint_every: int | None = output(None, "Write a checkpoint every N steps; `dnasa resume FOLDER` continues.")
    force: bool = output(False, "Replace the run or fit that is in the folder.")
    config: Path | None = output(None, "Repeat the run of this config.json; options of the command line take precedence.")
    trust: bool = output(False, "Execute the Python files that a config, a study or a trained model names.")
    quiet: bool = output(False, "Print nothing but errors.")
    log_json: bool = output(False, "Print nothing but JSON lines: one per evaluation and run, with speed and time left.")

    metric: str | None = figures(None, "Metric to compare. Default: test_accuracy, else test_rmse, else test_loss.")
    x: str = figures(
        "",
        "Curves against steps, epochs, samples or bytes, or several, separated by commas. Default: steps, and bytes where "
        "methods send different amounts.",
        show_default=False,
    )
    format: str = figures("png", "Formats of the figures, separated by commas: png, pdf, svg.")
    style: str = figures(
        "screen", "Look of the figures: screen; paper, a column of 229.5 pt; or a width, as paper:6.75 (inches)."
    )
    latex: bool = figures(False, "Also write the table as LaTeX (booktabs), table.tex in --out.")


FIELDS = {each.name: each for each in fields(Options)}
OF_TRAIN = ("rule", "eta", "clock", "late", "sites", "again", "dry_run", "epsilon", "delta")
OF_COMPARE = ("rules", "etas", "extend", "metric", "x", "format", "style", "latex")


def takes(*names: str, every_but: Iterable[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn a command's parameter `options` into an option for each of these fields of `Options`, or for `every_but` some."""
    chosen = names or tuple(name for name in FIELDS if name not in every_but)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters: list[inspect.Parameter] = []
        for each in inspect.signature(command, eval_str=True).parameters.values():
            is_options = each.name == "options"
            parameters += map(parameter, chosen) if is_options else [each.replace(kind=each.KEYWORD_ONLY)]

        @functools.wraps(command)
        def run(**values: Any) -> None:
            return command(options=Options(**{name: values.pop(name) for name in chosen}), **values)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def parameter(name: str) -> inspect.Parameter:
    chosen = FIELDS[name]
    written = f"{flag(name)}/{negative(name)}" if chosen.type == bool | None else flag(name)
    default = typer.Option(chosen.default, written, **chosen.metadata)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=chosen.type)


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def negative(name: str) -> str:
    """What switches off an option that may be on by default."""
    return f"--no-{name.replace('_', '-')}"


def split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
