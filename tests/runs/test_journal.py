"""What each process among several leaves in the run folder: events, and an audit of what it sent."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from thread_network import run_threads

import dnasa
from dnasa import topology
from dnasa.communication import Network
from dnasa.core import InputError
from dnasa.events import LOGGER, Events
from dnasa.networks.processes import Traffic
from dnasa.runs.folder import RunFolder
from dnasa.runs.journal import Journal

PROBLEM = dnasa.problems.Custom(lambda x, node, rng: x - node, start=np.zeros(5))


def solved(folder: Path, channel: Any = None, **more: Any) -> list[int]:
    """Four processes on a ring train into one folder; returns the bytes of the exchanges of each."""
    graph = topology.ring(4)

    def work(network: Network) -> int:
        dnasa.solve(PROBLEM, network, steps=6, evaluate=3, folder=folder, progress=False, **more)
        return network.processes.traffic.bytes

    return run_threads(graph, work, channel=channel)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_process_writes_its_own_events(tmp_path: Path) -> None:
    solved(tmp_path / "run")
    for node in range(4):
        events = read(tmp_path / "run" / f"events-node-{node}.jsonl")
        assert [event["event"] for event in events] == ["started", *["evaluated"] * 3, "ended"]
        assert {event["site"] for event in events} == {f"node {node}"}
        assert [event.get("step") for event in events[1:]] == [0, 3, 6, 6]
        assert all(event["time"].endswith("+00:00") for event in events)


def test_the_audit_has_every_byte_once(tmp_path: Path) -> None:
    sent = solved(tmp_path / "run")
    for node in range(4):
        lines = read(tmp_path / "run" / f"audit-node-{node}.jsonl")
        exchanges = [line for line in lines if line["kind"] == "exchange"]
        assert sum(line["bytes"] for line in exchanges) == sent[node] > 0
        assert {line["to"] for line in exchanges} == {f"node {(node + other) % 4}" for other in (1, 3)}
        assert {tuple(line["steps"]) for line in exchanges} == {(0, 0), (0, 3), (3, 6)}
        assert {"mean", "gather", "text"} <= {line["kind"] for line in lines}  # metrics, answers, agreement on settings


def test_a_run_that_fails_before_its_first_evaluation_has_an_audit(tmp_path: Path) -> None:
    def fail(x: Any, node: int, rng: Any) -> Any:
        raise InputError("no gradient")

    def work(network: Network) -> None:
        with pytest.raises(InputError, match="no gradient"):
            dnasa.solve(problem, network, steps=6, folder=tmp_path / "run", progress=False)

    graph, problem = topology.ring(4), dnasa.problems.Custom(fail, start=np.zeros(5))
    run_threads(graph, work)
    for node in range(4):
        lines = read(tmp_path / "run" / f"audit-node-{node}.jsonl")
        assert "text" in {line["kind"] for line in lines}


def test_events_after_the_run_are_not_in_its_folder(tmp_path: Path) -> None:
    before = list(LOGGER.handlers)
    solved(tmp_path / "run")
    Events("node 1").write("refused", address="192.0.2.2", reason="certificate revoked")
    assert "refused" not in {event["event"] for event in read(tmp_path / "run" / "events-node-1.jsonl")}
    assert list(LOGGER.handlers) == before


def test_another_run_in_the_folder_appends_to_the_audit(tmp_path: Path) -> None:
    first = solved(tmp_path / "run")
    for path in (tmp_path / "run").iterdir():
        if path.suffix != ".jsonl" and path.name != "files.json":
            path.unlink()  # what a site has whose process is not the first
    second = solved(tmp_path / "run")
    folder = RunFolder(tmp_path / "run", force=True)
    folder.open()
    folder.close()
    lines = read(tmp_path / "run" / "audit-node-2.jsonl")
    assert sum(line["bytes"] for line in lines if line["kind"] == "exchange") == first[2] + second[2]


def test_a_file_of_the_user_is_not_appended_to(tmp_path: Path) -> None:
    (tmp_path / "events-berlin.jsonl").write_text("mine\n")
    with pytest.raises(InputError, match=r"events-berlin\.jsonl was not written by dnasa"):
        Journal(tmp_path, "berlin", Traffic(), ["berlin"])
    assert (tmp_path / "events-berlin.jsonl").read_text() == "mine\n"
