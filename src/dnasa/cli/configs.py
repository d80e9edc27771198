"""The options of a run in its `config.json`: written when it begins, read when it is resumed or repeated.

Anybody may have written the file. So only options of the command that a run stores are accepted, each of its own type, and
none of them names a file to write.
"""

import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin

import typer

from dnasa import networks
from dnasa.cli import pictures, plugins
from dnasa.cli.options import FIELDS, Options, flag, negative, split
from dnasa.cli.rendering import print_error, print_line
from dnasa.core import InputError
from dnasa.files import read_bytes, read_json
from dnasa.rules.registry import find

if TYPE_CHECKING:
    from dnasa.runs.folder import RunFolder

RESUMED = "dnasa.resumed"
PLUGINS = "plugins"  # in a config: the checksum of each
DRAWING = ("format", "style", "latex", "x")  # options of what is made of a finished run
CONTINUED = ("rules", "extend", "plugin")  # options by which a finished comparison is continued
NOT_STORED = ("out", "force", "config", "trace", "trust", "quiet", "log_json", "dry_run", "log", "metrics_port")
SOURCES = ("data", "problem", "shard_dir")
CODE = ("plugin", "model")
TYPES: dict[Any, tuple[str, tuple[type, ...]]] = {
    bool: ("true or false", (bool,)),
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
}


# ---------------------------------------------------------------- write


