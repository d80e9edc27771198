"""What sites log, audit and would send, with real connections."""

import json
from pathlib import Path
from typing import Any

import pytest
from launching import BIN, FORKS, run_as_main, wait_for
from local_sites import write_sites
from test_resume import run

OPTIONS = "train --problem least_squares --topology ring --steps 20".split()


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.xdist_group("processes")
def test_every_site_logs_who_connected_and_audits_what_it_sent(tmp_path: Path) -> None:
    files = write_sites(tmp_path, 3, hidden=["paris", "lyon"])
    errors = tmp_path / "errors"
    started = [
        FORKS.Process(
            target=run_as_main,
            args=([str(BIN / "dnasa"), *OPTIONS, *map(str, words)], tmp_path, {}, [tmp_path / "output", errors]),
        )
        for words in (["--sites", file, "--out", tmp_path / file.stem, "--quiet"] for file in files)
    ]
    for process in started:
        process.start()
    assert (wait_for(started), errors.read_text()) == (0, "")
    for file in files:
        others = {other.stem for other in files} - {file.stem}
        folder = tmp_path / file.stem
        events = read(folder / f"events-{file.stem}.jsonl")
        assert {event["peer"] for event in events if event["event"] == "connected"} == others
        assert {event["site"] for event in events} == {file.stem}
        audit = read(folder / f"audit-{file.stem}.jsonl")
        assert {line["to"] for line in audit if line["kind"] == "exchange"} == others
        assert {line["to"] for line in audit if line["kind"] == "state"} == others
        assert {"mean", "gather", "text"} <= {line["kind"] for line in audit}
        watched = run("watch", folder, "--once").stdout
        assert watched.count("member") == 2
        assert f"The run has ended at {file.stem} (done)." in watched
    relayed = [event for event in read(tmp_path / "berlin" / "events-berlin.jsonl") if event["event"] == "relaying"]
    assert [event["peers"] for event in relayed] == [["lyon", "paris"]] * len(relayed) != []
    dry = run(*OPTIONS, "--sites", files[1], "--dry-run")
    assert dry.returncode == 0, dry.stderr
    lines = [line for line in read(tmp_path / "paris" / "audit-paris.jsonl") if line["kind"] == "exchange"]
    sent = sum(line["bytes"] for line in lines if line["to"] == "berlin")
    assert any("berlin" in line and f"{sent:,}" in line for line in dry.stdout.splitlines())
