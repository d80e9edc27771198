"""The trained model of a run: saved at the end, reported on, used to predict, exported."""

import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from dnasa.cli import configs, rendering
from dnasa.cli.options import Options, takes
from dnasa.cli.rendering import print_error, print_line, print_table
from dnasa.core import InputError
from dnasa.files import write_output
from dnasa.runs.own_files import OwnFiles

if TYPE_CHECKING:
    from dnasa.communication import Network
    from dnasa.problems.supervised import Supervised
    from dnasa.runs.result import Result
    from dnasa.tasks.sources import Source

Folder = Annotated[Path, typer.Argument(help="Folder of a finished run with data, begun with --out.")]


def _between(threshold: float | None) -> float | None:
    if threshold is not None and not 0 < threshold < 1:
        raise InputError(f"--threshold must lie between 0 and 1, not {threshold:g}.")
    return threshold


Threshold = Annotated[
    float | None,
    typer.Option(help="Risk from which a row counts as an event. Default: the event rate in training.", callback=_between),
]


def saved(shared: dict[str, Any]) -> "Result | None":
    """The result in the folder of a run that was killed after its last step."""
    from dnasa.runs.result import Result

    folder = shared["folder"]
    if folder is None or not folder.resume or folder.state != "done":
        return None
    return replace(Result.load(folder.path), rank=shared["network"].rank, writes=shared["network"].processes.writes)


def save(folder: Path | None, source: "Source", result: "Result", network: "Network") -> None:
    """The trained model and its tests; of a synthetic problem, and where all seeds diverged, there is none.

    Without a folder, the tests are made and exchanged, and nothing is written.
    """
    if source.rows is None or result.runs.diverged.notna().all():
        return
    from dnasa.data.columns import as_csv
    from dnasa.runs.folder import RunFolder, logging_warnings
    from dnasa.tasks.datasets import cohort
    from dnasa.trained.saving import save_run

    log = RunFolder(folder, resume=True).log if folder is not None and result.writes else None
    with logging_warnings(log) if log else nullcontext():
        tested = save_run(folder, cast("Supervised", source.problem), source.rows, source.model, result, network)
    if folder is not None and result.writes and source.rows.sites and source.rows.sites[0].columns:
        OwnFiles(folder).write("cohort.csv", as_csv(cohort(source.rows)).encode())
    if folder is None:
        return
    trust = " --trust" if configs.code_files({"model": source.model}) else ""
    use = f": `dnasa report {folder}` shows its tests, `dnasa predict {folder} FILE{trust}` uses it" if tested else ""
    print_line(f"Saved the trained model{use}.")


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a run that has ended; with --html, of any run or of several.")],
    html: Annotated[bool, typer.Option("--html", help="Write a page for a browser instead: one file, no network.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="File of the page; .csv and .tex are next to it. Default: report.html in the folder.")
    ] = None,
    threshold: Threshold = None,
) -> None:
    """The tests of the trained model, missing data, warnings, lost nodes; then the settings, metrics and time of the run."""
    if (folder / "coefficients.csv").is_file():
        raise InputError(
            f"{folder} holds a regression: open its report.html; the numbers are in coefficients.csv and sites.csv."
        )
    if html:
        return _write_page(folder, out, threshold)
    if out is not None:
        raise InputError("--out is the file of a page: give --html too.")
    from dnasa.comparing.plots import label
    from dnasa.comparing.run_table import data_name
    from dnasa.pages.contents import shown_settings, warnings
    from dnasa.runs.folder import RunFolder
    from dnasa.runs.result import Result
    from dnasa.trained import evaluation, results

    result, run = Result.load(folder), RunFolder(folder, resume=True)
    measured = evaluation.read(folder)
    options = configs.without_unused(run.options)
    for title, table in results.tables(measured, run.sites, threshold) if measured else ():
        print_table(table, title)
    for line in (
        *(results.remarks(measured, run.sites) if measured else ()),
        *(f"Warning: {line}" for line in warnings(folder)),
    ):
        print_line(line)
    print_table(shown_settings(run, options), f"{data_name(options)}, {run.state}, in {folder}")
    keys = [name for name in ("rule", "schedule", "eta") if name in result.history]
    for values, some in result.history.groupby(keys, dropna=False, sort=False):
        variant: Any = dict(zip(keys, values, strict=True))
        rendering.print_history(some, label(**variant, stored=run.looks))
    rendering.print_kept(result)
    rendering.print_lost_nodes(result.settings, run.sites)
    print_line(rendering.timing_line(result))


def _write_page(folder: Path, file: Path | None, threshold: float | None) -> None:
    from dnasa.pages import files_of_report

    written = files_of_report(folder, threshold)
    if file is None:
        file = folder / "report.html"
        OwnFiles(folder).save({f"report{kind}": content for kind, content in written.items()})
    else:
        for kind, content in written.items():
            write_output(file if kind == ".html" else file.with_suffix(kind), content)
    tables = " All numbers are in {0}.csv, and tables for a paper in {0}.tex.".format(file.with_suffix(""))
    print_line(f"Saved {file}, to be opened in a browser.{tables if '.csv' in written else ''}")


@takes("trust")
def predict(
    folder: Folder,
    file: Annotated[Path, typer.Argument(help="Rows like those the model was trained on.")],
    out: Annotated[Path | None, typer.Option(help="CSV file for the predictions. Default: they are printed.")] = None,
    site: Annotated[
        str | None, typer.Option(help="Site of the run whose tables looked like these rows: they are recoded as its rows were.")
    ] = None,
    threshold: Threshold = None,
    *,
    options: Options,
) -> None:
    """Predict with the trained model of a run: classes and probabilities, the values of a regression, or labels."""
    from dnasa.data.columns import as_csv
    from dnasa.trained import load
    from dnasa.trained.model import predict_file

    if out is not None and out.exists() and out.resolve().is_relative_to(file.resolve()):
        raise InputError(f"--out would replace the rows in {file}: choose another file.")
    model = load(folder, options.trust, site)
    is_binary = len(model.classes) == 2
    if threshold is not None and not is_binary:
        raise InputError("--threshold is for models of two classes: leave it out.")
    model.threshold = model.threshold if threshold is None else threshold
    table = predict_file(model, file)
    if is_binary:
        print_error(
            f"{model.classes[1]} is predicted from a risk of {model.threshold:.3g} on: --threshold changes it, in reports too."
        )
    if model.encoding.recode is not None and model.encoding.recode.changes_inputs:
        print_error(f"The rows of {file.name} are recoded as the training rows{f' of {site}' if site else ''} were.")
    text = as_csv(table)
    if out is None:
        sys.stdout.write(text)
    else:
        write_output(out, text.encode())
        print_line(f"Saved {len(table):,} predictions in {out}.")


@takes("trust")
def export(
    folder: Folder, onnx: Annotated[Path, typer.Option("--onnx", help="The ONNX file to write.")], options: Options
) -> None:
    """Export the trained model of a run to ONNX; the file is checked with onnxruntime."""
    from dnasa.trained import load
    from dnasa.trained.onnx import export as to_onnx

    model = load(folder, options.trust)
    content, difference = to_onnx(model)
    write_output(onnx, content)
    print_line(f"Saved {onnx}. Its outputs differ from ours by at most {difference:.2g} (onnxruntime, 64 rows).")
    if model.encoding.recode is not None and model.encoding.recode.changes_inputs:
        print_line("The file of --recode is not part of it: recode rows first.")
