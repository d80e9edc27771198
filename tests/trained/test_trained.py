"""A finished run is a model: saved, loaded, tested, used to predict, exported."""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pytest
import torch
from command_line import refused
from safetensors.numpy import load_file
from scipy.optimize import LinearConstraint, milp
from thread_network import run_threads

import dnasa
from dnasa import pages
from dnasa.cli import app
from dnasa.communication import Network
from dnasa.core import InputError, ProcessLost
from dnasa.data import Dataset
from dnasa.data.ledger import Ledger
from dnasa.data.summaries import Summary
from dnasa.networks import dry_run
from dnasa.runs.result import answered
from dnasa.tasks.tasks import on_shards
from dnasa.trained import evaluation, results
from dnasa.trained.saving import save_run

pytestmark = pytest.mark.xdist_group("trained")  # one process trains the models
NET = """
from torch import nn

def make(inputs, outputs):
    return nn.Sequential(nn.Linear(*inputs, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, outputs))
"""


def run(*words: object) -> None:
    app([str(word) for word in words], standalone_mode=False)


def table(rows: int = 200) -> pd.DataFrame:
    """Numbers with gaps, a column of text, a class and a value."""
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.normal(size=(rows, 3)) * [1, 10, 100] + [5, 0, -300], columns=["a", "b", "c"])
    frame["colour"] = generator.choice(["red", "green", "blue"], rows)
    frame["value"] = 3 * frame.a + frame.b + 7 * (frame.colour == "red") + 1000
    frame["kind"] = np.where(frame.value > frame.value.quantile(0.45), "high", "low")
    frame.loc[::17, "a"] = np.nan
    return frame


