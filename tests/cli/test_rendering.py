"""Tables on terminals and in pipes."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from launching import PATIENCE
from rich.console import Console

from dnasa.cli import rendering

WORDS = ["method", "difference from the best", "validation accuracy", "diverged at", "stepsize"]
TABLE = pd.DataFrame({name: ["D-SGT (diminishing)", "n^(1/4)/t^(3/4) sqrt(n/(t+1)) [-1.2, +3.4]"] for name in WORDS})


@pytest.mark.parametrize("width", [50, 80, 300])
def test_a_narrow_terminal_breaks_no_words(width: int, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(rendering, "console", Console(width=width, force_terminal=True, color_system=None))
    rendering.print_table(TABLE, "A title")
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    words = {word for text in [*WORDS, *TABLE.to_numpy().ravel()] for word in text.split()}
    assert words <= {*shown.split()}
    assert shown.count("method") == shown.count("┏") == {50: 4, 80: 2, 300: 1}[width]  # the first column is in each
    assert shown.count("A title") == 1


def test_output_that_nobody_reads_does_not_end_a_run(tmp_path: Path) -> None:
    words = "train --problem least_squares --nodes 2 --steps 20 --out"
    process = subprocess.Popen(
        [sys.executable, "-m", "dnasa", *words.split(), tmp_path / "a"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()  # type: ignore[union-attr]
    assert (process.wait(PATIENCE), process.stderr.read()) == (0, b"")  # type: ignore[union-attr]
    assert (tmp_path / "a" / "x.safetensors").exists()


def test_the_environment_says_how_long_the_lines_of_a_file_are(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(rendering, "console", Console(width=60, color_system=None))
    for width, most in (("60", 60), (None, 171)):
        monkeypatch.setenv("COLUMNS", width) if width else monkeypatch.delenv("COLUMNS", raising=False)
        rendering.print_table(TABLE.assign(accuracy="46.16 ± 0.87 % ^ *"), "A title")
        rendering.print_line("words " * 28)
        shown = capsys.readouterr().out
        assert most - 30 <= max(map(len, shown.splitlines())) <= most
        assert "46.16 ± 0.87 % ^ *" in shown


def test_a_word_longer_than_half_the_line_is_broken(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(rendering, "console", Console(width=40, force_terminal=True, color_system=None))
    rendering.print_table(pd.DataFrame({"folder": ["x" * 70], "state": ["done"]}), "Runs")
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 40
    assert shown.count("x") == 70


@pytest.mark.parametrize("launched", [False, True])
def test_mpirun_gets_no_escape_codes(launched: bool) -> None:
    """It gives its processes a terminal, also where its own output is a file."""
    code = "import pandas as pd; from dnasa.cli import rendering; rendering.print_table(pd.DataFrame({'a': [1]}), 'Title')"
    env = os.environ | {"FORCE_COLOR": "1"} | ({"OMPI_COMM_WORLD_RANK": "0"} if launched else {})
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert ("\x1b" in done.stdout) is not launched


def test_names_of_other_sites_do_not_control_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(rendering, "console", Console(width=80, color_system=None))
    name = "\x1b[2J\x9b31m\rno\x7f"
    rendering.print_line(name)
    rendering.print_error(name)
    rendering.print_table(pd.DataFrame({name: [name]}), name)
    shown = "".join(capsys.readouterr())
    assert shown.count("?[2J?31m?no?") == 5
    assert not {*"\x1b\x9b\r\x7f"} & {*shown}


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([2.194, 2.2, None], ["2.19", "2.20", "-"]),
        ([0.0, 0.1234, 12.0], ["0.000", "0.123", "12.000"]),
        ([0.0, 0.12, 1.5e-7], ["0", "0.12", "1.5e-07"]),
        ([1000, 3], ["1,000", "3"]),
    ],
)
def test_numbers_of_a_column_have_the_same_decimals(values: list[Any], shown: list[str]) -> None:
    assert [rendering._cell("test loss", rendering._form(values), value) for value in values] == shown


def test_one_message_is_called_a_message() -> None:
    timing = {"gradient_seconds": 0.1, "messages_per_step": 1.0, "bytes_per_step": 8.0}
    result: Any = SimpleNamespace(settings={"timing": timing})
    assert rendering.timing_line(result).endswith("; 1 message and 8 bytes sent per step.")
