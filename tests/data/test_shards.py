"""Each process reads the data of its own nodes; runs on a user's data are named after it."""

import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from archives import X, Y, npy, npz
from test_own_data import encoding_of

from dnasa import data
from dnasa.core import InputError
from dnasa.data import agreement
from dnasa.data.loading import split
from dnasa.data.rows import from_frame
from dnasa.data.shards import node_entries, node_paths
from dnasa.data.summaries import summarize
from dnasa.inference import fit
from dnasa.tasks import tasks


def shards(folder: Path, contents: dict[str, bytes]) -> Path:
    folder.mkdir()
    for name, content in {"test.npz": npz(inputs=X, labels=Y), **contents}.items():
        (folder / name).write_bytes(content)
    return folder


def in_processes(folder: Path, blocks: Sequence[range], nodes: int, **options: Any) -> list[Any]:
    """What each of several processes reads, with its own nodes; they exchange texts at a barrier."""
    barrier, texts = threading.Barrier(len(blocks), timeout=120), [""] * len(blocks)

    def read(rank: int) -> Any:
        def allgather_text(text: str) -> list[str]:
            texts[rank] = text
            barrier.wait()
            return texts

        return data.from_shards(folder, blocks[rank], nodes, allgather_text=allgather_text, **options)

    with ThreadPoolExecutor(len(blocks)) as pool:
        return list(pool.map(read, range(len(blocks))))


def test_a_process_reads_its_own_shards_and_leaves_the_others_empty(tmp_path: Path) -> None:
    folder = shards(tmp_path / "d", {f"node-{i}.npz": npz(inputs=X[i:] + i, labels=Y[i:]) for i in (1, 2)})
    rows, parts = data.from_shards(folder, range(1, 3), 4)
    assert [len(part) for part in parts] == [0, 9, 8, 0]
    np.testing.assert_allclose(rows.inputs[parts[2]], encoding_of(rows).transform(X[2:] + 2), atol=1e-6)


@pytest.mark.parametrize("tests", [True, False])
@pytest.mark.parametrize("integers", [False, True])
def test_shard_runs_identify_their_data_in_any_number_of_processes(tmp_path: Path, integers: bool, tests: bool) -> None:
    kind = np.int64 if integers else np.float64
    contents = {
        f"node-{i}.npz": npz(inputs=np.tile(X[i:] + i, (4, 1)).astype(kind), labels=np.tile(Y[i:], 4)) for i in range(3)
    }
    folder = shards(tmp_path / "d", contents)
    if not tests:
        (folder / "test.npz").unlink()
    (whole,) = in_processes(folder, [range(3)], 3)
    apart = in_processes(folder, [range(1), range(1, 3)], 3)
    whole, first, rest = (tasks.on_shards(*rows) for rows in (whole, *apart))
    assert first.fingerprint == rest.fingerprint == whole.fingerprint
    gathered = [first.node_fingerprint(0), rest.node_fingerprint(1), rest.node_fingerprint(2)]
    assert gathered == [whole.node_fingerprint(node) for node in range(3)]
    assert [whole.rows(node) for node in range(3)] == ([40, 36, 32] if tests else [32, 29, 26])


def frames(sizes: Sequence[int] = (25, 40, 30)) -> list[pd.DataFrame]:
    """Nodes that differ: in size, in their means, in the categories and classes they have, and in what is missing."""
    rng = np.random.default_rng(0)
    made = []
    for node, rows in enumerate(sizes):
        frame = pd.DataFrame({"age": 1000 * node + rng.standard_normal(rows), "size": 1e-6 * rng.random(rows)})
        frame["town"] = rng.choice(["rome", "oslo"] if node else ["rome", "bonn"], rows)
        made.append(frame.assign(kind=[f"k{(node + i) % 3 if node else i % 2}" for i in range(rows)]))
    made[2].loc[:6, "age"] = np.nan
    made[1]["town"] = made[1]["town"].where(rng.random(sizes[1]) < 0.8)
    return made


