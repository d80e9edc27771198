"""Sites that are real processes, each in a network namespace of its own if there are some: they train until told to end."""

import ctypes
import json
import os
import signal
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple, Self

from launching import FORKS, JOBS, PATIENCE, run_as_main
from local_sites import write_sites


class Progress(NamedTuple):
    """What a process has reported after its last step."""

    step: int = 0
    lost: int = 0
    view: int = 0
    nodes: Sequence[int] = ()
    time: float = 0.0


def read(path: Path) -> Progress:
    return Progress(**json.loads(path.read_text()), time=path.stat().st_mtime) if path.exists() else Progress()


class SiteProcesses:
    """The processes of one run, one for each site.

    Args:
        options: Of `tests/jobs/site_job.py`.
        hidden: The names of the sites without an address.
        addresses: Those of all sites; by default free ones of this machine.
        namespaces: The network namespace of each site.
    """

    def __init__(
        self,
        folder: Path,
        count: int,
        options: dict[str, Any],
        hidden: Collection[str] = (),
        addresses: Sequence[str] | None = None,
        namespaces: Sequence[str] = (),
    ):
        self.folder, self.options, self.namespaces = folder, options, namespaces
        self.log = folder / "log"
        self.files = write_sites(folder, count, hidden, addresses)
        self.names = [file.stem for file in self.files]
        self.processes = [self.start(site) for site in range(count)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for site in filter(self.runs, range(len(self.processes))):
            self.signal(site, signal.SIGQUIT)  # those that hang say where
            time.sleep(0.1)
        for process in self.processes:
            process.kill()
            process.join()

    def start(self, site: int) -> BaseProcess:
        namespace = self.namespaces[site] if self.namespaces else ""
        words = [str(JOBS / "site_job.py"), str(self.files[site]), str(self.folder), json.dumps(self.options)]
        process = FORKS.Process(target=run_site, args=(namespace, words, self.log))
        process.start()
        return process

    def restart(self, site: int) -> None:
        self.processes[site].join()
        self.processes[site] = self.start(site)

    def signal(self, site: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.processes[site].pid, number)  # type: ignore[arg-type]

    def runs(self, site: int) -> bool:
        return self.processes[site].is_alive()

    def progress(self, site: int) -> Progress:
        return read(self.folder / f"progress-{site}-{self.processes[site].pid}")

    def latest(self) -> Progress:
        return max(map(self.progress, range(len(self.processes))))

    def train_with(self, *nodes: int) -> bool:
        """Whether these sites train with each other, and nobody else."""
        return all(list(self.progress(node).nodes) == list(nodes) for node in nodes)

    def losses(self, site: int) -> list[float]:
        """When this site noticed that the members must meet."""
        path = self.folder / f"losses-{site}"
        return [float(line) for line in path.read_text().splitlines()] if path.exists() else []

    def end(self, step: int) -> None:
        """All end after this step."""
        new = self.folder / "new"
        new.write_text(str(step))
        new.rename(self.folder / "end")

    def finish(self) -> list[dict[str, Any]]:
        """What all sites have to say after the last step."""
        for name, process in zip(self.names, self.processes, strict=True):
            process.join(PATIENCE)
            assert process.exitcode == 0, f"{name}: exit code {process.exitcode}\n{self.log.read_text()[-3000:]}"
        return [json.loads((self.folder / f"done-{site}").read_text()) for site in range(len(self.processes))]


def run_site(namespace: str, words: list[str], log: Path) -> None:
    if namespace:
        number = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
        assert ctypes.CDLL(None).setns(number, 0) == 0
    run_as_main(words, os.getcwd(), {}, [log, log])
