"""What sites log, audit and would send, with real connections."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import succeed
from launching import BIN, FORKS, PATIENCE, has_lines, run_as_main, wait_for, wait_until
from local_sites import write_sites

OPTIONS = "train --problem least_squares --topology ring --steps 20".split()


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def start(files: Sequence[Path], *words: object) -> list[BaseProcess]:
    """Train at each of these sites: into a folder of its name, with a file for its errors."""
    started: list[BaseProcess] = []
    for file in files:
        own = ["--sites", file, "--out", file.with_suffix(""), "--quiet"]
        command = [str(BIN / "dnasa"), *map(str, (*words, *own))]
        outputs = [file.with_suffix(kind) for kind in (".out", ".err")]
        started.append(FORKS.Process(target=run_as_main, args=(command, file.parent, {}, outputs)))
        started[-1].start()
    return started


def audit(file: Path) -> list[dict[str, Any]]:
    return read(file.with_suffix("") / f"audit-{file.stem}.jsonl")


@pytest.mark.xdist_group("processes")
def test_every_site_logs_who_connected_and_audits_what_it_sent(tmp_path: Path) -> None:
    files = write_sites(tmp_path, 3, hidden=["paris"])
    assert wait_for(start(files, *OPTIONS)) == 0
    for file in files:
        assert file.with_suffix(".err").read_text() == ""
        others = {other.stem for other in files} - {file.stem}
        folder = tmp_path / file.stem
        events = read(folder / f"events-{file.stem}.jsonl")
        assert {event["peer"] for event in events if event["event"] == "connected"} == others
        assert {event["site"] for event in events} == {file.stem}
        lines = audit(file)
        assert {line["to"] for line in lines if line["kind"] == "exchange"} == others
        assert {line["to"] for line in lines if line["kind"] == "state"} == others
        assert {"mean", "gather", "text"} <= {line["kind"] for line in lines}
        assert events[-1]["event"] == "ended"
    dry = succeed(*OPTIONS, "--sites", files[1], "--dry-run")
    lines = [line for line in audit(files[1]) if line["kind"] == "exchange"]
    sent = sum(line["bytes"] for line in lines if line["to"] == "berlin")
    assert any("berlin" in line and f"{sent:,}" in line for line in dry.stdout.splitlines())


def tables(folder: Path, others: str = "id,y\n" + "1,no\n2,yes\n" * 20, **own: str) -> list[Path]:
    """Three sites with a table each."""
    files = write_sites(folder, 3)
    for file in files:
        (folder / f"{file.stem}-data").mkdir()
        (folder / f"{file.stem}-data" / f"{file.stem}.csv").write_text(own.get(file.stem, others))
    return files


REFUSED = {
    "lyon stopped before the run began, because of a column of identifiers or free text": "id,y\n"
    + "".join(f"LY{i},{'yes' if i % 2 else 'no'}\n" for i in range(24)),
    "Column 'y' of lyon holds numbers; at berlin it holds text": "id,y\n" + "1,0\n2,1\n" * 20,
}


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("line", REFUSED)
def test_when_a_table_is_refused_all_sites_stop_with_one_line(tmp_path: Path, line: str) -> None:
    files = tables(tmp_path, lyon=REFUSED[line])
    started = [start([file], "train", "--shard-dir", f"{file.stem}-data", "--target", "y")[0] for file in files]
    for process, file in zip(started, files, strict=True):
        process.join(PATIENCE)
        error = file.with_suffix(".err").read_text()
        (said,) = [text for text in error.splitlines() if not text.startswith("Warning: ")]  # that a late site is waited for
        assert process.exitcode == 2, error
        if file.stem != "lyon":
            assert said.startswith(f"Error: {line}")
            assert "LY" not in error
        assert "greeting" in [entry["kind"] for entry in audit(file)]
    if line.startswith("Column"):  # after the summaries were exchanged
        texts = [[entry["text"] for entry in audit(file) if entry["kind"] == "text"] for file in files]
        assert [json.loads(first)[0]["name"] for first, *_ in texts] == [file.stem for file in files]


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize(
    ("count", "odd", "option", "without"),
    [
        (2, 0, "--every 2", "with --every 1"),
        (3, 2, "--rounds 3", "with --rounds 2"),
        (5, 1, "--private", "without --private"),
    ],
)
@pytest.mark.parametrize("apart", [False, True])  # whether each starts once the one before has met another
def test_when_one_site_has_another_option_all_sites_stop_and_name_it(
    tmp_path: Path, count: int, odd: int, option: str, without: str, apart: bool
) -> None:
    files, started = write_sites(tmp_path, count), list[BaseProcess]()
    try:
        for i, file in enumerate(files):
            own = "" if i == odd else option
            started += start([file], *f"train --problem least_squares --timeout {PATIENCE} {own}".split())
            if apart and i:
                wait_until((file.with_suffix("") / f"audit-{file.stem}.jsonl").exists)
        for process, file in zip(started, files, strict=True):
            process.join(PATIENCE)
            error = file.with_suffix(".err").read_text()
            assert process.exitcode == 2, error
            found = re.findall(r"^Error: (\w+) runs (.*), (\w+) (.*): give every site the same options\.$", error, re.MULTILINE)
            ((one, of_one, other, of_other),) = found
            assert files[odd].stem in (one, other)
            expected = {file.stem: without if file is files[odd] else f"with {option}" for file in files}
            assert (of_one, of_other) == (expected[one], expected[other])
    finally:
        for process in started:
            process.kill()
            process.join()


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("--model mlp:8", "model is 4 arrays with 258 parameters, .* at berlin and 4 arrays with 34 parameters, .* at lyon"),
        ("--class-weight balanced", "data is .* loss cross_entropy, .* at berlin and .* loss WeightedCrossEntropy, .* at lyon"),
    ],
)
def test_a_model_or_loss_that_differs_is_named_with_its_site(tmp_path: Path, option: str, line: str) -> None:
    files, started = tables(tmp_path, "a,y\n" + "1,no\n2,yes\n" * 20), list[BaseProcess]()
    for file in files:
        words = f"train --shard-dir {file.stem}-data --target y {option if file.stem == 'lyon' else ''}"
        started += start([file], *words.split())
    for process, file in zip(started, files, strict=True):
        process.join(PATIENCE)
        error = file.with_suffix(".err").read_text()
        assert process.exitcode == 2, error
        assert re.search(f"Error: .*different settings: {line}", error), error


@pytest.mark.long
@pytest.mark.xdist_group("processes")
def test_sites_compare_their_tables_without_pooling_rows(tmp_path: Path) -> None:
    rows = [f"{i % 37},{'no' if i % 3 else 'yes'}" for i in range(240)]
    contents = ["\n".join(["dose,y", *part]) for part in (rows[:100], rows[80:150], rows[160:])]
    files, started = tables(tmp_path, **dict(zip(("berlin", "paris", "lyon"), contents, strict=True))), []
    for file in files:
        outputs, own = [file.with_suffix(kind) for kind in (".out", ".err")], ["--shard-dir", f"{file.stem}-data"]
        command = [str(BIN / "dnasa"), *"data --target y --find-duplicates --sites".split(), str(file), *own]
        started.append(FORKS.Process(target=run_as_main, args=(command, tmp_path, {}, outputs)))
        started[-1].start()
    assert wait_for(started) == 0
    assert not any(file.with_suffix(".err").read_text() for file in files)
    printed = [file.with_suffix(".out").read_text() for file in files]
    (first, *others), lists = zip(*[text.rsplit("┘\n", 1) for text in printed], strict=True)
    assert [first, first] == others
    for file, text in zip(files, lists, strict=True):
        words = " ".join(text.split())
        assert {*re.findall(r"(\w+) has \d+ rows equal to|these rows of (\w+)", words)} == {(file.stem, ""), ("", file.stem)}
    for line in (
        r"training rows\W+80\W+56\W+64\W",
        r"training rows\W+200\W",
        r"y: yes\W+\d+ \([\d.]+ %\)",
        r"berlin\W+paris\W+\d\d",
    ):
        assert re.search(line, first), first


@pytest.mark.xdist_group("processes")
def test_a_site_that_is_killed_before_the_run_begins_has_audited_what_it_sent(tmp_path: Path) -> None:
    files = write_sites(tmp_path, 3)
    started = start(files[:2], *OPTIONS)
    wait_until(lambda: all(has_lines(file.with_suffix("") / f"audit-{file.stem}.jsonl", 1) for file in files[:2]))
    for process in started:
        process.kill()
        process.join()
    kinds = {(line["kind"], line["to"]) for line in audit(files[0])}
    assert kinds == {("greeting", "paris"), ("state", "paris")}


@pytest.mark.long
@pytest.mark.xdist_group("processes")
def test_a_site_that_is_stopped_while_it_waits_for_another_ends(tmp_path: Path) -> None:
    files = write_sites(tmp_path, 2)
    berlin, paris = started = start(files, *OPTIONS[:-1], 10**6)
    try:
        wait_until(lambda: all(has_lines(file.with_suffix("") / "history.csv", 1) for file in files))
        os.kill(paris.pid, signal.SIGSTOP)  # type: ignore[arg-type]
        time.sleep(1)
        os.kill(berlin.pid, signal.SIGTERM)  # type: ignore[arg-type]
        berlin.join(PATIENCE)
        assert berlin.exitcode == 130
        assert re.fullmatch(
            r"Error: Interrupted at step \d+; the others continue\..*\n", files[0].with_suffix(".err").read_text()
        )
    finally:
        for process in started:
            process.kill()
            process.join()


@pytest.mark.long
@pytest.mark.xdist_group("processes")
def test_after_a_site_was_killed_and_has_joined_again_the_model_is_tested_everywhere(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((120, 2))
    table = pd.DataFrame(rows, columns=["a", "b"]).assign(y=np.where(rows[:, 0] > rows[:, 1], "yes", "no"))
    files = tables(tmp_path, others=table.to_csv(index=False))
    words = ["train", "--target", "y", "--steps", 6000, "--checkpoint-every", 50, "--no-early-stopping", "--timeout", 6]
    started = [start([file], *words, "--shard-dir", f"{file.stem}-data")[0] for file in files]
    try:
        wait_until(lambda: all(list((file.with_suffix("") / "checkpoints").glob("*")) for file in files))
        os.kill(started[1].pid, signal.SIGSTOP)  # type: ignore[arg-type]
        started[2].kill()
        started[2].join()
        before, outputs = (tmp_path / "lyon" / "history.csv").read_text(), [tmp_path / "again.out", tmp_path / "again.err"]
        command = [str(BIN / "dnasa"), "resume", "lyon"]
        started[2] = FORKS.Process(target=run_as_main, args=(command, tmp_path, {}, outputs))
        started[2].start()
        wait_until(lambda: "connected" in [event["event"] for event in read(tmp_path / "lyon" / "events-lyon.jsonl")][-2:])
        os.kill(started[1].pid, signal.SIGCONT)  # type: ignore[arg-type]
        assert wait_for(started) == 0
    finally:
        for process in started:
            process.kill()
            process.join()
    errors = [(tmp_path / f"{name}.err").read_text() for name in ("berlin", "paris", "again")]
    assert "with lyon" in errors[0]
    assert (tmp_path / "lyon" / "history.csv").read_text().splitlines()[:2] == before.splitlines()[:2]
    assert not any("was not tested" in error for error in errors)
    tests = [json.loads((file.with_suffix("") / "evaluation.json").read_text()) for file in files]
    assert tests[0] == tests[1] == tests[2]


def test_a_site_that_waits_says_at_once_who_is_missing(tmp_path: Path) -> None:
    file, _ = write_sites(tmp_path, 2)
    words = [sys.executable, "-m", "dnasa", "train", "--problem", "least_squares", "--steps", "2", "--timeout", "1", "--sites"]
    with (tmp_path / "said").open("w") as said, subprocess.Popen([*words, str(file)], stderr=said) as waiting:
        wait_until(lambda: "has waited" in (tmp_path / "said").read_text())
        assert waiting.poll() is None
        waiting.terminate()
    assert re.search(r"^Warning: \w+ has waited \d+ s to start. Missing: \w+ ", (tmp_path / "said").read_text())
