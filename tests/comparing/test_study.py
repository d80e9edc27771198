"""Studies as files: every cell is a comparison, everything is saved and continued, and mistakes show before anything runs."""

import json
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pytest
from command_line import refused, run, succeed
from launching import ENVIRONMENT, PATIENCE
from test_comparison import data_lines
from test_docs import blocks
from test_latex import compiled

import dnasa
from dnasa import Result
from dnasa.comparing import grid, plots, study, study_file, tables
from dnasa.comparing.statistics import final, with_the_best
from dnasa.comparing.study_report import StudyReport
from dnasa.core import Interrupted
from dnasa.rules.registry import BUILT_IN

pytestmark = pytest.mark.xdist_group("study")  # one worker runs the study that most of them read
EXPERIMENTS = Path(__file__).parents[2] / "experiments"
METHODS = EXPERIMENTS / "methods.toml"
TINY = """
problems = ["least_squares", "digits"]
graphs = ["ring", "complete"]
partitions = ["iid", "by_label"]
rules = ["dsgd", "dsgt:constant", "d2", "dnasa"]
steps = 20
nodes = 4
seeds = 2

[etas]
default = [0.1, 1]
"dsgt:constant" = [0.01, 0.03, 0.1]

[problem.least_squares]
extend = true
etas.default = [0.001, 0.003]
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[SimpleNamespace, Path]:
    """The study run once: what it printed, and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "tiny.toml").write_text(TINY)
    return run("study", folder / "tiny.toml", "--out", folder / "a", "--latex", "--format", "svg,pdf"), folder / "a"


def report_of(study_of: Path, folder: Path, quick: bool = False) -> StudyReport:
    """Of least squares alone; what is in the folder is not run again."""
    chosen = study_file.read(study_of, ["least_squares"], quick)
    return StudyReport(chosen, *study.run(chosen, folder, progress=False, report=lambda line: None))


def test_a_study_ends_in_one_table_and_one_figure_with_the_numbers_of_its_runs(whole: tuple[SimpleNamespace, Path]) -> None:
    done, folder = whole
    assert done.returncode == 0, done.stderr
    assert "[6/6] digits, complete, by_label: " in done.stdout
    table = pd.read_csv(folder / "table.csv", keep_default_na=False, na_values=[""])
    assert table.groupby(["problem", "graph"]).size().to_dict() == {
        ("digits", "complete"): 8,
        ("digits", "ring"): 6,
        ("least_squares", "complete"): 4,
        ("least_squares", "ring"): 3,
    }
    runs = final(pd.read_csv(folder / "digits-ring-by_label" / "history.csv"))
    row = table.query("problem == 'digits' and graph == 'ring' and partition == 'by_label' and rule == 'dsgd'").iloc[0]
    values = runs[(runs.rule == "dsgd") & (runs.eta == row.eta)].test_accuracy
    assert row["mean"] == pytest.approx(values.mean())
    assert row.spread == pytest.approx(values.std())
    assert f"{100 * row['mean']:.2f} ± {100 * row.spread:.2f} %" in done.stdout
    tables = (folder / "table.tex").read_text()
    assert tables.count(r"\toprule") == 4  # two with results, and the stepsizes behind them
    assert rf"{100 * row['mean']:.2f} $\pm$ {100 * row.spread:.2f}" in tables.replace("}", "")
    made = "one hidden layer of 32 units, batches of 32 per node"
    assert rf"\caption{{Test accuracy (\%) on digits: 4 nodes, 20 steps, {made}, mean $\pm$ std over 2 seeds. " in tables
    assert r" & \multicolumn{2}{c}{iid} & \multicolumn{2}{c}{by label} \\" in tables
    assert r"Method & ring & complete & ring & complete \\" in tables
    assert re.findall(r"\\label{tab:(.*)}", tables) == [
        "tiny-least-squares",
        "tiny-digits",
        "tiny-least-squares-stepsizes",
        "tiny-digits-stepsizes",
    ]
    least, digits, *_ = tables.split("\n\n")
    assert ("other seeds" in least, "tenth of the training rows" in least) == (True, False)
    assert ("other seeds" in digits, "tenth of the training rows" in digits) == (False, True)
    caption = (folder / "stepsizes.tex").read_text()
    words = "Test loss and test accuracy on least squares and digits against the stepsize, mean over 2 seeds. Bars and bands: "
    assert caption.startswith(rf"\caption{{{words}")
    named = [rf"\ref{{tab:tiny-{name}}}" for name in ("least-squares", "digits", "least-squares-stepsizes", "digits-stepsizes")]
    assert rf"Settings and stepsizes: Tables~{', '.join(named[:3])} and {named[3]}.}}" in caption
    assert rf"Stepsizes: Table~{named[3]}.}}" in digits
    assert "Partitions: iid; by label: rows sorted by label, then split evenly. Networks: " in digits
    assert [(folder / f"stepsizes.{kind}").read_bytes() for kind in ("svg", "pdf")] == [b"svg", b"pdf"]
    assert "Left out on ring: D2 needs all eigenvalues" in done.stdout


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
def test_the_tables_of_a_study_compile(whole: tuple[SimpleNamespace, Path], tmp_path: Path) -> None:
    compiled(tmp_path, (whole[1] / "table.tex").read_text())


