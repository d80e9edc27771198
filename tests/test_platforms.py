"""What only some operating systems have is not required. (`tests/runs/test_run_folder.py` has the locks.)"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dnasa.files import write_durably


def test_files_are_written_where_folders_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "O_DIRECTORY")
    real_open = os.open

    def open_file(path: Path, flags: int, mode: int = 0o777) -> int:
        assert not Path(path).is_dir()
        return real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", open_file)
    write_durably(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"


def test_mpi_waits_without_sched_yield() -> None:
    pytest.importorskip("mpi4py")
    code = "import os; del os.sched_yield; from dnasa.networks import mpi; mpi.yield_processor(); print('waited')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "waited\n", done.stderr
