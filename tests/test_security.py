"""Each sentence of SECURITY.md has a test; those about code that files name are here."""

import ast
import hashlib
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
from test_plugins import PLUGIN
from test_resume import run

import dnasa
from dnasa import extras, pages
from dnasa.cli import plugins
from dnasa.core import InputError
from dnasa.data import images
from dnasa.rules import RULES, installed
from dnasa.tasks import own_model

ROOT = Path(__file__).parent.parent
UNTESTABLE = [  # what we promise to do, and what we do not
    'Report vulnerabilities privately: on GitHub, open Security and choose "Report a vulnerability".',
    "The latest release receives fixes.",
    "If a statement below does not hold, that is a vulnerability.",
    "TensorBoard writes its event files itself, so this does not hold for them.",
    "The processes of a run over MPI or torch.distributed trust each other, and their messages are neither encrypted nor "
    "authenticated: run them on a private network ([docs/distributed.md](docs/distributed.md) lists what listens where).",
    "Names of columns and classes, counts, and categories of 5 rows do: leave out columns that name a person in several rows.",
    "Members are otherwise trusted.",
    "A member can send plausible wrong numbers, slow or hold the run, and lie about who takes part.",
    "The members of a run can split into two groups ([docs/sites.md](docs/sites.md#a-site-that-fails)).",
    "Messages are encrypted between sites, but the neighbours that receive them read them.",
    "Differences between successive models and trackers reveal gradients, and training examples can sometimes be reconstructed "
    "from gradients.",
    "There is no secure aggregation and no differential privacy: join only with sites that may learn this.",
    "A site that passes on the bytes of two others sees ciphertext, sizes and times.",
]
TESTED = {
    "Configs, studies, run folders, checkpoints, trained models, tables and images are read as data, whoever wrote them.": [
        "test_security.py::test_reading_a_run_folder_executes_nothing",
        "test_security.py::test_a_pickle_in_an_array_is_not_loaded",
        "test_fuzz.py",
    ],
    "Nothing is unpickled.": [
        "test_security.py::test_no_module_unpickles_or_evaluates",
        "test_security.py::test_a_pickle_in_an_array_is_not_loaded",
    ],
    "No other program is started to read a file.": [
        "test_security.py::test_only_the_listed_formats_of_images_are_read",
        "test_security.py::test_no_module_unpickles_or_evaluates",
    ],
    "A run writes only inside its folder, to files that you name on the command line, and to caches of datasets and fonts.": [
        "test_own_files.py::test_no_command_changes_what_it_did_not_write",
        "test_own_files.py::test_a_run_leaves_nothing_behind_that_is_not_on_its_list",
        "test_own_files.py::test_a_named_output_replaces_a_file_and_writes_into_a_pipe",
    ],
    "Even with `--force`, it changes and deletes only files that it wrote, which `files.json` in the folder lists.": [
        "test_own_files.py::test_a_folder_with_files_of_the_users_is_refused",
        "test_own_files.py::test_force_replaces_the_run_and_leaves_what_the_user_added",
        "test_own_files.py::test_a_file_is_listed_before_it_is_there",
    ],
    "Inside a run folder, symbolic links are not followed and only regular files are read.": [
        "test_own_files.py::test_nothing_is_written_or_removed_behind_a_link_in_place_of_checkpoints",
        "test_own_files.py::test_nothing_is_written_behind_a_link_in_place_of_an_extension",
        "test_own_files.py::test_a_history_that_never_ends_is_damaged",
        "test_own_files.py::test_a_page_shows_no_file_from_elsewhere",
    ],
    "A config can contain only options that a run stores, each with a value of its type; none of them names a file to write.": [
        "test_configs.py::test_a_config_holds_only_stored_options_of_the_right_type",
        "test_security.py::test_a_config_cannot_trust_itself",
    ],
    "Python files that you name on the command line are executed: `--plugin my_rules.py`, `--model my_net.py:make`.": [
        "test_plugins.py::test_a_rule_of_a_plugin_is_used_by_name",
        "test_models.py::test_the_file_of_a_network_is_stored_as_an_absolute_path_and_announced",
    ],
    "A package that you installed is imported when you ask for a rule that it names in an entry point of `dnasa.rules`.": [
        "test_security.py::test_packages_that_only_lie_in_the_current_folder_are_not_imported",
        "test_plugins.py::test_a_rule_of_an_installed_package_is_imported_when_it_is_asked_for",
    ],
    "A Python file that a config, a study or a trained model names is executed only with `--trust` (in Python, "
    "`trust=True`), or if you name the same file on the command line.": [
        "test_security.py::test_code_that_a_file_names_is_refused",
        "test_security.py::test_code_that_a_file_names_is_executed_if_it_is_trusted",
        "test_security.py::test_code_that_a_file_names_is_executed_if_the_user_names_it_too",
        "test_security.py::test_a_study_that_names_code_must_be_trusted",
    ],
    "Otherwise the command stops with one line that names the file.": [
        "test_security.py::test_code_that_a_file_names_is_refused",
    ],
    "The path of such a file is printed on standard error before it is executed, even with `--quiet` or `--log-json`.": [
        "test_security.py::test_code_that_a_file_names_is_executed_if_it_is_trusted",
    ],
    "Only the source of a Python file is executed: a `__pycache__` next to it is neither read nor written.": [
        "test_security.py::test_bytecode_beside_a_file_is_neither_read_nor_written",
    ],
    "`dnasa report`, `dnasa runs` and `dnasa watch` execute no code from a folder.": [
        "test_security.py::test_reading_a_run_folder_executes_nothing",
    ],
    "Metrics are served on 127.0.0.1 unless a host is given, without a password.": [
        "test_exporter.py::test_a_port_is_on_loopback_unless_a_host_is_given",
    ],
    "Sites accept TLS 1.3 connections only, with a certificate of their authority that is valid, not revoked, and names a "
    "listed site.": [
        "test_tls.py::test_connections_use_tls_1_3_and_none_resumes_another",
        "test_tls.py::test_strangers_are_refused_whether_they_dial_or_are_dialled",
        "test_attacks.py::test_a_certificate_that_is_not_that_of_another_site_is_refused_and_logged",
    ],
    "Others are refused; the first, tenth, hundredth refusal of an address is logged.": [
        "test_attacks.py::test_whatever_else_than_tls_comes_is_refused_and_logged",
    ],
    "A site cannot take another's node.": ["test_attacks.py::test_a_site_that_greets_wrongly_is_refused"],
    "Connections that have not greeted, frames, states and early messages are limited in number and size.": [
        "test_attacks.py::test_connections_that_say_nothing_do_not_keep_a_site_out",
        "test_attacks.py::test_a_site_cannot_hold_ever_more_connections",
        "test_attacks.py::test_empty_messages_with_new_numbers_do_not_stay_in_memory",
        "test_attacks.py::test_a_member_that_sends_nonsense_is_named_and_left_out",
    ],
    "Messages are checked before use: sender, order, length, the shape of texts, finite numbers, and their size: a message may "
    "be 10^6 times as large as the receiver's own, among the first 20 exchanges 10^10 times.": [
        "test_attacks.py::test_messages_of_another_size_or_of_past_views_are_not_used",
        "test_attacks.py::test_a_text_that_cannot_be_read_names_its_site",
        "test_attacks.py::test_what_a_site_sends_does_not_raise_its_own_limit",
    ],
    "Numbers that it makes grow step by step look like a stepsize that is too large: a warning names the first site past "
    "10^15, and nobody is left out.": [
        "test_attacks.py::test_a_site_whose_numbers_diverge_with_those_of_this_site_is_named_once",
    ],
    "A site that fails is named with the reason, and the others continue without it; before the first step they stop.": [
        "test_attacks.py::test_a_member_that_sends_nonsense_is_named_and_left_out",
        "test_attacks.py::test_a_member_that_sends_absurd_numbers_is_named_and_left_out",
    ],
    "A false accusation can push out one site.": ["test_attacks.py::test_a_liar_pushes_out_one_site_at_most"],
    "Bytes compressed by `moniqua` are not checked for the size of numbers.": [
        "test_attacks.py::test_numbers_are_checked_after_they_are_decoded",
    ],
    "Everything that a process sends to others from their greeting to the end of the run is counted in `audit-SITE.jsonl` by "
    "kind: arrays, texts, and what sites tell each other of the run; a line is written before the first message of each kind "
    "and at evaluations, so a killed process loses counts since its last one.": [
        "test_journal.py::test_a_run_that_fails_before_its_first_evaluation_has_an_audit",
        "test_events.py::test_a_site_that_is_killed_before_the_run_begins_has_audited_what_it_sent",
        "test_journal.py::test_the_audit_has_every_byte_once",
        "test_events.py::test_every_site_logs_who_connected_and_audits_what_it_sent",
        "test_recovery.py::test_a_site_that_joins_with_other_data_is_refused",
    ],
    "Before anything of its table leaves, a site refuses columns of identifiers and free text: text that differs in nearly "
    "every row, or in more than 256 ways.": ["test_shards.py::test_identifiers_are_refused_before_anything_is_sent"],
    "Categories and means of fewer than 5 rows do not leave it.": [
        "test_shards.py::test_values_of_few_rows_do_not_leave"
    ],
    "No message to a user quotes a text of another site's table.": [
        "test_shards.py::test_classes_that_a_site_codes_differently_are_refused_with_its_name",
        "test_shards.py::test_other_spellings_and_words_of_a_site_are_named",
        "test_shards.py::test_a_column_that_does_not_fit_is_named_with_its_site",
    ],
    "A site whose table is refused tells the others its name and the kind of reason.": [
        "test_events.py::test_when_a_table_is_refused_all_sites_stop_with_one_line",
    ],
    "That file is only appended to.": [
        "test_journal.py::test_another_run_in_the_folder_appends_to_the_audit",
    ],
    "`dnasa watch` listens on 127.0.0.1 and serves only clients that know the token in the address it prints.": [
        "test_pages.py::test_a_watched_run_is_served_on_loopback_to_those_with_the_token",
    ],
    "It answers requests that it cannot read with an error.": [
        "test_pages.py::test_bad_requests_get_an_answer",
    ],
    "Pages never interpret text from a run folder as HTML.": [
        "test_pages.py::test_nothing_in_a_run_folder_can_end_the_script_of_a_page",
    ],
}


