"""What a site has spent of a privacy budget: its secret, and a mark for each gradient, in a file that only its owner reads."""

import secrets

from dnasa.core import InputError
from dnasa.files import read_bytes
from dnasa.runs.own_files import OwnFiles

KEY = "noise.key"
SECRET, MARK = 32, 16  # bytes


class Releases:
    """A gradient is written down before it leaves. One that is made again, as after a restart, costs nothing.

    Args:
        own: The site's folder; None: a run that cannot be resumed keeps its secret in memory.
        most: The gradients that the budget allows.
        shared: Whether the sites share the noise: then a step has one gradient, since the others' shares are the same again.
        resumed: Whether the run goes on, so that there must be a secret.
    """

    def __init__(self, own: OwnFiles | None, most: int, shared: bool, resumed: bool):
        self.own, self.most, self.shared = own, most, shared
        stored = read_bytes(own.path / KEY) if own is not None and (own.path / KEY).is_file() else b""
        self.secret, marks = stored[:SECRET], stored[SECRET:]
        self.marks = {marks[end - MARK : end] for end in range(MARK, len(marks) + 1, MARK)}
        if len(self.secret) == SECRET:
            return
        if resumed:
            raise InputError(f"{KEY} is missing, so nobody knows how much of the privacy budget is spent: start another run.")
        self.secret = secrets.token_bytes(SECRET)
        if own is not None:
            own.append(KEY, b"")
            (own.path / KEY).chmod(0o600)
            own.append(KEY, self.secret)
            own.sync(KEY)

    def spend(self, mark: bytes, t: int) -> None:
        """Write down a gradient of step t; refused where the budget is spent."""
        if mark in self.marks:
            return
        if len(self.marks) >= (t + 1 if self.shared else self.most):
            raise InputError(
                f"The privacy budget is spent: {len(self.marks)} gradients have left this site, and this is one more. Use the "
                "newest model, or begin another run, which spends its own budget."
            )
        if self.own is not None:
            self.own.append(KEY, mark)
            self.own.sync(KEY)
        self.marks.add(mark)
