"""`dnasa data`: the datasets, and how data is read and divided among nodes."""

from typing import TYPE_CHECKING, Annotated

import typer

from dnasa.cli import inputs
from dnasa.cli.options import Options, takes
from dnasa.cli.rendering import print_line, print_table
from dnasa.core import InputError

MOST_COLUMNS = 15  # a table with more is shown with a row for each class

if TYPE_CHECKING:
    from dnasa.tasks.sources import SourceOptions


@takes("target", "drop_columns", "id_column", "task", "partition", "nodes", "shard_dir")
def show_data(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="A dataset, or a file or folder of your own; without one, list all datasets.")
    ] = None,
    *,
    options: Options,
) -> None:
    """List the datasets, or show how one of them or your own file is read and divided among nodes."""
    from dnasa.tasks import datasets
    from dnasa.tasks.sources import SourceOptions

    if name is None and options.shard_dir is None:
        return print_table(datasets.datasets(), "Datasets")
    if name is not None and options.shard_dir is not None:
        raise InputError("A dataset and --shard-dir cannot be combined: leave one of them out.")
    nodes = inputs.count_nodes(context, options)
    print_data(SourceOptions.of(vars(options) | {"data": name, "nodes": nodes}))


def print_data(options: "SourceOptions") -> None:
    """Print how rows are read and divided."""
    from dnasa.data import partition
    from dnasa.tasks import datasets, sources

    rows, shards = sources.load_rows(options, range(options.nodes))
    how = "as their files are"
    if options.shard_dir is None:
        how = options.partition or "iid"
        shards = partition(how, rows.labels, options.nodes)
    print_table(datasets.reading(rows), f"{rows.name}, from {rows.source}")
    kinds = {"classification": "Rows of each class", "regression": "Targets"}
    table = datasets.division(rows, shards)
    if len(table.columns) > MOST_COLUMNS:
        table = table.set_index(table.columns[0]).T.rename_axis("class").reset_index()
    print_table(table, f"{'Windows' if rows.vocabulary else kinds[rows.task]} at each of {options.nodes} nodes, {how}")
    for sentence in rows.warnings:
        print_line(f"Warning: {sentence}")
