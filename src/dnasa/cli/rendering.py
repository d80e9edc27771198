"""Results as tables and sentences."""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dnasa.runs.names import node_name, node_names

if TYPE_CHECKING:
    import pandas as pd

    from dnasa.communication import Network
    from dnasa.runs.result import Result
    from dnasa.topology import Topology

console = Console()
COLUMNS = (  # of a history, those that are printed
    *("step", "train_loss", "test_loss", "test_accuracy", "test_rmse", "test_r2"),
    *("grad_norm", "consensus", "clock_seconds", "seconds"),
)


def print_line(text: str) -> None:
    console.print(printable(text), highlight=False, markup=False, soft_wrap=True)


def print_error(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)


@contextmanager
def showing_warnings(show: Callable[[str], None]) -> Iterator[None]:
    """Show Python's warnings as lines, without the place in the code."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: show(f"Warning: {message}")
        yield


def print_table(table: "pd.DataFrame | Mapping[str, Any]", title: str) -> None:
    """A table, or settings as a table without a header; in a file or a pipe, lines may be long."""
    out = Table(title=escape(printable(title)), show_header=not isinstance(table, Mapping))
    if isinstance(table, Mapping):
        for name, value in table.items():
            out.add_row(escape(printable(name)), escape(printable(str(value))))
    else:
        for name in table:
            side = "right" if table[name].dtype.kind in "fiu" else "left"
            out.add_column(str(name), justify=side, overflow="fold")  # type: ignore[arg-type]
        for row in zip(*(table[name] for name in table), strict=True):
            out.add_row(*(_cell(name, value) for name, value in zip(table, row, strict=True)))
    wide = console if console.is_terminal else Console(width=max(console.width, 170), quiet=console.quiet)
    wide.print(out)


def printable(text: str) -> str:
    """Names in files may hold characters that no terminal can encode."""
    return text.encode(errors="replace").decode()


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


def _cell(name: Any, value: Any) -> str:
    if isinstance(value, str):
        return escape(printable(value))
    if value is None or value != value:
        return "-"
    if "accuracy" in str(name) or name in ("recall", "precision"):
        return f"{100 * value:.2f} %"
    return f"{value:.3g}" if isinstance(value, float) else f"{value:,}"


def graph_title(graph: "Topology") -> str:
    return f"{graph.name} ({', '.join(filter(None, (graph.parameters, f'rho = {graph.rho:.3f}')))})"


def graph_rows(graph: "Topology") -> dict[str, str]:
    """What `dnasa topology` prints. The eigenvalues of a directed graph are complex numbers; rho is a modulus."""
    from dnasa.topology.types import count, extent

    rows = {"nodes": f"{graph.nodes:,}"}
    if graph.parameters:
        rows["parameters"] = graph.parameters
    if graph.period > 1:
        rows["graphs in turn"] = f"{graph.period}; edges and degrees are averages, rho is per step"
    if graph.directed:
        rows |= {"directed edges": f"{graph.messages:,}", "nodes received from": extent(graph.degrees)}
        rows |= {"weights": "columns sum to 1: for rules for directed graphs, such as sgp and push_dsgt"}
    else:
        rows |= {"edges": count(graph.degrees.sum() / 2), "degrees": extent(graph.degrees)}
        rows |= {"smallest eigenvalue": f"{round(graph.smallest_eigenvalue, 9) + 0:.6g}"}
    return rows | {"rho": f"{graph.rho:.6g}"}


def print_lost_nodes(settings: Mapping[str, Any], sites: Sequence[str] = ()) -> None:
    for loss in settings.get("lost", []):
        nodes = node_names(sites, loss["nodes"])
        print_line(f"Lost at step {loss['step']}: {nodes} and their data; the others continued.")


def print_dry_run(network: "Network", steps: int) -> None:
    """What this process would have sent, by kind and receiver."""
    import pandas as pd

    from dnasa.runs.journal import Audit

    rows = [
        {
            "what": line["kind"],
            "to": line["to"],
            "arrays": ", ".join(f"{array['dtype']} {tuple(array['shape'])}" for array in line["arrays"]),
            "messages": line["messages"],
            "bytes": line["bytes"],
            "bytes per step": f"{line['bytes'] / steps:,.0f}" if line["kind"] == "exchange" else "",
        }
        for line in Audit(network.processes.traffic, network.processes.names).lines()
    ]
    print_table(pd.DataFrame(rows), f"What this process would send in {steps} steps")
    print_line(
        "Nothing was sent. Exchanges are those of the rule. Means of models and metrics are sent at evaluations, the model at "
        "the end (gather), and as text the settings, the tests of the model and, with --shard-dir, summaries of the data. "
        "A checkpoint sends the state of the rule to all. Sites also tell each other twice a second whom they hear and what "
        "they are doing."
    )


def print_kept(result: "Result") -> None:
    """What the table of a history does not say: which model was kept, and what an accuracy is to be compared with."""
    from dnasa.comparing import tables

    for line in tables.baseline(result.settings):
        print_line(line)
    if steps := ", ".join(map(str, kept_steps(result.history))):
        last = int(result.history.step.max())
        print_line(f"The model of step {steps} is kept, with the smallest validation loss; the run ended at step {last}.")


def timing_line(result: "Result") -> str:
    timing = result.settings["timing"]
    seconds = {name.removesuffix("_seconds"): value for name, value in timing.items() if name.endswith("_seconds")}
    if not seconds.get("exchange"):  # a fast path does both at once
        seconds.pop("exchange", None)
        seconds = {"rule and exchange" if kind == "rule" else kind: value for kind, value in seconds.items()}
    parts = ", ".join(f"{kind} {value:.2f} s" for kind, value in seconds.items())
    if not {"messages_per_step", "bytes_per_step"} <= timing.keys():
        return f"Time: {parts}."
    sent = f"{timing['messages_per_step']:.3g} messages and {timing['bytes_per_step']:,.0f} bytes sent per step"
    return f"Time of {result.settings.get('site', 'rank 0')}: {parts}; {sent}."


def divergence(step: int, node: Any, remedy: str, sites: Sequence[str] = ()) -> str:
    """`node` is missing where only an evaluation showed it."""
    import pandas as pd

    where = "" if pd.isna(node) else f" at {node_name(sites, int(node))}"
    return f"The run diverged at step {step}{where}: {remedy}."
