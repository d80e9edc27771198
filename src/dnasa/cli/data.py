"""`dnasa data`: the datasets, and how data is read and divided among nodes."""

from dataclasses import replace
from typing import Annotated

import typer

from dnasa.cli import inputs
from dnasa.cli.options import Options, takes
from dnasa.cli.rendering import print_line, print_table
from dnasa.core import InputError

MOST_COLUMNS = 15  # a table with more is shown with a row for each class


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
    from dnasa.data import partition
    from dnasa.tasks import datasets, sources

    if name is None and options.shard_dir is None:
        return print_table(datasets.datasets(), "Datasets")
    if name is not None and options.shard_dir is not None:
        raise InputError("A dataset and --shard-dir cannot be combined: leave one of them out.")
    nodes, how = inputs.find_nodes(context, replace(options, data=name or ""))
    chosen = sources.SourceOptions.of(vars(options) | {"data": name, "nodes": nodes, "partition": how})
    rows, shards = sources.load_rows(chosen, range(nodes))
    if not shards:
        shards = partition(how, rows.labels, nodes)
    print_table(datasets.reading(rows), f"{rows.name}, from {rows.source}")
    table = datasets.division(rows, shards)
    if len(table.columns) > MOST_COLUMNS:
        table = table.set_index(table.columns[0]).T.rename_axis("class").reset_index()
    kinds = {"classification": "Rows of each class", "regression": "Targets"}
    print_table(table, f"{'Windows' if rows.vocabulary else kinds[rows.task]} at each of {nodes} nodes, {how}")
    for sentence in rows.warnings:
        print_line(f"Warning: {sentence}")