def write(folder: Path, made: Sequence[pd.DataFrame]) -> Path:
    folder.mkdir()
    for node, frame in enumerate(made):
        frame.to_csv(folder / f"node-{node}.csv", index=False)
    return folder


def test_shards_are_standardised_as_if_their_rows_were_in_one_place(tmp_path: Path) -> None:
    """The scaler of summaries that nodes exchange against that of all rows together; rows never leave their node."""
    made = frames((30, 60, 40))  # no category is rare at a site
    folder = write(tmp_path / "d", made)
    pd.concat(made).to_csv(folder / "test.csv", index=False)
    rows, _ = data.from_shards(folder, range(3), 3, "kind")
    together = data.from_frame(pd.concat(made, ignore_index=True), "kind", test=pd.concat(made, ignore_index=True))
    exact, rounded = encoding_of(together), encoding_of(rows)  # what sites tell is rounded to what a few rows change
    assert np.abs((np.array(rounded.mean) - exact.mean) / exact.scale).max() < 5 / 60
    np.testing.assert_allclose(np.array(rounded.scale), np.array(exact.scale), rtol=0.2)
    assert encoding_of(rows).inputs == encoding_of(together).inputs
    assert encoding_of(rows).classes == encoding_of(together).classes == ("k0", "k1", "k2")
    np.testing.assert_allclose(rows.inputs, together.inputs, rtol=0.2, atol=0.1)
    np.testing.assert_array_equal(rows.labels, together.labels)


@pytest.mark.parametrize("blocks", [[range(1), range(1, 3)], [range(1), range(1, 2), range(2, 3)]])
def test_processes_agree_on_the_encoding_of_the_simulator_to_the_bit(tmp_path: Path, blocks: list[range]) -> None:
    folder = write(tmp_path / "d", frames())
    whole, _ = data.from_shards(folder, range(3), 3, "kind")
    for rows, _ in in_processes(folder, blocks, 3, target="kind"):
        assert encoding_of(rows).to_json() == encoding_of(whole).to_json()
        assert rows.test_counts == whole.test_counts == (5, 8, 6)


def test_without_test_rows_each_node_holds_out_its_own(tmp_path: Path) -> None:
    rows, parts = data.from_shards(write(tmp_path / "d", frames()), range(3), 3, "kind")
    assert [len(part) for part in parts] == [20, 32, 24]
    problem: Any = tasks.on_shards(rows, parts)
    points = torch.stack([problem.start(0)])[None]
    measured = problem.evaluate(points, range(3))["test_accuracy"].item()
    split = [problem.evaluate(points, range(i, i + 1))["test_accuracy"].item() for i in range(3)]
    assert np.mean(split) == pytest.approx(measured)


def test_sites_with_names_are_the_nodes_in_order_and_may_have_test_rows(tmp_path: Path) -> None:
    for name, frame in zip(("bonn", "oslo", "rome"), frames(), strict=True):
        (tmp_path / "d" / name).mkdir(parents=True)
        frame.to_csv(tmp_path / "d" / name / "patients.csv", index=False)
    frames()[2].iloc[:5].to_csv(tmp_path / "d" / "rome" / "test.csv", index=False)
    rows, parts = data.from_shards(tmp_path / "d", range(3), 3, "kind")
    assert [len(part) for part in parts] == [20, 32, 30]
    assert rows.test_counts == (5, 8, 5)
    assert [(site.name, site.rows) for site in rows.sites] == [("bonn", 20), ("oslo", 32), ("rome", 30)]
    for other, _ in in_processes(tmp_path / "d", [range(1), range(1, 3)], 3, target="kind"):
        assert other.sites == rows.sites
    with pytest.raises(InputError, match=r"3 sites \(bonn, oslo, rome\), not 4: give --nodes 3"):
        data.from_shards(tmp_path / "d", range(4), 4, "kind")


