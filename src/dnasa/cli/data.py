"""`dnasa data`: the datasets, and how data is read and divided among nodes."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from dnasa.cli import inputs, rendering
from dnasa.cli.options import Options, takes
from dnasa.cli.rendering import print_line, print_table
from dnasa.core import InputError
from dnasa.files import make_folder

if TYPE_CHECKING:
    import pandas as pd

    from dnasa.communication import Network
    from dnasa.data import Dataset

    Duplicates = tuple[pd.DataFrame, list[str]]  # how many rows, and which of the local ones

MOST_COLUMNS = 15  # a table with more is shown with a row for each class


@takes(
    *("target", "drop_columns", "id_column", "task", "labels", "recode", "min_count", "partition", "nodes", "shard_dir"),
    *("sites", "again", "timeout", "dry_run", "out"),
)
def show_data(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="A dataset, or a file or folder of your own; without one, list all datasets.")
    ] = None,
    find_duplicates: Annotated[bool, typer.Option("--find-duplicates", help="Count rows of two sites, by hashes.")] = False,
    *,
    options: Options,
) -> None:
    """List the datasets, or show how one, your own file, or the tables of all --sites are read and divided among nodes."""
    from dnasa.data import partition
    from dnasa.data.duplicates import count_duplicates
    from dnasa.tasks import datasets, sources

    if options.out is not None and options.sites is None:
        raise InputError("--out is the folder of the audit of what leaves this site: give --sites, too.")
    if options.shard_dir is None and (find_duplicates or options.sites is not None or options.dry_run):
        raise InputError("--sites, --dry-run and --find-duplicates are for tables of sites: give --shard-dir.")
    if name is None and options.shard_dir is None:
        return print_table(datasets.datasets(), "Datasets")
    if name is not None and options.shard_dir is not None:
        raise InputError("A dataset and --shard-dir cannot be combined: leave one of them out.")
    if options.sites is not None or options.dry_run:
        return show_sites(context, options, find_duplicates)
    nodes, how = inputs.find_nodes(context, replace(options, data=name or ""))
    chosen = sources.SourceOptions.of(vars(options) | {"data": name, "nodes": nodes, "partition": how})
    rows, shards = sources.load_rows(chosen, range(nodes))
    if not shards:
        shards = partition(how, rows.labels, nodes)
    print_table(datasets.reading(rows), f"{rows.title}, from {rows.source}")
    if not has_cohort(rows):
        table = datasets.division(rows, shards)
        if len(table.columns) > MOST_COLUMNS:
            table = table.set_index(table.columns[0]).T.rename_axis("class").reset_index()
        kinds = {"classification": "Rows of each class", "regression": "Targets"}
        print_table(table, f"{'Windows' if rows.vocabulary else kinds[rows.task]} at each of {nodes} nodes, {how}")
    found = count_duplicates(rows, shards, lambda own, read: [read(own)], options.min_count) if find_duplicates else None
    show_cohort(rows, found)


def show_sites(context: typer.Context, options: Options, find_duplicates: bool) -> None:
    """What the sites tell each other of their tables; a dry run shows what this one would tell."""
    from dnasa.data.duplicates import count_duplicates
    from dnasa.networks.sites import JOINED
    from dnasa.runs.folder import RunFolder
    from dnasa.tasks.sources import load_rows

    options = inputs.of_dry_run(options) if options.dry_run else options
    begun = inputs.begin(context, replace(options, out=None), [options.rule])
    begun = begun._replace(folder=RunFolder(make_folder(options.out)) if options.out else None)

    def load(network: "Network") -> tuple["Dataset", "Duplicates | None"]:
        rows, shards = load_rows(*inputs.told(begun, network))
        gather = network.processes.allgather_json
        return rows, count_duplicates(rows, shards, gather, options.min_count) if find_duplicates else None

    network, loaded = inputs.load_together(begun, load, lambda loaded: None)
    inputs.set_output(options, writes=True)
    if options.dry_run:
        return rendering.print_dry_run(network)
    show_cohort(*loaded)
    if begun.folder is not None and begun.folder.journal is not None:
        begun.folder.journal.write(0)
    for members in JOINED:
        members.end()


def has_cohort(rows: "Dataset") -> bool:
    return bool(rows.sites and rows.sites[0].columns)


def show_cohort(rows: "Dataset", duplicates: "Duplicates | None") -> None:
    """What sites may know of each other's rows, and warnings."""
    from dnasa.tasks.datasets import cohort

    if has_cohort(rows):
        rounded = f"other counts are rounded to {rows.sites[0].min_count}, the largest so that their sum is right"
        print_table(cohort(rows), f"Rows at {len(rows.sites)} sites, for training unless said otherwise; {rounded}")
    if duplicates is not None and len(duplicates[0]):
        print_table(duplicates[0], "Rows at two sites that are equal in all columns used")
    elif duplicates is not None:
        print_line("No two sites have rows that are equal in all columns used.")
    for sentence in duplicates[1] if duplicates else ():
        print_line(sentence)
    for sentence in rows.warnings:
        print_line(f"Warning: {sentence}")
