"""Tables that hospitals wrote differently: what is said of them, and how labels and recode.toml mend them."""

import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import refused, succeed
from test_own_data import encoding_of
from thread_network import run_threads

from dnasa import data, topology
from dnasa.communication import Network
from dnasa.core import InputError
from dnasa.data.duplicates import count_duplicates
from dnasa.data.recoding import as_recode
from dnasa.data.rows import from_frame

ROOT = Path(__file__).parents[2]
NAMES = ("berlin", "bonn", "lyon", "oslo", "paris")
PAGE = (ROOT / "docs" / "tutorial-hospitals.md").read_text()
TEXT = re.findall(r"^# recode.toml\n.*?(?=^```)", PAGE, re.S | re.M)[0]
RECODE: Any = tomllib.loads(TEXT)
LABELS = RECODE | {"sites": {name: {"labels": site.get("labels", {})} for name, site in RECODE["sites"].items()}}
WARNED = (
    "Column 'lactate' of oslo has -999 in",
    "Column 'sex' of oslo has categories that no other site has",
    "Column 'severity' of oslo has categories that other sites write with other capitals",
    "Column 'creatinine' of lyon has mean",
    "Column 'heart_rate' of oslo has one value only",
    "Column 'albumin' of bonn is empty",
)


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hospitals")
    for name, messy in {"clean": False, "messy": True}.items():
        runpy.run_path(str(ROOT / "examples" / "five_hospitals.py"))["make"](folder / name, messy)
    return folder


def read(folder: Path, recode: Any = None) -> data.Dataset:
    options: Any = {"id_column": "patient", "drop_columns": "admitted", "recode": recode}
    return data.from_shards(folder, range(5), 5, "died", **options)[0]


def test_what_a_consortium_gets_wrong_is_named_and_mended(hospitals: Path, tmp_path: Path) -> None:
    assert read(hospitals / "clean").warnings == ()
    with pytest.raises(
        InputError, match=r"^paris.csv: .* the class 'noo' in fewer than 5 rows: .* --labels no,yes,noo=no\."
    ) as refused:
        read(hospitals / "messy")
    assert refused.value.kind == "a class of fewer than 5 rows"
    paris = pd.read_csv(hospitals / "messy" / "paris.csv")
    suggested = as_recode(None, str(refused.value).split("--labels ")[1].split(".")[0])
    paris.to_csv(tmp_path / "paris.csv", index=False)
    assert data.from_shards(tmp_path, range(1), 1, "died", drop_columns="admitted,patient", recode=suggested)
    with pytest.raises(InputError, match=r"^lyon.csv: Column 'died' has the label '2' \(row \d+\), which --labels"):
        read(hospitals / "messy", as_recode(None, "no=0,yes=1,noo=0"))
    warned = read(hospitals / "messy", LABELS).warnings
    assert all(any(line.startswith(words) for line in warned) for words in WARNED), warned
    rows = read(hospitals / "messy", RECODE)
    assert [re.sub(r"(one value|empty).*", r"\1", line) for line in rows.warnings] == [
        "Column 'heart_rate' of oslo has one value",
        "Column 'albumin' of bonn is empty",
    ]
    encoding = encoding_of(rows)
    assert encoding.classes == ("no", "yes")
    assert encoding.inputs == encoding_of(read(hospitals / "clean")).inputs
    assert type(encoding).from_json(encoding.to_json()).recode == encoding.recode


def test_each_site_keeps_what_all_were_recoded_with(hospitals: Path) -> None:
    def recoded(network: Network) -> Any:
        options: Any = {"id_column": "patient", "drop_columns": "admitted", "recode": RECODE}
        gather = network.processes.allgather_text
        return encoding_of(
            data.from_shards(hospitals / "messy", network.local_nodes, 5, "died", None, gather, **options)[0]
        ).recode

    recode = encoding_of(read(hospitals / "messy", RECODE)).recode
    assert recode is not None
    assert list(recode.sites) == list(NAMES)
    assert run_threads(topology.complete(5), recoded) == [recode] * 5


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_sites_learn_which_of_their_own_rows_others_have(hospitals: Path, tmp_path: Path, kind: str) -> None:
    clean, names = [pd.read_csv(hospitals / "clean" / f"{name}.csv") for name in ("berlin", "lyon")], ["berlin", "lyon"]
    clean[1] = pd.concat([clean[1][:50], clean[0][7:99:9], clean[1][50:]])
    for name, frame in zip(names, clean, strict=True):
        save = frame.to_parquet if kind == "parquet" else frame.to_csv
        save(tmp_path / f"{name}.{kind}", index=False)
    rows, shards = data.from_shards(tmp_path, range(2), 2, "died", drop_columns="admitted,patient")
    _, sentences = count_duplicates(rows, shards, lambda own, read: [read(own)], 5)
    numbers = [list(map(int, re.findall(r"(?<= )\d+(?=[,.])", line.split("header):")[1]))) for line in sentences]
    assert numbers == [list(range(8, 100, 9)), list(range(51, 62))]
    assert [line.split()[0] for line in sentences] == names
    assert count_duplicates(rows, shards, lambda own, read: [read(own)], 12)[1] == [], "too few to be told"
    no_sodium = clean[1].assign(sodium=np.nan)
    no_sodium.to_csv(tmp_path / f"lyon.{kind}", index=False) if kind == "csv" else no_sodium.to_parquet(
        tmp_path / f"lyon.{kind}"
    )
    rows, shards = data.from_shards(tmp_path, range(2), 2, "died", drop_columns="admitted,patient")
    found = count_duplicates(rows, shards, lambda own, read: [read(own)], 5)[1]
    assert found == [*sentences, "Not compared, since empty at a site: sodium."]
    both = pd.concat([clean[1], clean[1][:7]])
    both.to_csv(tmp_path / f"lyon.{kind}", index=False) if kind == "csv" else both.to_parquet(tmp_path / f"lyon.{kind}")
    rows, shards = data.from_shards(tmp_path, range(2), 2, "died", drop_columns="admitted,patient")
    copies = count_duplicates(rows, shards, lambda own, read: [read(own)], 12)[1]
    assert copies == ["lyon has 7 rows equal to others of it in all columns used."]


