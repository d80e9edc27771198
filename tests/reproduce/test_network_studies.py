"""The studies on networks: stepsizes are chosen on validation rows, saved parts are not run again, findings are true."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from dnasa import Result, data, schedules
from dnasa.core import InputError
from dnasa.data import Dataset
from dnasa.engine.loop import solve
from dnasa.problems import Custom
from dnasa.reproduce import (
    central,
    choosing,
    compression,
    experiment,
    finetuning,
    graphs,
    network_tasks,
    networks,
    robustness,
)
from dnasa.reproduce.network_tasks import ACCURACY, LOSS, WITHOUT_DATA, Measure, Task
from dnasa.reproduce.report import Report
from dnasa.reproduce.saved import Saved
from dnasa.topology import complete

MISSING = "put the file there"


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what comes with the package, cut down."""

    def load(name: str, target: Any = None, context: int = 256) -> Dataset:
        if name == "digits":
            return data.load(name)
        raise InputError(MISSING)

    monkeypatch.setattr(network_tasks, "load", load)
    digits, text = WITHOUT_DATA.values()
    two, one = ({rule: etas[:count] for rule, etas in digits.etas.items()} for count in (2, 1))
    monkeypatch.setitem(WITHOUT_DATA, "digits", digits._replace(steps=5, rows=300, etas=two))
    small = text._replace(model="gpt:1,12,8", steps=3, rows=300, etas=one)
    monkeypatch.setitem(WITHOUT_DATA, network_tasks.GENERATED, small)


# ---------------------------------------------------------------- validation rows


def test_validation_rows_are_training_rows_that_nobody_trains_on() -> None:
    rows = data.load("digits")
    train, validation = data.hold_out(rows)
    assert sorted([*train, *validation]) == list(range(len(rows.labels)))
    assert len(validation) == len(rows.labels) // 10
    shards = data.divide(rows, train, "dirichlet(0.1)", 8)
    assert sorted(np.concatenate(shards)) == sorted(train)


def test_every_node_validates_and_every_validation_row_is_used() -> None:
    for rows, nodes in ((np.arange(10, 33), 4), (np.arange(3), 5)):
        parts = data.divide_validation(rows, nodes)
        assert all(len(part) for part in parts)
        assert {*np.concatenate(parts)} == {*rows}


def test_data_that_stays_at_its_node_is_validated_there() -> None:
    shards = [np.arange(30), np.arange(30, 32), np.empty(0, int)]
    train, validation = data.hold_out_of_each(shards)
    assert [len(part) for part in validation] == [3, 1, 0]
    for before, kept, out in zip(shards, train, validation, strict=True):
        assert sorted([*kept, *out]) == list(before)
    with pytest.raises(InputError, match="one training row"):
        data.hold_out_of_each([np.arange(1)])


def test_validation_windows_of_a_text_share_no_character_with_training_windows() -> None:
    text = network_tasks.generated_text(32)
    numbered = text._replace(
        labels=np.lib.stride_tricks.sliding_window_view(np.arange(len(text.labels) + 32), 33)[:, 1:]
    )
    train, validation = data.hold_out(numbered)
    assert numbered.labels[train].max() < numbered.labels[validation].min() - 1
    assert len(validation) > 50


# ---------------------------------------------------------------- choosing and comparing


def table(**rules: Any) -> pd.DataFrame:
    """(eta, validation, test) of one seed for each rule."""
    rows = [
        {"rule": rule, "eta": eta, "seed": 0, "steps": 1, "validation": validation, "test": test}
        for rule, results in rules.items()
        for eta, validation, test in results
    ]
    return pd.DataFrame(rows)


def best_of(measure: Measure = ACCURACY, **rules: Any) -> pd.DataFrame:
    return choosing.chosen(choosing.averages(table(**rules), measure), measure)


UNTUNED: dict[str, Any] = {"adanasa": [(np.nan, 0.8, 0.80)], "dnasa": [(np.nan, 0.7, 0.70)]}