TASKS = {"classification": "kind", "regression": "value"}
INPUTS = ["a", "b", "c", "colour"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tables and a run of each task; nothing in it is changed."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "net.py").write_text(NET)
    for task, target in TASKS.items():
        table()[[*INPUTS, target]].to_csv(folder / f"{task}.csv", index=False)
        words = ["train", "--data", folder / f"{task}.csv", "--target", target, "--nodes", 3, "--steps", 200]
        run(*words, "--evaluate", 50, "--model", "mlp:16", "--out", folder / task)
    words = ["--data", folder / "classification.csv", "--target", "kind", "--nodes", 3, "--steps", 60]
    run("train", *words, "--model", f"{folder / 'net.py'}:make", "--out", folder / "own")
    return folder


@pytest.fixture
def copied(home: Path, tmp_path: Path) -> Path:
    shutil.copytree(home / "own", tmp_path / "own")
    return tmp_path / "own"


def evaluated(folder: Path) -> Any:
    found = evaluation.read(folder)
    assert found is not None
    return found


def rows_of(home: Path, task: str) -> Dataset:
    return dnasa.data.load(str(home / f"{task}.csv"), TASKS[task])


def last(folder: Path) -> pd.Series:
    return answered(pd.read_csv(folder / "history.csv")).iloc[-1]


def test_every_accuracy_stands_next_to_that_of_the_most_frequent_class(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    share = rows_of(home, "classification").test_labels.mean()
    share = max(share, 1 - share)
    line = f"Always predicting the most frequent class gives a test accuracy of {100 * share:.2f} %."
    words = ["--data", home / "classification.csv", "--target", "kind", "--nodes", 3, "--steps", 5]
    for command in (["train", *words], ["compare", *words, "--rules", "dnasa"], ["report", home / "classification"]):
        run(*command)
        assert line in capsys.readouterr().out
    (folder,) = pages.read(home / "classification")["folders"]
    assert folder["notes"] == [], "the accuracy at the threshold stands alone"
    assert ["accuracy of the most frequent class", f"{share:.3f}"] in folder["tests"]["tables"][0]["rows"]


def test_a_model_predicts_classes_and_values(home: Path) -> None:
    rows = table()
    model = dnasa.load(home / "classification")
    assert (model.predict(rows) == rows.kind).mean() > 0.85
    assert (model.task, list(model.classes), model.features) == ("classification", ["high", "low"], tuple(INPUTS))
    np.testing.assert_allclose(model.predict_proba(rows).sum(1), 1)
    model = dnasa.load(home / "regression")
    assert np.sqrt(((model.predict(rows) - rows.value) ** 2).mean()) < 0.5 * rows.value.std(), "in units of the target"
    with pytest.raises(InputError, match="A regression has no probabilities"):
        model.predict_proba(rows)


@pytest.mark.parametrize("task", TASKS)
def test_the_command_writes_what_the_model_predicts(task: str, home: Path, tmp_path: Path) -> None:
    out = tmp_path / "predictions.csv"
    run("predict", home / task, home / f"{task}.csv", "--out", out)
    written, model = pd.read_csv(out), dnasa.load(home / task)
    assert list(written) == ["prediction", *(["p_high", "p_low"] if task == "classification" else [])]
    if task == "regression":
        np.testing.assert_allclose(written.prediction, model.predict(table()), rtol=1e-6)
    else:
        assert (written.prediction == model.predict(table())).all()
        assert model.threshold == results.threshold_of(evaluated(home / task)) != 0.5, "that of the report"
        assert ((written.prediction == "low") == (written.p_low >= model.threshold)).all()
        run("predict", home / task, home / f"{task}.csv", "--out", out, "--threshold", 0.01)
        assert (pd.read_csv(out).prediction == "low").mean() > (written.prediction == "low").mean()


def test_texts_that_a_spreadsheet_would_calculate_are_written_as_texts(tmp_path: Path) -> None:
    words = {"=1+1": "=1+1", "+x": "-1"}  # a class and an identifier
    frame = pd.DataFrame({"@id": [*words.values()] * 20, "a": [-1.5, 1.0] * 20, "y": [*words] * 20})
    frame.to_csv(tmp_path / "t.csv", index=False)
    options = ["--target", "y", "--id-column", "@id", "--nodes", 2, "--steps", 9, "--model", "linear"]
    run("train", "--data", tmp_path / "t.csv", *options, "--out", tmp_path / "run")
    run("predict", tmp_path / "run", tmp_path / "t.csv", "--out", tmp_path / "p.csv")
    head, *rows = [line.split(",") for line in (tmp_path / "p.csv").read_text().splitlines()]
    assert head[:2] == ["'@id", "prediction"]
    assert {row[0] for row in rows} == {"'=1+1", "-1"}, "a number stays a number"
    assert {row[1] for row in rows} == {"'=1+1", "'+x"}


def test_arrays_in_files_are_predicted_as_frames_are(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", inputs=rows, labels=(rows[:, 0] > 0).astype(int))
    np.savez(tmp_path / "new.npz", inputs=rows)
    pd.DataFrame(rows).to_csv(tmp_path / "new.csv", index=False)
    run(*f"train --data {tmp_path}/rows.npz --nodes 2 --steps 20 --out {tmp_path}/a".split())
    for name in ("rows.npz", "new.npz", "new.csv"):
        run("predict", tmp_path / "a", tmp_path / name, "--out", tmp_path / f"{name}.out")
    found = [pd.read_csv(tmp_path / f"{name}.out") for name in ("rows.npz", "new.npz", "new.csv")]
    assert found[0].equals(found[1])
    np.testing.assert_allclose(found[0], found[2], atol=1e-5)
    assert list(found[0]) == ["prediction", "p_0", "p_1"]


def test_a_folder_of_images_is_predicted_by_file(tmp_path: Path) -> None:
    from PIL import Image

    generator = np.random.default_rng(0)
    for i in range(24):
        kind, low = ("dark", 0) if i % 2 else ("light", 150)
        (tmp_path / "images" / kind).mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(low, low + 100, (8, 8), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / kind / f"{i}.png")
    options = "--model resnet:8 --nodes 2 --steps 15 --batch 4 --rule dadam --eta 0.01"
    run(*f"train --data {tmp_path}/images {options} --out {tmp_path}/a".split())
    run("predict", tmp_path / "a", tmp_path / "images", "--out", tmp_path / "p.csv")
    written = pd.read_csv(tmp_path / "p.csv")
    assert len(written) == 24
    assert (written.file.str.split("/").str[0] == written.prediction).mean() > 0.9
    model = dnasa.load(tmp_path / "a")
    rows = np.stack([np.asarray(Image.open(tmp_path / "images" / name))[None] for name in written.file])
    np.testing.assert_allclose(model.predict_proba(rows), written[["p_dark", "p_light"]], atol=1e-5)
    logits = model.to_torch()(torch.from_numpy(rows)).detach()
    np.testing.assert_allclose(logits.softmax(1), model.predict_proba(rows), atol=1e-4)
    with pytest.raises(InputError, match="images of bytes"):
        model.predict(rows / 255)


def test_what_cannot_be_predicted_gets_one_clear_line(home: Path, tmp_path: Path) -> None:
    table()[["value"]].to_csv(tmp_path / "fewer.csv", index=False)
    for words, message in [
        ((home / "classification", tmp_path / "fewer.csv"), "There is no column 'a'"),
        ((home / "classification", tmp_path / "none.csv"), "There is no file or folder"),
        ((home / "classification", home), "holds no images, or the model takes none"),
        ((tmp_path, tmp_path / "fewer.csv"), "holds no trained model"),
    ]:
        assert message in refused("predict", *words)


def test_a_model_of_a_text_is_saved_and_predicts_no_rows(tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("to be or not to be, that is the question. " * 20)
    options = "--model gpt:1,6,8 --nodes 2 --steps 1 --batch 1"
    run(*f"train --data {tmp_path}/my.txt {options} --out {tmp_path}/a".split())
    model = dnasa.load(tmp_path / "a")
    assert "".join(model.classes) == "".join(sorted({*"to be or not to be, that is the question. "}))
    assert model.to_torch()(torch.zeros(2, 8, dtype=torch.long)).shape == (2, 8, len(model.classes))
    assert "continues a text" in refused("predict", tmp_path / "a", tmp_path / "my.txt")


@pytest.mark.parametrize("task", TASKS)
def test_the_torch_module_scales_by_itself(task: str, home: Path) -> None:
    model = dnasa.load(home / task)
    module, encoded = model.to_torch(), torch.from_numpy(model.encoding.encode(table()))
    outputs = module(encoded).detach().double().numpy()
    if task == "regression":
        np.testing.assert_allclose(outputs[:, 0], model.predict(table()), rtol=1e-5)
    else:
        np.testing.assert_allclose(model.probabilities(outputs), model.predict_proba(table()), atol=1e-5)
    assert not module.training
    torch.nn.init.zeros_(next(module.parameters()))  # a copy: the model itself does not change
    assert next(model.network.parameters()).any()


def test_a_process_that_dies_during_the_tests_costs_the_tests_alone(tmp_path: Path) -> None:
    problem, rows = small_problem()
    rows, graph = (
        rows._replace(test_counts=(20, 20), sites=(Summary(20, name="a"), Summary(20, name="b"))),
        dnasa.topology.ring(2),
    )
    problem.test_counts = (20, 20)
    result = dnasa.solve(problem, graph, steps=5)

    def lost(text: str) -> NoReturn:
        raise ProcessLost("paris is gone.")

    silent = dry_run.connect(graph, None, None)
    network = replace(silent, processes=replace(silent.processes, allgather_text=lost))
    with pytest.warns(UserWarning, match="was not tested: paris is gone"):
        assert not save_run(tmp_path, problem, rows, "linear", replace(result, network=network), network)
    assert (tmp_path / "model.safetensors").exists()
    assert not (tmp_path / "evaluation.json").exists()


def test_the_saved_model_is_the_mean_of_the_nodes(home: Path) -> None:
    model, x = dnasa.load(home / "classification"), load_file(home / "classification" / "x.safetensors")["x"]
    saved = torch.nn.utils.parameters_to_vector(model.network.parameters()).detach()
    np.testing.assert_allclose(saved, x.mean(0), atol=1e-6)
    about = json.loads((home / "classification" / "model.json").read_text())
    (kept,) = dnasa.Result.load(home / "classification").final().step
    assert about["trained"] | {"data": ""} == {"rule": "dnasa", "seed": 0, "steps": kept, "nodes": 3, "data": ""}
    assert {"python", "dnasa", "numpy", "torch"} <= set(about["versions"])


def test_the_model_is_of_the_first_seed_that_did_not_diverge(tmp_path: Path) -> None:
    problem, rows = small_problem()
    result = dnasa.solve(problem, dnasa.topology.ring(2), steps=5, seed=[3, 4, 5])
    result.runs.loc[0, "diverged"] = 2
    network = dnasa.networks.connect(dnasa.topology.ring(2), "simulated")
    save_run(tmp_path, problem, rows, "linear", result, network)
    assert json.loads((tmp_path / "model.json").read_text())["trained"]["seed"] == 4
    saved = torch.nn.utils.parameters_to_vector(dnasa.load(tmp_path).network.parameters()).detach()
    np.testing.assert_allclose(saved, result.mean[1], atol=1e-6)


def small_problem() -> tuple[Any, Dataset]:
    rows = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    labels = (rows[:, 0] > 0).astype(np.int64)
    data = Dataset("own", rows, labels, rows, labels)
    return on_shards(data, [np.arange(20), np.arange(20, 40)], model="linear"), data


def test_an_own_model_is_loaded_from_its_copy_with_its_batch_norm(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, rows = dnasa.load(home / "own", trust=True), dnasa.data.load(str(home / "classification.csv"), "kind")
    assert f"Executing {home / 'own' / 'model.py'}" in capfd.readouterr().err
    accuracy = (model.predict(table()) == table().kind).mean()
    assert accuracy > 0.8
    measured = (model.outputs(rows.test_inputs).argmax(1) == rows.test_labels).mean()
    assert measured == pytest.approx(last(home / "own").test_accuracy, abs=1e-6)
    assert (home / "own" / "model.py").read_text() == NET


def test_no_changed_copy_and_no_other_file_is_executed(copied: Path, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('executed')")
    about = json.loads((copied / "model.json").read_text())
    for name in (f"{tmp_path}/evil.py:make", "../evil.py:make"):
        (copied / "model.json").write_text(json.dumps(about | {"model": name}))
        with pytest.raises(InputError, match="it is not executed"):
            dnasa.load(copied, trust=True)
    (copied / "model.json").write_text(json.dumps(about))
    (copied / "model.py").write_text(NET + "raise SystemExit\n")
    with pytest.raises(InputError, match="is not the file that the model was trained with: it is not executed"):
        dnasa.load(copied, trust=True)


DAMAGE = {
    "not-json": ("model.json", "{"),
    "no-format": ("model.json", "{}"),
    "old": ("model.json", '{"format": 0}'),
    "encoding": ("model.json", '{"format": 1, "model": "linear", "outputs": 2, "inputs": "numbers", "encoding": [1]}'),
    "weights": ("model.safetensors", "x"),
    "huge": ("model.json", None),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_models_get_one_clear_line(name: str, home: Path, tmp_path: Path) -> None:
    folder, (file, content) = tmp_path / "a", DAMAGE[name]
    shutil.copytree(home / "classification", folder)
    about = json.loads((folder / "model.json").read_text()) | {"model": "mlp:999999,999999"}
    (folder / file).write_text(content or json.dumps(about))
    words = ["predict", folder, home / "classification.csv"]
    assert "model" in refused(*words)


def test_a_run_killed_before_it_wrote_its_model_gets_it_when_resumed(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (copied / "model.json").read_bytes(), load_file(copied / "model.safetensors")
    for name in ("model.json", "model.safetensors", "evaluation.json"):
        (copied / name).unlink()
    history = (copied / "history.csv").read_bytes()
    run("resume", copied, "--trust")
    assert (copied / "model.json").read_bytes() == before[0]
    assert all((value == before[1][name]).all() for name, value in load_file(copied / "model.safetensors").items())
    assert (copied / "evaluation.json").exists()
    assert (copied / "history.csv").read_bytes() == history


def test_a_new_run_replaces_the_model_of_the_old_one(copied: Path) -> None:
    run("train", "--problem", "least_squares", "--nodes", 2, "--steps", 5, "--out", copied, "--force")
    assert not [name for name in ("model.json", "model.safetensors", "model.py") if (copied / name).exists()]


@pytest.mark.parametrize(("min_count", "near"), [(1, 0.002), (5, 0.005)])
def test_the_results_of_a_binary_model_are_those_of_single_rows(min_count: int, near: float) -> None:
    """From cells of one row they are those of scikit-learn and statsmodels but for the grid, from cells of five nearly."""
    import statsmodels.api as sm
    from sklearn.metrics import roc_auc_score
    from statsmodels.stats.proportion import proportion_confint

    rng = np.random.default_rng(0)
    odds = rng.normal(-2.5, 1.3, 2000)
    event = rng.random(2000) < 1 / (1 + np.exp(-0.8 * odds - 0.2))
    thirds = np.array_split(np.arange(2000), 3)  # sites
    pairs = [evaluation._pair(odds[part], event[part], min_count) for part in thirds]
    assert min(cell[1] for pair in pairs for cells in pair for cell in cells) >= min_count
    parts = [evaluation.Part(rows=len(part), scores=[pair]) for part, pair in zip(thirds, pairs, strict=True)]
    measured = evaluation.Evaluation(task="classification", target="y", names=[0, 1], min_count=min_count, sites=[*parts, None])
    every = results.numbers(measured, threshold=0.1).query("group == '3 of 4 sites'").set_index("measure")
    found = {name: every.loc[name, ["value", "low", "high"]].to_numpy(float) for name in every.index}
    squares = (1 / (1 + np.exp(-odds)) - event) ** 2
    assert found["Brier score"][0] == pytest.approx(squares.mean(), abs=0.001)
    assert found["accuracy"][0] == pytest.approx(((odds > np.log(0.1 / 0.9)) == event).mean(), abs=3 * near)
    assert (found["test rows"][0], found["events"][0]) == pytest.approx((2000, event.sum()))
    fit = sm.Logit(event.astype(float), sm.add_constant(odds)).fit(disp=0)
    expected = {
        "calibration slope": [fit.params[1], *fit.conf_int()[1]],
        "AUC": [roc_auc_score(event, odds), *delong(odds, event)],
    }
    flagged = odds > np.log(0.1 / 0.9)
    shares = {
        "sensitivity": (flagged, event),
        "specificity": (~flagged, ~event),
        "PPV": (event, flagged),
        "NPV": (~event, ~flagged),
    }
    for name, (right, of) in shares.items():
        count = (right & of).sum()
        expected[name] = [count / of.sum(), *proportion_confint(count, of.sum(), method="wilson")]
    for name, numbers in expected.items():
        tolerance = {"AUC": near, "sensitivity": 5 * near}.get(name, 3 * near)
        np.testing.assert_allclose(found[name], numbers, atol=tolerance, err_msg=name)
    intercept = sm.GLM(event.astype(float), np.ones(2000), sm.families.Binomial(), offset=odds).fit()
    assert found["calibration intercept"][0] == pytest.approx(intercept.params[0], abs=3 * near)
    (roc, of_sites, precision, calibration, decision) = results.curves(measured, ["a", "b", "c", "d"])
    assert of_sites[0] == "ROC curve of each site"
    areas = results.numbers(measured, ["a", "b", "c", "d"]).query("measure == 'AUC'").set_index("group").value
    for site, false, hits in of_sites[3]:
        assert -np.trapezoid(hits, false) == pytest.approx(areas[site], abs=near)
    assert [curve[0] for curve in (roc, calibration)] == ["ROC curve, 3 of 4 sites", "Calibration, 3 of 4 sites"]
    assert all(low < observed < high for observed, (_, low, high) in zip(calibration[3][0][2], calibration[4], strict=True))
    assert [name for name, _, net in decision[3] if (net < -0.02).any()] in ([], ["model"])
    assert len(decision[3][1][1]) < len(decision[3][0][1]), "treat all ends where it leaves the picture"
    assert -np.trapezoid(roc[3][0][2], roc[3][0][1]) == pytest.approx(expected["AUC"][0], abs=near)
    assert len(calibration[3][0][1]) == 10
    assert precision[3][0][1].min() * event.sum() > 0.9 * min_count, "fewer events are within a cell"


def test_results_of_sites_are_as_exact_as_the_report_says() -> None:
    import statsmodels.api as sm
    from sklearn.metrics import roc_auc_score

    rng, errors = np.random.default_rng(0), dict[str, list[float]]()
    for _ in range(40):
        parts, every = [], []
        for rows, events in {240: 18, 180: 14, 130: 12, 84: 9, 62: 6}.items():
            event = np.arange(rows) < events
            odds = rng.normal(np.where(event, -1.3, -2.2), 1)
            parts.append(evaluation.Part(rows=rows, scores=[evaluation._pair(odds, event, 5)]))
            every.append((odds, event))
        odds, event = map(np.concatenate, zip(*every, strict=True))
        exact = {"AUC": roc_auc_score(event, odds), "sensitivity": (odds > np.log(0.12 / 0.88))[event].mean()}
        exact["calibration slope"] = sm.Logit(event.astype(float), sm.add_constant(odds)).fit(disp=0).params[1]
        for name, value, low, high in results.binary(parts, 0.12):
            if name in exact:
                errors.setdefault(name, []).append(abs(value - exact[name]) / (high - low))
    assert {name: np.quantile(each, 0.95) < 1 / 4 for name, each in errors.items()} == dict.fromkeys(exact, True)


def test_a_model_that_is_worse_than_the_share_of_events_is_named(home: Path) -> None:
    rows, model = rows_of(home, "classification"), dnasa.load(home / "classification")
    measured = evaluation.begun(model, rows)
    for turned in (False, True):
        labels = 1 - rows.labels if turned else rows.labels
        part = evaluation.evaluate(model, rows.inputs, labels, 1)
        assert part != "few"
        measured.common = part
        found = results.shortcomings(measured)
        assert any("worse" in sentence for sentence in found) == turned
    perfect = [(100, 20, -3.0, 0.1)], [(256, 20, 3.0, 0.1)]
    assert measured.common is not None
    measured.common = measured.common.model_copy(update={"scores": [perfect]})
    assert "does a column tell the target" in results.shortcomings(measured)[0]
    assert re.fullmatch(r"The model predicts worse than the share of events alone \(Brier score 0\.\d+, 0\.\d+\)\.", found[0])


def test_a_report_says_that_a_model_is_overfitted() -> None:
    rng = np.random.default_rng(0)
    for slope, is_named in {0.5: True, 1.0: False}.items():
        odds = rng.normal(-2, 1.3, 2000)
        event = rng.random(2000) < 1 / (1 + np.exp(1 - slope * (odds + 2)))
        part = evaluation.Part(rows=2000, scores=[evaluation._pair(odds, event, 1)])
        own = evaluation.Evaluation(task="classification", target="y", names=[0, 1], common=part)
        assert any("too extreme (slope 0.5" in sentence for sentence in results.remarks(own)) == is_named


def test_a_site_with_few_rows_of_a_class_sends_nothing_of_its_tests(home: Path) -> None:
    rows, model = rows_of(home, "classification"), dnasa.load(home / "classification")
    order, others = np.argsort(rows.labels, kind="stable"), int((rows.labels == 0).sum())
    for events, sends in {0: True, 1: False, 4: False, 5: True}.items():
        place = order[others - 40 : others + events]
        part = evaluation.evaluate(model, rows.inputs[place], rows.labels[place], 5)
        assert (part != "few") == sends


@pytest.mark.parametrize(
    ("counts", "sent"),
    [
        ([70, 3, 22], [68, 5, 22]),
        ([70, 2, 22], [72, 0, 22]),
        ([2, 2, 2], [6, 0, 0]),
        ([4, 6, 4], [0, 14, 0]),
        ([9, 0, 1, 1, 1], [7, 0, 5, 0, 0]),
        ([0, 0], [0, 0]),
    ],
)
def test_few_rows_are_counted_as_none_or_as_the_minimum(counts: list[int], sent: list[int]) -> None:
    assert evaluation.without_few(np.array(counts), 5).tolist() == sent
    assert evaluation.without_few(np.array(counts), 1).tolist() == counts


def test_one_run_does_not_tell_how_many_rows_of_a_kind_there_are() -> None:
    """With few inputs of few values, all know the scores that rows can have: integer programs find what is possible."""
    cases = {(2, 1): 5, (2, 3): 4, (3, 1): 2}
    found = {case: np.mean([told for seed in range(n) for told in _told(seed, *case)]) for case, n in cases.items()}
    assert max(found[2, 1], found[3, 1]) < 0.05 < found[2, 3], "so the results of the same rows leave a site once"


def _told(seed: int, classes: int, runs: int) -> Iterator[bool]:
    """For each kind of 1 to 4 rows of a class, whether what runs of so many models send allows one number only."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 4, 3)
    k = sizes.prod()
    rows = rng.choice(k, rng.integers(20, 120), p=rng.dirichlet(np.full(k, 0.3)))
    labels = rng.integers(0, classes, len(rows)) if classes > 2 else np.zeros(len(rows), int)
    counts, conditions = np.bincount(labels * k + rows, minlength=classes * k), list[tuple[np.ndarray, float, float]]()
    for _ in range(runs):
        for c in range(classes) if classes > 2 else [0]:
            effects = np.meshgrid(*(rng.normal(0, 0.8, size) for size in sizes), indexing="ij")
            scores = np.sum(effects, axis=0).ravel() + rng.normal(-1.5, 0.4, k)
            pair = evaluation._pair(scores[rows], labels == c, 5, evaluation.WIDER if classes > 2 else 1)
            places = evaluation.COARSE * (evaluation.WIDER if classes > 2 else 1)
            for cells, of in zip(pair, (np.arange(classes) != c, np.arange(classes) == c), strict=True):
                found = _conditions(scores, cells, places)
                conditions += [(np.outer(of, row).ravel(), low, high) for row, low, high in found]
    matrix, least, most = map(np.array, zip(*conditions, strict=True))
    assert (np.clip(matrix @ counts, least, most) - matrix @ counts).max() < 1e-6
    for kind in np.flatnonzero((counts > 0) & (counts < 5)):
        ends = [
            milp(sign * (np.arange(classes * k) == kind), constraints=LinearConstraint(matrix, least, most), integrality=1)
            for sign in (1, -1)
        ]
        yield ends[1].x is not None and round(ends[0].fun) == round(-ends[1].fun)


def _conditions(scores: np.ndarray, cells: evaluation.Cells, places: int) -> Iterator[tuple[np.ndarray, float, float]]:
    """What cells tell of the number of rows with each score: linear functions and their bounds."""
    begin = evaluation.EDGES[0]
    for end, count, mean, deviation in cells:
        inside = (scores >= begin) & ((scores < evaluation.EDGES[end]) | (end == evaluation.PLACES))
        least = (evaluation.EDGES[places] - evaluation.EDGES[0]) / 2
        half = max(deviation / 2, least) / 2
        yield inside * 1.0, count, count
        yield inside * (scores - mean), -half * count, half * count
        if end < evaluation.PLACES:  # with the rows before its last places it would have ended
            yield (inside & (scores < evaluation.EDGES[end - places])) * 1.0, 0, 4
        begin = evaluation.EDGES[end]


def delong(scores: np.ndarray, event: np.ndarray) -> tuple[float, float]:
    """The interval of the AUC, pair by pair."""
    wins = (scores[event][:, None] > scores[~event]).astype(float)
    spread = (wins.mean(1).var(ddof=1) / event.sum() + wins.mean(0).var(ddof=1) / (~event).sum()) ** 0.5
    return wins.mean() - 1.96 * spread, wins.mean() + 1.96 * spread


def test_the_results_of_a_regression_and_of_classes_are_those_of_scikit_learn(home: Path, tmp_path: Path) -> None:
    from scipy.stats import sem
    from sklearn.metrics import confusion_matrix, mean_absolute_error, r2_score, roc_auc_score, root_mean_squared_error

    rows, model = rows_of(home, "regression"), dnasa.load(home / "regression")
    for place in (slice(0, 50), slice(50, 53), slice(50, 160)):  # all rows, and sites
        part = evaluation.evaluate(model, rows.inputs[place], rows.labels[place], 5)
        assert (part == "few") == (place.stop == 53)
        if part != "few":
            truth, values = map(model.encoding.target_values, (rows.labels[place], model.outputs(rows.inputs[place])))
            measures = list(results.regression([part], evaluated(home / "regression").scale))
            found, highs = ({name: measure[k] for name, *measure in measures} for k in (0, 2))
            errors = truth - values
            exact = {"RMSE": root_mean_squared_error(truth, values), "mean |error|": mean_absolute_error(truth, values)}
            assert found["R2"] == pytest.approx(r2_score(truth, values), abs=0.1 * (1 - r2_score(truth, values)))
            for name, value in exact.items():
                assert found[name] == pytest.approx(value, rel=0.05), "rounded to what 5 rows change"
            for name, each in {"mean |error|": abs(errors), "mean error": errors}.items():
                assert highs[name] - found[name] == pytest.approx(1.96 * sem(each, axis=None, ddof=0), rel=0.2)
            squares = found["RMSE"] ** 2 + 1.96 * sem(errors**2, axis=None)
            assert highs["RMSE"] == pytest.approx(squares**0.5, rel=0.1), "from the cells"
            assert found["error, 50th percentile"] == pytest.approx(np.median(truth - values), abs=0.2 * np.std(truth - values))
    lost = evaluated(home / "regression").model_copy(update={"sites": ["few"]})
    assert results.remarks(lost, ["bonn"]) == ["Left out: bonn (fewer than 1 test rows)."]
    assert results.with_interval("RMSE", 1063.4, 1000.04, 1126.1) == "1,063 (1,000 to 1,126)"
    run("train", "--nodes", 2, "--steps", 60, "--out", tmp_path)  # digits
    digits, model = dnasa.data.load("digits"), dnasa.load(tmp_path)
    p = model.probabilities(model.outputs(digits.test_inputs))
    found = results.numbers(evaluated(tmp_path)).set_index(["group", "measure"]).value
    counts = confusion_matrix(digits.test_labels, p.argmax(1))
    np.testing.assert_array_equal(results.confusion([evaluated(tmp_path).common]), counts)
    part = evaluation.evaluate(model, digits.test_inputs, digits.test_labels, 5)
    assert part != "few"
    np.testing.assert_array_equal(np.sum(part.confusion, axis=1), counts.sum(1))
    assert {1, 2, 3, 4}.isdisjoint(np.ravel(part.confusion)), "of a site"
    assert abs(np.trace(part.confusion) - np.trace(counts)) <= 0.03 * counts.sum()
    assert found["3", "recall"] == pytest.approx(counts[3, 3] / counts[3].sum())
    assert found["3", "precision"] == pytest.approx(counts[3, 3] / counts[:, 3].sum())
    assert found["all", "accuracy"] == pytest.approx(np.trace(counts) / counts.sum())
    assert found["all", "macro AUC"] == pytest.approx(roc_auc_score(digits.test_labels, p, multi_class="ovr"), abs=1e-3)


@pytest.mark.parametrize("task", TASKS)
def test_a_report_shows_tests_without_data(task: str, home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shutil.copytree(home / task, tmp_path / "elsewhere")
    run("report", tmp_path / "elsewhere")
    shown = capsys.readouterr().out
    for setting in ("model", "parameters", "batch", "seed"):
        assert re.search(rf"│ {setting} +│ \S+", shown)
    words = {"classification": ["AUC", "calibration slope", "PPV", "missing a"], "regression": ["RMSE", "R2"]}[task]
    for word in words:
        assert word in shown[: shown.index("│ model")], "before the settings"
    run("report", tmp_path / "elsewhere", "--html", "--threshold", 0.25)
    written = pd.read_csv(tmp_path / "elsewhere" / "report.csv")
    assert (written.measure == words[0]).any()
    assert words[0] in (tmp_path / "elsewhere" / "report.tex").read_text()
    page = (tmp_path / "elsewhere" / "report.html").read_text()
    assert page.index(words[0]) < page.index(">Training<")
    for anchor in re.findall('href="#([^"]+)"', page):
        assert f'id="{anchor}"' in page
    with pytest.raises(InputError, match="--threshold must lie between 0 and 1"):
        run("report", tmp_path / "elsewhere", "--threshold", 8)


@pytest.mark.parametrize("target", ["kind", "colour", "value"])
def test_anyone_can_compute_a_prediction_from_the_report_of_a_linear_model(target: str, tmp_path: Path) -> None:
    rows = table()[[*INPUTS, *({target} - {*INPUTS})]]
    rows.to_csv(tmp_path / "rows.csv", index=False)
    words = ["--data", tmp_path / "rows.csv", "--target", target, "--nodes", 2, "--steps", 50, "--model", "linear"]
    run("train", *words, "--out", tmp_path / "run")
    run("report", tmp_path / "run", "--html")
    written = pd.read_csv(tmp_path / "run" / "report.csv").query("table == 'model'")
    fills = written[written.group == "if missing"].set_index("measure").value
    known = {"intercept": 1.0, "a missing": rows.a.isna()} | {name: rows[name].fillna(fills[name]) for name in "abc"}
    known |= {f"colour: {word}": rows.colour == word for word in ("red", "green", "blue")}
    terms = written[written.group != "if missing"].assign(term=lambda all: all.value * 1.0)
    sums = {
        group: sum(known[name] * x for name, x in zip(some.measure, some.value, strict=True))
        for group, some in terms.groupby("group", sort=False)
    }
    model = dnasa.load(tmp_path / "run")
    if target == "value":
        np.testing.assert_allclose(sums["coefficient"], model.predict(rows), rtol=1e-5)
        return
    odds = np.exp(np.column_stack([np.zeros(len(rows)), *(sums[f"log odds of {name}"] for name in model.classes[1:])]))
    np.testing.assert_allclose(odds / odds.sum(1, keepdims=True), model.predict_proba(rows), atol=1e-5)
    tex, page = ((tmp_path / "run" / f"report.{kind}").read_text() for kind in ("tex", "html"))
    shrunk = "The weights are shrunk for calibrated risks"
    assert (shrunk in tex, shrunk in page) == (target == "kind",) * 2
    assert 'href="#model-1">22<' in page


@pytest.mark.parametrize(
    "change",
    [
        {"names": []},
        {"common": {"rows": 3}},
        {"task": "x"},
        {"scale": "nine"},
        {"sites": [{"rows": 9, "scores": [[[], [[3, 2, 99.0, 0.5]]]]}]},
        {"min_count": -1},
    ],
)
def test_a_damaged_evaluation_gets_one_clear_line(change: dict[str, Any], home: Path, tmp_path: Path) -> None:
    stored = json.loads((home / "classification" / "evaluation.json").read_text())
    (tmp_path / "evaluation.json").write_text(json.dumps(stored | change))
    with pytest.raises(InputError, match=r"evaluation.json is damaged"):
        evaluation.read(tmp_path)


@pytest.mark.parametrize("task", [pytest.param("regression", marks=pytest.mark.long), "own"])
@pytest.mark.filterwarnings("ignore:.*rows have")
def test_an_exported_model_predicts_as_ours(task: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    run("export", home / task, "--onnx", tmp_path / "model.onnx", "--trust")
    assert "differ from ours by at most" in capsys.readouterr().out
    model = dnasa.load(home / task, trust=True)
    raw = table()[INPUTS].assign(colour=["violet", "NA", "red", "", "blue"] * 40)
    raw.loc[3, "b"] = np.nan  # the training rows have a value
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    with pytest.warns(
        UserWarning,
        match=r"120 of 200 rows \(first row 0\) have a value of 'colour' that the model does not know: violet, a missing one",
    ):
        model.predict(raw)
    for rows in (raw, raw[:1]):
        outputs = session.run(None, {name: rows[[name]].to_numpy(None if name == "colour" else float) for name in rows})[-1]
        expected = model.predict(rows)[:, None] if task == "regression" else model.predict_proba(rows)
        np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-4)
    assert json.loads(session.get_modelmeta().custom_metadata_map["inputs"]) == list(model.encoding.inputs)


@pytest.mark.parametrize("common", [False, True])
def test_processes_with_test_rows_of_their_own_add_up_their_tests(common: bool, tmp_path: Path) -> None:
    """The joint model at each site is measured there: on its test rows, or on all of its rows where the test is common."""
    sites = tmp_path / "sites"
    sites.mkdir()
    for node, name in enumerate(["bonn", "köln", "ulm"]):
        table()[[*INPUTS, "kind"]][node::3].to_csv(sites / f"{name}.csv", index=False)
    if common:
        table()[[*INPUTS, "kind"]][:39].to_csv(sites / "test.csv", index=False)
    graph = dnasa.topology.complete(3)

    def train(network: Network, folder: Path | None, ledger: Ledger | None = None) -> Any:
        gather = network.processes.allgather_text
        rows, shards = dnasa.data.from_shards(sites, network.local_nodes, 3, "kind", allgather_text=gather, ledger=ledger)
        problem = on_shards(rows, shards, model="linear")
        result = dnasa.solve(problem, network, steps=20, progress=False)
        save_run(folder, problem, rows, "linear", result, network)
        sent = network.processes.traffic.sent if network.processes.traffic else {}
        return sum(count for sending, (count, _) in sent.items() if sending.kind == "text")

    folders = [tmp_path / "alone", tmp_path / "together"]
    for folder in folders:
        folder.mkdir()
    train(dnasa.networks.connect(graph, "simulated"), folders[0])
    texts = run_threads(graph, lambda network: train(network, folders[1]))
    assert train(dry_run.connect(graph, None, None), None) == texts[0]  # a dry run tests too
    alone, together = map(evaluated, folders)
    for ours, theirs in zip(alone.sites, together.sites, strict=True):
        assert ours.rows == theirs.rows
        for one, other in zip(ours.scores[0], theirs.scores[0], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert [part.rows for part in alone.sites] == ([67, 67, 66] if common else [13] * 3)
    assert (alone.common is not None) == common
    model = dnasa.load(folders[0])
    if common:
        shares = [(model.predict(table()[i::3]) == table()[i::3].kind).mean() for i in range(3)]
        found = results.numbers(alone).query("measure == 'accuracy'").value
        np.testing.assert_allclose(found[1:], shares, atol=0.05)
    cells = [cell for part in alone.sites for pair in part.scores for cells in pair for cell in cells]
    assert min(cell[1] for cell in cells) >= 5, "nothing of fewer rows leaves a site"
    assert alone.training == together.training
    exact = np.bincount(dnasa.data.from_shards(sites, range(3), 3, "kind")[0].labels)
    assert np.abs(exact - alone.training).max() <= 2 * 3, "each site rounds to 5"
    shown = dict(results.tables(alone, ["bonn", "köln", "ulm"]))
    of_site = "bonn (its training rows)" if common else "bonn"
    assert of_site in shown[f"Results for kind, event: low, threshold {results.threshold_of(alone):.3g}"]
    alone.sites[1] = None
    left_out, biased, *mixed, approximate = results.remarks(alone, ["bonn", "köln", "ulm"])
    if not common:  # 13 test rows each
        assert mixed.pop() == "With fewer than 10 events or non-events, no interval of the AUC and no ROC curve: bonn, ulm."
    assert [line.startswith("The calibration intercept of the first column mixes those") for line in mixed] == [True] * (
        not common
    )
    assert approximate.startswith("Sites sent counts and rounded means of at least 5 rows, not predictions")
    assert "results may differ from those of all" in biased
    assert left_out == "Left out: köln (lost in the run)."
    alone.sites[:2] = "tested", "few"
    left_out = "Left out: bonn (an earlier run tested its rows), köln (fewer than 5 test rows of a class)."
    assert results.remarks(alone, ["bonn", "köln", "ulm"])[0] == left_out
    alone = evaluated(folders[0])
    alone.sites[1] = alone.sites[0].model_copy(update={"scores": [(alone.sites[0].scores[0][0], [])]})
    single, *_ = results.remarks(alone, ["bonn", "köln", "ulm"])
    assert single.startswith("Without a column, since all test rows have one class: köln;")
    assert "köln" not in {*results.numbers(alone, ["bonn", "köln", "ulm"]).group}
    keys = [tmp_path / str(rank) for rank in range(3)]
    for folder in keys:
        folder.mkdir()
    for leaves in (True, False):  # once
        run_threads(graph, lambda network: train(network, folders[1], Ledger(keys[network.rank])))
        assert [site == "tested" for site in evaluated(folders[1]).sites] == [not leaves] * 3
