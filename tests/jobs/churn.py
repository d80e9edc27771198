"""Sites that leave and come back, in real training: seeded faults, and the accuracy beside an undisturbed run.

    PYTHONPATH=.:tests/helpers python tests/jobs/churn.py --minutes 31 --faults 120 [--seed 0] [--hidden] [--report churn.json]

Eight sites train a network on the digits; one of them has no address. At random moments one of them gets a segmentation
fault, is killed, is stopped, loses its connections, or runs no Python code for a while; or two are killed at once; or two
cannot reach each other. Sites whose process ended are started again after some seconds and join the run. No other process may
end, all must be back at the end, and the accuracy of the mean of all nodes must be within one point of the undisturbed run.
Links are cut where network namespaces may be made: there each site has its own. `make churn` runs this.
"""

import argparse
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.machines import Machines, address, machines, permitted
from launching import ENVIRONMENT, PATIENCE, free_port
from site_processes import SiteProcesses, read

SIGNALS = {
    "segmentation fault": signal.SIGSEGV,
    "kill": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "communication abort": signal.SIGUSR1,
    "deadlock": signal.SIGUSR2,
    "two killed": signal.SIGKILL,
}
DEADLY = ("segmentation fault", "kill", "two killed")
CUT = "link cut"
HIDDEN = ("lyon",)  # the site without an address
PACE = 0.2  # seconds per step of the disturbed run
LAST = 50  # steps after all are back
NODES = 8
TIMEOUT = 10.0
AWAY = 15  # seconds for which a site hangs, or a link is cut


class Job(SiteProcesses):
    """The processes of one run, and the faults that they have."""

    def __init__(self, steps: int, pace: float, hidden: bool, made: Machines | None):
        port = free_port()  # on other addresses than that of who dials, so that nobody takes it while a site is away
        hosts = [address(i) if made else f"127.0.0.{i + 2}" for i in range(NODES)]
        rule = "dnasa" if hidden else "adanasa"
        options = {"timeout": TIMEOUT, "pace": pace, "hang": AWAY, "steps": steps, "rule": rule}
        addresses, namespaces = [f"{host}:{port}" for host in hosts], made.names if made else []
        super().__init__(Path(tempfile.mkdtemp()), NODES, options, HIDDEN, addresses, namespaces)
        self.made = made
        self.away = [0.0] * NODES  # until when the last fault of each site lasts
        self.seen = [time.time()] * NODES  # when it was last healthy
        self.deaths: Counter[int] = Counter()
        self.due: dict[int, float] = {}  # when sites are started again
        self.repairs: list[tuple[float, Callable[[], object]]] = []

    def healthy(self) -> list[int]:
        """The sites that have taken a step since their last fault; nobody may be away for long."""
        healthy = [site for site in range(NODES) if self.runs(site) and self.progress(site).time > self.away[site]]
        for site in healthy:
            self.seen[site] = time.time()
        missing = [name for name, seen in zip(self.names, self.seen, strict=True) if seen + PATIENCE < time.time()]
        assert not missing, f"{', '.join(missing)} did not come back: {self.log}"
        return healthy

    def tend(self, rng: random.Random) -> None:
        """Repair what is due, and start those again that ended by a fault; nobody else may have ended."""
        now = time.time()
        for site in range(NODES):
            if not self.runs(site) and site not in self.due:
                assert self.away[site] == float("inf"), f"{self.names[site]} ended by itself: {self.log}"
                self.due[site] = now + rng.uniform(1, 8)
        for site in [site for site, moment in self.due.items() if moment < now]:
            del self.due[site]
            self.restart(site)
            self.away[site] = now
        for repair in [repair for repair in self.repairs if repair[0] < now]:
            self.repairs.remove(repair)
            repair[1]()

    def choose(self, kind: str, healthy: list[int], rng: random.Random) -> list[int]:
        """All healthy sites. Killed are the first one first, and those that were killed least; cut are links of neighbours."""
        if kind in DEADLY:
            return sorted(healthy, key=lambda site: (self.deaths[site], site > 0, rng.random()))
        first = rng.randrange(len(healthy))
        return healthy[first:] + healthy[:first]

    def inject(self, kind: str, rng: random.Random) -> bool:
        """The fault, at random sites; whether enough of them were healthy."""
        healthy, wanted, now = self.healthy(), 1 + (kind in ("two killed", CUT)), time.time()
        if len(healthy) < wanted + 2:
            return False
        chosen = self.choose(kind, healthy, rng)[:wanted]
        for site in chosen:
            self.deaths[site] += kind in DEADLY
            self.away[site] = float("inf") if kind in DEADLY else now if kind == "communication abort" else now + AWAY
            if kind in SIGNALS:
                self.signal(site, SIGNALS[kind])
        if kind == "stop":
            self.repairs.append((now + AWAY, lambda: self.signal(chosen[0], signal.SIGCONT)))
        if kind == CUT:
            assert self.made is not None
            self.made.separate(*chosen)
            self.repairs.append((now + AWAY, lambda: self.made.reunite(*chosen)))  # type: ignore[union-attr]
        with self.log.open("a") as log:
            print(f"{time.strftime('%H:%M:%S')} {kind}: {', '.join(self.names[site] for site in chosen)}", file=log)
        return True


