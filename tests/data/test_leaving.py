"""What leaves a site, and what others are shown, tells nothing of fewer rows than the minimum count."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dnasa.core import InputError
from dnasa.data import Dataset, agreement, from_shards
from dnasa.data.ledger import Ledger
from dnasa.data.loading import split
from dnasa.data.rows import Rows, from_frame
from dnasa.data.summaries import Summary, make_encoding, summarize

SHARES = (0.5, 0.25, 0.1, 0.05, 0.05, 0.02, 0.02, 0.01)


def words(rng: np.random.Generator, rows: int, site: int, column: str) -> np.ndarray:
    """A few frequent words and rare ones, some of them those of other sites; none is a part of another."""
    names = [f"zq{column}{i}{'s' if i < 2 else site}x" for i in range(len(SHARES))]
    return rng.choice(names, rows, p=SHARES)


def random_table(rng: np.random.Generator, site: int) -> pd.DataFrame:
    rows = int(rng.integers(6, 120))
    frame = pd.DataFrame({"real": rng.lognormal(5, 2, rows), "flag": (rng.random(rows) < rng.random() / 9).astype(float)})
    frame["tail"] = np.where(np.arange(rows) < rng.integers(0, 12), rng.random(rows), 0.0)
    frame["few"] = np.where(np.arange(rows) < rng.integers(0, 12), rng.random(rows), np.nan)
    frame["ward"], frame["town"] = words(rng, rows, site, "w"), words(rng, rows, site, "t")
    for name in ("real", "flag", "town"):
        frame.loc[frame.index[: rng.integers(0, 9)], name] = np.nan
    frame["kind"] = rng.choice(["zqnox", "zqyesx", f"zqrare{site}x"], rows, p=[0.7, 0.29, 0.01])
    if rng.random() < 0.2:
        frame["note"] = [f"zqnote{i}x" for i in range(rows)]
    if rng.random() < 0.1:
        frame["kind"] = (frame["kind"] == "zqyesx").astype(int)
    return frame.sample(frac=1, random_state=int(rng.integers(99))).reset_index(drop=True)


def allowed(counts: Any, min_count: int) -> bool:
    return all(count <= 0 or count >= min_count for count in counts)


def check_sent(sent: dict[str, Any], train: Rows, labels: pd.Series, min_count: int) -> None:
    text, rows = json.dumps(sent), sent["rows"]
    numbers = set(re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", text))
    of_classes = Counter(labels)
    for column in sent["columns"]:
        values = train.inputs[column["name"]]
        rare = [value for value, count in Counter(values.dropna()).items() if count < min_count]
        if column["kind"] == "text":
            assert not set(re.findall(r"zq\w+", text)) & {*rare}
            assert allowed(column["counts"].values(), min_count)
            assert allowed([rows - sum(column["counts"].values())], min_count)
        else:
            n, mean = column["moments"]["n"], column["moments"]["mean"]
            assert not numbers & {repr(float(value)) for value in rare if value % 1}
            assert allowed([n, rows - n, *column["counts"].values()], min_count)
            if column["name"] == "flag":
                assert allowed([round(mean * n), n - round(mean * n)], min_count)
            if column["name"] == "tail" and 0 < (values != 0).sum() < min_count:
                assert mean == 0
    assert allowed(sent["target"]["counts"], min_count)
    assert not {word for word, count in of_classes.items() if count < min_count} & {*sent["target"]["values"]}


def test_nothing_of_few_rows_leaves_random_tables() -> None:
    tables, rng, sent, kinds = 200, np.random.default_rng(0), 0, list[str]()
    others: list[Summary] = []
    for _ in range(tables):
        min_count, site = int(rng.integers(2, 9)), len(others)
        rows = from_frame(random_table(rng, site), "kind", "the table")
        try:
            train, test = split(rows, None)
            summary = summarize(train, test, None, min_count)._replace(name=f"site{site}")
        except InputError as error:  # this site's own line; the others are told its kind
            kinds.append(error.kind)
            continue
        check_sent(summary.to_json(), train, rows.labels, min_count)
        sent += 1
        others.append(Summary.from_json(json.loads(json.dumps(summary.to_json()))))
        if len(others) < 3:
            continue
        shown = []
        try:
            together = agreement.aligned(others)
            shown = agreement.warnings(together)
            agreement.check_classes(together)
            make_encoding(together[0].merged(together[1]).merged(together[2]), None)
        except InputError as error:
            shown.append(str(error))
        assert not any("zq" in line for line in shown), shown
        others = []
    assert not any(re.search(r"zq|\d{2}", kind) for kind in kinds)
    assert min(sent, sum(map(bool, kinds))) > tables // 10


@pytest.mark.parametrize("shape", [(), (2, 2)], ids=["column", "image"])
def test_two_summaries_do_not_give_the_number_of_a_row_that_only_one_of_them_has(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    for rows in (20, 77, 200):
        numbers, kinds = rng.lognormal(3, 0.5, rows), pd.Series(["a", "b"] * rows, name="kind")[: rows + 1]

        def sent(last: float, numbers: np.ndarray = numbers, kinds: pd.Series = kinds) -> Any:
            inputs = np.append(numbers, last)
            frame = Rows(pd.DataFrame({"dose": inputs}), kinds, ("dose",))
            given = Rows(np.multiply.outer(inputs, np.ones(shape)), kinds) if shape else frame
            summary = summarize(given, given.take(np.arange(0)), None, 5)
            return summary.array or summary.columns[0].moments

        assert len({sent(last) for last in np.linspace(numbers.min(), numbers.max(), 30)}) <= 8


def test_two_summaries_do_not_tell_of_the_few_rows_by_which_their_counts_differ() -> None:
    for few in range(20):
        ward = ["a"] * 50 + ["b"] * 12 + ["c"] * few + [None] * (38 - few)
        dose, died = np.arange(100) / 7, ["no"] * (80 - few) + ["yes"] * (20 + few)
        dose[:few] = np.nan
        rows = from_frame(pd.DataFrame({"ward": ward, "dose": dose, "died": died}), "died", "the table")
        wards, doses = summarize(rows, rows.take(np.arange(0)), None, 5).columns
        counts = [*(count for word, count in wards.counts.items() if word != "a"), *doses.counts.values()]
        target = summarize(rows, rows.take(np.arange(0)), None, 5).target
        counts += [target.rows_of_classes["yes"]]
        assert not any(count % 5 for count in counts), counts
        assert sum(target.counts) == doses.moments.n + sum(doses.counts.values()) == 100


def test_nothing_is_said_of_missing_values_of_test_rows() -> None:
    frame = pd.DataFrame({"dose": np.arange(40) / 7, "ward": ["a", "b"] * 20, "y": ["n", "m"] * 20})
    train, full = (from_frame(part, "y", "the table") for part in (frame[:30], frame[30:]))
    gaps = from_frame(frame[30:].assign(dose=np.nan, ward=["a", None] * 5), "y", "the table")
    assert summarize(*split(train, gaps), None, 5) == summarize(*split(train, full), None, 5)
    with pytest.raises(InputError, match="test rows have no column 'dose'"):
        split(train, from_frame(frame[["ward", "y"]], "y", "the table"))


def test_a_site_tells_of_the_same_rows_or_of_five_others(tmp_path: Path) -> None:
    rng, told = np.random.default_rng(0), list[str]()
    table = pd.DataFrame({"age": rng.normal(60, 9, 80), "ward": rng.choice(["a", "b"], 80), "y": rng.choice(["n", "m"], 80)})
    sites, keys = tmp_path / "sites", tmp_path / "keys"
    sites.mkdir()
    keys.mkdir()

    def read(frame: pd.DataFrame, options: Any = {}, **ledger: Any) -> Dataset:  # noqa: B006
        frame.to_csv(sites / "bonn.csv", index=False)
        return from_shards(sites, range(1), 1, **{"target": "y"} | options, allgather_text=tell, ledger=Ledger(keys, **ledger))[
            0
        ]

    def tell(text: str) -> list[str]:
        told.append(text)
        return [text]

    read(table[1:], sends=False)  # a dry run
    assert not [*keys.iterdir()]
    first = read(table)
    assert first.ledger is not None
    for few in (table[1:], table[4:], table.assign(age=table.age.where(table.index > 0, 50))):
        with pytest.raises(InputError, match=r"differ from those that an earlier run or fit told of in [1-4]: "):
            read(few)
    corrected = table.assign(ward=table.ward.where(table.index > 2, "c"))
    with pytest.raises(InputError, match="in 1: "):  # however many others were corrected
        read(pd.concat([corrected, table[:1].assign(age=33)]))
    with pytest.raises(InputError, match="in 1: "):
        read(pd.concat([table.assign(age=table.age.where(table.index > 30, table.age.round())), table[:1]]))
    assert len(told) == 2
    assert first.ledger.untested(record=True).all()
    exports = table.assign(more=table.age**2), table.assign(age=table.age.astype(np.float32)), table.drop(columns="ward")
    assert [read(export, again=True).ledger._replace(again=False).untested().any() for export in exports] == [False] * 3  # type: ignore[union-attr]
    read(table.sample(frac=1, random_state=0))  # the same rows
    units: Any = {"units": {"age": {"factor": 12}}, "labels": {"n": "no", "m": "yes"}}
    for options in ({}, {"drop_columns": "ward"}, {"id_column": "age"}, {"recode": units}):
        assert not read(table[["y", "ward", "age"]], options).ledger.untested().any()  # type: ignore[union-attr]
    assert read(table, {"target": "ward"}).ledger.untested().mean() < 1  # type: ignore[union-attr]
    assert any("so this run does not" in sentence for sentence in read(table).warnings)
    again = read(table, again=True)
    assert again.ledger is not None
    assert again.ledger.untested().all()
    assert not any("does not" in sentence for sentence in again.warnings)
    more = read(pd.concat([table, table.assign(age=table.age + 1)])).ledger
    assert more is not None
    assert 0 < more.untested().sum() < len(more.untested())
    assert all((keys / name).stat().st_mode & 0o777 == 0o600 for name in ("told.json", "tested.json"))


def test_rows_of_few_values_are_tested_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.integers(0, 2, (200, 4))).add_prefix("has").assign(y=rng.choice(["n", "m"], 200))
    table = from_frame(frame, "y", "the table")
    ledger = Ledger(tmp_path, table=table, tests=table.take(np.arange(40)))
    assert ledger.untested(record=True).all()
    assert not ledger.untested().any()
    for damaged in ('{"salt": "a", "rows": [{"y": []}]}', '{"salt": "a", "rows": [{"y": ["1"], "tested": []}]}'):
        (tmp_path / "tested.json").write_text(damaged)
        with pytest.raises(InputError, match=r"tested\.json is damaged .*: restore it from a copy"):
            ledger.untested()


def test_many_changed_columns_do_not_hide_that_a_row_went(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labs = pd.DataFrame(rng.normal(size=(100, 8))).add_prefix("lab").mask(rng.random((100, 8)) < 0.22)
    table = pd.DataFrame({"age": rng.normal(60, 9, 100), "y": ["n", "m"] * 50}).join(labs)
    filled = (from_frame(table.fillna(labs.agg(how)), "y", "the table") for how in ("median", "mean"))
    ledger, (first, second) = Ledger(tmp_path), filled
    ledger.check(first, 5)
    ledger.check(second, 5)
    with pytest.raises(InputError, match="in 1: "):
        ledger.check(second.take(np.arange(99)), 5)
    others = pd.DataFrame({"age": rng.normal(60, 9, 100), "y": ["n", "m"] * 50, "lab0": rng.normal(size=100)})
    ledger.check(from_frame(others.assign(y=["n"] * 48 + ["m"] * 52), "y", "the table"), 5)  # of other patients


@pytest.mark.parametrize("values", [(0, 1), (1, 2)])
def test_counts_of_either_of_two_numbers_are_rounded(values: tuple[int, int]) -> None:
    sums = {}
    for rare in range(10, 16):
        frame = pd.DataFrame({"code": [values[1]] * rare + [values[0]] * (400 - rare), "y": ["n", "m"] * 200})
        moments = summarize(from_frame(frame, "y", "t"), from_frame(frame[:5], "y", "t"), None, 5).columns[0].moments
        sums[rare] = round(moments.mean * 400) - 400 * values[0]
    assert sums == {10: 10, 11: 10, 12: 10, 13: 15, 14: 15, 15: 15}


def test_a_site_tells_of_the_same_images_or_of_five_others(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = Rows(rng.integers(0, 9, (30, 4, 4), np.uint8), pd.Series([0, 1] * 15, name="label"))
    ledger = Ledger(tmp_path, table=images, tests=images)
    ledger.check(images, 5)
    with pytest.raises(InputError, match="in 1: "):
        ledger.check(images.take(np.arange(29)), 5)
    ledger.check(images.take(np.arange(25)), 5)
    assert ledger.untested(record=True).all()
    assert not ledger.untested().any()