def test_a_table_counts_diverged_runs(tmp_path: Path) -> None:
    file = tmp_path / "wild.toml"
    graphs = 'graphs = ["ring", "path", "complete", "star"]\n'
    file.write_text(LEAST + graphs + 'rules = ["dsgd:constant", "dnasa"]\netas = [1e300]\n')
    report = report_of(file, tmp_path / "a")
    assert report.tables()["least_squares", ""].iloc[0, 1:].unique().tolist() == ["diverged (1 of 1)"]
    assert report.latex().count("& diverged") == 8 - 4  # D-NASA does not diverge
    assert "--:" not in report.latex()
    assert "Average ranks" in " ".join(report.notes())
    file.write_text(LEAST + graphs + 'rules = ["dsgd:constant", "dsgt:constant"]\netas = [1e300]\n')
    assert "Average ranks" not in " ".join(report_of(file, tmp_path / "b").notes())


@pytest.mark.pictures
@pytest.mark.parametrize("kind", ["stepsizes", "curves"])
def test_the_figure_has_a_panel_for_each_cell_with_the_numbers_of_its_csv(
    kind: str, whole: tuple[SimpleNamespace, Path], tiny: Path, tmp_path: Path
) -> None:
    tiny.write_text(f'figure = "{kind}"\n' + TINY)
    folder = shutil.copytree(whole[1], tmp_path / "a") if kind == "stepsizes" else tmp_path / "a"
    report = report_of(tiny, folder)
    drawn = report.drawn(kind)
    figure = report.draw(kind)
    assert len(plots.rendered(figure, "svg")) > 20_000
    panels = figure.axes
    titles = [axis.get_title().replace("\N{NO-BREAK SPACE}", " ") for axis in panels]
    assert titles == ["ring", "complete"]
    assert [axis.get_title("left").strip() for axis in panels] == ["least squares", ""]
    for axis, graph in zip(panels, ("ring", "complete"), strict=True):
        rows = drawn[(drawn.graph == graph) & (drawn.rule == "dsgd")]
        shown = [[*line.get_ydata()] for line in data_lines(axis)]
        inside = rows["mean"].where(rows["mean"].between(*axis.get_ylim()) | (kind == "curves")).tolist()
        assert any(np.array_equal(inside, line, equal_nan=True) for line in shown)
    colors = [{line.get_label(): line.get_color() for line in data_lines(axis)} for axis in panels]
    assert all(colors[1][name] == color for name, color in colors[0].items() if not name.startswith("_"))


def test_marks_say_what_is_best_not_clearly_worse_and_at_an_edge(whole: tuple[SimpleNamespace, Path]) -> None:
    done, folder = whole
    table = pd.read_csv(folder / "table.csv")
    assert table.groupby(["problem", "graph", "partition"], dropna=False).best.sum().eq(1).all()
    same = table.difference.abs() < 1e-6  # D2 and D-SGD on a complete graph
    assert done.stdout.count(" *") == same.sum() + 1 == 9 + 1  # and in the line that explains it
    marked = table[~same & (table.difference_low <= 0) & (table.difference_high >= 0)]
    assert (done.stdout.count(" ="), len(marked) > 0) == (0, True), "two seeds decide nothing"
    assert with_the_best(table.assign(runs=5))[marked.index].all()
    assert done.stdout.count(" ^") >= table.edge.notna().sum() > 0


