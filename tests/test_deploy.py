"""The files in deploy/ use options, sites and ports that exist."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from dnasa.cli import app

DEPLOY = Path(__file__).parents[1] / "deploy"
FILES = ["compose.yaml", "kubernetes.yaml", "train.slurm", "dnasa@.service", "README.md"]


def commands(name: str) -> Iterator[list[str]]:
    """The calls of dnasa in a file, without the program."""
    text = (DEPLOY / name).read_text()
    if name == "compose.yaml":
        yield from (shlex.split(service["command"]) for service in yaml.safe_load(text)["services"].values())
    elif name == "kubernetes.yaml":
        pod = stateful_set()["spec"]["template"]["spec"]
        yield from (container["args"] for container in pod["containers"])
    elif name == "train.slurm":
        yield from map(shlex.split, re.findall(r"-m dnasa (.*)", text))
    elif name == "dnasa@.service":
        yield from (shlex.split(line) for line in re.findall(r"^ExecStart=\S+/dnasa (.*)", text, re.MULTILINE))
        yield from (["train", *shlex.split(line)] for line in re.findall(r"^# OPTIONS=(.*)", text, re.MULTILINE))
    else:
        lines = [line.partition("#")[0] for line in text.splitlines()]
        calls = [call for line in lines for call in re.findall(r"\bdnasa ((?:train|keys) [^;`|]*)", line)]
        yield from map(shlex.split, calls)


def stateful_set() -> dict[str, Any]:
    parts = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    return next(part for part in parts if part["kind"] == "StatefulSet")


def unknown(words: list[str]) -> set[str]:
    """The options of a call that its command does not have."""
    known: Any = typer.main.get_command(app)
    options = {flag for each in known.commands[words[0]].params for flag in each.opts}
    return {word.partition("=")[0] for word in words if word.startswith("--")} - options


@pytest.mark.parametrize("name", FILES)
def test_the_options_exist(name: str) -> None:
    found = list(commands(name))
    assert found
    assert [words for words in found if unknown(words)] == []


def test_compose_has_the_sites_of_its_file_each_with_its_own_keys() -> None:
    sites = tomllib.loads((DEPLOY / "sites.toml").read_text())["sites"]
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert services.keys() == sites.keys()
    assert all(address in ("", f"{name}:7400") for name, address in sites.items())
    for name, service in services.items():
        assert f"./keys/{name}:/keys:ro" in service["volumes"]
        assert f"{name}:/work" in service["volumes"]


def test_kubernetes_has_a_site_for_each_pod() -> None:
    parts = {part["kind"]: part for part in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}
    sites = tomllib.loads(parts["ConfigMap"]["data"]["sites.toml"])["sites"]
    name, service = parts["StatefulSet"]["metadata"]["name"], parts["StatefulSet"]["spec"]["serviceName"]
    replicas = parts["StatefulSet"]["spec"]["replicas"]
    assert sites == {f"{name}-{pod}": f"{name}-{pod}.{service}:7400" for pod in range(replicas)}
    assert (parts["Service"]["metadata"]["name"], parts["Service"]["spec"]["clusterIP"]) == (service, "None")


def test_the_image_is_not_of_root_and_has_what_setup_reads() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("USER")] == ["USER 10001"]
    copied = {word for line in lines if line.startswith("COPY") and "--from" not in line for word in line.split()[1:-1]}
    ignored = (DEPLOY.parent / ".dockerignore").read_text().splitlines()
    assert copied == {line[1:] for line in ignored if line.startswith("!")}
    assert all((DEPLOY.parent / name).exists() for name in copied)