def test_the_nodes_of_a_folder_are_its_files_in_order(tmp_path: Path) -> None:
    folder = shards(tmp_path / "d", dict.fromkeys(("node-9.csv", "node-10.npz", ".hidden.csv"), b""))
    assert len(node_entries(folder)) == 2
    assert [path.name for path in node_paths(folder, range(2), 2)] == ["node-9.csv", "node-10.npz"]
    assert [path.name for path in node_paths(folder, range(2, 4), 8)] == ["node-9.csv", "node-10.npz"], "its own alone"
    with pytest.raises(InputError, match="no data: add node-0"):
        node_entries(shards(tmp_path / "empty", {}))
    with pytest.raises(InputError, match="no folder"):
        node_entries(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (npy(X), "node-0.npz is not an archive"),
        (npz(inputs=X[:, :1], labels=Y), "node-1 does not have the columns of the other sites"),
        (npz(inputs=np.full((10, 2), np.inf), labels=Y), "node-0.npz: Column '0' has a missing, infinite or enormous value"),
    ],
)
def test_a_damaged_shard_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    folder = shards(tmp_path / "d", {"node-0.npz": content, "node-1.npz": npz(inputs=X, labels=Y)})
    with pytest.raises(InputError, match=words):
        data.from_shards(folder, range(2), 2)


@pytest.mark.parametrize("name", ["oslo.xlsx", "oslo.sas7bdat", "oslo/patients.DTA", "oslo/test.rds"])
def test_a_table_that_cannot_be_read_is_not_passed_over(tmp_path: Path, name: str) -> None:
    bonn, oslo, rome = frames((60, 60, 60))
    folder = sites(tmp_path / "d", {"bonn": bonn, "rome": rome})
    (folder / name).parent.mkdir(exist_ok=True)
    if "/" in name:
        oslo.to_csv(folder / "oslo" / "train.csv", index=False)
    (folder / name).touch()
    for load in (lambda: data.from_shards(folder, range(3), 3, "kind"), lambda: fit("logistic", folder, "kind")):
        with pytest.raises(InputError, match=rf"{name} has no format that can be read: save it as .csv or .parquet"):
            load()
    oslo.to_csv((folder / name).with_suffix(".csv"), index=False)  # the original may stay
    assert data.from_shards(folder, range(3), 3, "kind")


def sites(folder: Path, made: dict[str, pd.DataFrame]) -> Path:
    folder.mkdir()
    for name, frame in made.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    return folder


def test_columns_are_matched_by_name_in_any_order(tmp_path: Path) -> None:
    made = frames()
    shuffled = [made[0], made[1][["town", "kind", "size", "age"]], made[2][["kind", "size", "town", "age"]]]
    plain, _ = data.from_shards(write(tmp_path / "plain", made), range(3), 3, "kind")
    rows, _ = data.from_shards(write(tmp_path / "shuffled", shuffled), range(3), 3, "kind")
    assert encoding_of(rows).to_json() == encoding_of(plain).to_json()
    np.testing.assert_array_equal(rows.inputs, plain.inputs)
    np.testing.assert_array_equal(rows.test_inputs, plain.test_inputs)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f.drop(columns="age"), "^oslo does not have the columns of .*; missing: 'age', further: none"),
        (lambda f: f.assign(more=1), "^oslo does not have the columns of .*; missing: none, further: 'more'"),
        (lambda f: f.rename(columns={"age": "Age"}), "^oslo does .*; missing: 'age', further: 'Age'"),
        (lambda f: f.assign(age="old"), "^Column 'age' of oslo holds texts; at bonn it holds numbers: map it with categories"),
        (
            lambda f: f.assign(town=np.arange(len(f)) % 9),
            "^Column 'town' of oslo holds numbers; at bonn it holds texts: map it with categories",
        ),
        (lambda f: f.assign(age="old", town=1.5), r"^Column 'age' of oslo .*\. Nor do sites agree on the kind of 'town'\.$"),
    ],
)
def test_a_column_that_does_not_fit_is_named_with_its_site(tmp_path: Path, change: Any, words: str) -> None:
    made = dict(zip(("bonn", "oslo", "rome"), frames((30, 40, 30)), strict=True))
    folder = sites(tmp_path / "d", made | {"oslo": change(made["oslo"])})
    for blocks in ([range(3)], [range(1), range(1, 3)]):
        with pytest.raises(InputError, match=words):
            in_processes(folder, blocks, 3, target="kind")