def test_methods_of_all_cells_have_an_average_rank(whole: tuple[SimpleNamespace, Path]) -> None:
    done, folder = whole
    table = pd.read_csv(folder / "table.csv")
    cost = table["mean"].where(table.problem == "least_squares", 1 - table["mean"])
    cells = [table[name].fillna("") for name in ("problem", "graph", "partition")]
    np.testing.assert_allclose(table["rank"], cost.round(9).groupby(cells).rank())  # D2 is D-SGD on a complete graph
    mean = table[table.rule == "dnasa"]["rank"].mean()
    words = " ".join(done.stdout.split())
    assert re.search(rf"Average ranks over 6 cells: .*D-NASA {mean:.2f}", words)
    ring = cost[table.graph == "ring"].groupby(table.problem + table.partition.fillna("")).count() + 1  # D2 is the last there
    d2 = (table[table.rule == "d2"]["rank"].sum() + ring.sum()) / 6
    assert re.search(
        rf"D2 \(diminishing\) {d2:.2f}.*; rules that a network does not suit share the last ranks\. Left out on", words
    )


def test_stepsizes_of_a_rule_and_of_a_problem_take_precedence(tiny: Path) -> None:
    cells = study_file.read(tiny).cells
    grids = {cell.problem: cell.settings["etas"] for cell in cells}
    assert grids["digits"] | {"dnasa": 0} == {"dsgd": [0.1, 1], "d2": [0.1, 1], "dsgt:constant": [0.01, 0.03, 0.1], "dnasa": 0}
    assert grids["least_squares"]["dsgd"] == [0.001, 0.003]
    assert grids["least_squares"]["dsgt:constant"] == [0.01, 0.03, 0.1]


def test_a_quick_study_is_smaller_has_its_own_folder_and_says_so(tiny: Path, tmp_path: Path) -> None:
    done = succeed("study", tiny, "--quick", "--only", "least_squares", "--latex", cwd=tmp_path)
    words, folder = " ".join(done.stdout.split()), tmp_path / "studies" / "tiny-quick"
    assert "2 steps, quick run, 2 seeds" in words
    text = (folder / "table.tex").read_text()
    assert (text.count("Method & "), text.count(r"\begin{table}")) == (2, 2)
    assert (folder / "table.csv").exists()
    assert "Quick run" in report_of(tiny, folder, quick=True).draw("stepsizes").get_suptitle()


def test_only_what_is_new_is_run_and_other_settings_are_refused(
    whole: tuple[SimpleNamespace, Path], tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(whole[1], tmp_path / "a"))
    solved, original = [], dnasa.solve

    def recorded(problem: Any, graph: Any, rules: Any, **options: Any) -> Result:
        solved.append(options["folder"].path)
        return original(problem, graph, rules, **options)

    def again(text: str, *words: str) -> tuple[SimpleNamespace, pd.DataFrame]:
        tiny.write_text(text)
        done = run("study", tiny, "--only", "least_squares", "--out", folder, *words)
        return done, pd.read_csv(folder / "table.csv")

    monkeypatch.setattr(grid, "solve", recorded)
    done, first = again(TINY, "--log-json")
    assert done.returncode == 0, done.stderr
    cells = [json.loads(line)["cell"] for line in done.stdout.splitlines()]  # their runs are there already
    assert (cells, solved) == (["least_squares-ring", "least_squares-complete"], [])
    done, second = again(TINY.replace('"complete"]', '"complete", "path"]'))
    assert done.stdout.count("from its folder.") == 2
    assert solved
    assert all("least_squares-path" in path.parts for path in solved)
    pd.testing.assert_frame_equal(second[second.graph != "path"], first)
    steps = "least_squares-ring was run with steps = 20, not 30: choose another --out, or delete this folder to run it again"
    clock = "clock = {compute = 0.1, bandwidth = 1, latencey = 5}\n"
    for text, message in (
        (clock + TINY, "tiny, least_squares, ring: "),  # a mistake in the file, not what was run
        (TINY.replace("steps = 20", "steps = 30"), steps),
        (TINY.replace("[0.01, 0.03, 0.1]", "[0.01, 0.03, 0.2]"), "was run with etas = "),
    ):
        done, _ = again(text)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert message in done.stderr