def test_stepsizes_are_chosen_on_validation_rows() -> None:
    best = best_of(dsgd=[(0.1, 0.5, 0.9), (1.0, 0.7, 0.6), (10.0, np.nan, np.nan)])
    assert best.loc["dsgd", ["eta", "test", "edge"]].tolist() == [1.0, 0.6, ""]
    best = best_of(LOSS, dsgd=[(0.1, 2.5, 1.0), (1.0, 1.7, 1.6), (10.0, np.nan, np.nan)])
    assert best.loc["dsgd", ["eta", "test", "edge"]].tolist() == [1.0, 1.6, ""]


@pytest.mark.parametrize(("values", "edge"), [((3, 2, 1), "smallest"), ((1, 2, 3), "largest"), ((1, 3, 2), "")])
def test_a_best_stepsize_at_the_edge_of_the_grid_is_named(values: tuple[int, ...], edge: str) -> None:
    grid = [(eta, value / 10, value / 10) for eta, value in zip((0.1, 1.0, 10.0), values, strict=True)]
    best = best_of(dsgd=grid, **UNTUNED)
    assert best.edge["dsgd"] == edge
    assert best.edge["dnasa"] == ""
    assert ("at an edge of the grid: D-SGD" in networks.finding(best, ACCURACY)) == bool(edge)
    assert ("(edge)" in networks.summary(best, ACCURACY)["best eta"].iloc[0]) == bool(edge)


@pytest.mark.parametrize(
    ("tuned", "words"),
    [
        (0.804, ["0.40 points worse than the best", ": within the target of 0.50 points"]),
        (0.806, ["0.60 points worse than the best", "NOT within the target of 0.50 points"]),
        (0.75, ["5.00 points better than the best", ": within the target"]),
    ],
)
def test_the_finding_says_whether_the_target_is_reached(tuned: float, words: list[str]) -> None:
    grid = [(eta, value, value) for eta, value in ((0.1, 0.1), (1.0, tuned), (10.0, 0.1))]
    best = best_of(dsgd=grid, dsgt=[(1.0, 0.3, 0.3)], central=[(1.0, 0.9, 0.9)], **UNTUNED)
    said = networks.finding(best, ACCURACY)
    for part in [*words, "D-SGD (", "10.00 points better than D-NASA", "10.00 points worse than central AdamW"]:
        assert part in said


def test_of_losses_the_smaller_is_better() -> None:
    untuned = {"adanasa": [(np.nan, 1.5, 1.50)], "dnasa": [(np.nan, 2.3, 2.30)]}
    said = networks.finding(best_of(LOSS, dsgd=[(0.1, 3, 3), (1.0, 1.47, 1.47), (10.0, 3, 3)], **untuned), LOSS)
    assert "0.030 worse than the best tuned" in said
    assert "NOT within the target of 0.020" in said
    assert "0.800 better than D-NASA" in said


def test_a_diverged_run_is_never_the_best_and_a_diverged_adanasa_is_said() -> None:
    best = best_of(adanasa=[(np.nan, np.nan, np.nan)], dnasa=[(np.nan, 0.7, 0.7)], dsgd=[(1.0, np.nan, np.nan)])
    assert networks.finding(best, ACCURACY) == "AdaNASA diverged."


def test_the_central_reference_is_the_adamw_of_torch() -> None:
    target = torch.tensor([1.0, -2.0, 3.0])
    parameter = torch.nn.Parameter(torch.tensor([0.5, 0.5, 0.5]))
    optimizer = torch.optim.AdamW([parameter], lr=0.1, weight_decay=central.WEIGHT_DECAY)
    for _ in range(20):
        optimizer.zero_grad()
        (0.5 * (parameter - target) ** 2).sum().backward()
        optimizer.step()
    problem = Custom(lambda x, node, rng: x - target.numpy(), start=np.full(3, 0.5))
    ours = solve(problem, complete(1), central.adamw(schedules.constant(0.1)), steps=20).mean
    assert ours == pytest.approx(parameter.detach().numpy(), abs=1e-5)


