"""Results as tables and sentences."""

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from textwrap import fill
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dnasa import networks
from dnasa.runs.names import node_name, node_names

if TYPE_CHECKING:
    import pandas as pd

    from dnasa.communication import Network
    from dnasa.runs.result import Result
    from dnasa.topology import Topology


class Output(Console):
    """The standard output, or nothing once whoever read it has gone: a run goes on."""

    def on_broken_pipe(self) -> None:
        with suppress(SystemExit):
            super().on_broken_pipe()


# mpirun gives its processes a terminal, whatever its own output is
console = Output() if networks.detect() == "simulated" else Output(color_system=None)
SHORT = 22  # letters of a cell that stays in one line
CONTROL = dict.fromkeys({*range(32), *range(127, 160)} - {*b"\t\n"}, "?")
MOST_DECIMALS = 4  # with which a column of numbers is aligned
COLUMNS = (  # of a history, those that are printed
    *("step", "train_loss", "test_loss", "test_accuracy", "test_rmse", "test_r2"),
    *("grad_norm", "consensus", "clock_seconds", "seconds"),
)


def is_limited() -> bool:
    """Whether lines have a width: that of the terminal, or of the variable COLUMNS."""
    return console.is_terminal or "COLUMNS" in os.environ


def width(most: int) -> int:
    """How many letters a line has room for."""
    return min(most, console.width) if is_limited() else most


def print_line(text: str) -> None:
    lines = printable(text).splitlines() or [""]
    if is_limited():
        lines = [fill(line, console.width, break_long_words=False, break_on_hyphens=False) for line in lines]
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def print_error(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)


