"""Files are read as data: code that they name is executed only if the user trusts it."""

import json
import pickle
import py_compile
import re
import shutil
from collections.abc import Iterator
from importlib.util import cache_from_source
from pathlib import Path

import numpy as np
import pytest
from command_line import refused, run, succeed
from test_plugins import PLUGIN

import dnasa
from dnasa import extras
from dnasa.cli import plugins
from dnasa.core import InputError
from dnasa.data.reading import read_images
from dnasa.rules import RULES
from dnasa.tasks import models

ROOT = Path(__file__).parent.parent

OWN = """
from torch import nn

def make(inputs, outputs):
    return nn.Linear(*inputs, outputs)
"""


@pytest.fixture(autouse=True, scope="module")
def without_figures() -> Iterator[None]:
    """As if matplotlib were not installed: figures take longer than these runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extras, "find_spec", lambda name: None)
        yield


@pytest.fixture(autouse=True)
def nothing_executed_before() -> Iterator[None]:
    """Plugins and models that this process has executed are forgotten."""
    before = dict(RULES)
    models.load_function.cache_clear()
    plugins.load_file.cache_clear()
    yield
    RULES.clear()
    RULES.update(before)
    plugins.load_file.cache_clear()


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run that has a plugin and a model of the user's own; nothing in it is changed."""
    home = tmp_path_factory.mktemp("begun")
    rows = "".join(f"{i % 7},{i % 3},{'ab'[i % 2]}\n" for i in range(40))
    (home / "rows.csv").write_text("u,v,kind\n" + rows)
    for name, code in (("net.py", OWN), ("rules.py", PLUGIN)):
        (home / name).write_text(f"open({str(home / 'executed')!r}, 'a').write({name!r})\n{code}")
    words = "train --data rows.csv --target kind --nodes 2 --steps 2 --rule doubled --eta 0.1".split()
    done = succeed(*words, "--plugin", "rules.py", "--model", "net.py:make", "--out", "run", cwd=home)
    assert "`dnasa predict run FILE --trust` uses it" in done.stdout
    plugins.load_file.cache_clear()
    del RULES["doubled"]
    return home


@pytest.fixture
def home(begun: Path, tmp_path: Path) -> Path:
    """A copy in which the model of the run is missing, so that it can be resumed, and a trained model with its code."""
    for name in ("run", "trained"):
        shutil.copytree(begun / "run", tmp_path / name)
    (tmp_path / "run" / "model.json").unlink()
    shutil.copy(begun / "rows.csv", tmp_path)
    (begun / "executed").unlink(missing_ok=True)
    return tmp_path


def executed(begun: Path) -> str:
    """The names of the files that were executed."""
    return (begun / "executed").read_text() if (begun / "executed").exists() else ""


