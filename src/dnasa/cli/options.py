"""The options that commands share: a field of `Options` each, in the order of the help."""

# ruff: noqa: RUF009 (option makes a field)

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from dnasa.channels.compressed import COMPRESSIONS
from dnasa.rules.registry import COMPARED, DEFAULT_RULE, RULES
from dnasa.rules.schedules import ETA

NO_ETA = " and ".join(name for name in RULES if not RULES[name].needs_eta)
MEANING = "; ".join(f"{name} {spec.formula}" for name, spec in ETA.items())
GRAPHS = "GRAPHS"  # in a help: their names


def option(default: Any, help: str, *also: str, **more: Any) -> Any:
    """A field that is an option: its default, its help, its other names, and what else `typer.Option` takes."""
    return field(default=default, metadata={"also": also, "settings": {"help": help} | more})


def full_name(partition: str) -> str:
    """For titles and configs: with the number that is used."""
    from dnasa.data.partitions import full_name

    return full_name(partition)


def special_schedules() -> str:
    """The schedules that only some rules have, with these rules."""
    parts = []
    for name, method in RULES.items():
        default, own = next(iter(method.schedules)), [each for each in method.schedules if each not in ETA]
        if own:
            parts.append(f"{' or '.join(each + ' (default)' * (each == default) for each in own)} for {name}")
    return "; ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user chose. Options that a command does not take have their defaults."""

    data: str = option(
        "digits",
        "digits, mnist, a9a, miniboone, covertype, cifar10, shakespeare, or a file or folder of your own: .csv, .tsv, "
        ".txt, .npz, .parquet, .xlsx, LIBSVM, images by class (`dnasa data FILE` shows how it is read).",
    )
    target: str | None = option(
        None,
        "Target column of your own table, by name or by position from 0; several labels as a,b,c.",
    )
    columns: str | None = option(
        None, "Columns of your own table that are inputs, as a,b,c. Default: all but the target."
    )
    drop_columns: str | None = option(None, "Columns of your own table to leave out, as a,b,c.")
    id_column: str | None = option(None, "Column that names the rows: not an input, and repeated in predictions.")
    separator: str | None = option(
        None, "Separator of your own table: one character, tab or whitespace. Default: detected."
    )
    no_header: bool = option(False, "The first line of your own table is a row. Default: detected.")
    task: str | None = option(
        None, "classification, regression or multilabel. Default: what the target column looks like."
    )
    no_standardise: bool = option(False, "Leave the inputs of your own data as they are, with any mean and deviation.")
    partition: str = option(
        "iid",
        "How rows are divided among nodes: iid, contiguous, by_label, dirichlet(0.1); dirichlet alone is dirichlet(0.5).",
        callback=full_name,
    )
    partition_seed: int | None = option(
        None, "Give all runs the partition of this seed. Default: each seed draws its own."
    )
    model: str | None = option(
        None,
        "linear, mlp:128,64,relu,dropout=0.1 (hidden widths, activation, dropout), lenet, resnet:16,group (first width, "
        "norm), gpt:2,96,64, lstm:1,128,32 (layers, width, context) or your own, my_file.py:make. Default: what suits the "
        "data.",
    )
    problem: str | None = option(
        None, "Instead of data, a synthetic problem: least_squares, spike or robust_regression."
    )
    nodes: int = option(8, "Number of nodes; with --shard-dir and one process, by default that of the shards.")
    topology: str | None = option(
        None,
        f"The graph: {GRAPHS}, or one of a plugin. Directed graphs are for sgp and push_dsgt. Default: exact; ring where the "
        "rule or --compress needs a fixed graph, or --weights is given.",
    )
    weights: str | None = option(
        None,
        "Mixing weights: laplacian, metropolis or lazy. Default: 1/3 on the ring (lazy where no --topology is "
        "given and the rule needs it), else laplacian.",
    )
    weights_by: str | None = option(None, "rows: nodes count in proportion to their rows. Default: all the same.")
    class_weight: str | None = option(
        None, "balanced: in the training loss, each class counts the same, regardless of its number of rows."
    )
    rule: str = option(DEFAULT_RULE, f"Method: {', '.join(RULES)}, or a rule of a plugin.")
    rules: str = option(
        ",".join(COMPARED),
        f"Methods, separated by commas, from: {', '.join(RULES)}, and rules of plugins; each may name its schedule, as "
        f"in dsgd:constant,dsgt:cosine,dnasa. {NO_ETA} need no stepsize.",
    )
    plugin: list[Path] | None = option(
        None,
        "Python file with rules, graphs or compressors of your own (@dnasa.rules.rule, register of dnasa.topology, "
        "dnasa.channels); may be given several times.",
    )
    eta: float | None = option(
        None,
        f"Stepsize, for rules that need one; {NO_ETA} need none. What it means depends on the schedule, with n "
        f"nodes, T steps and t = 0, 1, ...: {MEANING}.",
    )
    etas: str = option(
        "0.01,0.03,0.1,0.3,1,3",
        "Stepsizes for the rules that need one, separated by commas. What they mean depends on the schedule, with n "
        f"nodes, T steps and t = 0, 1, ...: {MEANING}.",
    )
    extend: bool = option(
        False, "Where the best stepsize is at an edge of the grid, continue the grid there, at most 8 times."
    )
    schedule: str | None = option(
        None,
        "Stepsize schedule: diminishing (default) or fixed; constant or cosine for rules with a stepsize (cosine is "
        f"the default of `dnasa train` for rules with momentum); {special_schedules()}.",
    )
    weight_decay: float = option(
        0.0, "Decoupled weight decay, as in AdamW: in each step the model shrinks by the stepsize times this number."
    )
    steps: int = option(1000, "Number of steps.")
    stop: list[str] | None = option(
        None,
        "Stop once a metric has reached a value, such as grad_norm=0.01; several must all be reached.",
        metavar="METRIC=NUMBER",
    )
    early_stopping: bool | None = option(
        None,
        "Hold out a tenth of the training rows, stop when the loss on them no longer improves, and keep the best model. "
        "Default for `dnasa train` on your own tables with at least 100 rows and more than 5 passes over them; "
        "--no-early-stopping switches it off.",
    )
    patience: int | None = option(
        None, "Stop early, after this many evaluations without improvement. Default of early stopping: 40."
    )
    batch: int | None = option(None, "Samples per node and step. Default: 32 for data, 1 for least squares.")
    seed: int = option(0, "Seed of the samples, the starting point and the partition; the first of several.")
    seeds: int = option(1, "How many seeds to run side by side: seed, seed + 1, ...")
    metric: str | None = option(
        None, "Column of the history to compare. Default: test_accuracy, else test_rmse, else test_loss."
    )
    x: str = option(
        "",
        "Curves against steps, epochs, samples or bytes, or several, separated by commas: side by side in one figure. Default: "
        "steps, and bytes where methods send different amounts.",
        show_default=False,
    )
    evaluate: int | None = option(None, "Evaluate every N steps. Default: up to 50 times; in a comparison, up to 100.")
    rounds: str | None = option(
        None,
        "Mixing rounds per exchange, or exact: as many as an exact average needs. By default 2 on the graph exact, otherwise "
        "and with simulated faults 1.",
    )
    every: int = option(1, "Exchange only at every N-th step.")
    loss_scale: str = option("1", "Factor on the training loss; 1/n gives the paper's stepsize axis.")
    dtype: str | None = option(None, "float32 or float64. Default: float32 for data, else float64.")
    device: str = option("cpu", "cpu or cuda.")
    engine: str | None = option(
        None, "simulated, mpi or torch. Default: how this process was started (mpirun, torchrun, or by itself)."
    )
    sites: Path | None = option(
        None, "TOML file that lists the sites: this process is one of them, and trains with the others over TLS."
    )
    timeout: float = option(30.0, "Seconds of silence after which a site counts as lost.")
    message_dtype: str | None = option(
        None, "Send messages in 16 bits: bfloat16 or float16. Default: as they are.", "--wire"
    )
    compress: str | None = option(
        None,
        f"Compress messages: {', '.join(COMPRESSIONS)}, or one of a plugin. moniqua and randk suit changing graphs. "
        "moniqua:8,4,8/8, for adanasa, sends the first message in 8 bits, the second in 4, the others in 8 at every 8th step "
        "only; topk:0.01 a hundredth of the numbers; `sign,gamma=0.2` replaces CHOCO's gamma.",
    )
    overlap: bool = option(False, "Exchange while the next gradient is computed, for rules that can (dnasa, dasagt).")
    clock: Path | None = option(
        None,
        "Predict the seconds on real links (column clock_seconds): a TOML file with compute (seconds per gradient), bandwidth "
        "(Mbit/s that a node sends) and latency (ms).",
    )
    late: int | None = option(
        None,
        "Nodes do not wait for each other, at the speeds of --clock or with --sites: an exchange with a neighbour may last for "
        "this many further steps. --steps is then the mean of the nodes' steps, and the default graph exponential.",
    )
    trace: Path | None = option(None, "Write a timeline of the first steps for Chrome or Perfetto (JSON).")
    shard_dir: Path | None = option(
        None,
        "Folder with node-0.csv (or another format, or a folder), node-1.csv, ... and perhaps test.csv: a process reads "
        "only the files of its own nodes. With --sites, the folder with this site's own table, under any name.",
    )
    local_accuracy: bool = option(False, "Also test every node's own model at the end.")
    drop: float = option(0.0, "Simulated fault: each link fails in a step with this probability.")
    away: float = option(0.0, "Simulated fault: each node is unreachable for this share of the time.")
    stale: int = option(0, "Simulated fault: messages arrive up to this many steps late.")
    out: Path | None = option(None, "Folder for config, history, checkpoints, iterates and figures.")
    format: str = option("png", "Formats of the figures, separated by commas: png, pdf, svg, pgf (its text is LaTeX).")
    style: str = option(
        "screen",
        "Look of the figures: screen; paper, a column of 234 pt with text of 8 pt; or a width, as in paper:6.75 (inches) or "
        "paper:487pt.",
    )
    latex: bool = option(False, "Also write the table as LaTeX (booktabs), table.tex in --out.")
    checkpoint_every: int | None = option(
        None, "Write a checkpoint every N steps; `dnasa resume FOLDER` continues from it."
    )
    force: bool = option(False, "Replace the run that is in the folder.")
    config: Path | None = option(
        None, "Repeat the run of this config.json; options given on the command line take precedence."
    )
    trust: bool = option(False, "Execute the Python files that a config, a study or a trained model names.")
    dry_run: bool = option(
        False, "Send nothing, and show what this process would send in the first steps: to whom, arrays, bytes."
    )
    log: str | None = option(
        None, "Append events to this file as JSON lines: losses, evaluations, ...; - is standard error."
    )
    metrics_port: str | None = option(
        None, "Serve metrics for Prometheus at this port of 127.0.0.1, or at HOST:PORT.", metavar="[HOST:]PORT"
    )
    tensorboard: bool = option(False, "Also write the history for TensorBoard, into OUT/tensorboard.")
    quiet: bool = option(False, "Print nothing but errors.")
    log_json: bool = option(
        False, "Print nothing but JSON lines: one per evaluation and run, with speed and remaining time."
    )