@contextmanager
def showing_warnings(show: Callable[[str], None]) -> Iterator[None]:
    """Show Python's warnings as lines, without the place in the code."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: show(f"Warning: {message}")
        yield


def print_table(table: "pd.DataFrame | Mapping[str, Any]", title: str) -> None:
    """A table, or settings as a table without a header; in a file or a pipe, lines may be long unless COLUMNS says how long.

    On a narrow terminal, columns that do not fit without breaking words are in further tables.
    """
    wide = console if is_limited() else Output(width=max(console.width, 170), quiet=console.quiet)
    heading: Text | None = Text(printable(title))
    if isinstance(table, Mapping):
        out = Table(title=heading, show_header=False)
        for name, value in table.items():
            out.add_row(Text(printable(name)), Text(printable(str(value))))
        wide.print(out)
        return
    columns = [[printable(str(name)), *map(partial(_cell, name, _form(table[name])), table[name])] for name in table]
    sides = ["right" if table[name].dtype.kind in "fiu" else "left" for name in table]
    for widths in _fitting(columns, wide.width - 1):
        out = Table(title=heading)
        for i, width in widths.items():
            out.add_column(Text(columns[i][0]), justify=sides[i], overflow="fold", width=width)  # type: ignore[arg-type]
        for row in range(1, len(table) + 1):
            out.add_row(*(Text(columns[i][row]) for i in widths))
        wide.print(out)
        heading = None


def _fitting(columns: Sequence[Sequence[str]], room: int) -> Iterator[dict[int, int]]:
    """The widths of the columns of each table, of which the first is in all: no word or short cell is broken if it has room."""
    words = [[w for i, c in enumerate(column) for w in ([c] if i and len(c) <= SHORT else c.split())] for column in columns]
    longest = [min(room // 2, max(map(cell_len, parts), default=0)) for parts in words]
    full = [max(map(cell_len, column)) for column in columns]
    parts = [[0]]
    for i in range(1, len(columns)):
        if len(parts[-1]) > 1 and sum(longest[j] + 3 for j in [*parts[-1], i]) > room:
            parts.append([0])
        parts[-1].append(i)
    for chosen in parts:
        limit = max(full)
        while limit > 1 and sum(max(longest[i], min(full[i], limit)) + 3 for i in chosen) > room:
            limit -= 1
        yield {i: max(longest[i], min(full[i], limit)) for i in chosen}


def printable(text: str) -> str:
    """Names in files may hold characters that no terminal can encode, and other sites may send some that control it."""
    return text.encode(errors="replace").decode().translate(CONTROL)


def print_history(rows: "pd.DataFrame", title: str) -> None:
    """The first and the last evaluation, four between them, and the kept models of early stopping; means over the seeds."""
    history = rows.groupby("step").mean(numeric_only=True).reset_index()
    kept = history.index[history.step.isin(kept_steps(rows))]
    picks = sorted({round(i * (len(history) - 1) / 5) for i in range(6)} | {*kept})
    instead = {"test_loss": "test_rmse", "seconds": "clock_seconds"}  # columns that make room for others
    columns = [name for name in COLUMNS if name in history and instead.get(name) not in history]
    print_table(history.iloc[picks][columns].rename(columns=lambda name: name.replace("_", " ")), title)


def kept_steps(history: "pd.DataFrame") -> list[int]:
    """The steps whose models early stopping kept, one for each run."""
    from dnasa.comparing.statistics import final

    return [int(step) for step in final(history).step] if "improved" in history else []


def _cell(name: Any, form: str, value: Any) -> str:
    if isinstance(value, str):
        return printable(value)
    if value is None or value != value:
        return "-"
    if "accuracy" in str(name):
        return f"{100 * value:.2f} %"
    return format(value, form if isinstance(value, float) else ",")


def _form(column: Iterable[Any]) -> str:
    """The format of its fractions: three digits, and the same number of decimals unless these are many."""
    shown = [f"{value:.3g}" for value in column if isinstance(value, float) and value == value]
    places = max((len(text.partition(".")[2]) for text in shown), default=0)
    return ".3g" if places > MOST_DECIMALS or "e" in "".join(shown) else f".{places}f"


def graph_title(graph: "Topology") -> str:
    return f"{graph.name} ({', '.join(filter(None, (graph.parameters, graph.mixing)))})"


def print_lost_nodes(settings: Mapping[str, Any], sites: Sequence[str] = ()) -> None:
    for loss in settings.get("lost", []):
        nodes = node_names(sites, loss["nodes"])
        print_line(f"Lost at step {loss['step']}: {nodes} and their data; the others continued.")


def print_dry_run(network: "Network", steps: int = 0) -> None:
    """What this process would have sent: texts as they are, and a table by kind and receiver."""
    import pandas as pd

    from dnasa.runs.journal import Audit

    lines = Audit(network.processes.traffic, network.processes.names).lines()
    for line in lines:
        if "text" in line:
            print_line(f"Text to {line['to']}: {line['text']}".replace("}, ", "},\n  "))
    if not steps:
        return print_line("Nothing was sent.")
    shown = min(steps, network.processes.last_step or steps)
    rows = [
        {
            "what": line["kind"],
            "to": line["to"],
            "arrays": ", ".join(f"{array['dtype']} {tuple(array['shape'])}" for array in line["arrays"]),
            "messages": line["messages"],
            "bytes": line["bytes"],
            "bytes per step": f"{line['bytes'] / shown:,.0f}" if line["kind"] == "exchange" else "",
        }
        for line in lines
    ]
    table = pd.DataFrame(rows).groupby(["what", "to", "arrays"], sort=False, as_index=False).sum()
    print_table(table, f"What this process would send in {shown} of {steps:,} steps")
    if network.processes.names:
        print_line(
            "The texts about this site's table and the settings leave word for word. What follows from all tables is shown as "
            "if the others were like this one's, and the final tests as after these steps."
        )
    print_line(
        "Nothing was sent. Means of models and metrics are sent at evaluations, the model at the end (gather). A checkpoint "
        "sends the state of the rule to all. Sites also tell each other twice a second whom they hear and what they are doing."
    )


def print_kept(result: "Result") -> None:
    """What the table of a history does not say."""
    from dnasa.comparing import tables

    for line in tables.notes(result.settings):
        print_line(line)
    stops_early = "validation_loss" in result.history
    if stops_early and (steps := ", ".join(map(str, kept_steps(result.history)))):
        last = int(result.history.step.max())
        print_line(
            f"The model of step {steps} is kept, the last with a validation loss within 1 % of the smallest; the run ended at "
            f"step {last}."
        )


def timing_line(result: "Result") -> str:
    timing = result.settings["timing"]
    seconds = {name.removesuffix("_seconds"): value for name, value in timing.items() if name.endswith("_seconds")}
    if not seconds.get("exchange"):  # a fast path does both at once
        seconds.pop("exchange", None)
        seconds = {"rule and exchange" if kind == "rule" else kind: value for kind, value in seconds.items()}
    parts = ", ".join(f"{kind} {value:.2f} s" for kind, value in seconds.items())
    if not {"messages_per_step", "bytes_per_step"} <= timing.keys():
        return f"Time: {parts}."
    messages = timing["messages_per_step"]
    sent = f"{messages:.3g} message{'s' * (messages != 1)} and {timing['bytes_per_step']:,.0f} bytes sent per step"
    return f"Time of {result.settings.get('site', 'rank 0')}: {parts}; {sent}."


def divergence(step: int, node: Any, remedy: str, sites: Sequence[str] = ()) -> str:
    """`node` is missing where only an evaluation showed it."""
    import pandas as pd

    where = "" if pd.isna(node) else f" at {node_name(sites, int(node))}"
    return f"The run diverged at step {step}{where}: {remedy}."
