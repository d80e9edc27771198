"""A trained model in a run folder: `model.safetensors` has its parameters and buffers, `model.json` says what they belong to.

Nothing is pickled. The model of a user's own file is stored with a copy of that file, `model.py`, and its checksum; loading
executes the copy and no other file, and only if the caller trusts it.
"""

import hashlib
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dnasa.checks import first_line
from dnasa.core import InputError
from dnasa.data import Encoding
from dnasa.files import make_folder, read_bytes, read_json, refusing_damage, to_json
from dnasa.runs.environment import versions
from dnasa.runs.own_files import OwnFiles
from dnasa.tasks import models, own_model
from dnasa.trained.model import TrainedModel

FORMAT = 1
KINDS = ("numbers", "bytes", "tokens")
COPY = "model.py"


def save(folder: str | Path, model: TrainedModel, name: str, about: dict[str, Any] | None = None) -> None:
    """Write the model into a folder, from which `load` reads it.

    Args:
        folder: The folder; it is created if necessary.
        model: The trained model.
        name: The name of its network, as `--model` takes it.
        about: Further entries of `model.json`.
    """
    from safetensors.torch import save as serialized

    own = OwnFiles(make_folder(folder))
    description = {
        "format": FORMAT,
        "model": name,
        "inputs": model.kind,
        "encoding": model.encoding.to_json(),
        "versions": versions(),
        **(about or {}),
    }
    if own_model.is_own(name):
        _, function = own_model.parts(name)
        code = own_model.source(name)
        description |= {"model": f"{COPY}:{function}", "sha256": hashlib.sha256(code).hexdigest()}
        own.write(COPY, code)
    tensors = {part: a.detach().cpu().contiguous() for part, a in _named(model.network).items()}
    own.write("model.safetensors", serialized(tensors))
    own.write("model.json", to_json(description))


def load(folder: str | Path, trust: bool = False) -> TrainedModel:
    """The model of a finished run.

    Args:
        folder: The folder of the run.
        trust: Whether to execute the folder's `model.py`, which a model from a file of your own needs.
    """
    path = Path(folder)
    if not (path / "model.json").is_file():
        raise InputError(f"{path} holds no trained model: give the folder of a finished `dnasa train --out` with data.")
    description = read_json(path / "model.json", "model.json")
    with refusing_damage(path / "model.json"):
        if description["format"] != FORMAT:
            raise InputError(f"{path / 'model.json'} is of another version of dnasa: train the model again.")
        name, kind, encoding = (
            str(description["model"]),
            description["inputs"],
            Encoding.from_json(description["encoding"]),
        )
        if kind not in KINDS:
            raise ValueError("inputs")
    tensors = _read(path / "model.safetensors")
    if own_model.is_own(name):
        code = _own_code(path, name, description.get("sha256"), trust)
        make = own_model.maker(f"{path / name}", encoding.shape, encoding.outputs, code)
    else:
        make = models.network(name, encoding.shape, encoding.outputs, str(path))
    return TrainedModel(_network(path, name, make, tensors), encoding, kind)


def _named(network: nn.Module) -> dict[str, Tensor]:
    """The tensors to save; shared parameters occur once, under the first of their names."""
    persistent = network.state_dict(keep_vars=True)
    first = {id(a): name for name, a in reversed(persistent.items())}
    return {name: a for name, a in persistent.items() if first[id(a)] == name}


def _read(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load as parse

    try:
        return parse(read_bytes(path, largest=math.inf))
    except (OSError, SafetensorError, ValueError) as error:
        raise InputError(f"Cannot read {path}: {first_line(error)}. Train the model again.") from error


def _own_code(folder: Path, name: str, expected: Any, trust: bool) -> bytes:
    """The copy of the user's file. Its checksum shows damage, but not who wrote it: it is in the same folder."""
    code, copy = b"", folder / COPY
    with suppress(OSError):
        code = read_bytes(copy)
    if str(own_model.parts(name)[0]) != COPY or hashlib.sha256(code).hexdigest() != expected:
        raise InputError(f"{copy} is not the file that the model was trained with: it is not executed.")
    if not trust:
        raise InputError(
            f"This model needs the code in {copy}, which is not executed unless you trust it: read the file, then add "
            "--trust (in Python, trust=True)."
        )
    return code


def _network(folder: Path, name: str, make: Callable[[], nn.Module], tensors: dict[str, Tensor]) -> nn.Module:
    """Build the network and fill it; shapes are checked before memory is used."""
    try:
        if not own_model.is_own(name):
            with torch.device("meta"):
                _check(make(), tensors)
        network = make()
        _check(network, tensors)
        network.to(next(a.dtype for a in tensors.values() if a.is_floating_point()))
        network.load_state_dict(tensors, strict=False)
    except InputError:
        raise
    except (RuntimeError, StopIteration, ValueError) as error:
        raise InputError(
            f"{folder}/model.safetensors does not hold the parameters of {name}: train it again."
        ) from error
    return network


def _check(network: nn.Module, tensors: dict[str, Tensor]) -> None:
    expected = {name: (tuple(a.shape), a.is_floating_point()) for name, a in _named(network).items()}
    if expected != {name: (tuple(a.shape), a.is_floating_point()) for name, a in tensors.items()}:
        raise ValueError("other names or shapes")