def sentences(text: str) -> list[str]:
    """Of paragraphs and list items; headings are none."""
    parts = re.split(r"\n\s*\n|\n- ", "\n" + text)
    joined = [" ".join(part.split()).removeprefix("- ") for part in parts if not part.lstrip().startswith("#")]
    return [sentence for part in joined if part for sentence in re.split(r"(?<=\.)\s+(?=[A-Z`])", part)]


def test_every_sentence_has_a_test() -> None:
    found = sentences((ROOT / "SECURITY.md").read_text())
    assert sorted(found) == sorted([*UNTESTABLE, *TESTED])


@pytest.mark.parametrize("name", sorted({name for names in TESTED.values() for name in names}))
def test_the_tests_of_the_sentences_exist(name: str) -> None:
    file, _, function = name.partition("::")
    (path,) = Path(__file__).parent.rglob(file)
    defined = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    assert function in defined if function else any(name.startswith("test_") for name in defined)


def test_packages_that_only_lie_in_the_current_folder_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m dnasa` has the current folder on its path."""
    (tmp_path / "evil-1.dist-info").mkdir()
    (tmp_path / "evil-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1\n")
    (tmp_path / "evil-1.dist-info" / "entry_points.txt").write_text("[dnasa.rules]\nx = evil\n")
    (tmp_path / "evil.py").write_text("raise SystemExit('executed')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="executed"):  # it is found, so the test can fail
        installed.load("x")
    monkeypatch.chdir(tmp_path)
    installed.load("x")


# ---------------------------------------------------------------- code that files name

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
    own_model._function.cache_clear()
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
    done = run(*words, "--plugin", "rules.py", "--model", "net.py:make", "--out", "run", cwd=home)
    assert done.returncode == 0, done.stderr
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
    done = run(*COMMANDS[command].split(), cwd=home)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    code = "trained/model.py" if "trained" in COMMANDS[command] else f"{begun}/net.py"
    assert code in done.stderr
    assert "read the file, then add --trust" in done.stderr
    assert not executed(begun)
    with pytest.raises(InputError, match="trust=True"):
        dnasa.load(home / "trained")


@pytest.mark.parametrize(
    ("command", "verbosity"), [("repeat", ""), ("repeat", "--quiet"), ("resume", "--quiet"), ("resume", "--log-json")]
)
def test_code_that_a_file_names_is_executed_if_it_is_trusted(
    command: str, verbosity: str, begun: Path, home: Path
) -> None:
    done = run(*COMMANDS[command].split(), "--trust", *verbosity.split(), cwd=home)
    assert done.returncode == 0, done.stderr
    for file in ("net.py", "rules.py"):
        assert f"Executing {begun / file}, which run/config.json names." in done.stderr
        assert executed(begun).count(file) == 1
    assert "Executing" not in done.stdout


def test_the_code_of_a_trained_model_is_executed_if_it_is_trusted(begun: Path, home: Path) -> None:
    done = run(*COMMANDS["predict"].split(), "--trust", cwd=home)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"Executing {home / 'trained' / 'model.py'} for its model.\n")
    assert done.stdout.startswith("prediction,p_a,p_b\n")
    assert dnasa.load(home / "trained", trust=True).task == "classification"


@pytest.mark.parametrize("command", ["resume", "repeat"])
def test_code_that_a_file_names_is_executed_if_the_user_names_it_too(command: str, begun: Path, home: Path) -> None:
    named = ["--plugin", begun / "rules.py", "--model", f"{begun / 'net.py'}:make"]
    for some in (named[:2], named[2:]):
        done = run(*COMMANDS[command].split(), *some, cwd=home)
        assert done.returncode == 2
        assert "read the file, then add --trust" in done.stderr
        assert not executed(begun)
    done = run(*COMMANDS[command].split(), *named, cwd=home)
    assert done.returncode == 0, done.stderr
    assert "names." not in done.stderr


def test_resuming_with_another_kind_of_model_is_refused(home: Path) -> None:
    done = run(*COMMANDS["resume"].split(), "--trust", "--model", "mlp:4", cwd=home)
    assert done.returncode == 2
    assert "--model says where the file of a run's own model is now" in done.stderr


def test_code_named_on_the_command_line_is_executed_again_after_a_restart_of_torchrun(
    begun: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    words = f"train --data {home}/rows.csv --target kind --nodes 2 --steps 2 --rule doubled --eta 0.1 --out run".split()
    done = run(*words, "--plugin", begun / "rules.py", "--model", f"{begun / 'net.py'}:make", cwd=home)
    assert done.returncode == 0, done.stderr
    assert executed(begun) == "rules.pynet.py"


def test_a_comparison_that_names_code_must_be_trusted(begun: Path, home: Path) -> None:
    options = {"data": str(home / "rows.csv"), "target": "kind", "steps": 2, "model": f"{begun / 'net.py'}:make"}
    (home / "c.json").write_text(json.dumps({"command": "compare", "options": options}))
    done = run("compare", "--config", "c.json", cwd=home)
    assert done.returncode == 2
    assert f"c.json names code, {begun / 'net.py'}" in done.stderr
    assert not executed(begun)


def test_a_study_that_names_code_must_be_trusted(begun: Path, home: Path) -> None:
    (home / "fails.py").write_text("1 / 0")
    (home / "s.toml").write_text('problems = ["rows.csv"]\ntarget = "kind"\nmodel = "fails.py:make"\n')
    done = run("study", "s.toml", cwd=home)
    assert done.returncode == 2
    assert f"s.toml names code, {home / 'fails.py'}" in done.stderr
    trusted = run("study", "s.toml", "--trust", "--quiet", cwd=home)
    assert f"Executing {home / 'fails.py'}, which s.toml names." in trusted.stderr
    assert "failed at line 1: ZeroDivisionError" in trusted.stderr


def test_a_config_cannot_trust_itself(begun: Path, home: Path) -> None:
    path = home / "run" / "config.json"
    config = json.loads(path.read_text())
    config["options"]["trust"] = True
    path.write_text(json.dumps(config))
    for words in ("resume run", "train --config run/config.json"):
        done = run(*words.split(), cwd=home)
        assert done.returncode == 2
        assert "'trust' is not an option that a config" in done.stderr
    assert not executed(begun)


def test_a_path_that_no_system_can_have_gets_one_clear_line(home: Path) -> None:
    path = home / "run" / "config.json"
    for option, value in (("plugin", ["a\0.py"]), ("model", "a\0.py:make")):
        config = json.loads(path.read_text())
        config["options"] |= {"plugin": [], option: value}
        (home / "c.json").write_text(json.dumps(config))
        done = run("train", "--config", "c.json", "--trust", cwd=home)
        assert done.returncode == 2
        assert f"c.json: {option} must be" in done.stderr


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


def test_a_model_whose_code_has_changed_is_loaded_with_the_new_code(home: Path) -> None:
    before = dnasa.load(home / "trained", trust=True)
    about, code = home / "trained" / "model.json", home / "trained" / "model.py"
    code.write_text(code.read_text().replace("nn.Linear(*inputs, outputs)", "nn.LazyLinear(outputs)"))
    changed = json.loads(about.read_text()) | {"sha256": hashlib.sha256(code.read_bytes()).hexdigest()}
    about.write_text(json.dumps(changed))
    with pytest.raises(InputError, match="does not hold the parameters"):
        dnasa.load(home / "trained", trust=True)
    assert before.task == "classification"


def test_reading_a_run_folder_executes_nothing(begun: Path, home: Path) -> None:
    for words in ("report trained", "report . --html --out page.html", "runs ."):
        done = run(*words.split(), cwd=home)
        assert done.returncode == 0, done.stderr
    with pages.Server(home) as server:
        assert "Details of trained" in server.page()
    assert not executed(begun)


# ---------------------------------------------------------------- other files


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
        done = run("data", home / name, "--target", "0")
        assert done.returncode == 2, name
        assert "plain array" in done.stderr
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
        images.read_images(tmp_path)


IMPORTS = r"^\s*(import|from) (pickle|dill|joblib|shelve|marshal|yaml|runpy|subprocess)\b"
CALLS = r"(?<![\w.])(eval|exec|os\.system|os\.popen|torch\.load|pd\.read_pickle)\("


def test_no_module_unpickles_or_evaluates() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text()
        assert not re.search(IMPORTS, text, re.M), path
        assert not re.search(CALLS, text), path
        assert text.count("np.load(") == len(re.findall(r"np\.load\([^()]*allow_pickle=False\)", text)), path
