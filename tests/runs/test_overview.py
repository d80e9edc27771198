"""Who is here and who is lost, from the events in a run folder."""

import json
from pathlib import Path
from typing import Any

import pytest
from test_journal import solved

from dnasa import pages
from dnasa.runs.overview import read_overview


def write(folder: Path, site: str, *events: dict[str, Any]) -> None:
    lines = [
        json.dumps({"time": f"2026-01-01T00:00:{time:02}+00:00", "site": site} | event)
        for time, event in enumerate(events)
    ]
    (folder / f"events-{site}.jsonl").write_text("\n".join(lines) + "\n")


STARTED = {"event": "started", "sites": ["berlin", "paris", "lyon"]}


def test_a_lost_site_is_lost_since_it_was_last_lost(tmp_path: Path) -> None:
    lost, joined = {"event": "lost", "peer": "paris", "step": 5}, {"event": "joined", "peer": "paris"}
    write(tmp_path, "berlin", STARTED, lost, joined, lost, {"event": "evaluated", "step": 9, "bytes": 100}, lost)
    sites = read_overview(tmp_path).sites
    assert (sites["paris"].state, sites["paris"].since[17:19]) == ("lost", "03")
    assert (sites["berlin"].state, sites["berlin"].step, sites["berlin"].bytes) == ("member", 5, 100)
    assert sites["lyon"].state == "member"


def test_a_connection_that_breaks_loses_no_member_and_one_that_comes_back_makes_none(tmp_path: Path) -> None:
    broken, back = {"event": "disconnected", "peer": "paris"}, {"event": "connected", "peer": "lyon"}
    write(tmp_path, "berlin", back, STARTED, broken, {"event": "lost", "peer": "lyon"}, back)
    sites = read_overview(tmp_path).sites
    assert [(site.state, site.since[17:19]) for site in sites.values()] == [
        ("member", "01"),
        ("lost", "03"),
        ("member", "01"),
    ]
    assert {name: site.connection for name, site in sites.items()} == {
        "berlin": "",
        "lyon": "connected",
        "paris": "disconnected",
    }


def test_a_site_waits_until_the_run_begins(tmp_path: Path) -> None:
    write(tmp_path, "berlin", {"event": "connected", "peer": "paris"})
    sites = read_overview(tmp_path).sites
    assert (sites["berlin"].state, sites["paris"].state) == ("waiting", "not seen yet")


def test_events_of_several_sites_are_read_in_the_order_of_their_times(tmp_path: Path) -> None:
    write(tmp_path, "berlin", STARTED, {"event": "lost", "peer": "paris"})
    write(tmp_path, "paris", STARTED, STARTED, {"event": "ended", "state": "done", "step": 20})
    sites = read_overview(tmp_path).sites
    assert (sites["paris"].state, sites["paris"].step) == ("done", 20)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        "3",
        '{"event": 3}',
        "[" * 100_000,
        '{"event": "lost", "peer": [], "site": "x", "time": ""}',
        "\x00",
    ],
)
def test_lines_of_another_form_are_ignored(tmp_path: Path, line: str) -> None:
    write(tmp_path, "berlin", STARTED)
    with open(tmp_path / "events-berlin.jsonl", "a") as file:
        file.write(line + "\n")
    assert {"berlin", "paris", "lyon"} <= read_overview(tmp_path).sites.keys()


def test_a_page_shows_all_sites_of_a_run(tmp_path: Path) -> None:
    sent = solved(tmp_path / "run")
    (folder,) = pages.read(tmp_path / "run")["folders"]
    assert [[name, state, step, size] for name, state, _, step, size in folder["members"]] == [
        [f"node {node}", "done", 6, sent[node]] for node in range(4)
    ]