def test_one_file_serves_several_targets(hospitals: Path) -> None:
    sites = {
        name: {**site, "categories": {"died": site.get("labels", {})} | site.get("categories", {})}
        for name, site in RECODE["sites"].items()
    }
    recode = {"sites": {name: {k: part for k, part in site.items() if k != "labels"} for name, site in sites.items()}}
    options: Any = {"id_column": "patient", "drop_columns": "admitted"}
    for target, classes in {"died": ("no", "yes"), "severity": ("mild", "moderate", "severe"), "sodium": ()}.items():
        rows = data.from_shards(hospitals / "messy", range(5), 5, target, recode=recode, **options)[0]
        assert encoding_of(rows).classes == classes
    with pytest.raises(InputError, match=r"\[categories.TARGET\] instead of \[labels\]"):
        data.from_shards(hospitals / "messy", range(5), 5, "sodium", recode=RECODE, **options)


def test_labels_that_leave_out_a_class_of_the_file_are_refused() -> None:
    recode = {"labels": {"0": "no", "1": "yes"}}
    with pytest.raises(
        InputError, match=r"^--labels dead=1,alive=0 does not name 'no', a class of the file of --recode: add it"
    ):
        as_recode(recode, "dead=1,alive=0")
    both = as_recode(recode, "no=0,yes=1")
    assert both is not None
    assert both.labels == {"0": "0", "1": "1", "no": "0", "yes": "1"}


def test_flipped_classes_are_asked_about(hospitals: Path) -> None:
    recode = {"labels": {"no": "no", "yes": "yes"}, "sites": {"oslo": {"labels": {"no": "yes", "yes": "no"}}}}
    assert read(hospitals / "clean", recode).warnings == (
        "The classes in column 'died' of oslo are about as frequent as the opposite ones elsewhere: flipped?",
    )


def test_a_typo_in_the_labels_is_asked_about(hospitals: Path) -> None:
    coded = RECODE | {"labels": {"no": "no", "yes": "yes", "0": "no", "1": "yse"}, "sites": dict(RECODE["sites"])}
    del coded["sites"]["bonn"]
    typo = read(hospitals / "messy", coded).warnings[-1]
    assert typo == (
        "Column 'died' has class 'yes' at berlin, lyon, oslo, paris and class 'yse' at bonn, and both at no site: "
        "is one misspelled in --labels or --recode?"
    )
    nowhere = read(hospitals / "messy", RECODE | {"labels": {"no": "no", "yes": "yes", "yse": "yse"}}).warnings[-1]
    assert nowhere.startswith("No site has training rows of class 'yse' in column 'died': is")


def test_an_entry_that_matches_no_row_is_named_at_the_site(hospitals: Path) -> None:
    oslo = {"missing": {"lactate": [-999, -998]}, "categories": {"sex": {"f": "female", "mm": "male"}}, "labels": {"n": "no"}}
    recode = RECODE | {"sites": RECODE["sites"] | {"oslo": RECODE["sites"]["oslo"] | oslo}}
    entries = "missing.lactate = -998", "categories.sex.mm = male", "labels.n = no"
    expected = [f"'{entry}' of --labels or --recode matches no row: is it misspelled?" for entry in entries]
    assert [line for line in read(hospitals / "messy", recode).warnings if "matches no row" in line] == expected

    def warned(network: Network) -> list[str]:
        options: Any = {"id_column": "patient", "drop_columns": "admitted", "recode": recode}
        gather = network.processes.allgather_text
        rows = data.from_shards(hospitals / "messy", network.local_nodes, 5, "died", None, gather, **options)[0]
        return [line for line in rows.warnings if "matches no row" in line]

    assert run_threads(topology.complete(5), warned) == [[], [], [], expected, []]
    own = recode["sites"]["oslo"] | {"labels": {**RECODE["labels"], "n": "no"}}
    alone = data.load(hospitals / "messy" / "oslo.csv", "died", drop_columns="admitted,patient", recode=own)
    assert alone.warnings[-3:] == tuple(expected)