def undisturbed(steps: int, total: int, hidden: bool, made: Machines | None) -> float:
    with Job(steps, 0.0, hidden, made) as job:
        job.end(total)
        return job.finish()[0]["accuracy"]


def disturbed(steps: int, faults: int, minutes: float, seed: int, hidden: bool, made: Machines | None) -> dict[str, Any]:
    rng, counts = random.Random(seed), Counter[str]()
    kinds = [*SIGNALS, CUT] if made else list(SIGNALS)
    with Job(steps, PACE, hidden, made) as job:
        began, following, shown = time.monotonic(), None, 0.0
        while True:
            time.sleep(0.1)
            job.tend(rng)
            now, latest, healthy = time.monotonic(), job.latest(), job.healthy()
            if following is None and len(healthy) == NODES:
                began = following = now
            complete = len(healthy) == NODES and job.train_with(*range(NODES)) and not job.repairs
            if counts.total() >= faults and latest.step > steps - LAST and complete:
                job.end(job.latest().step + LAST)
                return summary(job, counts, (time.monotonic() - began) / 60)
            if following is not None and now >= following and counts.total() < faults:
                kind = kinds[counts.total() % len(kinds)]
                if job.inject(kind, rng):
                    counts[kind] += 1
                    following = now + rng.expovariate(faults / (0.8 * 60 * minutes))
            if now > shown + 30:
                shown = now
                what = f"step {latest.step} of {steps}, view {latest.view}, {counts.total()} faults"
                print(f"{what}, healthy: {len(healthy)} of {NODES} sites", flush=True)


def summary(job: Job, counts: Counter[str], minutes: float) -> dict[str, Any]:
    reports, lost, views = job.finish(), Counter[str](), 0
    for path in job.folder.glob("progress-*[0-9]"):
        progress = read(path)
        lost[job.names[int(path.name.split("-")[1])]] += progress.lost
        views = max(views, progress.view)
    return {
        "minutes": round(minutes, 1),
        "faults": dict(counts),
        "sites killed": len(job.deaths),
        "deaths": job.deaths.total(),
        "views": views,
        "steps": reports[0]["steps"],
        "lost steps": dict(lost),
        "accuracy": reports[0]["accuracy"],
        "log": str(job.log),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=31)
    parser.add_argument("--faults", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hidden", action="store_true", help="D-NASA with hidden exchanges instead of AdaNASA")
    parser.add_argument("--report", type=Path)
    args = parser.parse_args()
    steps = int(args.minutes * 60 / PACE)
    own = machines(NODES, Path(tempfile.mkdtemp())) if permitted() else nullcontext()
    with own as made:
        result = disturbed(steps, args.faults, args.minutes, args.seed, args.hidden, made)
        print(json.dumps(result), flush=True)
        result["undisturbed"] = undisturbed(steps, result["steps"], args.hidden, made)
    print(json.dumps(result, indent=1))
    if args.report:
        args.report.write_text(json.dumps(result, indent=1))
    assert result["sites killed"] == NODES or args.faults < 4 * NODES
    assert result["accuracy"] > result["undisturbed"] - (0.01 if args.minutes > 10 else 0.02)  # of 360 test rows


if __name__ == "__main__":
    os.chdir(Path(__file__).parents[2])
    os.environ.update(ENVIRONMENT)
    main()
