"""Many sites on one machine: seconds until all are connected, CPU of an idle site, seconds until the others go on without one.

PYTHONPATH=tests/helpers:tests/jobs python benchmarks/many_sites.py 20
"""

import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from local_sites import NAMES, keys, write_sites

import dnasa
from dnasa.networks import simulated, sites  # noqa: F401 (imported once, not by each process on this machine's cores)
from dnasa.sites.keys import make_site

IDLE, TIMEOUT = 20.0, 5.0  # seconds


def run(file: Path, began: float, reports: Any) -> None:
    network = dnasa.connect("ring", sites=file, timeout=TIMEOUT)
    members = network.processes.membership.survivors.__self__.members  # type: ignore[union-attr]
    network.processes.membership.admit()
    reports.put(("start", time.time() - began))
    time.sleep(3)
    before = time.process_time()
    time.sleep(IDLE)
    reports.put(("idle", 100 * (time.process_time() - before) / IDLE))
    while members.counts_still():
        time.sleep(0.01)
    members.meet()
    reports.put(("view", time.time()))
    time.sleep(600)


def main(count: int) -> None:
    names = [*NAMES, *(f"site{number}" for number in range(len(NAMES), count))]
    for name in names[len(NAMES) :]:
        make_site(keys(), name)
    with tempfile.TemporaryDirectory() as folder:
        files = write_sites(Path(folder), count, names=names)
        fork = multiprocessing.get_context("fork")
        reports: Any = fork.Queue()
        began = time.time()
        processes = [fork.Process(target=run, args=(file, began, reports), daemon=True) for file in files]
        for process in processes:
            process.start()
        found: dict[str, list[float]] = {"start": [], "idle": [], "view": []}
        while len(found["idle"]) < count:
            kind, value = reports.get(timeout=120)
            found[kind].append(value)
        print(f"{count} sites: all connected after {max(found['start']):.1f} s")
        print(f"an idle site: {statistics.median(found['idle']):.1f} % of a core (median)")
        killed = time.time()
        os.kill(processes[-1].pid, signal.SIGKILL)  # type: ignore[arg-type]
        while len(found["view"]) < count - 1:
            found["view"].append(reports.get(timeout=120)[1])
        print(f"one is killed: the others are in the next view after {max(found['view']) - killed:.1f} s")
        for process in processes:
            process.kill()


if __name__ == "__main__":
    main(int(sys.argv[1]))