def test_blanks_at_the_ends_of_texts_do_not_count() -> None:
    padded = frames()[0].assign(town=lambda frame: frame.town + " ")
    assert encoding_of(data.from_frame(padded, "kind")).to_json() == encoding_of(data.from_frame(frames()[0], "kind")).to_json()


def test_targets_by_position_must_be_the_same_column(tmp_path: Path) -> None:
    made = frames((60, 60, 60))
    folder = sites(tmp_path / "d", {"bonn": made[0], "oslo": made[1][["kind", "size", "town", "age"]]})
    with pytest.raises(InputError, match=r"bonn and oslo differ .* their target, 'kind' and 'age': give .* --target by name"):
        data.from_shards(folder, range(2), 2, "3")


def patients(rng: np.random.Generator, rows: int) -> pd.DataFrame:
    """Like real ones: skewed, heavy-tailed, mostly zero, rare, and related to the class."""
    ill = rng.random(rows) < 0.3
    frame = pd.DataFrame({"age": rng.normal(50 + 15 * ill, 18), "dose": rng.lognormal(3 + ill, 1)})
    frame["income"], frame["visits"] = rng.pareto(1.2, rows), rng.poisson(0.4 + ill)
    frame["flag"], frame["shift"] = (rng.random(rows) < 0.002).astype(int), rng.normal(size=rows)
    frame["status"] = np.where(ill & (rng.random(rows) < 0.8), "severe", rng.choice(["mild", "none"], rows))
    frame["ward"] = [f"w{word}" for word in rng.integers(0, 60, rows)]
    return frame.assign(kind=np.where(ill, "ill", "well"))


def warned(made: Sequence[pd.DataFrame], names: Sequence[str] = ()) -> tuple[str, ...]:
    parts = [split(from_frame(frame, "kind", "the frame"), None) for frame in made]
    names = names or [f"s{i}" for i in range(len(made))]
    named = [summarize(*part, None)._replace(name=name) for part, name in zip(parts, names, strict=True)]
    return tuple(agreement.warnings(agreement.aligned(named)))


@pytest.mark.parametrize("how", ["iid", "contiguous", "dirichlet(1)", "dirichlet(0.1)"])
def test_sites_that_differ_honestly_give_no_warning(how: str) -> None:
    for seed in range(2):
        frame = patients(np.random.default_rng(seed), 1500)
        labels = (frame.kind == "ill").to_numpy().astype(int)
        for nodes in (2, 3, 10):
            parts = [frame.iloc[shard] for shard in data.partition(how, labels, nodes) if len(shard) >= 40]
            assert [line for line in warned(parts) if not line.endswith("rows of one class only.")] == []


def test_a_column_with_the_name_of_each_site_gives_no_warning() -> None:
    rng = np.random.default_rng(0)
    assert warned([patients(rng, 90).assign(site=name) for name in ("bonn", "oslo", "rome")]) == ()


def test_a_small_site_with_one_value_or_one_class_is_named() -> None:
    rng = np.random.default_rng(0)
    made = [pd.DataFrame({"score": rng.integers(0, 12, 200), "visits": rng.poisson(0.1, 200), "kind": ["a", "b"] * 100})] * 3
    small = made[0][:6].assign(score=4, visits=0, kind="a")
    assert warned([*made, small], ("bonn", "köln", "rome", "ulm")) == (
        "Column 'score' of ulm has one value only; at other sites it varies.",
        "ulm has training rows of one class only.",
    )