def test_a_cell_is_not_resumed_by_itself(whole: tuple[SimpleNamespace, Path]) -> None:
    assert "belongs to a study" in refused("resume", whole[1] / "least_squares-ring")
    assert "least_squares-ring" in run("runs", whole[1]).stdout


def test_an_interrupted_study_says_how_to_continue(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **options: Any) -> NoReturn:
        raise Interrupted(f"Interrupted at step 3; continue with: dnasa resume {options['folder'].path}")

    monkeypatch.setattr(grid, "solve", interrupted)
    done = run("study", tiny, "--out", tmp_path / "a")
    assert done.returncode == 130
    assert "Interrupted at step 3 of least_squares, ring; the same command continues there." in done.stderr


KILLED = """
problems = ["least_squares", "robust_regression"]
rules = ["dsgd", "dnasa"]
etas = [0.001, 0.003]
nodes = 4
steps = 80
evaluate = 20
checkpoint_every = 10
figure = "curves"
"""
KILL = """
import os, signal, sys
from dnasa import cli
from dnasa.runs.folder import RunFolder

save = RunFolder.save

def save_and_die(folder, step, *rest):
    save(folder, step, *rest)
    if folder.path.name == "robust_regression-exact" and step == 30:
        os.kill(os.getpid(), signal.SIGKILL)

RunFolder.save = save_and_die
cli.main()
"""