COMMANDS = {
    "resume": "resume run",
    "repeat": "train --config run/config.json",
    "predict": "predict trained rows.csv",
    "export": "export trained --onnx trained.onnx",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_code_that_a_file_names_is_refused(command: str, begun: Path, home: Path) -> None:
    line = refused(*COMMANDS[command].split(), cwd=home)
    code = "trained/model.py" if "trained" in COMMANDS[command] else f"{begun}/net.py"
    assert code in line
    assert "code that is not executed: read" in line
    assert not executed(begun)
    with pytest.raises(InputError, match="trust=True"):
        dnasa.load(home / "trained")


@pytest.mark.parametrize(
    ("command", "verbosity"), [("repeat", ""), ("repeat", "--quiet"), ("resume", "--quiet"), ("resume", "--log-json")]
)
def test_code_that_a_file_names_is_executed_if_it_is_trusted(command: str, verbosity: str, begun: Path, home: Path) -> None:
    done = succeed(*COMMANDS[command].split(), "--trust", *verbosity.split(), cwd=home)
    for file in ("net.py", "rules.py"):
        assert f"Executing {begun / file}, which run/config.json names." in done.stderr
        assert executed(begun).count(file) == 1
    assert "Executing" not in done.stdout


def test_the_code_of_a_trained_model_is_executed_if_it_is_trusted(begun: Path, home: Path) -> None:
    done = succeed(*COMMANDS["predict"].split(), "--trust", cwd=home)
    assert done.stderr.startswith(f"Executing {home / 'trained' / 'model.py'} for its model.\n")
    assert done.stdout.startswith("prediction,p_a,p_b\n")
    assert dnasa.load(home / "trained", trust=True).task == "classification"


@pytest.mark.parametrize("command", ["resume", "repeat"])
def test_code_that_a_file_names_is_executed_if_the_user_names_it_too(command: str, begun: Path, home: Path) -> None:
    named = ["--plugin", begun / "rules.py", "--model", f"{begun / 'net.py'}:make"]
    for some in (named[:2], named[2:]):
        assert "then add --plugin FILE, --model FILE.py:NAME or --trust" in refused(*COMMANDS[command].split(), *some, cwd=home)
        assert not executed(begun)
    done = succeed(*COMMANDS[command].split(), *named, cwd=home)
    assert "names." not in done.stderr


def test_code_on_the_command_line_runs_again_after_a_restart(begun: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    words = f"train --data {home}/rows.csv --target kind --nodes 2 --steps 2 --rule doubled --eta 0.1 --out run".split()
    succeed(*words, "--plugin", begun / "rules.py", "--model", f"{begun / 'net.py'}:make", cwd=home)
    assert executed(begun) == "rules.pynet.py"


def test_a_study_that_names_code_must_be_trusted(begun: Path, home: Path) -> None:
    (home / "fails.py").write_text("1 / 0")
    (home / "s.toml").write_text('problems = ["rows.csv"]\ntarget = "kind"\nmodel = "fails.py:make"\n')
    assert f"s.toml names code that is not executed: read {home / 'fails.py'}" in refused("study", "s.toml", cwd=home)
    trusted = run("study", "s.toml", "--trust", "--quiet", cwd=home)
    assert f"Executing {home / 'fails.py'}, which s.toml names." in trusted.stderr
    assert "failed at line 1: ZeroDivisionError" in trusted.stderr


def test_a_config_cannot_trust_itself(begun: Path, home: Path) -> None:
    path = home / "run" / "config.json"
    config = json.loads(path.read_text())
    config["options"]["trust"] = True
    path.write_text(json.dumps(config))
    for words in ("resume run", "train --config run/config.json"):
        assert "'trust' is not an option that a config" in refused(*words.split(), cwd=home)
    assert not executed(begun)


def test_a_path_that_no_system_can_have_gets_one_clear_line(home: Path) -> None:
    path = home / "run" / "config.json"
    for option, value in (("plugin", ["a\0.py"]), ("model", "a\0.py:make")):
        config = json.loads(path.read_text())
        config["options"] |= {"plugin": [], option: value}
        (home / "c.json").write_text(json.dumps(config))
        assert f"c.json: {option} cannot be" in refused("train", "--config", "c.json", "--trust", cwd=home)


def test_bytecode_beside_a_file_is_neither_read_nor_written(begun: Path, home: Path) -> None:
    evil, trained = home / "evil.py", home / "trained"
    evil.write_text("raise SystemExit('bytecode')")
    for file in (trained / "model.py", begun / "rules.py"):
        assert not Path(cache_from_source(str(file))).exists()
        py_compile.compile(
            str(evil),
            cache_from_source(str(file)),
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,  # used without a look at the source
        )
    try:
        assert dnasa.load(trained, trust=True).task == "classification"
        plugins.load([begun / "rules.py"])
        assert "doubled" in RULES
    finally:
        shutil.rmtree(begun / "__pycache__")


def test_reading_a_run_folder_executes_nothing(begun: Path, home: Path) -> None:
    for words in ("report trained", "report . --html --out page.html", "runs ."):
        succeed(*words.split(), cwd=home)
    assert not executed(begun)


class Bomb:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


def test_a_pickle_in_an_array_is_not_loaded(begun: Path, home: Path) -> None:
    bomb = np.array([Bomb(home / "exploded")], dtype=object)
    np.savez(home / "rows.npz", inputs=bomb, labels=bomb)
    (home / "raw.npz").write_bytes(pickle.dumps(bomb))
    for name in ("rows.npz", "raw.npz"):
        assert "plain array" in refused("data", home / name, "--target", "0")
    for name in ("x.safetensors", "model.safetensors"):
        (home / "trained" / name).write_bytes(pickle.dumps(bomb))
    for words in ("report trained", "predict trained rows.csv --trust"):
        assert run(*words.split(), cwd=home).returncode == 2
    assert not (home / "exploded").exists()


def test_only_the_listed_formats_of_images_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow gives PostScript, by whatever name, to Ghostscript."""
    eps = pytest.importorskip("PIL.EpsImagePlugin")
    monkeypatch.setattr(eps, "Ghostscript", lambda *_, **__: pytest.fail("started"))
    for group in ("cat", "dog"):
        (tmp_path / group).mkdir()
        (tmp_path / group / "1.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n")
    with pytest.raises(InputError, match="is not an image"):
        read_images(tmp_path)


IMPORTS = r"^\s*(import|from) (pickle|dill|joblib|shelve|marshal|yaml|runpy|subprocess)\b"
CALLS = r"(?<![\w.])(eval|exec|os\.system|os\.popen|torch\.load|pd\.read_pickle)\("


def test_no_module_unpickles_or_evaluates() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text()
        assert not re.search(IMPORTS, text, re.M), path
        assert not re.search(CALLS, text), path
        assert text.count("np.load(") == len(re.findall(r"np\.load\([^()]*allow_pickle=False\)", text)), path