def make_run_folder(context: typer.Context, given: Options) -> "RunFolder | None":
    """The run's folder with all options in its config; checked before the work begins."""
    from dnasa.runs.folder import RunFolder

    out, first = given.out, networks.launched_rank() == 0
    if out is None:
        return None
    begun = (out / "config.json").exists()
    if (begun and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0") or (context.obj or {}).get(RESUMED):
        return RunFolder(out, resume=True)
    options = {name: stored(name, value) for name, value in context.params.items() if name not in NOT_STORED}
    config = {"command": context.info_name, "options": without_unused(options)}
    config |= {PLUGINS: _checksums(given.plugin)} if given.plugin else {}
    if begun and context.info_name == "compare" and not given.force:
        folder = RunFolder(out, resume=True)
        if folder.state in ("done", "diverged") and folder.config.get("command") == "compare":
            _check_continued(folder, given, config, first)
            return folder
    folder = RunFolder(out, config, force=given.force)
    if first:
        folder.check()
    return folder


def _check_continued(folder: "RunFolder", given: Options, config: dict[str, Any], first: bool) -> None:
    """Check that a finished comparison can be drawn again or continued, and say what is new."""
    from dnasa.comparing.grid import new_rules
    from dnasa.runs.result import Result
    from dnasa.tasks.sources import first_of

    row = Result.load(folder.path).history.iloc[0].to_dict()
    check_same_options(folder.path, with_metric(row, folder.config), with_metric(row, config))
    folder.own.check_free(pictures.names("compare", vars(given)))
    new, before = new_rules(folder.config, split(given.rules)), folder.config.get(PLUGINS)
    if not first:
        return
    print_line(f"The runs are read from {folder.path}{f'; new: {first_of(new)}' if new else ''}.")
    for path, checksum in config.get(PLUGINS, {}).items():
        if isinstance(before, dict) and before.get(path, checksum) != checksum:
            print_error(f"Warning: {path} has changed since these runs. They are not repeated: --force repeats all.")


def _checksums(files: Sequence[Path]) -> dict[str, str]:
    return {str(file.resolve()): f"{zlib.crc32(read_bytes(file)):08x}" for file in files}


def add_rules(folder: "RunFolder", given: Options) -> None:
    """Store what is new in a finished comparison in its config, which another process may have changed since."""
    from dnasa.comparing.grid import new_rules
    from dnasa.runs.folder import looks_of

    folder.config = folder.read_config()
    options = folder.config["options"]
    new = new_rules(folder.config, split(given.rules))
    if not new and given.extend == is_extended(folder):
        return
    files, looks = _checksums(given.plugin or ()), looks_of(rule.partition(":")[0] for rule in new)
    rules = ",".join([*split(str(options.get("rules") or "")), *new])
    plugin = [*dict.fromkeys([*(options.get("plugin") or []), *files])]
    options |= {"rules": rules, "extend": given.extend, "plugin": plugin}
    for key, more in ((PLUGINS, files), ("rules", looks)):
        folder.config |= {key: more | (folder.config.get(key) or {})} if more else {}
    folder.write_config()


def is_extended(folder: "RunFolder | None") -> bool:
    """Whether the comparison in this folder was run with --extend: further rules are extended too."""
    options = folder.config.get("options") if folder is not None and folder.resume else None
    return isinstance(options, dict) and options.get("extend") is True


def with_metric(row: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """A config with the metric that it compares in runs whose histories have such rows."""
    from dnasa.comparing.grid import metric_in

    options = config.get("options")
    if not isinstance(options, dict):
        return dict(config)
    return {**config, "options": options | {"metric": metric_in(row, options.get("metric"))}}


def check_same_options(folder: Path, stored: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Refuse to redraw or continue a finished run with options other than its own."""
    before, now = _fixed(stored), _fixed(config)
    for name in now | before:
        if before.get(name) != now.get(name):
            raise InputError(
                f"{folder} holds a run already, with {_difference(name, before.get(name), now.get(name))}: choose another "
                "--out, or replace it with --force."
            )


def _difference(name: str, before: Any, now: Any) -> str:
    from dnasa.comparing.run_table import changed

    if name == "etas":
        return changed(flag(name), split(str(before)), split(str(now)))
    return f"{flag(name)} {before!s:.100} instead of {now!s:.100}"


def _fixed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a finished run keeps."""
    options = config.get("options")
    known = options if isinstance(options, dict) else {}
    return {name: value for name, value in known.items() if name not in (*DRAWING, *CONTINUED)}


def stored(name: str, value: Any) -> Any:
    """Convert an option to JSON, with absolute paths for the user's files."""
    from dnasa.data.datasets import DATASETS

    if isinstance(value, (list, tuple)):
        return [stored(name, part) for part in value]
    if isinstance(value, Path) or (name == "data" and value not in DATASETS):
        return str(Path(value).resolve())
    if name == "model" and value and ".py:" in value:
        return ":".join((str(Path(value.rpartition(":")[0]).resolve()), value.rpartition(":")[2]))
    return value


def without_unused(options: dict[str, Any]) -> dict[str, Any]:
    """Drop the defaults of --data and --partition where a problem or shards replace them."""
    unused = [] if options.get("problem") is None and options.get("shard_dir") is None else ["data"]
    unused += [] if options.get("shard_dir") is None else ["partition"]
    return {name: value for name, value in options.items() if name not in unused}


# ---------------------------------------------------------------- read


def read_options(context: typer.Context, config: Mapping[str, Any], path: Path) -> tuple[str, dict[str, Any]]:
    """The command and the options in a config, checked."""
    command, options = config.get("command"), config.get("options")
    if command == "study":
        raise InputError(
            f"{path.parent} belongs to a study: continue it with the command that began it, `dnasa study`."
        )
    if command not in ("train", "compare") or not isinstance(options, dict):
        raise InputError(f"{path} is not the config of a run of dnasa: it must have a command and options.")
    options = {name: value for name, value in options.items() if value is not None}
    root: Any = context.find_root().command
    known = {param.name for param in root.commands[command].params} - set(NOT_STORED)
    for name, value in options.items():
        if name not in known:
            raise InputError(f"{path}: '{name:.40}' is not an option that a config of `dnasa {command}` can have.")
        _check_type(name, value, path)
    return command, without_unused(options)


def _check_type(name: str, value: Any, path: Path) -> None:
    """Refuse what is not of the option's type: one type, a list of texts or paths, or either of them or None."""
    hint: Any = FIELDS[name].type
    kind = get_args(hint)[0] if get_origin(hint) is UnionType else hint
    several = get_origin(kind) is list
    wanted, types = ("a list of texts", (list,)) if several else TYPES.get(kind, ("a text", (str,)))
    parts = value if several and isinstance(value, list) else [value]
    fits = type(value) in types and (not several or all(isinstance(part, str) for part in parts))
    if not fits or "\0" in "".join(map(str, parts)):
        raise InputError(f"{path}: {name} must be {wanted}, not {value!r:.40}.")


def resume(context: typer.Context, folder: Path, command: str, options: dict[str, Any]) -> None:
    """Run a command with the options of the folder's config, in that folder, with the output that `resume` was asked for."""
    named = {name: stored(name, value) for name, value in explicit(context).items() if name in CODE}
    if "model" in named and not (code_files({"model": named["model"]}) and code_files({"model": options.get("model")})):
        raise InputError("--model says where the file of a run's own model is now: leave it out for other models.")
    options |= named
    foreign = code_files(options) - code_files(named)
    plugins.check_trusted(foreign, folder / "config.json", context.params["trust"])
    options |= {"out": str(folder), "engine": None}
    options |= {name: context.params[name] for name in ("quiet", "log_json", "log", "metrics_port")}
    invoke(context, command, options, {RESUMED: True})


def repeat(context: typer.Context, path: Path) -> None:
    """Run a config; options given on the command line replace those of the file."""
    command, options = read_options(context, read_json(path, "There is no such config", follow=True), path)
    if command != context.info_name:
        raise InputError(f"{path} is of `dnasa {command}`, not of `dnasa {context.info_name}`.")
    given = {name: stored(name, value) for name, value in explicit(context).items() if name not in ("config", "trust")}
    if given.keys() & set(SOURCES):
        options = {name: value for name, value in options.items() if name not in SOURCES}
    plugins.check_trusted(code_files(options | given) - code_files(given), path, context.params["trust"])
    plugins.load([Path(file) for file in (options | given).get("plugin", ())])
    if "rule" in given and not find(given["rule"]).needs_eta:
        options.pop("eta", None)
    if "out" not in given:
        options.pop("checkpoint_every", None)
    invoke(context, command, options | given, None)


def explicit(context: typer.Context) -> dict[str, Any]:
    """The options that were given on the command line."""
    return {
        name: value
        for name, value in context.params.items()
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    }


def code_files(options: Mapping[str, Any]) -> set[Path]:
    """The Python files that these options name: plugins, and that of a model."""
    model, colon, _ = (options.get("model") or "").rpartition(".py:")
    files = [*options.get("plugin", ())]
    if colon:
        files.append(f"{model}.py")
    return {Path(file).resolve() for file in files}


def invoke(context: typer.Context, command: str, options: Mapping[str, Any], obj: dict[str, Any] | None) -> None:
    """Run a command through the command line's own checks."""
    root = context.find_root()
    root.command.main(as_words(command, options), prog_name=root.info_name, standalone_mode=False, obj=obj)


def as_words(command: str, options: Mapping[str, Any]) -> list[str]:
    """The words of the command line that have these options."""
    words = [command]
    for name, value in options.items():
        if value is True:
            words.append(flag(name))
        elif value is False and FIELDS[name].default is None:
            words.append(negative(name))
        elif value is not None and value is not False:
            words += [f"{flag(name)}={part}" for part in (value if isinstance(value, list) else [value])]
    return words
