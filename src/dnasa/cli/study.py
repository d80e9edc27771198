"""`dnasa study`: a comparison for each problem, graph and partition of a file."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dnasa import networks
from dnasa.cli import configs, inputs, plugins
from dnasa.cli.exits import fail
from dnasa.cli.options import Options, split, takes
from dnasa.cli.pictures import formats, save_results
from dnasa.cli.rendering import print_line, print_table
from dnasa.core import InputError
from dnasa.files import check_folder, make_folder, read_bytes
from dnasa.rules.registry import DEFAULT_RULE
from dnasa.runs.own_files import LIST, OwnFiles


@takes("plugin", "trust", "format", "style", "latex", "quiet", "log_json")
def study(
    file: Annotated[Path, typer.Argument(help="A .toml file; docs/studies.md has its keys.")],
    only: Annotated[str | None, typer.Option(help="Only these problems of the file, separated by commas.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A tenth of the steps, at most two seeds; the figure says so.")
    ] = False,
    rules: Annotated[str | None, typer.Option(help="Rules to add to those of the file, separated by commas.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="Folder of the study. Default: studies/NAME.")] = None,
    *,
    options: Options,
) -> None:
    """Run a study: several problems, graphs and partitions, in each of which rules are compared as `dnasa compare` does.

    Everything is saved in one folder. The same command continues a study that was stopped, and runs what is new in its file.
    """
    if networks.detect() != "simulated":
        raise InputError("A study runs in one process: start it without mpirun or torchrun.")
    progress, more_rules = inputs.set_output(options), split(rules or "")
    plugins.load(options.plugin, more_rules)  # before what is slow to import
    from dnasa.comparing import budgets, study_file
    from dnasa.comparing import study as runner
    from dnasa.comparing.study_report import StudyReport

    kinds = formats(options.format, options.style)
    read = partial(study_file.read, file, split(only or ""), quick, device)
    chosen, text = read(more_rules), read_bytes(file, follow=True)
    plugins.check_trusted({code for cell in chosen.cells for code in configs.code_files(cell.settings)}, file, options.trust)
    folder = out or Path("studies") / chosen.name
    check_folder(folder)
    own = OwnFiles(folder)
    if not own.begun and folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} holds files, but no {LIST} of a study: copy that too, or choose a new folder.")
    drawn = () if chosen.budgets else chosen.figures
    files = [f"{name}.{kind}" for name in drawn for kind in (*kinds, "csv", "tex")] or [budgets.FILE]
    own.check_free([*files, "table.csv", "table.tex", study_file.COPY])
    known = budgets.known(budgets.read(folder), chosen.cells) if chosen.budgets else set()
    runner.check(chosen, folder, known)
    make_folder(folder)
    own.save({study_file.COPY: text})
    results, left_out = runner.run(chosen, folder, progress, print_line, known)
    if chosen.budgets:
        stored = budgets.with_results(budgets.read(folder), results)
        own.write(budgets.FILE, stored.to_csv(index=False, float_format="%.6g").encode())
        results = budgets.by_place(budgets.read(folder), read([*more_rules, *stored.rule]).cells)
    if not results:
        raise InputError(left_out[0])
    report = StudyReport(chosen, results, left_out)
    titles = report.titles()
    for part, table in report.tables().items():
        print_table(table, titles[part])
    if chosen.budgets:
        print_table(report.board().round(2), "Average ranks")
    for line in (*report.notes(), *report.left_out):
        print_line(line)
    figures = {name: (partial(report.draw, name), report.drawn(name)) for name in drawn}
    latex = {"table.tex": report.latex} | {f"{name}.tex": partial(report.caption, name) for name in drawn}
    save_results(folder, figures, report.numbers(), latex if options.latex else {}, kinds, options.style)
    if report.numbers()["mean"].isna().all():
        fail(1, f"Every run diverged: try smaller etas, or add {DEFAULT_RULE}, which needs none.")
