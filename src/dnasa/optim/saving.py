"""A node's state as `state_dict` has it: arrays of the size of the parameters by parameter, the rest separately."""

from typing import Any

import torch
from torch import Tensor

from dnasa.core import InputError, leaves, rebuilt
from dnasa.optim.flat import divided, local, views
from dnasa.optim.node import Node
from dnasa.runs.snapshots import Sent, Snapshot

REQUIRED = {"step", "per_node", "memory", "sent", "averaged"}  # of a saved state, besides the node and their number


def saved_state(node: Node) -> tuple[dict[Tensor, dict[str, Tensor]], dict[str, Any]]:
    """What torch stores by parameter, and the rest."""
    state, memory, sent = node.snapshot()
    parameters, averaged = node.parameters, node.own_values is not None
    by_parameter: dict[Tensor, dict[str, Tensor]] = {p: {} for p in parameters.trained}
    per_node = {}
    for name, a in _saved(node, leaves(state), averaged).items():
        if (stride := node.strides[name]) == 1:
            for p, view in zip(parameters.trained, views(a, parameters.gradients), strict=True):
                by_parameter[p][name] = divided(view, p)
        else:
            per_node[name] = node.shards.whole(a, stride)
    return by_parameter, {
        "step": node.t,
        "node": node.network.local_nodes[0],
        "nodes": node.network.nodes,
        "per_node": per_node,
        "memory": {node.shards.name: tuple(memory.items())} if node.network.settings.channel else {},
        "sent": [sent.messages, sent.bytes],
        "averaged": averaged,
    }


def load_state(node: Node, state_dict: dict[str, Any]) -> None:
    """Continue with a saved state, if it is one of this node, model and rule."""
    saved = _checked(node, state_dict.get("decentralized"))
    snapshot = _loaded(node, saved, state_dict["state"])
    node.halt()
    node.restore(snapshot, saved["step"], move=saved["averaged"])  # then the model's file has the mean


def _saved(node: Node, arrays: dict[str, Tensor], averaged: bool) -> dict[str, Tensor]:
    """All arrays of the rule's state but x, its first, where that is what the model's parameters hold."""
    return arrays if node.rule.points is not None or averaged else dict(list(arrays.items())[1:])


def _checked(node: Node, saved: Any) -> dict[str, Any]:
    if not isinstance(saved, dict):
        saved = {}
    number = node.network.local_nodes[0]
    if saved.get("nodes") != node.network.nodes or saved.get("node") != number:
        raise InputError(
            f"This state is of node {saved.get('node')} of {saved.get('nodes')}, this process is node {number} of "
            f"{node.network.nodes}: every node saves and loads a file of its own. With another number of nodes, start from the "
            "model saved inside averaged()."
        )
    if REQUIRED - saved.keys():
        raise InputError(f"This state is damaged or of another version: it has no '{min(REQUIRED - saved.keys())}'.")
    return saved


def _loaded(node: Node, saved: dict[str, Any], by_number: dict[int, dict[str, Tensor]]) -> Snapshot:
    """The snapshot in a `state_dict`, in which torch numbers the parameters of all groups."""
    gradient, trained = node.parameters.gradient, node.parameters.trained
    everyone = [p for group in node.parameters.groups for p in group["params"]]
    numbers = {id(p): i for i, p in enumerate(everyone)}
    by_parameter = [by_number.get(numbers[id(p)], {}) for p in trained]
    arrays = leaves(node.loaded.state)
    for name, expected in _saved(node, arrays, saved["averaged"]).items():
        if (stride := node.strides[name]) == 1:
            parts, shapes = by_parameter, [g.shape for g in node.parameters.gradients]
        else:
            parts, shapes = [saved["per_node"]], [node.shards.whole_shape(expected, stride)]
        if any(name not in part or local(part[name]).shape != shape for part, shape in zip(parts, shapes, strict=True)):
            raise InputError("This state is of another model or another rule: make both as they were when it was saved.")
        a = torch.cat([local(part[name]).reshape(-1) for part in parts])[None].to(gradient)
        arrays[name] = a if stride == 1 else node.shards.part(a, stride)
    memory = {
        number: tuple(tuple(a.to(gradient.device) for a in arrays) for arrays in entries)
        for number, entries in saved["memory"].get(node.shards.name, ())
    }
    return Snapshot(rebuilt(node.loaded.state, arrays), memory, Sent(*saved["sent"]))
