"""What `dnasa data` prints."""

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import typer

from dnasa.cli.rendering import console, print_fitting, print_line, settings_table

if TYPE_CHECKING:
    import pandas as pd

    from dnasa.data import Dataset


def print_data(context: typer.Context) -> tuple["Dataset", "pd.DataFrame"]:
    """Print how rows are read and divided; return them and the table of the division."""
    from dnasa.data import partition
    from dnasa.tasks import datasets, sources

    given = SimpleNamespace(**context.params, data=context.params["name"], model=None)
    if given.shard_dir is not None:
        rows, shards = sources.shards_of(given, range(given.nodes))
        title = f"{given.nodes} nodes, as their files are"
    else:
        rows = sources.loaded(given)
        shards = partition(given.partition, rows.labels, given.nodes)
        title = f"{given.nodes} nodes, {given.partition}"
    if rows.encoding is None:
        print_fitting(datasets.describe(rows), f"{rows.name}, from {rows.source}")
    else:
        print_own(given, rows)
    kinds = {"classification": "Rows of each class", "regression": "Targets", "multilabel": "Rows with each label"}
    table = datasets.division(rows, shards)
    print_fitting(table, f"{'Windows' if rows.vocabulary else kinds[rows.task]} at each of {title}")
    differences = datasets.differences(rows, shards)
    if differences is not None:
        print_fitting(differences, "How the inputs of the nodes differ, in standard deviations")
    for sentence in (*rows.warnings, *sources.uneven(rows.sites, None)):
        print_line(f"Warning: {sentence}")
    return rows, table


def print_own(given: SimpleNamespace, rows: "Dataset") -> None:
    """A file is read once more for its columns as they were before they were encoded."""
    from dnasa.data import loading, shards
    from dnasa.data.rows import Chosen
    from dnasa.tasks import datasets, sources

    options = sources.reading_options(given)
    path = (
        Path(given.data)
        if given.shard_dir is None
        else shards.node_paths(Path(given.shard_dir), range(1), given.nodes)[0]
    )
    read, _ = loading.read(path, given.target, options["separator"], options["header"])
    chosen = Chosen(given.columns, given.drop_columns, given.id_column)
    read = chosen.of(read, path.name, partly=given.shard_dir is not None)
    console.print(settings_table(datasets.understood(rows, read.understood), f"{rows.name}, from {rows.source}"))
    if read.features:
        where = "" if given.shard_dir is None else f" of {path.name}"
        print_fitting(datasets.columns(read), f"Columns{where}")
