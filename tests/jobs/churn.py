"""Processes that leave and join, in real training: seeded faults of five kinds, and the accuracy beside an undisturbed run.

    python tests/jobs/churn.py --minutes 31 --faults 110 [--seed 0] [--hidden] [--report churn.json]

Eight processes train a network on the digits. At random moments one of them gets a segmentation fault, is killed, loses its
connections, or runs no Python code for 70 s; or both processes of a site are killed. Processes that ended are started again
after some seconds and join the run. The others must never be restarted, the run must finish, and the accuracy of the mean of
all nodes must be within one point of the undisturbed run. `make churn` runs this.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from churn_job import NODES
from launching import BIN, ENVIRONMENT, free_port

KINDS = ("segmentation fault", "kill", "communication abort", "deadlock", "site lost")
SITE = 2  # processes
PACE = 0.2  # seconds per step of the disturbed run
JOB = Path(__file__).with_name("churn_job.py")


class Job:
    """The processes of one run, and the store by which they find each other."""

    def __init__(self, steps: int, pace: float, hidden: bool):
        self.folder = Path(tempfile.mkdtemp())
        port = free_port()
        rendezvous = [str(BIN / "dnasa"), "rendezvous", "--port", str(port)]
        self.rendezvous = subprocess.Popen(rendezvous, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
        assert self.rendezvous.stdout
        assert "join" in self.rendezvous.stdout.readline()
        self.words = [f"127.0.0.1:{port}", str(steps), str(pace), str(self.folder), "hidden" if hidden else "open"]
        self.log = (self.folder / "log").open("w")
        self.processes = [self.start() for _ in range(NODES)]
        self.due: list[float] = []  # when processes that ended are started again
        self.faulty: set[int] = set()
        self.restarts = 0

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(JOB), *self.words]
        return subprocess.Popen(command, stdout=self.log, stderr=self.log, env=ENVIRONMENT)

    def running(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self.processes if process.poll() is None]

    def reports(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("done-*.json"))]

    def step(self) -> int:
        """The latest step that any node has reported."""
        texts = [path.read_text() for path in self.folder.glob("node-*")]
        return max((int(text) for text in texts if text), default=0)

    def revive(self, rng: random.Random) -> None:
        """Start those again that ended by a fault, some seconds later; nobody else may have ended."""
        for process in [process for process in self.processes if process.poll() not in (None, 0)]:
            assert process.pid in self.faulty, f"A process ended by itself: {self.folder / 'log'}"
            self.processes.remove(process)
            self.due.append(time.monotonic() + rng.uniform(1, 8))
        for moment in [moment for moment in self.due if moment < time.monotonic()]:
            self.due.remove(moment)
            self.processes.append(self.start())
            self.restarts += 1

    def finish(self) -> None:
        """Some have finished: the others do, too, except for those that still want to join or hang."""
        deadline = time.monotonic() + 60
        while self.running() and time.monotonic() < deadline:
            time.sleep(0.1)

    def close(self) -> None:
        every: list[subprocess.Popen[Any]] = [*self.processes, self.rendezvous]
        for process in every:
            process.kill()
            process.wait()
        self.log.close()


def inject(job: Job, kind: str, rng: random.Random) -> bool:
    """The fault, at random processes; whether there were any to have it."""
    number = {"segmentation fault": signal.SIGSEGV, "communication abort": signal.SIGUSR1, "deadlock": signal.SIGUSR2}
    healthy = [process for process in job.running() if process.pid not in job.faulty and trains(process)]
    wanted = SITE if kind == "site lost" else 1
    if len(healthy) < wanted + 2:
        return False
    for process in rng.sample(healthy, wanted):
        process.send_signal(number.get(kind, signal.SIGKILL))
        if kind != "communication abort":
            job.faulty.add(process.pid)
    return True


def trains(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has got as far as to obey the signals for faults."""
    caught = next(line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "SigCgt" in line)
    return bool(int(caught.split()[1], 16) >> (signal.SIGUSR2 - 1) & 1)


def undisturbed(steps: int, hidden: bool) -> float:
    job = Job(steps, 0.0, hidden)
    try:
        for process in job.processes:
            assert process.wait() == 0, job.folder
        return job.reports()[0]["accuracy"]
    finally:
        job.close()


def disturbed(steps: int, faults: int, minutes: float, seed: int, hidden: bool) -> dict[str, Any]:
    rng, counts = random.Random(seed), Counter[str]()
    job = Job(steps, PACE, hidden)
    began, following, shown = time.monotonic(), None, 0.0
    try:
        while job.running() or job.due:
            time.sleep(0.1)
            if job.reports():
                job.finish()
                break
            job.revive(rng)
            step, now = job.step(), time.monotonic()
            if following is None and step > 10:
                began = following = now
            if following is not None and now >= following and step < 0.97 * steps:
                kind = KINDS[sum(counts.values()) % len(KINDS)]
                if inject(job, kind, rng):
                    counts[kind] += 1
                    following = now + rng.expovariate(faults / (0.93 * 60 * minutes))
            if now > shown + 30:
                shown = now
                print(
                    f"step {step} of {steps}, {sum(counts.values())} faults, {len(job.running())} processes", flush=True
                )
        return summary(job, counts, (time.monotonic() - began) / 60)
    finally:
        job.close()


def summary(job: Job, counts: Counter[str], minutes: float) -> dict[str, Any]:
    reports = job.reports()
    return {
        "minutes": minutes,
        "faults": dict(counts),
        "joins": job.restarts,
        "finished": len(reports),
        "steps": max(report["steps"] for report in reports),
        "lost steps": [report["lost"] for report in reports],
        "accuracy": reports[0]["accuracy"],
        "log": str(job.folder / "log"),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=31)
    parser.add_argument("--faults", type=int, default=110)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hidden", action="store_true", help="D-NASA with hidden exchanges instead of AdaNASA")
    parser.add_argument("--report", type=Path)
    args = parser.parse_args()
    steps = int(args.minutes * 60 / PACE)
    result = disturbed(steps, args.faults, args.minutes, args.seed, args.hidden)
    print(json.dumps(result), flush=True)
    result["undisturbed"] = undisturbed(steps, args.hidden)
    print(json.dumps(result, indent=1))
    if args.report:
        args.report.write_text(json.dumps(result, indent=1))
    assert result["finished"] > 0
    assert result["accuracy"] > result["undisturbed"] - (0.01 if args.minutes > 10 else 0.02)  # of 360 test rows


if __name__ == "__main__":
    os.chdir(Path(__file__).parents[2])
    main()
