"""What only some operating systems have is not required. (`tests/runs/test_run_folder.py` has the locks.)"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dnasa.files import write_durably
from dnasa.networks import liveness
from dnasa.networks.liveness import HostProcess, start_time, this_process


def test_files_are_written_where_folders_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "O_DIRECTORY")
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("a folder was opened"))
    write_durably(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"


def test_without_proc_no_process_counts_as_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    before = HostProcess("here", ended.pid, start_time(ended.pid))
    ended.wait()
    assert this_process("here").runs()
    assert not before.runs()
    monkeypatch.setattr(liveness, "open", missing_file, raising=False)
    assert this_process("here").runs()


def missing_file(*_: object) -> None:
    raise OSError