def test_a_killed_study_continues_and_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    file = tmp_path / "killed.toml"
    file.write_text(KILLED)
    succeed("study", file, "--out", tmp_path / "whole")
    words: list[str | Path] = [sys.executable, "-c", KILL, "study", file, "--out", tmp_path / "part"]
    killed = subprocess.run(words, env=ENVIRONMENT, capture_output=True, timeout=PATIENCE)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "part" / "table.csv").exists()
    done = succeed("study", file, "--out", tmp_path / "part")
    assert "least_squares, exact: 6 runs of 80 steps, from its folder." in done.stdout
    log = (tmp_path / "part" / "robust_regression-exact" / "log.txt").read_text()
    assert "Resumed from the checkpoint of step 30" in log
    for name in ("table.csv", "curves.csv"):
        assert (tmp_path / "part" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


LEAST = 'problems = ["least_squares"]\nnodes = 4\nsteps = 5\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps = ", "is not TOML"),
        ("steps = 5", "problems is missing"),
        (LEAST + "step = 5", "unknown key 'step'. The keys here: weights, "),
        (LEAST + 'rulez = ["dsgd"]', "Did you mean rules?"),
        ('problms = ["digits"]', "Did you mean problems?"),
        (LEAST + "drop = 0.1\nrounds = 2", "--drop needs one round per exchange"),
        (LEAST + "seeds = 0", "seeds must be at least 1, not 0."),
        (LEAST + 'graphs = ["ring", "ring"]', "graphs must not repeat a value: ['ring', 'ring']."),
        (LEAST + "rules = []", "rules must not be empty: []."),
        (LEAST + '[network.a]\nmessage_dtype = "float16"', "Messages have 16 bits with compress = 'bfloat16'."),
        (LEAST + '[network.a]\nclock = "none.toml"', "network.a.clock: Cannot read the links in none.toml"),
        (LEAST + 'loss_scale = "n"', "loss_scale must be positive or '1/n', not 'n'."),
        (LEAST + 'rules = ["D-SGT"]', "Did you mean dsgt?"),
        (LEAST + 'rounds = "many"', "rounds must be a whole number or 'exact', not 'many'."),
        (LEAST + 'rules = ["d2"]\ngraphs = ["ring"]', "no rule can be used on ring"),
        (LEAST + 'graphs = ["rong"]', "Unknown topology 'rong'"),
        (LEAST + 'rules = ["dsgd:wat"]', "Unknown schedule 'wat' for dsgd"),
        (LEAST + "etas = [0.1, -1]", "etas.default.1 must be greater than 0, not -1."),
        (LEAST + "etas = {wat = [0.1]}", "etas.wat belongs to none of the rules"),
        (LEAST + 'etas = {dnasa = [0.1]}\nrules = ["dsgd", "dnasa"]', "Rule 'dsgd' needs a stepsize"),
        (LEAST + "extend = true\netas = [0.1]", "give at least two stepsizes"),
        (LEAST + 'figure = "pie"', "figure must be 'stepsizes', 'curves' or 'networks', not 'pie'."),
        (LEAST + 'metric = "test_accuracy"', "There is no metric 'test_accuracy'"),
        (LEAST + 'x = ["steps", "miles"]', "x must be 'steps', 'epochs', 'samples', 'bytes' or 'clock', not 'miles'."),
        (LEAST + 'name = "../up"', "name must be letters, digits, - and _, not '../up'."),
        (LEAST + "[problem.digits]\nsteps = 3", "[problem.digits] is for none of the problems: least_squares"),
        (LEAST + "[problem.least_squares]\nwat = 3", "unknown key 'problem.least_squares.wat'"),
        (LEAST + "[problem.least_squares]\nsteps = 0.5", "problem.least_squares.steps must be a whole number, not 0.5."),
        (LEAST + '[problem.least_squares]\nmodel = "linear"', "model has no effect: least_squares has no data"),
        ('problems = ["wat"]', "wat, exact, iid: "),
        ('problems = ["digits"]\nmodel = "wat"', "Unknown model 'wat'"),
        ('problems = ["robust_regression"]\nnodes = 3', "cannot be divided evenly among 3 nodes"),
        ('problems = ["a/x.csv", "b/x.csv"]', "two problems of this study have the same name"),
        ('problems = ["spike", "digits"]\n[problem.digits]\nmetric = "wat"', "digits, exact, iid: There is no metric 'wat'"),
    ],
)
def test_a_wrong_file_gets_one_clear_line_before_anything_runs(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    assert message in refused("study", file, "--out", tmp_path / "a")
    assert not list((tmp_path / "a").glob("*/config.json"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.toml"], "Cannot read the study in none.toml"),
        ([METHODS, "--only", "wat"], "there is no problem 'wat' (--only)"),
        ([METHODS, "--format", "gif"], "Unknown format 'gif'"),
        ([METHODS, "--device", "wat"], "wat"),
    ],
)
def test_a_wrong_command_gets_one_clear_line(words: list[object], message: str, tmp_path: Path) -> None:
    assert message in refused("study", *words, cwd=tmp_path)


def test_a_folder_that_cannot_be_written_to_is_refused_before_data_is_read(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('problems = ["no.csv"]')
    (tmp_path / "file").touch()
    for out in ("file", "file/a"):
        assert f"Cannot write to {out}: Not a directory" in refused("study", "s.toml", "--out", out, cwd=tmp_path)
    assert "no files.json of a study" in refused("study", "s.toml", "--out", ".", cwd=tmp_path)
    assert "no.csv" in refused("study", "s.toml", "--out", "a", cwd=tmp_path)
    assert not (tmp_path / "a").exists()


def test_a_damaged_config_of_a_cell_gets_one_clear_line(tiny: Path, tmp_path: Path) -> None:
    cell = tmp_path / "a" / "least_squares-ring"
    cell.mkdir(parents=True)
    for content in ("not JSON", json.dumps({"options": 3}), json.dumps([])):
        (cell / "config.json").write_text(content)
        refused("study", tiny, "--only", "least_squares", "--out", tmp_path / "a")


def test_the_study_of_methods_has_every_rule() -> None:
    for cell in study_file.read(METHODS).cells:
        assert {*(rule.partition(":")[0] for rule in cell.settings["rules"]), "sgp", "push_dsgt", "adgt"} == BUILT_IN


@pytest.mark.parametrize(
    "path", sorted({*EXPERIMENTS.glob("*.toml")} - {EXPERIMENTS / "claims.toml"}), ids=lambda path: path.stem
)
def test_our_studies_can_be_read(path: Path) -> None:
    assert study_file.read(path).cells


@pytest.mark.docs
@pytest.mark.parametrize("example", blocks("docs/studies.md", "toml"), ids=["cells", "budgets"])
def test_the_examples_of_the_documentation_work(example: str, tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(example)
    succeed("study", "my.toml", "--quick", cwd=tmp_path)
    name = tomllib.loads(example).get("name", "my")
    assert (tmp_path / "studies" / f"{name}-quick" / "table.csv").exists()


@pytest.mark.pictures
def test_each_problem_has_rows_of_its_own_and_one_axis_of_bytes_for_all_networks(tmp_path: Path) -> None:
    rules = 'rules = ["dsgd", "dnasa"]\netas = [0.001]\nfigure = ["curves", "networks"]\nx = ["bytes", "steps"]\n'
    networks = '[network.all]\ngraph = "ring"\n[network.few]\ngraph = "ring"\nevery = 40\n'
    (file := tmp_path / "s.toml").write_text(LEAST.replace('s"]', 's", "spike"]').replace("s = 5", "s = 80") + rules + networks)
    chosen = study_file.read(file)
    report = StudyReport(chosen, *study.run(chosen, tmp_path / "a", progress=False, report=lambda line: None))
    assert chosen.figures == ("curves-bytes", "curves-steps", "networks-bytes", "networks-steps")
    assert report.draw("curves-steps").axes[-1].get_xlabel() == "steps"
    assert "against steps," in report.caption("networks-steps")
    axes = report.draw("curves-bytes").axes
    specs: list[Any] = [axis.get_subplotspec() for axis in axes]
    assert [(spec.rowspan.start, spec.colspan.start) for spec in specs] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [bool(axis.get_xlabel()) for axis in axes] == [False, False, True, True]
    assert [bool(axis.get_ylabel()) for axis in axes] == [True, False, True, False]
    assert [axes[i].get_ylim() == axes[i + 1].get_ylim() for i in range(3)] == [True, False, True]
    sent = report.drawn("curves").mb_per_node
    assert sent.max() / sent[sent > 0].min() > 10
    low, high = axes[0].get_xlim()
    assert 0 < low < sent[sent > 0].min()
    assert sent.max() < high < 1.2 * sent.max(), "markers at the end are whole"
    assert [axis.get_xlim() for axis in axes] == [(low, high)] * 4
    figure = report.draw("networks-bytes")
    assert [axis.get_title() for axis in figure.axes] == ["D-SGD", "D-NASA"] * 2
    assert [axis.get_title("left").strip() for axis in figure.axes] == ["least squares", "", "spike", ""]
    assert [words.get_text() for words in figure.legends[0].get_texts()] == ["all", "few"]
    curves = report.drawn("curves").query("problem == 'spike' and graph == 'few' and rule == 'dnasa'")
    last = curves.drop_duplicates("mb_per_node", keep="last")  # between exchanges nothing is sent
    assert len(last) < len(curves)
    np.testing.assert_array_equal(data_lines(figure.axes[3])[1].get_ydata(), last["mean"])
    looks = [[(line.get_color(), line.get_marker()) for line in data_lines(axis)] for axis in figure.axes]
    assert looks == looks[:1] * 4


def test_titles_captions_and_numbers_name_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "covertype").mkdir()
    rows = "\n".join(f"{i % 7},{i},{i % 3}" for i in range(100))
    (tmp_path / "covertype" / "covertype-sample.csv").write_text(rows)
    monkeypatch.setenv("DNASA_DATA", str(tmp_path))
    (file := tmp_path / "s.toml").write_text('problems = ["covertype"]\nrules = ["dnasa"]\nnodes = 2\nsteps = 2\n')
    done = succeed("study", file, "--out", tmp_path / "a", "--latex")
    title = "covertype (sample, 100 rows)"
    assert f"on {title}: 2 nodes" in " ".join(done.stdout.split())
    assert pd.read_csv(tmp_path / "a" / "table.csv").problem.tolist() == [title]
    assert all(title in (tmp_path / "a" / name).read_text() for name in ("table.tex", "stepsizes.tex"))
    words = "--data covertype --rules dnasa --nodes 2 --steps 2".split()
    assert f"{title}: 2 nodes" in " ".join(run("compare", *words).stdout.split())


def test_links_of_a_study_can_fail(tmp_path: Path) -> None:
    lossy = 'rules = ["dsgd"]\netas = [0.001]\n[network.sure]\n[network.lossy]\ndrop = 0.5\n'
    (file := tmp_path / "s.toml").write_text(LEAST + lossy)
    report = report_of(file, tmp_path / "a")
    assert report.numbers()["mean"].nunique() == 2
    assert report.notes()[1].count("in turn") == 1
    assert "lossy (exact, 1 round, links fail with probability 0.5, " in report.notes()[1]


def test_a_study_with_own_networks_alone_takes_its_links_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "home.toml").write_text("compute = 0.1\nbandwidth = 1\nlatency = 5\n")
    text = LEAST + 'graphs = []\n[network.slow]\ngraph = "ring"\nclock = "home.toml"\n'
    (tmp_path / "s.toml").write_text(text)
    done = succeed("study", "s.toml", "--only", "least_squares", cwd=tmp_path)
    assert "Links: 1 Mbit/s, latency 5 ms, 0.1 s per gradient." in " ".join(done.stdout.split())
    assert [path.name for path in (tmp_path / "studies" / "s").glob("*/")] == ["least_squares-slow"]


def test_a_rule_that_a_network_leaves_out_does_not_choose_its_graph(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(LEAST + 'rules = ["d2", "dnasa"]\netas = [0.1]\n[network.few]\nevery = 2\n[network.all]\n')
    cells = {cell.network: cell for cell in study_file.read(tmp_path / "s.toml").cells}
    assert [(cell.graph, cell.settings["weights"]) for cell in cells.values()] == [("exact", None), ("ring", "lazy")]


def test_networks_of_a_study_are_cells_with_their_own_messages(tmp_path: Path) -> None:
    text = LEAST + (
        'rules = ["adanasa"]\nfigure = "curves"\nx = "clock"\n[clock]\ncompute = 0.1\nbandwidth = 1\nlatency = 5\n'
        '[network.exact_one]\ngraph = "exact"\nrounds = 1\n[network.few]\nevery = 2\ncompress = "feedback:2"\n'
        '[network.path]\ngraph = "path"\n'
    )
    (file := tmp_path / "s.toml").write_text(text)
    done = succeed("study", file, "--out", tmp_path / "a", "--latex")
    words = " ".join(done.stdout.split())
    assert "Networks: exact_one (exact, 2 graphs in turn whose product is the exact average, 1 round, " in words
    assert "few (complete, laplacian weights, 1 round, every 2 steps, feedback:2, " in words
    assert "; path (laplacian weights, 1 round, " in words
    assert "Links: 1 Mbit/s, latency 5 ms, 0.1 s per gradient." in words
    assert "Links: 1 Mbit/s, latency 5 ms, 0.1 s per gradient." in (tmp_path / "a" / "curves.tex").read_text()
    file.write_text(text.replace('x = "clock"', 'x = "bytes"'))
    succeed("study", file, "--out", tmp_path / "b", "--latex")
    assert "Links" not in (tmp_path / "b" / "curves.tex").read_text()
    drawn = pd.read_csv(tmp_path / "a" / "curves.csv").groupby("graph").clock_seconds.max()
    assert drawn["few"] < drawn["exact_one"]
    assert (
        "Networks: exact one (exact, 2 graphs in turn whose product is the exact average, 1 round, "
        in (tmp_path / "a" / "table.tex").read_text()
    )


def test_notes_say_what_the_interval_of_a_table_is(tmp_path: Path) -> None:
    (file := tmp_path / "s.toml").write_text(LEAST + 'rules = ["adanasa", "dnasa"]\ngraphs = ["ring"]\nseeds = 2\n')
    assert report_of(file, tmp_path / "a").notes()[-1] == tables.PAIRED
