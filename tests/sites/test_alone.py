"""What a site can find out alone, before it connects."""

import re
from pathlib import Path
from typing import Any

import pytest
from command_line import refused, succeed
from local_sites import write_sites

from dnasa import networks


class Connecting(Exception):
    """The site would connect now."""


MISTAKES = {
    "There is no folder none": "--shard-dir none",
    "Unknown data 'none.csv'": "--data none.csv --target y",
    "paris.csv has no column 'z'": "--shard-dir data --target z",
    "Unknown model 'mpl:3'": "--shard-dir data --target y --model mpl:3",
    "There is no file .*mine.py": "--shard-dir data --target y --model mine.py:make",
    "late takes one rule, of adanasa": "--shard-dir data --target y --rule kgt --eta 0.1 --late 2",
    "late takes one rule": "--problem least_squares --rule kgt --eta 0.1 --late 2",
    "Checkpoints need a folder": "--problem least_squares --checkpoint-every 5",
    "evaluate must be": "--problem least_squares --evaluate 0",
    "every must be": "--problem least_squares --every 0",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where paris keeps its table and the file of the sites."""

    def connect(*_: Any, **options: Any) -> None:
        raise Connecting

    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "paris.csv").write_text("a,y\n" + "".join(f"{i}.5,{'nm'[i % 2]}\n" for i in range(30)))
    write_sites(tmp_path, 2)
    monkeypatch.setattr(networks, "connect", connect)
    return tmp_path


TRAIN = "train --sites paris.toml --topology ring --timeout 0.2 ".split()


@pytest.mark.parametrize("cause", MISTAKES)
def test_a_site_finds_its_own_mistakes_before_it_connects(cause: str, home: Path) -> None:
    assert re.search(cause, refused(*TRAIN, *MISTAKES[cause].split(), cwd=home))


@pytest.mark.parametrize("command", ["train", "fit logistic"])
def test_two_tables_in_the_folder_of_a_site_are_one_too_many(command: str, home: Path) -> None:
    (home / "data" / "old.csv").write_text("a,y\n1,n\n")
    write_sites(home, 3)
    line = refused(*command.split(), *TRAIN[1:3], *"--shard-dir data --target y".split(), cwd=home)
    assert "data has 2 tables (old.csv, paris.csv): leave only that of paris in the folder." in line


def test_a_table_that_only_the_others_complete_is_no_mistake(home: Path) -> None:
    (home / "data" / "paris.csv").write_text("a,y\n" + "".join(f"{i}.5,n\n" for i in range(30)))  # one class
    with pytest.raises(Connecting):
        succeed(*TRAIN, *"--shard-dir data --target y".split(), cwd=home)


def test_a_dry_run_refuses_identifiers_of_a_small_site(home: Path) -> None:
    (home / "data" / "paris.csv").write_text("id,y\n" + "".join(f"P{i},{'nm'[i % 2]}\n" for i in range(240)))
    line = refused(*TRAIN, *"--shard-dir data --target y --dry-run".split(), cwd=home)
    assert "paris.csv: Column 'id' has 240 different texts in 240 rows: leave it out" in line


def test_a_dry_run_prepares_the_data_as_the_real_run_does(home: Path) -> None:
    rows = "".join(f"{i}.5,{'nm'[i % 2]}\n" for i in range(300))
    (home / "data" / "paris.csv").write_text("a,y\n" + rows)
    done = succeed(
        *TRAIN, *"--shard-dir data --target y --dry-run".split(), cwd=home
    )  # its few steps are fewer than five passes
    assert '"patience": 40' in done.stdout, "it stops early"
    assert '"steps": 1000' in done.stdout, "the settings are those of the real run"
    assert "in 40 of 1,000 steps" in " ".join(done.stdout.split())


def test_sites_do_not_use_another_engine(tmp_path: Path) -> None:
    (file, _) = write_sites(tmp_path, 2)
    line = refused(*"train --problem least_squares --engine mpi --sites".split(), file)
    assert "goes with the engine sites, and with no other" in line