@pytest.mark.parametrize("column", ["age", "dose"])
@pytest.mark.parametrize("factor", [88, 1 / 88])
@pytest.mark.parametrize("wrong", [[1], [1, 4]])
def test_a_site_in_other_units_is_named(column: str, factor: float, wrong: list[int]) -> None:
    frame = patients(np.random.default_rng(0), 1500)
    parts = [frame.iloc[node::6].copy() for node in range(6)]
    for node in wrong:
        parts[node][column] *= factor
    found = warned(parts)
    assert len(found) == len(wrong)
    for line, node in zip(found, wrong, strict=True):
        assert line.startswith(f"Column '{column}' of s{node} has mean")
        assert line.endswith("other units, or wrong values?")
    assert len(warned([parts[0], parts[1]])) == 1


@pytest.mark.parametrize(("column", "rows"), [("patient", 12), ("patient", 240), ("kind", 24), ("kind", 240)])
def test_identifiers_are_refused_before_anything_is_sent(tmp_path: Path, column: str, rows: int) -> None:
    made = [frame.assign(**{column: [f"P{i}" for i in range(len(frame))]}) for frame in frames((rows, 99, 99))]
    with pytest.raises(InputError, match=rf"^node-0.csv: Column '{column}' has \d+ ") as refused:
        data.from_shards(write(tmp_path / "d", made), range(1), 3, "kind", allgather_text=pytest.fail)
    assert refused.value.kind == "a column of identifiers or free text"


def test_whole_numbers_that_are_dates_are_refused(tmp_path: Path) -> None:
    made = [
        frame.assign(on=pd.date_range("2025-01-28", periods=len(frame)).strftime("%Y%m%d").astype(float)) for frame in frames()
    ]
    made[0].loc[3, "on"] = np.nan
    with pytest.raises(InputError, match=r"^node-0.csv: Column 'on' holds dates, such as 20250128: write dates as a number of"):
        data.from_shards(write(tmp_path / "d", made), range(3), 3, "kind")
    assert len(data.from_frame(made[1].assign(on=np.arange(len(made[1])) % 90 + 20250101.5), "kind").inputs)


def test_all_columns_that_are_no_inputs_are_named_at_once(tmp_path: Path) -> None:
    others = {
        "on": lambda frame: pd.date_range("2025-01-01", periods=len(frame)),
        "note": lambda frame: [f"seen {i}" for i in frame.index],
    }
    made = [frame.assign(case=range(len(frame)), **others) for frame in frames((120, 40, 40))]
    made[2] = made[2].drop(columns="kind")
    words = r"^node-0.csv: Column 'case' has .* inputs: 'on', 'note'\. Also node-1.csv\. node-2.csv has no column 'kind'"
    with pytest.raises(InputError, match=words):
        data.from_shards(write(tmp_path / "d", made), range(3), 3, "kind")


def test_values_of_few_rows_are_unknown(tmp_path: Path) -> None:
    made = [frame.drop(columns="town").assign(ward="north", dose=np.nan) for frame in frames((20, 40, 40))]
    for frame, few in zip(made, (4, 4, 6), strict=True):
        frame.loc[: few - 1, ["ward", "dose"]] = "attic", 4321.5
    folder = write(tmp_path / "d", made)
    test = pd.concat(made)
    test.to_csv(folder / "test.csv", index=False)
    encoding = encoding_of(data.from_shards(folder, range(3), 3, "kind")[0])
    assert next(f for f in encoding.features if f.name == "ward").categories == ("attic", "north")
    made[0].loc[0, "ward"] = "cellar"  # rare everywhere, so unknown
    encoded = encoding.encode(made[0])[:, [encoding.inputs.index(f"ward={word}") for word in ("attic", "north")]]
    assert encoded[[0, 1, 9]].tolist() == [[0, 0], [1, 0], [0, 1]]