def test_a_number_far_from_all_others_is_named() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"bmi": rng.normal(27, 4, 200).round(1), "crp": rng.lognormal(1, 1, 200), "visits": rng.poisson(0.2, 200)}
    )
    frame["died"] = np.arange(200) % 2
    assert data.from_frame(frame, "died").warnings == ()
    frame.loc[7, ["bmi", "visits"]] = 265, 9
    assert data.from_frame(frame, "died").warnings == (
        "Column 'bmi' has 265 in 1 row, unlike its other numbers: is it wrong, or in other units?",
    )
    frame["change"] = rng.normal(0, 1, 200).round(1) - 1  # has -1, 0 and negative numbers
    frame.loc[7, ["bmi", "crp", "visits"]] = 0, -1, -1
    frame.loc[8, "crp"] = -1
    frame["icu"] = np.where(np.arange(200) < 3, 9, np.arange(200) % 2)
    assert [sentence[:32] for sentence in data.from_frame(frame, "died").warnings] == [
        "Column 'bmi' has 0 in 1 row, unl",
        "Column 'crp' has -1 in 2 rows, u",
        "Column 'icu' has 9 in 3 rows, un",
    ]
    frame["bnp"] = np.where(
        np.arange(200) < 40, 9999, rng.lognormal(7, 1, 200).clip(max=9000).round()
    )  # larger than all, not far
    (sentence,) = (line for line in data.from_frame(frame[["bnp", "died"]], "died").warnings if "bnp" in line)
    assert sentence.startswith("Column 'bnp' has 9999 in 40 rows, unlike its other numbers: if this is a missing value")
    frame["icu"] = np.where(np.arange(200) < 1, 3, np.arange(200) % 2)
    assert not [line for line in data.from_frame(frame, "died").warnings if "icu" in line], "3 may be a count"


def test_numbers_that_are_left_when_words_are_recoded_are_numbers() -> None:
    frame = pd.DataFrame({"dose": ["1.5", "unknown", "3"] * 9, "sex": ["f", "m", "m"] * 9, "ward": ["01", "2", "x"] * 9})
    frame["died"] = [0, 1, 1] * 9
    recode = as_recode({"missing": {"dose": ["unknown"]}, "categories": {"sex": {"f": 0, "m": 1}, "ward": {"x": "icu"}}})
    assert recode is not None
    rows = from_frame(frame, "died", "the frame", recode)
    assert rows.inputs[["dose", "sex"]].iloc[:3].fillna(-1).to_numpy().tolist() == [[1.5, 0], [-1, 1], [3, 1]]
    assert rows.inputs.ward.iloc[:3].tolist() == ["01", "2", "icu"]


@pytest.mark.parametrize(
    ("recode", "words"),
    [
        ({"unit": {}}, "unit is not known. A file of --recode has the sections"),
        ({"units": {"age": {"factor": "x"}}}, "units.age.factor must be a number. A file"),
        ({"units": {"age": {"factor": 0}}}, "units must have factors other than 0. A file"),
        ({"order": ["yes", "yes"]}, "order must name each class once. A file"),
        (
            {"order": ["survived", "died"]},
            "Column 'died' has the class 'no', which order in the file of --recode does not name",
        ),
        ({"units": {"sex": {"factor": 2}}}, "berlin.csv: Column 'sex' must hold numbers; row 1 has"),
        ({"columns": {"alter": "Age"}}, "berlin.csv has neither column 'alter' and 'Age'"),
        ({"missing": {"alter": [9]}}, "berlin.csv has no column 'alter', which the file of --recode names"),
        ({"sites": {"rome": {}}}, "The file of --recode names rome, which is no site: correct it, or remove its section."),
    ],
)
def test_a_wrong_recoding_gets_one_line(hospitals: Path, recode: Any, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        read(hospitals / "clean", recode)


def test_new_rows_are_recoded_like_the_training_rows(hospitals: Path, tmp_path: Path) -> None:
    (tmp_path / "recode.toml").write_text(TEXT)
    options = "--target died --id-column patient --drop-columns admitted --steps 20 --model linear".split()
    words = ("--shard-dir", hospitals / "messy", "--recode", tmp_path / "recode.toml", "--out", tmp_path / "run")
    succeed("train", *options, *words)
    for name, site in {"clean": "berlin", "messy": "lyon"}.items():
        out = "--site", site, "--out", tmp_path / f"{name}.csv"
        err = succeed("predict", tmp_path / "run", hospitals / name / "lyon.csv", *out).stderr
        assert ("The rows of lyon.csv are recoded as the training rows of lyon were.\n" in err) == (site == "lyon")
    for more, message in {
        (): f"give --site (in Python, load(..., site=)), one of {', '.join(NAMES)}.",
        ("--site", "rome"): "'rome'",
    }.items():
        assert message in refused("predict", tmp_path / "run", hospitals / "clean" / "lyon.csv", *more)
    clean, messy = (pd.read_csv(tmp_path / f"{name}.csv").p_yes for name in ("clean", "messy"))
    np.testing.assert_allclose(clean, messy, atol=1e-3)
