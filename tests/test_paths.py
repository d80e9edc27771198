"""Every public function that takes a path takes it as text and as a Path."""

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import dnasa
from dnasa.comparing import grid
from dnasa.tasks import tasks

PUBLIC = [
    dnasa,
    *(part for name in dnasa.__all__ if isinstance(part := getattr(dnasa, name), ModuleType)),
    grid,
    tasks,
]


def functions(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name in getattr(module, "__all__", vars(module)):
        part = getattr(module, name)
        owned = vars(part).items() if inspect.isclass(part) else [("", part)]
        yield from ((f"{module.__name__}.{name}.{member}".rstrip("."), value) for member, value in owned)


def test_no_public_function_wants_a_path_that_is_no_text() -> None:
    found = {}
    for module in PUBLIC:
        for name, function in functions(module):
            function = getattr(function, "__func__", function)
            if inspect.isfunction(function) and function.__module__.startswith("dnasa"):
                for parameter in inspect.signature(function).parameters.values():
                    if "Path" in str(parameter.annotation):
                        found[f"{name}({parameter.name})"] = str(parameter.annotation)
    assert {"dnasa.data.from_text(path)", "dnasa.load(folder)", "dnasa.Result.load(path)"} <= found.keys()
    assert [where for where, kind in found.items() if "str" not in kind] == []