@pytest.mark.parametrize("name", [network_tasks.SCHEDULE_FREE, network_tasks.PRODIGY])
def test_other_central_references_are_those_of_their_packages(name: str) -> None:
    module: Any = pytest.importorskip("schedulefree" if name == network_tasks.SCHEDULE_FREE else "prodigyopt")
    steps, target = 300, torch.tensor([1.0, -2.0, 3.0])
    parameter = torch.nn.Parameter(torch.full((3,), 0.5))
    options: Any = {"weight_decay": central.WEIGHT_DECAY}
    if name == network_tasks.SCHEDULE_FREE:
        optimizer = module.AdamWScheduleFree([parameter], lr=0.1, warmup_steps=steps // 10, **options)
        optimizer.train()
        decay = schedules.constant(0.1)
    else:
        optimizer = module.Prodigy([parameter], safeguard_warmup=True, use_bias_correction=True, **options)
        decay = schedules.cosine(1.0, steps)
    for t in range(steps):
        optimizer.zero_grad()
        (0.5 * (parameter - target) ** 2).sum().backward()
        optimizer.param_groups[0]["lr"] = decay(t)
        optimizer.step()
    if name == network_tasks.SCHEDULE_FREE:
        optimizer.eval()
    problem = Custom(lambda x, node, rng: x - target, start=torch.full((3,), 0.5))
    rule = central.rule_makers(steps)[name](0.1, problem.layout)
    ours = solve(problem, complete(1), rule, steps=steps, evaluate=[100, steps]).mean
    assert (parameter - 0.5).abs().max() > 0.5
    torch.testing.assert_close(ours, parameter.detach(), atol=1e-4, rtol=0)


def test_a_missing_package_of_a_reference_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prodigyopt", None)
    problem = Custom(lambda x, node, rng: x, start=torch.ones(3))
    with pytest.raises(InputError, match="pip install prodigyopt"):
        solve(problem, complete(1), central.rule_makers(5)[network_tasks.PRODIGY](1.0, problem.layout), steps=5)


# ---------------------------------------------------------------- saved parts


@pytest.mark.pictures
def test_without_any_data_the_study_runs_on_digits_and_generated_text(
    no_data: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    report = networks.EXPERIMENT.run(quick=True, progress=False, folder=tmp_path)
    assert [line for line in report.findings if MISSING in line] == [
        f"{name} is left out: {MISSING}" for name in network_tasks.QUICK
    ]
    assert set(report.tables) == {"networks-digits", "networks-generated-text"}
    assert all(picture.stat().st_size > 20_000 for picture in report.save(tmp_path))
    monkeypatch.setattr(experiment, "solve", None)  # a second call needs no run
    again = networks.EXPERIMENT.run(quick=True, progress=False, folder=tmp_path)
    assert again.findings == report.findings
    for name, rows in report.tables.items():
        pd.testing.assert_frame_equal(rows, again.tables[name])


def test_a_stopped_part_continues_with_the_rules_that_are_missing(
    no_data: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"quick": True, "progress": False, "folder": tmp_path, "only": "digits/ring/iid"}
    networks.EXPERIMENT.run(**options)
    path = tmp_path / "networks-quick" / "digits-ring-iid.csv"
    complete_rows = pd.read_csv(path)
    complete_rows[complete_rows.rule != "dsgt"].to_csv(path, index=False)
    asked: list[str] = []

    def recorded(problem: Any, graph: Any, rule: Any, **settings: Any) -> Result:
        asked.extend(variant.rule for variant in rule)
        return solve(problem, graph, rule, **settings)

    monkeypatch.setattr(experiment, "solve", recorded)
    report = networks.EXPERIMENT.run(**options)
    assert set(asked) == {"dsgt"}
    assert report.tables["networks-digits"].rule.tolist()[-1] == "D-SGT"


def test_a_part_is_reported_with_the_seeds_that_are_complete(
    no_data: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    digits = WITHOUT_DATA["digits"]
    parts = list(networks.parts_of("digits", digits, ("ring",), seeds=2))
    both = replace(networks.EXPERIMENT, parts=lambda quick: parts)
    options: dict[str, Any] = {"quick": True, "progress": False, "folder": tmp_path, "only": "digits/ring/iid"}
    assert both.run(**options).tables["networks-digits"].seeds.tolist() == [2] * 6
    path = tmp_path / "networks-quick" / "digits-ring-iid.csv"
    rows = pd.read_csv(path)
    rows[(rows.seed == 0) | (rows.rule != "dsgt")].to_csv(path, index=False)
    monkeypatch.setattr(experiment, "run_part", lambda *_: None)
    assert both.run(**options).tables["networks-digits"].seeds.tolist() == [1] * 6


def test_the_first_seed_can_choose_the_stepsizes_of_the_others(
    no_data: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    digits = WITHOUT_DATA["digits"]._replace(tuning_seeds=1)
    parts = list(networks.parts_of("digits", digits, ("ring",), seeds=3))
    every = replace(networks.EXPERIMENT, parts=lambda quick: parts)
    table = every.run(quick=True, progress=False, folder=tmp_path, only="digits/ring/iid").tables["networks-digits"]
    rows = pd.read_csv(tmp_path / "networks-quick" / "digits-ring-iid.csv")
    first = rows[rows.seed == 0]
    best = first.loc[first.groupby("rule").validation.idxmax()].set_index("rule").eta
    later = rows[rows.seed > 0]
    assert len(later) == 2 * len(best)
    assert all(later.eta.fillna(0) == best[later.rule].fillna(0).to_numpy())
    assert table.seeds.tolist() == [3] * 6
    dsgd = rows[(rows.rule == "dsgd") & (rows.eta == best["dsgd"])].test.mean()
    assert table[table.rule == "D-SGD"]["test accuracy"].item() == f"{100 * dsgd:.2f} %"
    some = rows[~((rows.rule == "dsgd") & (rows.eta != best["dsgd"]))]  # the stepsize of D-SGD is not chosen yet
    some.to_csv(tmp_path / "networks-quick" / "digits-ring-iid.csv", index=False)
    monkeypatch.setattr(experiment, "run_part", lambda *_: None)
    assert not every.run(quick=True, progress=False, folder=tmp_path, only="digits/ring/iid").tables


def test_other_methods_are_tuned_on_the_ring_of_large_tasks(no_data: None, tmp_path: Path) -> None:
    others = networks.OTHERS + networks.LAZY
    digits = WITHOUT_DATA["digits"]
    task = digits._replace(etas=digits.etas | dict.fromkeys((*others, network_tasks.SCHEDULE_FREE), (0.01, 0.1)))
    parts = [part for part in networks.parts_of("digits", task, ("ring",), seeds=1) if "heterogeneous" in part.name]
    every = replace(networks.EXPERIMENT, parts=lambda quick: parts)
    table = every.run(quick=True, progress=False, folder=tmp_path, only="digits").tables["networks-digits"]
    titles = {choosing.name_of(rule) for rule in networks.UNTUNED + networks.TUNED + others}
    assert {*table.rule} == titles
    assert table["test accuracy"].str.endswith("%").all()


def test_results_of_another_number_of_steps_are_not_used(
    no_data: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"quick": True, "progress": False, "folder": tmp_path, "only": "digits/ring/iid"}
    first = networks.EXPERIMENT.run(**options).tables["networks-digits"]
    monkeypatch.setitem(WITHOUT_DATA, "digits", WITHOUT_DATA["digits"]._replace(steps=10))
    second = networks.EXPERIMENT.run(**options).tables["networks-digits"]
    assert (second["test accuracy"] != first["test accuracy"]).any()
    assert second.shape == first.shape


@pytest.mark.parametrize("only", ["digit", "digits/rng", "digits/ring/idd", "digits/ring/iid/x"])
def test_a_wrong_part_is_refused_with_the_choices(only: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"Unknown part '{only}'. Choose from: .*digits.*such as cifar10/ring/iid"):
        networks.EXPERIMENT.run(quick=True, folder=tmp_path, only=only)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_not_a_saved_part_is_refused(tmp_path: Path) -> None:
    for text in ("a,b\n1,2\n", "", "\0"):
        (tmp_path / "x.csv").write_text(text)
        with pytest.raises(InputError, match="delete"):
            Saved(tmp_path / "x.csv", ("rule", "eta"))


def test_saved_rows_are_found_again_to_the_bit(tmp_path: Path) -> None:
    columns = ("rule", "eta", "steps")
    runs = pd.DataFrame({"rule": ["a", "b"], "eta": [0.1 + 0.2, np.nan], "steps": [5, 5]})
    Saved(tmp_path / "x.csv", columns).add(runs)
    saved = Saved(tmp_path / "x.csv", columns)
    assert saved.missing(runs).empty
    pd.testing.assert_frame_equal(saved.of(runs[::-1]), runs[::-1].reset_index(drop=True))
    assert len(saved.missing(runs.assign(eta=np.nan))) == 1
    assert len(saved.missing(runs.assign(steps=6))) == 2


def test_only_what_is_missing_is_run(tmp_path: Path) -> None:
    asked = []

    class Recorder:
        side_by_side = True

        def run(self, runs: experiment.RunSpec, todo: pd.DataFrame) -> list[pd.DataFrame]:
            asked.append(todo)
            return []

    saved = Saved(tmp_path / "saved" / "digits.csv", networks.COLUMNS)
    runs = experiment.RunSpec(5, ["dsgd", "dnasa"], {"dsgd": (0.1, 1.0)}, seeds=[0, 1])
    saved.add(runs.table()[lambda table: table.seed == 0].assign(validation=0.5, test=0.5)[list(networks.COLUMNS)])
    part: Any = experiment.Part("digits", [runs], Task("digits"))
    experiment.run_part(part, Recorder(), saved, "test")  # type: ignore[arg-type]
    assert [table[["rule", "seed"]].to_numpy().tolist() for table in asked] == [
        [["dsgd", 1], ["dsgd", 1], ["dnasa", 1]]
    ]
    found = experiment.complete(part, saved)
    assert found is not None
    assert found.seed.unique().tolist() == [0]


# ---------------------------------------------------------------- robustness


@pytest.mark.pictures
def test_robustness_runs_without_data_and_is_not_run_twice(
    no_data: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(
        WITHOUT_DATA, "digits", WITHOUT_DATA["digits"]._replace(steps=20)
    )  # fewer hide the first radius
    report = robustness.EXPERIMENT.run(quick=True, progress=False, folder=tmp_path)
    rows = report.data["robustness-digits-iid"]
    assert len(rows) == 16
    assert rows.kind.value_counts().to_dict() == {
        "graph": 4, "nodes": 3, "steps": 2, "partition": 2, "loss scale": 2, "radius": 2, "default": 1
    }  # fmt: skip
    assert rows.loc[0, ["adanasa gain", "dnasa gain"]].tolist() == [0, 0]
    dnasa = rows.set_index("change")["dnasa gain"]
    assert dnasa["loss times 1000"] == pytest.approx(0, abs=0.2)
    assert (
        dnasa["radius 1e-06 at the start"] == 0 != rows.set_index("change")["adanasa gain"]["radius 1e-06 at the start"]
    )
    assert dnasa["80 steps"] != dnasa["4 steps"]
    assert all(picture.stat().st_size > 20_000 for picture in report.save(tmp_path))
    monkeypatch.setattr(experiment, "solve", None)
    assert robustness.EXPERIMENT.run(quick=True, folder=tmp_path).findings == report.findings


def changes(measure: Measure, **gains: float) -> pd.DataFrame:
    entries = {"none": 0.0} | gains
    rows = [
        {"kind": "default" if change == "none" else "graph", "change": change, "rule": rule, "seed": 0, "value": value}
        for change, gain in entries.items()
        for rule, value in (("adanasa", 0.8 + gain), ("dnasa", 0.7 + gain / 2))
    ]
    return robustness.differences(pd.DataFrame(rows), measure)


def test_robustness_names_the_worst_entry_and_what_dnasa_does_there() -> None:
    said = robustness.finding(changes(ACCURACY, star=-0.004, path=-0.008, complete=0.05), ACCURACY)
    assert "worst entry: path, -0.80 points (D-NASA -0.40 points there): within 1 points" in said
    said = robustness.finding(changes(ACCURACY, star=-0.02, path=-0.008), ACCURACY)
    assert "worst entry: star, -2.00 points (D-NASA -1.00 points there): NOT within 1 points" in said
    said = robustness.finding(changes(LOSS, star=0.06, path=-0.08), LOSS)
    assert "worst entry: star, -0.060 (D-NASA -0.030 there): NOT within 0.05" in said
    assert "diverged: path" in robustness.finding(changes(ACCURACY, star=-0.02, path=np.nan), ACCURACY)


def test_robustness_of_large_models_is_of_adanasa_alone() -> None:
    rows = changes(ACCURACY, star=-0.02).drop(columns=["dnasa", "dnasa gain"])
    said = robustness.finding(rows, ACCURACY)
    assert "worst entry: star, -2.00 points: NOT within 1 points" in said
    assert robustness.shown({"cifar10-iid": rows}, {"cifar10-iid": ACCURACY})["D-NASA"].tolist() == ["", ""]
    assert {part.name: part.runs[0].rules for part in robustness.parts(False)}["cifar10-iid"] == ("adanasa",)


def test_the_worst_entry_of_each_kind_is_where_adanasa_loses_most() -> None:
    assert robustness.worst(changes(ACCURACY, star=-0.02, path=-0.03)).change.tolist() == ["path"]


# ---------------------------------------------------------------- graphs


def test_the_study_of_graphs_runs_without_data_and_counts_bytes(
    no_data: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    digits = WITHOUT_DATA["digits"]
    small = digits._replace(different="by_label", steps=5, etas={rule: etas[:1] for rule, etas in digits.etas.items()})
    monkeypatch.setitem(WITHOUT_DATA, "digits", small)
    monkeypatch.setattr(graphs, "partitions", lambda task: ["iid", "by_label"])
    report = graphs.EXPERIMENT.run(quick=True, progress=False, folder=tmp_path)
    rows = report.data["graphs-all"].query("partition == 'by_label'")
    few, rows = (some.set_index(["rule", "graph"]) for some in (rows[rows.nodes == "few"], rows[rows.nodes != "few"]))
    assert few.bytes["adanasa"].to_numpy() == pytest.approx([1, 1.56 / 24, 6 / 10, 3 / 10], rel=0.01)  # in five steps
    assert rows.bytes["adanasa"].to_dict() == {
        "exact, 1 round": 0.5,
        "complete": 0.875,
        "exact, 2 rounds": 1,
        "ring": 1,
    }
    assert rows.bytes["dadam"].to_numpy() == pytest.approx([1 / 3, 1])  # it sends a third of AdaNASA's arrays
    assert rows.bytes["dmsgd"].to_numpy() == pytest.approx([1 / 3, 1])
    assert list(report.tables) == ["graphs-digits-8", "graphs-digits-few", "graphs-digits-tuned"]
    assert report.tables["graphs-digits-8"].columns.tolist()[-2:] == ["iid", "by_label"]
    assert list(report.figures) == ["graphs-digits-tuned", "graphs"]
    (tmp_path / "graphs-quick" / "digits-8-iid.csv").unlink()  # what is left is reported
    monkeypatch.setattr(experiment, "run_part", lambda *_: None)
    left = graphs.EXPERIMENT.run(quick=True, folder=tmp_path)
    assert list(left.figures) == ["graphs"]
    assert not any("Against iid" in line for line in left.findings)


def test_the_title_says_what_different_data_cost_or_gain() -> None:
    tests = {
        ("adanasa", graphs.EQUAL): 0.01,
        ("adanasa", "ring"): -0.2,
        ("dmsgd", graphs.EQUAL): 0,
        ("dadam", graphs.EQUAL): 0,
    }
    rows = [
        {"rule": rule, "graph": graph, "partition": how, "nodes": 8, "spread": 0.0, "equal": equal}
        | {"test": 0.8 + gain * (how != "iid")}
        for (rule, graph), gain in tests.items()
        for how in ("iid", "dirichlet(0.1)", "by_label")
        for equal in ([False, True] if rule != "adanasa" else [False])
    ]
    table, out = pd.DataFrame(rows), Report("graphs", "")
    ours = table.rule == "adanasa"
    graphs.draw_tuned(out, "cifar10", graphs.TASKS["cifar10"], table[ours], table[~ours])
    title = out.figures["graphs-cifar10-tuned"].get_suptitle()
    assert "costs AdaNASA -1.00 points on exact, 2 rounds,\nand 20.00 points on a ring" in title


def test_every_graph_is_run_with_its_rounds_and_the_same_batch() -> None:
    (part,) = [part for part in graphs.parts(quick=False) if part.name == "gpt/32/contiguous"]
    assert {runs.labels["graph"]: (runs.graph.name.split()[0], runs.rounds) for runs in part.runs} == graphs.GRAPHS
    assert {(runs.graph.nodes, runs.partition, runs.batch) for runs in part.runs} == {(32, "contiguous", None)}


def of_graphs(measure: Measure, nodes: Any, rule: str, how: str, **tests: float) -> pd.DataFrame:
    sent = {
        "exact, 2 rounds": 1.0,
        "exact, 1 round": 0.5,
        "complete": 0.875,
        "ring": 1.0,
        "exact, 6 rounds": 1.0,
        "torus": 1.5,
    }
    names = {"exact": "exact, 1 round", "pairs": "exact, 2 rounds", "six": "exact, 6 rounds"}
    rows = [
        {"task": "a", "nodes": nodes, "rule": rule, "partition": how, "graph": names.get(graph, graph), "test": test}
        for graph, test in tests.items()
    ]
    return pd.DataFrame(rows).assign(
        bytes=lambda table: table.graph.map(sent), equal=lambda table: table.graph == "exact, 6 rounds"
    )


def test_findings_on_graphs_name_the_best_with_the_bytes_of_a_ring() -> None:
    iid = of_graphs(ACCURACY, 8, "adanasa", "iid", exact=0.7, pairs=0.7, ring=0.7, torus=0.7, complete=0.7)
    other = of_graphs(ACCURACY, 8, "adanasa", "by_label", exact=0.6, pairs=0.68, ring=0.3, torus=0.69, complete=0.71)
    ours = pd.concat([iid, other])
    (line,) = graphs.findings(ours, ACCURACY)
    assert line == (
        "a, 8 nodes, by_label: best with at most a ring's bytes and no all-reduce is exact, 2 rounds: 68.00 %; "
        "ring: 30.00 %; complete: 71.00 %. "
        "Against iid: exact, 1 round -10.00; exact, 2 rounds -2.00; ring -40.00; torus -1.00; complete +1.00."
    )
    tuned = of_graphs(ACCURACY, "tuned", "dadam", "by_label", ring=0.5, pairs=0.55, six=0.69)
    messages, sent = graphs.against_tuned(ours, tuned, ACCURACY)
    assert (
        "13.00 points better than the best tuned method with at most as many messages: D-Adam on exact, 2" in messages
    )
    assert "1.00 points worse than the best tuned method with at most as many bytes: D-Adam on exact, 6" in sent


# ---------------------------------------------------------------- fine-tuning


@pytest.mark.long
@pytest.mark.pictures
def test_finetuning_starts_where_training_ended_and_trains_only_a_part(
    no_data: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finetuning, "EARLY", 10)
    monkeypatch.setattr(finetuning, "ETAS", (1e-3,))
    report = finetuning.EXPERIMENT.run(quick=True, progress=False, folder=tmp_path)
    rows = report.tables["finetuning-digits"]
    assert len(rows) == 2 * 2 * 3
    assert rows["accuracy at the start"].nunique() == 1
    assert rows["accuracy at the start"].iloc[0] > 0.8
    assert len(report.findings) == 1 + 4
    assert all(picture.stat().st_size > 20_000 for picture in report.save(tmp_path))
    monkeypatch.setattr(experiment, "solve", None)
    assert finetuning.EXPERIMENT.run(quick=True, folder=tmp_path).findings == report.findings


def test_partial_training_is_of_the_last_layer_and_the_biases() -> None:
    rows = data.load("digits")
    weights = np.arange(64 * 32 + 32 + 32 * 10 + 10)
    shards = data.iid(rows.labels, 8)
    problem = experiment.of_last_layer(Task("digits"), rows, shards, torch.as_tensor(weights).float(), "cpu")
    assert [(name, tuple(shape)) for name, shape in problem.layout] == [
        ("0.bias", (32,)), ("2.weight", (10, 32)), ("2.bias", (10,))
    ]  # fmt: skip
    assert (problem.start(0).numpy() == weights[64 * 32 :]).all()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0.9, 0.89, 0.91], "at most 1.00 points in the first 50 steps and ends +1.00 points from its start: target reached"),
        ([0.9, 0.87, 0.91], "at most 3.00 points in the first 50 steps and ends +1.00 points from its start: target NOT"),
        ([0.9, 0.91, 0.89], "at most 0.00 points in the first 50 steps and ends -1.00 points from its start: target NOT"),
        ([0.9, np.nan, np.nan], "AdaNASA diverged"),
    ],
)  # fmt: skip
def test_the_finding_on_finetuning_says_whether_the_target_is_reached(values: list[float], words: str) -> None:
    rows = {"trained": "all", "data": "same", "rule": "adanasa", "eta": np.nan, "seed": 0, "step": [0, 30, 100]}
    (line,) = finetuning.findings(finetuning.summary(pd.DataFrame(rows | {"accuracy": values})))
    assert words in line


@pytest.mark.parametrize("module", [robustness, finetuning])
def test_a_wrong_column_or_task_is_refused(module: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Unknown part 'mist'"):
        module.EXPERIMENT.run(quick=True, folder=tmp_path, only="mist")


# ---------------------------------------------------------------- compression


@pytest.fixture
def small_compression(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Task("digits", steps=8, rows=300, etas={"dsgd": (0.1, 1.0), "dsgt": (1.0,)})
    monkeypatch.setattr(compression, "TASKS", {"digits": small, "mnist": Task("mnist")})
    monkeypatch.setattr(compression, "COMPRESSIONS", ("4bit", "randk:0.1"))
    monkeypatch.setattr(compression, "FACTORS", (0.5,))
    monkeypatch.setattr(compression, "SEEDS", 1)


@pytest.mark.long
@pytest.mark.pictures
def test_the_study_of_compression_continues_and_reports_accuracy_and_bytes(
    no_data: None, small_compression: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    report = compression.EXPERIMENT.run(folder=tmp_path, progress=False)
    assert report.findings[0] == f"mnist is left out: {MISSING}"
    (picture,) = report.save(tmp_path)
    assert picture.stat().st_size > 20_000
    shown = report.tables["compression-digits"].set_index("compression")
    assert shown.bytes.tolist() == ["1/1.0", "1/7.9", "1/10.0"]
    assert shown.gamma.tolist() == ["", "0.75", ""]
    assert report.tables["compression-digits-gamma"].gamma.tolist() == ["0.375"]
    monkeypatch.setattr(experiment, "solve", None)  # nothing is run again
    again = compression.EXPERIMENT.run(folder=tmp_path, progress=False)
    pd.testing.assert_frame_equal(again.tables["compression-digits"], report.tables["compression-digits"])
    monkeypatch.setattr(compression, "SEEDS", 2)  # a second seed is missing
    monkeypatch.setattr(experiment, "run_part", lambda *_: None)
    again = compression.EXPERIMENT.run(folder=tmp_path, progress=False)
    pd.testing.assert_frame_equal(again.tables["compression-digits"], report.tables["compression-digits"])


def test_findings_on_gamma_compare_with_the_default() -> None:
    keys = {"rule": list(compression.RULES), "eta": np.nan, "seed": 0, "steps": 5, "step": 5, "bytes": 1.0}
    tests = {"sign": 0.80, "sign,gamma=0.16": 0.85, "sign,gamma=1": np.nan}
    rows = [pd.DataFrame(keys | {"compress": how, "validation": v, "test": v}) for how, v in tests.items()]
    line = compression.gamma_finding("digits", pd.concat(rows), "sign")
    assert line.startswith("digits: sign, default gamma 0.32; points gained by the best gamma: D-SGD +5.00 at 0.16,")
