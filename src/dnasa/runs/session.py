"""Keeping a run: checkpoints on time, a stop when asked for, and everything back when it is resumed."""

import json
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

import numpy as np

from dnasa import checkpoints
from dnasa.checkpoints import Checkpoint
from dnasa.core import InputError, Interrupted, Network, RunError, like
from dnasa.metrics import to_numpy
from dnasa.recording import Recorder
from dnasa.records import RunFolder, parse_rows, pretty


class Keeper:
    """What `solve` does with the run's folder. All processes call it alike, the first of them writes."""

    def __init__(
        self, folder: RunFolder | None, every: int | None, settings: dict[str, Any], steps: int, network: Network
    ):
        self.folder, self.every, self.steps, self.network = folder, every, steps, network
        self.settings = json.loads(pretty(settings))
        self.asked = False
        self.resumed = -1  # the step a resumed run began at: it has been evaluated and kept already
        self.t = 0
        if folder is not None and folder.resume:
            self._check(folder.config.get("run", {}))
        if folder is not None and network.rank == 0:
            folder.open()
            folder.begin(self.settings, steps)

    # ------------------------------------------------------------ back again

    def restore(self, state: Any, recorder: Recorder) -> tuple[int, Any]:
        """The step and the state to begin with."""
        if self.folder is None or not self.folder.resume:
            return 0, state
        mine = self.folder.newest() if self.network.rank == 0 else None
        name = self.network.share(mine.name if mine else "")[0]
        found = checkpoints.load(self.folder.path / "checkpoints" / name) if name else None
        rows = self.folder.history_of(found) if self.network.rank == 0 else ""
        rows = self.network.share(rows)[0]
        if found is None:
            self.log("Resumed from the beginning: there is no checkpoint yet.")
            return 0, state
        self._check(found.notes["settings"])
        recorder.restore(found.notes, parse_rows(rows))
        here = slice(self.network.here.start, self.network.here.stop)
        arrays = _everyone_back(found, self.network.nodes)
        state = checkpoints.restore(state, arrays, lambda a: like(np.ascontiguousarray(a[..., here, :]), state.x))
        if self.network.memory is not None:
            under_way = {name: like(a, state.x) for name, a in arrays.items() if name.startswith("network.")}
            self.network.memory.restore({name.removeprefix("network."): a for name, a in under_way.items()})
        self.log(f"Resumed from the checkpoint of step {found.step}.")
        if len(found.notes["members"]) < self.network.nodes:
            self.log("The nodes that were lost are back, with the mean of the others.")
            recorder.eras.append((found.step, self.network.nodes, recorder.eras[0][2]))
            state = track_afresh(state)
        self.resumed = found.step
        return found.step, state

    def _check(self, kept: dict[str, Any]) -> None:
        for name, value in kept.items():
            if self.settings.get(name) != value:
                raise InputError(
                    f"This is not the run that was kept: {name} was {value} and is {self.settings.get(name)} now. Resume with "
                    "the same settings and data, or begin a new run in another folder."
                )

    # ------------------------------------------------------------ forth

    def record(self, recorder: Recorder) -> None:
        """The rows of this evaluation go to disk at once."""
        if self.folder is not None and self.network.rank == 0:
            self.folder.append(recorder.frame(last=True))

    def keep(self, t: int, stepper: Any, recorder: Recorder, looked: bool) -> None:
        """Write a checkpoint if one is due; stop if somebody asked for it."""
        self.t = t
        if self.folder is None or t == self.resumed:
            return
        due = self.every is not None and t > 0 and t % self.every == 0
        stop = self._everyone_stops(looked or due)
        if due or stop:
            self.save(t, stepper.state, recorder)
        if stop:
            self.end("interrupted", t)
            raise Interrupted(f"Interrupted at step {t}; continue with: dnasa resume {self.folder.path}")

    def _everyone_stops(self, together: bool) -> bool:
        """Real processes stop together, at an evaluation or a checkpoint."""
        if len(self.network.here) == self.network.nodes:
            return self.asked
        return together and bool(self.network.mean(np.full((1, 1), float(self.asked)))[0] > 0)

    def save(self, t: int, state: Any, recorder: Recorder) -> None:
        arrays = checkpoints.flatten(state, self.network.gather)
        if self.network.memory is not None:
            arrays |= {f"network.{name}": to_numpy(a) for name, a in self.network.memory.arrays().items()}
        if self.network.rank == 0:
            notes = recorder.notes() | {"settings": self.settings, "members": list(self.network.members)}
            self.folder.save(t, arrays, notes)  # type: ignore[union-attr]

    def log(self, line: str) -> None:
        if self.folder is not None and self.network.rank == 0:
            self.folder.log(line)

    def end(self, state: str, t: int) -> None:
        if self.folder is not None and self.network.rank == 0:
            self.folder.status(state, t, self.steps)
            self.folder.log(f"{state.capitalize()} at step {t}.")
            self.folder.close()

    def continue_without(self, network: Network, recorder: Recorder, gone: list[int], t: int) -> None:
        """The first of those who are left writes from here on."""
        new_writer = network.rank == 0 and self.network.rank != 0
        self.network = network
        if self.folder is not None and new_writer:
            self.folder.resume = True
            self.folder.open()
        if self.folder is not None and network.rank == 0:
            recorder.forget(t)
            self.folder.take_over(recorder.frame(), t)
        self.log(f"Lost nodes {', '.join(map(str, gone))} and their data at step {t}; {network.nodes} go on.")

    # ------------------------------------------------------------ when asked to stop

    def __enter__(self) -> "Keeper":
        self.before: dict[int, Any] = {}
        if self.folder is not None and threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as in the background of a shell
                self.before[signal.SIGINT] = signal.signal(signal.SIGINT, self._ask)
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # under MPI it tells of a lost process
                self.before[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._ask)
        return self

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(self, kind: Any, *error: Any) -> None:
        if self.folder is not None and self.network.rank == 0 and kind is not None and kind is not Interrupted:
            with suppress(RunError):
                self.folder.status("failed", self.t, self.steps)
            self.folder.close()
        for number, handler in self.before.items():
            signal.signal(number, handler)


def track_afresh(state: Any) -> Any:
    """u := v, so that mean(u) = mean(v) again, whoever is there now."""
    if not hasattr(state, "_fields"):
        return tuple(track_afresh(part) for part in state)
    if hasattr(state, "parts"):
        return state._replace(parts=track_afresh(state.parts))
    return state._replace(u=state.v) if {"u", "v"} <= set(state._fields) else state


def _everyone_back(found: Checkpoint, nodes: int) -> dict[str, np.ndarray]:
    """Arrays of all nodes; one that was lost begins with the mean of the others."""
    members = found.notes["members"]
    if len(members) == nodes:
        return found.arrays
    out = {}
    for name, a in found.arrays.items():
        whole = np.repeat(a.mean(-2, keepdims=True), nodes, axis=-2)
        whole[..., members, :] = a
        out[name] = whole
    return out
