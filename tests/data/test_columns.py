"""Which columns are inputs, and the one that names the rows: --columns, --drop-columns and --id-column."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import refused, succeed
from test_data_command import folded
from test_own_data import encoding_of
from test_shards import in_processes, sites

from dnasa import data
from dnasa.core import InputError


def table(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"patient": [f"{i:04}" for i in range(rows)], "note": [f"text {i}" for i in range(rows)]})
    frame["age"], frame["dose"] = rng.normal(50, 18, rows), rng.normal(size=rows)
    return frame.assign(kind=np.where(frame.age > 50, "old", "young"))


def features(rows: data.Dataset) -> list[str]:
    return [feature.name for feature in encoding_of(rows).features]


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"drop_columns": "patient,note"}, ["age", "dose"]),
        ({"drop_columns": ["note"], "id_column": "patient"}, ["age", "dose"]),
        ({"drop_columns": "patient, note, 3"}, ["age"]),
    ],
)
def test_inputs_are_the_columns_that_are_chosen(tmp_path: Path, options: Any, left: list[str]) -> None:
    table().to_csv(tmp_path / "t.csv", index=False)
    from_file, from_frame = (data.load(str(tmp_path / "t.csv"), "kind", **options), data.from_frame(table(), "kind", **options))
    plain = data.from_frame(table()[[*left, "kind"]], "kind")
    for rows in (from_file, from_frame):
        assert features(rows) == left
        np.testing.assert_allclose(rows.inputs, plain.inputs, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "'patient' has 48 different texts .* --drop-columns patient, keep it .* --id-column patient"),
        ({"drop_columns": "pateint"}, "has no column 'pateint'. Its columns: patient"),
        ({"id_column": "pateint"}, "has no column 'pateint'"),
        ({"drop_columns": "kind"}, "The frame needs its target and an input"),
        ({"drop_columns": "0,1,2,3"}, "The frame needs its target and an input"),
    ],
)
def test_a_wrong_choice_gets_one_line(options: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        data.from_frame(table(), "kind", **options)


def test_images_and_known_datasets_have_no_columns_to_choose(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", inputs=np.zeros((10, 2, 3, 3)), labels=np.arange(10) % 2)
    with pytest.raises(InputError, match=r"x\.npz is no table: leave out --drop-columns"):
        data.load(str(tmp_path / "x.npz"), drop_columns="0")
    for words in (["--data", "digits"], ["--problem", "spike"]):
        assert "--drop-columns" in refused("train", *words, "--drop-columns", "a")


def test_a_column_that_only_some_sites_have_can_be_left_out(tmp_path: Path) -> None:
    made = {"bonn": table().drop(columns="note"), "oslo": table(40, 1), "rome": table(40, 2).drop(columns="patient")}
    folder, options = sites(tmp_path / "d", made), {"target": "kind", "drop_columns": "note", "id_column": "patient"}
    for blocks in ([range(3)], [range(1), range(1, 3)]):
        for rows, _ in in_processes(folder, blocks, 3, **options):
            assert features(rows) == ["age", "dose"]
            assert encoding_of(rows).id_column == "patient"
        with pytest.raises(InputError, match="No site has a column 'nota'"):
            in_processes(folder, blocks, 3, **options | {"drop_columns": "note,nota"})


def test_the_id_column_comes_back_with_the_predictions(tmp_path: Path) -> None:
    table().to_csv(tmp_path / "t.csv", index=False)
    words = ["--data", tmp_path / "t.csv", "--target", "kind", "--drop-columns", "note", "--id-column", "patient"]
    assert "2 inputs standardized" in folded(succeed("train", "--out", tmp_path / "train", *words, "--steps", 3))
    stored = json.loads((tmp_path / "train" / "config.json").read_text())["options"]
    assert (stored["drop_columns"], stored["id_column"]) == ("note", "patient")
    new = table(7, 5)[["dose", "patient", "age"]]
    new.to_csv(tmp_path / "new.csv", index=False)
    new.drop(columns="patient").to_csv(tmp_path / "bare.csv", index=False)

    def predicted(file: str) -> pd.DataFrame:
        err = succeed("predict", tmp_path / "train", tmp_path / file, "--out", tmp_path / "p.csv").stderr
        assert ("no column 'patient': predictions are in the order of its rows" in err) == (file == "bare.csv")
        return pd.read_csv(tmp_path / "p.csv", dtype={"patient": str})

    assert predicted("new.csv").patient.tolist() == new.patient.tolist(), "007 stays 007"
    assert predicted("bare.csv").columns[0] == "prediction"


@pytest.mark.parametrize(
    ("number", "refused"),
    [
        (lambda i: 31 + i, True),
        (lambda i: 90_417 + 7 * i, True),
        (lambda i: 1_000 + 7 * i, False),
        (lambda i: 90_417 + i // 2, False),
        (lambda i: 9e4 + 7.5 * i, False),
    ],
)
def test_numbers_that_name_the_rows_stay_at_the_site(tmp_path: Path, number: Any, refused: bool) -> None:
    order = np.random.default_rng(0).permutation(60)
    table()[["age", "kind"]].assign(n=[number(i) for i in order]).to_csv(tmp_path / "bonn.csv", index=False)
    read = partial(data.from_shards, tmp_path, range(1), 1, "kind")
    if not refused:
        assert features(read()[0]) == ["age", "n"]
        return
    with pytest.raises(
        InputError, match=r"'n' has another whole number in almost each row.*--drop-columns n.*--id-column n"
    ) as caught:
        read()
    assert caught.value.kind == "a column of identifiers or free text"
    assert features(read(id_column="n")[0]) == ["age"]
    assert features(read(recode={"units": {"n": {"factor": 1}}})[0]) == ["age", "n"]
