"""The options of a run in its `config.json`: written when it begins, read when it is resumed or repeated.

Anybody may have written the file. So only options of the command that a run stores are accepted, each of its own type, and
none of them names a file to write.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dnasa import networks
from dnasa.cli import pictures, plugins
from dnasa.cli.options import FIELDS, Options, flag, negative
from dnasa.cli.rendering import print_line
from dnasa.core import InputError
from dnasa.files import read_json

if TYPE_CHECKING:
    from dnasa.runs.folder import RunFolder

RESUMED = "dnasa.resumed"
REDRAWN = ("format", "style", "latex", "x", "metric", "extend")  # options with which a finished comparison is drawn again
NOT_STORED = ("out", "force", "config", "trust", "quiet", "log_json", "dry_run")
SOURCES = ("data", "problem", "shard_dir")
CODE = ("plugin", "model")


def make_run_folder(context: typer.Context, options: Options) -> "RunFolder | None":
    """The run's folder with all options in its config; checked before the work begins."""
    from dnasa.runs.folder import RunFolder

    out = options.out
    if out is None:
        return None
    begun = (out / "config.json").exists()
    if (begun and _started_again(out)) or (context.obj or {}).get(RESUMED):
        return RunFolder(out, resume=True)
    to_store = {name: stored(name, value) for name, value in context.params.items() if name not in NOT_STORED}
    config: dict[str, Any] = {"command": context.info_name, "options": without_unused(to_store)}
    config |= {"job": job} if (job := _job()) else {}
    if begun and context.info_name == "compare" and not options.force:
        folder = RunFolder(out, resume=True)
        if folder.state in ("done", "diverged") and folder.config.get("command") == "compare":
            _check_continued(folder, options, config["options"])
            return folder
    folder = RunFolder(out, config, force=options.force)
    if networks.launched_rank() == 0:
        folder.check()
    return folder


def _job() -> str | None:
    """The name of the torchrun job, if it has one: `--rdzv-id`."""
    job = os.environ.get("TORCHELASTIC_RUN_ID")
    return None if job == "none" else job


def _started_again(out: Path) -> bool:
    """Whether torchrun has started the processes of a run again; machines that join or leave do not count as restarts."""
    if job := _job():
        return read_json(out / "config.json", f"{out} holds no run").get("job") == job
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def _check_continued(folder: "RunFolder", options: Options, now: dict[str, Any]) -> None:
    """Check that a finished comparison can be drawn again or extended, and say so."""
    before = folder.options
    for name in now | before:
        if name not in REDRAWN and before.get(name) != now.get(name):
            raise InputError(
                f"{folder.path} holds a run already, with {flag(name)} {before.get(name)!s:.100} instead of "
                f"{now.get(name)!s:.100}: choose another --out, or replace it with --force."
            )
    folder.own.check_free(pictures.names("compare", vars(options)))
    print_line(f"The runs are read from {folder.path}.")


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


def read_options(context: typer.Context, config: Mapping[str, Any], path: Path) -> tuple[str, dict[str, Any]]:
    command, options = config.get("command"), config.get("options")
    if command == "study":
        raise InputError(f"{path.parent} belongs to a study: continue it with the command that began it, `dnasa study`.")
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
    from pydantic import TypeAdapter, ValidationError

    hint: Any = FIELDS[name].type
    adapter: TypeAdapter[Any] = TypeAdapter(hint)
    try:
        adapter.validate_json(json.dumps(value), strict=True)
        if "\\u0000" not in json.dumps(value):
            return
        reason = "It has a null character"
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
    raise InputError(f"{path}: {name} cannot be {value!r:.40}: {reason}.")


def resume(context: typer.Context, folder: Path, command: str, options: dict[str, Any]) -> None:
    """Run a command with the options of the folder's config, in that folder, with the output that `resume` was asked for."""
    named = {name: stored(name, value) for name, value in explicit(context).items() if name in CODE}
    if "model" in named and not (code_files({"model": named["model"]}) and code_files({"model": options.get("model")})):
        raise InputError("--model says where the file of a run's own model is now: leave it out for other models.")
    options |= {"out": str(folder), "engine": None}
    options |= {name: context.params[name] for name in ("quiet", "log_json")}
    _run(context, folder / "config.json", command, options, named, resumed=True)


def repeat(context: typer.Context, path: Path) -> None:
    """Run a config; options given on the command line replace those of the file."""
    command, options = read_options(context, read_json(path, "There is no such config", follow=True), path)
    if command != context.info_name:
        raise InputError(f"{path} is of `dnasa {command}`, not of `dnasa {context.info_name}`.")
    named = {name: stored(name, value) for name, value in explicit(context).items() if name not in ("config", "trust")}
    unused = [*(SOURCES if named.keys() & set(SOURCES) else ()), *(["checkpoint_every"] if "out" not in named else [])]
    unused += ["eta"] if "rule" in named and "eta" not in named else []
    _run(context, path, command, {name: options[name] for name in options if name not in unused}, named)


def _run(
    context: typer.Context,
    path: Path,
    command: str,
    options: dict[str, Any],
    named: dict[str, Any],
    resumed: bool = False,
) -> None:
    """Run a command through the command line's own checks: options of the config at `path`, then those that the user named."""
    options |= named
    remedies = "--plugin FILE, --model FILE.py:NAME or --trust"
    plugins.check_trusted(code_files(options) - code_files(named), path, context.params["trust"], remedies)
    words = [command]
    for name, value in options.items():
        if value is True:
            words.append(flag(name))
        elif value is False and FIELDS[name].default is None:
            words.append(negative(name))
        elif value is not None and value is not False:
            words += [f"{flag(name)}={part}" for part in (value if isinstance(value, list) else [value])]
    root = context.find_root()
    root.command.main(words, prog_name=root.info_name, standalone_mode=False, obj={RESUMED: resumed})


def explicit(context: typer.Context) -> dict[str, Any]:
    return {
        name: value
        for name, value in context.params.items()
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    }


def code_files(options: Mapping[str, Any]) -> set[Path]:
    """The Python files that these options name: plugins, and that of a model."""
    model, colon, _ = (options.get("model") or "").rpartition(".py:")
    files = [*options.get("plugin", ()), *([f"{model}.py"] if colon else [])]
    return {Path(file).resolve() for file in files}