FIELDS = {each.name: each for each in fields(Options)}
OF_SITES = ("sites", "dry_run", "log", "metrics_port")
OF_TRAIN = ("rule", "eta", "stop", "overlap", "clock", "late", "trace", "local_accuracy", "tensorboard", *OF_SITES)
OF_COMPARE = ("rules", "etas", "extend", "metric", "x", "format", "style", "latex")


def takes(*names: str, every_but: Iterable[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn a command's parameter `given`, which is an `Options`, into an option for each of these fields.

    Args:
        *names: The fields, in the order of the command's help.
        every_but: Instead of names, the fields to leave out.
    """
    chosen = names or tuple(name for name in FIELDS if name not in every_but)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters: list[inspect.Parameter] = []
        for own in inspect.signature(command, eval_str=True).parameters.values():
            parameters += map(parameter, chosen) if own.name == "given" else [own.replace(kind=own.KEYWORD_ONLY)]

        @functools.wraps(command)
        def run(**values: Any) -> None:
            return command(given=Options(**{name: values.pop(name) for name in chosen}), **values)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def parameter(name: str) -> inspect.Parameter:
    """The parameter that typer makes this option of."""
    chosen = FIELDS[name]
    written = f"{flag(name)}/{negative(name)}" if chosen.type == bool | None else flag(name)
    default = typer.Option(chosen.default, written, *chosen.metadata["also"], **chosen.metadata["settings"])
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=chosen.type)


def flag(name: str) -> str:
    """The option as it is written."""
    return f"--{name.replace('_', '-')}"


def negative(name: str) -> str:
    """What switches off an option that may be on by default."""
    return f"--no-{name.replace('_', '-')}"


def complete(help: str) -> str:
    """A help with the names of the graphs. Their registry imports networkx, too much for every start."""
    if GRAPHS not in help:
        return help
    from dnasa.topology import TOPOLOGIES

    return help.replace(GRAPHS, ", ".join(TOPOLOGIES))


class Command(TyperCommand):
    """A command whose help is completed when it is shown."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for each in self.params:
            each.help = complete(each.help)  # type: ignore[attr-defined]
            each.secondary_opts = []  # their column would leave little room for the help, which names them
        super().format_help(ctx, formatter)


def split(text: str) -> list[str]:
    """The parts of a value that has several, separated by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]
