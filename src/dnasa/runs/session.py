"""What a run does with its folder: checkpoints when due, a stop on request, and everything restored when it is resumed.

All processes make the same calls; the first of them writes.
"""

import json
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from types import FrameType
from typing import Any, NoReturn

import numpy as np

from dnasa.arrays import to_numpy
from dnasa.checks import first_line
from dnasa.communication import Network
from dnasa.core import Array, InputError, Interrupted, RunError
from dnasa.events import Events
from dnasa.files import to_json
from dnasa.networks import leave_at_signal
from dnasa.rules.registry import VariantGroup
from dnasa.runs import checkpoints
from dnasa.runs.folder import RunFolder, logging_warnings
from dnasa.runs.history import Recorder
from dnasa.runs.journal import Journal
from dnasa.runs.names import node_name, node_names
from dnasa.runs.releases import KEY
from dnasa.runs.result import parse_rows
from dnasa.runs.snapshots import Restored, Snapshot, named_arrays


class Session:
    """A run and its folder, if it has one: `restore` at the start, `record` and `maybe_checkpoint` on the way, then `end`."""

    def __init__(self, folder: RunFolder | None, every: int | None, settings: dict[str, Any], steps: int, network: Network):
        self.folder = folder
        self.every = every
        self.steps = steps
        self.network = network
        self.settings = json.loads(to_json(settings))
        self.names = network.processes.names or ([] if folder is None else folder.sites)
        first = network.processes.node_ids[network.local_nodes.start]
        self.events = Events("all nodes" if network.simulated else node_name(self.names, first))
        self.hooks = ExitStack()  # what is undone when the session is left
        self.stop_requested = False
        self.resumed_at = -1  # the step a resumed run began at: its evaluation and checkpoint exist already
        self.t = 0
        if folder is not None:
            self._open(folder)
        sites = [node_name(self.names, node) for node in network.processes.node_ids]
        self.events.write("started", steps=steps, members=network.nodes, sites=sites)

    def _open(self, folder: RunFolder) -> None:
        processes = self.network.processes
        if folder.resume:
            folder.check()
        self._check_settings(folder.settings)  # a new part of a comparison has the settings of the whole
        if self.writer is not None:
            self.writer.open()
            self.writer.begin(self.settings, self.steps)
        if not self.network.simulated:
            if not processes.own_folders:
                processes.allgather_text("")  # the first process has cleared the folder of all
            folder.journal = folder.journal or Journal(folder.path, self.events.site, processes.traffic, self.names)

    @property
    def writer(self) -> RunFolder | None:
        """The folder, in the process that writes to it."""
        return self.folder if self.network.processes.writes else None

    def restore(
        self, groups: Sequence[VariantGroup], snapshots: list[Snapshot], recorder: Recorder
    ) -> tuple[int, list[Snapshot]]:
        """The step and the states to begin with."""
        if self.folder is None or not self.folder.resume:
            return 0, snapshots
        name = self._newest()
        if not name:
            self._history_up_to((0, 0))
            self.log("Resumed from the beginning: there is no checkpoint yet.")
            return 0, snapshots
        checkpoint = checkpoints.load(self.folder.path / "checkpoints" / name)
        history = self._history_up_to(checkpoint.notes["history"])
        self._check_settings(checkpoint.notes["settings"])
        saved = Restored(checkpoint, snapshots, self.network)
        try:
            restored = saved.snapshots()
            recorder.restore(checkpoint.notes, parse_rows(history), saved)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            reason = f"does not fit this run: {first_line(error)}"
            raise InputError(f"The checkpoint of step {checkpoint.step} {reason}. Start again in another folder.") from error
        self.log(f"Resumed from the checkpoint of step {checkpoint.step}.")
        if len(checkpoint.notes["members"]) < self.network.nodes and not self.network.processes.own_folders:
            self.log("The lost nodes were added again, with the mean of the others.")
            recorder.change_nodes(checkpoint.step, self.network.nodes)
            restored = [s.restarted(group.rule) for group, s in zip(groups, restored, strict=True)]
        self.resumed_at = checkpoint.step
        return checkpoint.step, restored

    def recall(self, recorder: Recorder) -> None:
        """Keep the evaluations up to this site's newest checkpoint, before it joins the others at their step."""
        newest = self.writer.newest() if self.writer is not None and self.writer.resume else None
        if newest is not None and self.writer is not None:
            recorder.rows = parse_rows(self.writer.history.truncate(*checkpoints.load(newest).notes["history"]))

    def _history_up_to(self, mark: tuple[int, int]) -> str:
        """The rows of this length and checksum; later ones are removed, since their steps are made again."""
        texts = self.network.processes.allgather_text(self.writer.history.truncate(*mark) if self.writer else "")
        return texts[self.network.rank if self.network.processes.own_folders else 0]

    def _newest(self) -> str:
        """The file of the newest checkpoint that all who write have; empty if there is none."""
        newest = self.writer.newest() if self.writer else None
        names = self.network.processes.allgather_text(newest.name if newest else "")
        if not self.network.processes.own_folders:
            return names[0]
        step = min(names).rpartition("-")[0]  # names differ in their checksums: sites count what they sent themselves
        paths = checkpoints.newest_first(self.writer.path / "checkpoints") if step and self.writer else []
        return next((path.name for path in paths if path.name.startswith(step)), "")

    def _check_settings(self, saved: dict[str, Any]) -> None:
        for name, value in saved.items():
            if self.settings.get(name) != value:
                raise InputError(
                    f"This is not the run that was saved: {name.replace('_', ' ')} was {value} and is "
                    f"{self.settings.get(name)} now. Resume with the same settings and data, or choose another folder."
                )

    def record(self, recorder: Recorder, t: int) -> None:
        """Append the rows of this evaluation to the history on disk; between processes, also the events and the audit."""
        if self.writer is not None:
            self.writer.history.append(recorder.frame(last=True))
        measured = {name: value for name, value in recorder.rows[-1].items() if isinstance(value, float)}
        counts = {} if self.network.processes.traffic is None else {"bytes": self.network.processes.traffic.bytes}
        self.events.write("evaluated", step=t, members=self.network.nodes, **counts, metrics=measured)
        if self.journal is not None and t > 0:
            self.journal.write(t)

    @property
    def journal(self) -> Journal | None:
        """Where this process writes its events and what it sent."""
        return None if self.folder is None else self.folder.journal

    def maybe_checkpoint(self, t: int, snapshots: Callable[[], list[Snapshot]], recorder: Recorder, evaluated: bool) -> None:
        """Write a checkpoint if one is due; stop if that was requested."""
        self.t = t
        if self.folder is None or t == self.resumed_at:
            return
        if self.stop_requested and self.network.processes.own_folders:
            self.leave(t)
        scheduled = self.every is not None and t > 0 and t % self.every == 0
        stop = self._all_stop(evaluated or scheduled)
        if scheduled or stop:
            self.save(t, snapshots(), recorder)
        if stop:
            self.end("interrupted", t)
            raise Interrupted(f"Interrupted at step {t}; continue with: dnasa resume {self.folder.path}")

    def leave(self, t: int) -> NoReturn:
        """Stop this site; the others go on."""
        self.end("interrupted", t)
        assert self.folder is not None, "Only a run with a folder listens to signals."
        raise Interrupted(f"Interrupted at step {t}; the others continue. Join them with: dnasa resume {self.folder.path}")

    def _all_stop(self, together: bool) -> bool:
        """Whether all stop: real processes stop together, at an evaluation or a checkpoint."""
        if self.network.simulated or self.network.processes.own_folders:
            return self.stop_requested
        return together and bool(self.network.mean(np.full((1, 1), float(self.stop_requested)))[0] > 0)

    def save(self, t: int, snapshots: Sequence[Snapshot], recorder: Recorder) -> None:
        processes = self.network.processes

        def saved(a: Array) -> np.ndarray:
            return to_numpy(a if processes.own_folders else processes.gather(a))  # a site keeps the rows of its own node

        arrays = {f"{i}.{name}": saved(a) for i, s in enumerate(snapshots) for name, a in named_arrays(s).items()}
        if recorder.early_stopping is not None:
            arrays |= {name: saved(a) for name, a in recorder.early_stopping.arrays().items()}
        if self.writer is not None:
            notes = recorder.notes() | {"settings": self.settings, "members": list(processes.node_ids)}
            notes["sent"] = [[s.sent.messages, s.sent.bytes] for s in snapshots]
            if self.network.settings.clock is not None:
                notes["clock"] = [s.sent.times.tolist() for s in snapshots]
            self.writer.save(t, arrays, notes)
            self.writer.status("running", t, self.steps)

    def log(self, line: str) -> None:
        if self.writer is not None:
            self.writer.log(line)

    def end(self, state: str, t: int, reason: str = ".") -> None:
        self.events.write("ended", state=state, step=t)
        if self.journal is not None:
            self.journal.detach()
            self.journal.write(t)
        if self.writer is not None:
            self.writer.status(state, t, self.steps)
            self.writer.log(f"{state.capitalize()} at step {t}{reason}")
            if state in ("done", "diverged"):  # it is not continued: nobody needs the secret of its noise
                self.writer.own.remove(KEY)
            self.writer.close()

    def continue_with(self, network: Network, recorder: Recorder, lost: list[int], joined: list[int], t: int) -> None:
        self.network = network
        for event, nodes in (("lost", lost), ("joined", joined)):
            for node in nodes:
                self.events.write(event, peer=node_name(self.names, node), step=t, members=network.nodes)
        if self.writer is not None:
            recorder.discard(t)
            self.writer.history.replace(recorder.frame())
        if lost:
            self.log(f"Lost {node_names(self.names, lost)} and their data at step {t}; {network.nodes} continue.")
        if joined:
            self.log(f"Joined at step {t}: {node_names(self.names, joined)}; {network.nodes} continue.")
        if not lost and not joined:
            self.log(f"An exchange failed at step {t}, with no process lost; all continue.")

    def __enter__(self) -> "Session":
        if self.folder is not None and threading.current_thread() is threading.main_thread():
            self.hooks.enter_context(logging_warnings(self.log))
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as in the background of a shell
                self._handle(signal.SIGINT)
            if signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, leave_at_signal):  # under MPI it reports a lost process
                self._handle(signal.SIGTERM)
        return self

    def _handle(self, number: signal.Signals) -> None:
        before = signal.signal(number, self._on_signal)
        self.hooks.callback(signal.signal, number, before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.stop_requested and number == signal.SIGINT:  # SLURM and torchrun each send a SIGTERM
            raise KeyboardInterrupt
        self.stop_requested = True
        self.network.processes.membership.stop()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if kind is not None and kind is not Interrupted:
            with suppress(RunError):
                self.end("failed", self.t, f": {' '.join(str(error).split()) or kind.__name__}")
        if kind is not None and self.writer is not None:
            self.writer.close()
        self.hooks.close()
