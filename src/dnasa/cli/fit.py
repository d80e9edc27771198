"""`dnasa fit`: a regression over sites, with intervals and p-values."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dnasa.cli import inputs, rendering
from dnasa.cli.options import Options, takes
from dnasa.cli.rendering import print_line, print_table
from dnasa.core import InputError
from dnasa.files import check_folder, make_folder
from dnasa.rules.registry import DEFAULT_RULE

if TYPE_CHECKING:
    from dnasa.communication import Network


@takes(
    *("data", "target", "nodes", "out", "shard_dir", "drop_columns", "id_column", "labels", "recode", "min_count"),
    *("engine", "sites", "again", "timeout", "dry_run", "quiet", "force"),
)
def fit(
    context: typer.Context,
    kind: Annotated[str, typer.Argument(help="logistic, linear, poisson or cox (with a stratum for each site).")],
    time: Annotated[str | None, typer.Option(help="Column of a cox regression: time to the event or the end.")] = None,
    *,
    options: Options,
) -> None:
    """Fit a regression over sites: coefficients, 95 % intervals and p-values, the same as on all rows in one place."""
    from dnasa import inference
    from dnasa.data.columns import as_csv
    from dnasa.data.recoding import as_recode
    from dnasa.networks.simulated import FEWEST
    from dnasa.pages import regression
    from dnasa.runs.folder import RunFolder
    from dnasa.sites.file import read_sites

    inputs.set_output(options)
    options = inputs.of_dry_run(options) if options.dry_run else options
    recode = as_recode(options.recode, options.labels)
    private = options.sites is not None and len(read_sites(options.sites).sites) >= FEWEST
    options = replace(options, nodes=options.nodes if options.shard_dir else 1, private=private)
    begun = inputs.begin(context, replace(options, out=None), [DEFAULT_RULE])
    if options.out:
        check_folder(options.out)
        folder = RunFolder(options.out)
        folder.own.check_free(inference.FILES)
        if not options.force and any((options.out / name).exists() for name in inference.FILES):
            raise InputError(f"{options.out} holds a fit already: choose another folder, or replace it with --force.")
        begun = begun._replace(folder=folder)

    def run(network: "Network") -> Any:
        names, ledger = (options.drop_columns, options.id_column), inputs.ledger(begun, network)
        source = options.shard_dir or options.data
        return inference.fit(kind, source, options.target, time, network, *names, recode, ledger, options.min_count)

    network, found = inputs.load_together(begun, run, lambda found: None)
    if options.dry_run:
        inputs.set_output(options, writes=True)
        return rendering.print_dry_run(network, inference.MOST)
    shown = found.texts()
    print_table(shown, found.title)
    for note in found.notes:
        print_line(note)
    if begun.folder is not None and network.processes.writes:
        make_folder(begun.folder.path)
        if begun.folder.journal is not None:
            begun.folder.journal.write(0)
        texts = (
            regression.render(found),
            as_csv(found.table),
            regression.as_latex(found, f"{kind}-regression"),
            as_csv(found.sites),
        )
        begun.folder.own.save({name: text.encode() for name, text in zip(inference.FILES, texts, strict=True)})
        print_line(f"Saved {', '.join(inference.FILES)} in {options.out}.")