def test_a_column_of_rare_words_only_is_refused(tmp_path: Path) -> None:
    made = [frame.assign(town=[f"t{i // 4}" for i in range(len(frame))]) for frame in frames((30, 40, 40))]
    with pytest.raises(
        InputError, match=r"^Column 'town' has no value, or none in enough training rows of a site to leave it: leave it out"
    ):
        data.from_shards(write(tmp_path / "d", made), range(3), 3, "kind")


def test_a_site_of_few_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"node-0.csv: There are 4 training rows: a site needs at least 5"):
        data.from_shards(write(tmp_path / "d", frames((5, 40, 30))), range(3), 3, "kind")
    with pytest.raises(InputError, match=r"node-0.csv: There are 4 test rows: a site needs at least 5") as refused:
        data.from_shards(write(tmp_path / "e", frames((24, 40, 30))), range(3), 3, "kind", allgather_text=pytest.fail)
    assert refused.value.kind == "fewer test rows than 5"


CODED: dict[str, Any] = {
    "'kind' of rome holds numbers; at bonn it holds texts: write it": lambda kind: (kind == "k1").astype(int),
    "rome does not have the classes of the other sites": lambda kind: kind.replace("k0", "k9"),
    "rome has one class only": lambda kind: "k1",
}


@pytest.mark.parametrize("words", CODED)
@pytest.mark.parametrize("classes", [2, 3])
def test_classes_that_a_site_codes_differently_are_refused_with_its_name(tmp_path: Path, words: str, classes: int) -> None:
    names = ("bonn", "oslo", "rome")
    made = {n: f.assign(kind=[f"k{i % classes}" for i in range(60)]) for n, f in zip(names, frames((60,) * 3), strict=True)}
    made["rome"]["kind"] = CODED[words](made["rome"].kind)
    folder = sites(tmp_path / "d", made)
    for blocks in ([range(3)], [range(1), range(1, 3)]):
        with pytest.raises(InputError, match=f"{words}.*the same at all sites") as refused:
            in_processes(folder, blocks, 3, target="kind")
        assert not re.search(r"\bk\d", str(refused.value))


def test_classes_of_the_sites_may_differ_if_they_are_named(tmp_path: Path) -> None:
    made = [frame.assign(kind=[f"k{(i % 2 + node) % 3}" for i in range(30)]) for node, frame in enumerate(frames((30,) * 3))]
    folder, named = write(tmp_path / "d", made), {"labels": {"k0": "k0", "k1": "k1", "k2": "k2"}}
    assert encoding_of(data.from_shards(folder, range(3), 3, "kind", recode=named)[0]).classes == ("k0", "k1", "k2")
    with pytest.raises(InputError, match=r"node-1 does not have the classes of the other sites"):
        data.from_shards(folder, range(3), 3, "kind")
    made[2]["kind"] = made[2].kind.replace("k2", "K2 ")
    with pytest.raises(InputError, match=r"node-\d has classes that other sites write with other capitals"):
        data.from_shards(write(tmp_path / "e", made), range(3), 3, "kind")
    one = [frame.assign(kind=f"k{node}") for node, frame in enumerate(frames((30,) * 3))]
    folder = write(tmp_path / "f", one)
    pd.concat(one).to_csv(folder / "test.csv", index=False)  # which says that the classes are those of all sites
    assert len(encoding_of(data.from_shards(folder, range(3), 3, "kind")[0]).classes) == 3
    images = {f"node-{i}.npz": npz(inputs=X, labels=np.full(len(X), i)) for i in range(3)}
    images["test.npz"] = images["node-0.npz"]
    assert len(encoding_of(data.from_shards(shards(tmp_path / "g", images), range(3), 3)[0]).classes) == 3
