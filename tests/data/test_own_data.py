"""The same rows give the same inputs and results however they come, and mistakes in files get one line."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from dnasa import data, solve, topology
from dnasa.core import Array, InputError
from dnasa.data import Dataset, Encoding
from dnasa.data.reading import read_rows
from dnasa.tasks import tasks

CLASSES, FEATURES, ROWS = 11, 48, 1100


def sensorless() -> tuple[np.ndarray, np.ndarray]:
    """Features of very different scales, and classes that only all of them together separate."""
    rng = np.random.default_rng(0)
    scales, labels = 10.0 ** rng.uniform(-6, 5, FEATURES), rng.integers(CLASSES, size=ROWS)
    centres = 0.7 * rng.standard_normal((CLASSES, FEATURES))
    inputs = (centres[labels] + rng.standard_normal((ROWS, FEATURES)) + 3 * rng.standard_normal(FEATURES)) * scales
    return inputs, labels


X, Y = sensorless()
FRAME = pd.DataFrame(X, columns=[f"f{j}" for j in range(FEATURES)]).assign(kind=Y)


def encoding_of(rows: Dataset) -> Encoding:
    assert rows.encoding is not None
    return rows.encoding


def text(separator: str) -> str:
    return FRAME.to_csv(index=False, sep=separator)


def libsvm() -> str:
    rows = (" ".join(f"{j + 1}:{value!r}" for j, value in enumerate(row)) for row in X.tolist())
    return "".join(f"{label} {row}\n" for label, row in zip(Y, rows, strict=True))


def written(path: Path, name: str, content: bytes | str) -> str:
    target = path / name
    target.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(target)


def npz_file(path: Path) -> Dataset:
    np.savez(path / "x.npz", inputs=X, labels=Y)
    return data.load(str(path / "x.npz"))


def parquet(path: Path) -> Dataset:
    pytest.importorskip("pyarrow")
    FRAME.to_parquet(path / "x.parquet")
    return data.load(str(path / "x.parquet"), "kind")


FORMATS: dict[str, Callable[[Path], Dataset]] = {
    "csv": lambda path: data.load(written(path, "x.csv", text(",")), "kind"),
    "csv by position": lambda path: data.load(written(path, "x.csv", text(",")), "48"),
    "tsv": lambda path: data.load(written(path, "x.tsv", text("\t")), "kind"),
    "semicolons": lambda path: data.load(written(path, "x.csv", text(";")), "kind"),
    "bars": lambda path: data.load(written(path, "x.csv", text("|")), "kind"),
    "decimal commas": lambda path: data.load(written(path, "x.csv", FRAME.to_csv(index=False, sep=";", decimal=",")), "kind"),
    "whitespace": lambda path: data.load(written(path, "x.txt", text(" ")), "kind"),
    "a byte-order mark": lambda path: data.load(written(path, "x.csv", b"\xef\xbb\xbf" + text(",").encode()), "kind"),
    "a header of numbers": lambda path: data.load(
        written(path, "x.csv", FRAME.set_axis(range(FEATURES + 1), axis=1).to_csv(index=False)), "48"
    ),
    "row numbers": lambda path: data.load(written(path, "x.csv", FRAME.to_csv()), "kind"),
    "gzip": lambda path: data.load(written(path, "x.csv.gz", gzip.compress(text(",").encode())), "kind"),
    "LIBSVM": lambda path: data.load(written(path, "x.libsvm", libsvm())),
    "npz": npz_file,
    "parquet": parquet,
    "frame": lambda path: data.from_frame(FRAME, "kind"),
    "arrays": lambda path: data.from_arrays(X, Y),
}


@pytest.fixture(scope="module")
def wanted() -> Dataset:
    return data.from_arrays(X, Y)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_rows(name: str, wanted: Dataset, tmp_path: Path) -> None:
    rows = FORMATS[name](tmp_path)
    np.testing.assert_allclose(rows.inputs, wanted.inputs, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(rows.test_inputs, wanted.test_inputs, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(rows.labels, wanted.labels)
    np.testing.assert_array_equal(rows.test_labels, wanted.test_labels)
    assert encoding_of(rows).classes == tuple(range(CLASSES))
    np.testing.assert_allclose(rows.inputs.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(rows.inputs.std(0), 1, atol=1e-4)


def test_constant_columns_become_zero_and_large_offsets_keep_their_digits() -> None:
    rng = np.random.default_rng(0)
    inputs = np.stack([np.full(50, 0.1), 1e9 + rng.standard_normal(50)], axis=1)
    rows = data.from_arrays(inputs, np.arange(50) % 2)
    np.testing.assert_allclose(rows.inputs[:, 0], 0, atol=1e-6)
    np.testing.assert_allclose(rows.inputs[:, 1].std(), 1, rtol=1e-3)


def mixed(rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(20, 70, rows) * 1.0, "colour": rng.choice(["red", "green"], rows)})
    frame["price"] = 3 * frame.age + 20 * (frame.colour == "red") + rng.standard_normal(rows)
    frame.loc[[3, 7, 9], "age"] = np.nan
    frame.loc[5, "colour"] = None
    return frame


def test_text_becomes_categories_and_missing_values_a_mean_and_a_flag() -> None:
    rows = data.from_frame(mixed(), "price")
    assert encoding_of(rows).inputs == ("age", "age missing", "colour missing", "colour=green", "colour=red")
    encoded = encoding_of(rows).encode(mixed())
    train, _ = data.loading.hold_out_rows(mixed().price)
    assert encoded[3].tolist()[:2] == [pytest.approx(mixed().age[train].mean()), 1]
    assert encoded[5, 2:].tolist() == [1, 0, 0]
    assert (encoded[:, 2:].sum(1) == 1).all()
    np.testing.assert_allclose(encoding_of(rows).scaled(encoded[train]), rows.inputs, atol=1e-5)
    np.testing.assert_array_equal(encoding_of(rows).transform(mixed())[train], rows.inputs)
    unknown = mixed().assign(colour="violet")
    assert not encoding_of(rows).encode(unknown)[:, 3:].any()


def test_an_encoding_survives_json_and_refuses_damage() -> None:
    encoding = encoding_of(data.from_frame(mixed(), "price"))
    stored = json.loads(json.dumps(encoding.to_json()))
    np.testing.assert_array_equal(Encoding.from_json(stored).transform(mixed()), encoding.transform(mixed()))
    damages: Any = {"task": "wat"}, {"shape": [3]}, {"mean": [0.0]}, {"features": [1]}, {"scale": None}
    for damaged in ([], *(stored | damage for damage in damages)):
        with pytest.raises(InputError, match="damaged"):
            Encoding.from_json(damaged)


def test_new_rows_are_read_by_name_or_else_by_position() -> None:
    rows = data.from_frame(mixed(), "price")
    shuffled = mixed()[["colour", "price", "age"]]
    np.testing.assert_array_equal(encoding_of(rows).encode(shuffled), encoding_of(rows).encode(mixed()))
    with pytest.raises(InputError, match="no column 'age', which the model was trained with: add or rename it"):
        encoding_of(rows).encode(mixed()[["price"]])
    with pytest.raises(InputError, match="'age' must hold numbers; row 2 has 'old'"):
        encoding_of(rows).encode(mixed().astype({"age": object}).assign(age=["1", "2", "old"] * 20))
    first = data.from_frame(pd.DataFrame(np.c_[Y, X]), 0)
    np.testing.assert_array_equal(encoding_of(first).encode(X), encoding_of(first).encode(np.c_[Y, X]))


def test_rows_without_names_are_taken_by_position_if_their_number_fits(tmp_path: Path) -> None:
    named, bare = encoding_of(data.from_frame(FRAME, "kind")), encoding_of(data.from_arrays(X, Y))
    last = encoding_of(data.from_frame(pd.DataFrame(np.c_[X, Y]), 48))
    expected = X.astype(np.float32)
    for encoding, rows in ((named, X), (bare, FRAME.drop(columns="kind")), (last, X)):
        np.testing.assert_array_equal(encoding.encode(rows), expected)
    rows, _ = read_rows(Path(written(tmp_path, "x.libsvm", libsvm())), named)
    np.testing.assert_allclose(named.encode(rows), expected, rtol=1e-5)
    for encoding, unfit in ((named, np.c_[X, Y]), (bare, FRAME)):
        with pytest.raises(InputError, match=r"There is no column '.*0', which the model was trained with"):
            encoding.encode(unfit)
    encoding = encoding_of(data.from_frame(mixed(), "price"))
    rows, _ = read_rows(Path(written(tmp_path, "x.libsvm", "1 1:3\n2 1:4\n")), encoding)
    assert rows.shape == (2, 2)


def test_what_training_rows_did_not_have_is_filled_and_named() -> None:
    encoding = encoding_of(data.from_frame(mixed().dropna(), "price"))
    complete, gaps = mixed().dropna(), mixed().dropna().assign(age=[np.nan, 1e4, *mixed().dropna().age[2:]])
    mean = np.float32(np.asarray(encoding.mean)[encoding.inputs.index("age")])
    for rows, count in ((gaps, 1), (complete.drop(columns="age"), len(complete))):
        assert (encoding.encode(rows)[:count, encoding.inputs.index("age")] == mean).all()
    assert encoding.doubts(complete) == []
    (doubt,) = encoding.doubts(complete.assign(age=complete.age + 4 * complete.age.std()))
    assert re.fullmatch(r"(\d+) of \1 rows have a median of 'age' \d\.\d standard .* \(another unit\?\)\.", doubt)
    where = "more than 10 standard deviations from the mean of the training rows"
    assert encoding.doubts(gaps) == [
        f"1 of {len(gaps)} rows (first row 1) have a value of 'age' {where}.",
        f"1 of {len(gaps)} rows (first row 0) have no value of 'age', which all training rows have: their mean is used.",
    ]
    absent = f"{len(gaps)} of {len(gaps)} rows have no column 'age': its values count as missing."
    assert encoding.doubts(gaps.drop(columns="age")) == [absent]
    assert encoding.doubts(gaps.rename(columns={"age": "Age "}))[0] == absent.replace("'age'", "'age' (is it 'Age '?)")


@pytest.mark.parametrize(
    ("target", "task"),
    [
        (np.linspace(0, 1, 60), "regression"),
        (np.arange(60) % 3 / 2, "classification"),
        (np.arange(60) % 5, "classification"),
        (np.arange(60.0) % 2, "classification"),
        (np.arange(60) % 2 == 0, "classification"),
        (np.array(list("abc") * 20), "classification"),
    ],
)
def test_the_task_is_found_out(target: Array, task: str) -> None:
    assert data.from_arrays(X[:60], target).task == task


def test_many_whole_numbers_are_a_regression_unless_declared_classes_which_have_their_own_type() -> None:
    rows = np.ones((600, 1)) * np.arange(600)[:, None]
    assert data.from_arrays(rows, np.arange(600) % 200).task == "regression"
    assert data.from_arrays(rows, np.arange(600) % 90).task == "classification"
    assert data.from_arrays(np.ones((1500, 1)) * np.arange(1500)[:, None], np.arange(1500)).task == "regression"
    assert encoding_of(data.from_arrays(X, Y, task="regression")).classes == ()
    assert data.from_arrays(X, Y * 0.37, task="classification").classes == CLASSES
    assert encoding_of(data.from_arrays(X[:10], [1.0, 2.0] * 5)).classes == (1, 2)
    assert encoding_of(data.from_arrays(X[:10], [True, False] * 5)).classes == (False, True)
    assert encoding_of(data.from_arrays(X[:10], [0.5, 2.0] * 5)).classes == (0.5, 2)
    assert encoding_of(data.from_arrays(X[:10], np.array(["b", "a"] * 5))).classes == ("a", "b")


def test_a_regression_reports_rmse_and_r2_in_the_targets_own_units() -> None:
    rows = data.from_frame(mixed(200).fillna({"age": 40.0}), "price")
    problem = tasks.on_shards(rows, data.partition("contiguous", rows.labels, 4), model="linear")
    result = solve(problem, topology.ring(4), steps=150, evaluate=[150])
    last, net = result.final().iloc[0], torch.nn.Linear(rows.inputs.shape[1], 1)
    torch.nn.utils.vector_to_parameters(torch.as_tensor(result.mean), net.parameters())
    outputs = net(torch.from_numpy(rows.test_inputs)).detach().numpy()
    predicted, actual = (encoding_of(rows).target_values(values)[:, 0] for values in (outputs, rows.test_labels))
    assert last.test_rmse == pytest.approx(np.sqrt(((predicted - actual) ** 2).mean()), rel=1e-4)
    assert last.test_r2 == pytest.approx(1 - ((predicted - actual) ** 2).mean() / actual.var(), rel=1e-4)
    assert last.test_r2 > 0.9
    assert not [name for name in result.history if "target" in name]


def column(write: Callable[[int], object]) -> str:
    """A table whose column `a` is written so."""
    return "a,kind\n" + "".join(f"{write(i)},{'xyz'[i % 3]}\n" for i in range(200))


TABLE = column(str)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("ragged.csv", "a,b,kind\n1,2,x\n3,4,5,y\n" + "5,6,x\n" * 9, "line 3 has 4 values, the header 3"),
        ("twice.csv", "a,a,kind\n" + "1,2,x\n3,4,y\n" * 5, "must have a name for each column"),
        ("numbers.csv", "5.1,3.5,x\n" + "1,2,x\n3,4,y\n" * 5, "must have a name for each column"),
        ("empty.csv", "", "empty.csv is not a table"),
        ("header.csv", "a,kind\n", "no rows below its header"),
        ("infinite.csv", "a,kind\n" + "1,x\ninf,y\n" * 5, r"Column 'a' has a missing, infinite or enormous value \(row 2\)"),
        ("unlabelled.csv", "a,kind\n" + "1,x\n2,\n" * 5, r"'kind' has rows without a label, first row 2"),
        ("one-word.csv", TABLE.replace("\n50,", "\noops,"), "'a' holds mostly numbers or dates, and 'oops' in row 51"),
        ("iso.csv", column(lambda i: f"2020-{1 + i % 12:02}-01"), "dates, and '2020-01-01' in row 1.*--drop-columns a"),
        ("percent.csv", column(lambda i: f"{i}%"), "'a' holds mostly numbers .*'0%'.*: write numbers with digits"),
        ("thousands.csv", column(lambda i: f'"1,{i:03}.5"'), "and '1,000.5' in row 1"),
        ("names.csv", column(lambda i: f"id{i:03}x"), "'a' has 160 different texts in 160 rows.*--id-column a"),
        (
            "every.csv",
            column(lambda i: f"c{i}").replace("a,kind", "kind,a"),
            "'kind' has 200 values, too many for classes: give another --target",
        ),
        ("empty-column.csv", "a,b,kind\n" + "1,,x\n2,,y\n" * 5, "'b' has no value"),
        ("utf16.csv", "a,kind\n1,x\n".encode("utf-16"), "is not UTF-8 text: convert it"),
        ("random.csv.gz", b"\xff\x00\x81" * 99, "random.csv.gz is not"),
        ("rows.json", '{"a": 1}', "rows.json has no format that can be read: save it as .csv"),
        ("quote.csv", 'a,kind\n1,x\n"2,y\n' + "1,x\n" * 9, "EOF inside string starting at row 2"),
        ("remark.csv", "# made by me\na,b,kind\n" + "1,2,x\n3,4,y\n" * 5, "must have a name for each column"),
        ("one.csv", "kind\nx\ny\n", "has one column"),
        ("broken.parquet", b"PAR1 no", "is not a parquet file"),
        ("cut.csv.gz", gzip.compress(text(",").encode(), mtime=0)[:-20], "Cannot read"),
        ("x.libsvm", "1 1:0.5\nhello\n", "is not LIBSVM text"),
        ("constant.csv", "a,kind\n" + "1,x\n" * 9, "All labels are the same"),
    ],
)
def test_a_wrong_file_gets_one_line_that_names_the_cause(tmp_path: Path, name: str, content: bytes | str, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        data.load(written(tmp_path, name, content), "kind")
    assert "\n" not in str(error.value)


def test_texts_that_only_resemble_dates_and_numbers_stay_categories(tmp_path: Path) -> None:
    for number, write in enumerate((lambda i: "1+2"[i % 3], lambda i: f"1.2.{i % 4}", lambda i: f"{i % 5}x")):
        rows = data.load(written(tmp_path, f"{number}.csv", column(write)), "kind")
        assert encoding_of(rows).features[0].kind == "text"
    digits = pd.DataFrame({"a": pd.Categorical(["1", "2"] * 18 + ["other"] * 4), "kind": ["x", "y"] * 20})
    assert encoding_of(data.from_frame(digits, "kind")).features[0].categories == ("1", "2", "other")


def test_a_target_that_is_missing_or_unknown_lists_the_columns(tmp_path: Path) -> None:
    path = written(tmp_path, "x.csv", "a,b,c\n" + "1,2,x\n3,4,y\n" * 5)
    with pytest.raises(InputError, match="needs its target: give --target with one of its columns, a, b, c"):
        data.load(path)
    with pytest.raises(InputError, match=r"no column 'd'\. Its columns: a, b, c"):
        data.load(path, "d")
    with pytest.raises(InputError, match=r"Unknown data 'mist': it is no file or folder\. Datasets: digits.*mean mnist\?"):
        data.load("mist")


def test_a_txt_file_is_a_table_if_it_has_a_target(tmp_path: Path) -> None:
    path = written(tmp_path, "x.txt", "a b kind\n" + "1 2 x\n3 4 y\n" * 300)
    assert data.load(path, "kind").inputs.shape[1:] == (2,)
    assert data.load(path).vocabulary


def test_a_folder_of_training_and_test_files_is_read(tmp_path: Path) -> None:
    FRAME.iloc[:900].to_csv(tmp_path / "train.csv", index=False)
    FRAME.iloc[900:].to_csv(tmp_path / "test.csv", index=False)
    rows = data.load(str(tmp_path), "kind")
    assert (len(rows.labels), len(rows.test_labels), rows.name) == (900, 200, tmp_path.name)
    np.testing.assert_allclose(rows.inputs.mean(0), 0, atol=1e-4)


def paint(path: Path, colour: Any, size: tuple[int, int] = (8, 6), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


def test_a_folder_of_images_by_class_is_read_as_bytes(tmp_path: Path) -> None:
    for i in range(6):
        paint(tmp_path / "train" / "cat" / f"{i}.png", (200, i, 0))
        paint(tmp_path / "train" / "dog" / f"{i}.jpg", (0, i, 200))
    paint(tmp_path / "test" / "dog" / "1.png", (0, 0, 200))
    rows: Any = data.load(str(tmp_path))
    assert (rows.inputs.shape, rows.inputs.dtype, rows.test_inputs.shape) == ((12, 3, 6, 8), np.uint8, (1, 3, 6, 8))
    assert encoding_of(rows).classes == ("cat", "dog")
    assert rows.labels.tolist() == [0] * 6 + [1] * 6
    assert rows.inputs[0, 0, 0, 0] == 200
    paint(tmp_path / "train" / "cat" / "large.png", (1, 2, 3), size=(9, 6))
    with pytest.raises(InputError, match=r"large.png has 9 x 6 pixels and others have 8 x 6 pixels: make all images"):
        data.load(str(tmp_path))
    (tmp_path / "train" / "cat" / "large.png").write_bytes(b"no image")
    with pytest.raises(InputError, match="not an image"):
        data.load(str(tmp_path))


def test_grey_images_have_one_channel_and_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither a table"):
        data.load(str(tmp_path))
    for i in range(6):
        paint(tmp_path / str(i % 2) / f"{i}.png", i, mode="L")
    assert data.load(str(tmp_path)).inputs.shape[1:] == (1, 6, 8)
