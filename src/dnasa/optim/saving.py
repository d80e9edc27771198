"""The state of an optimizer as `state_dict` has it: arrays as large as the parameters by parameter, the rest of its own."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dnasa.core import InputError, Sent, Snapshot, State, leaves, rebuilt
from dnasa.optim.parameters import views

if TYPE_CHECKING:
    from dnasa.optim.decentralized import Decentralized

OWN = {"step", "per_node", "memory", "sent"}  # of a saved state, besides the node and their number


def saved_names(opt: "Decentralized", state: State, averaged: bool) -> list[str]:
    """All arrays of the rule's state but x, where that is what the model's parameters hold."""
    names = list(leaves(state))
    return names[1:] if opt.rule.points is None and not averaged else names


def saved_state(opt: "Decentralized") -> dict[str, Any]:
    """What torch does not store by parameter; that is put into `opt.state`."""
    state, memory, sent = opt.waited_snapshot()
    arrays, trained = leaves(state), opt.parameters.trained
    per_node, averaged = {}, opt.own_values is not None
    for name in saved_names(opt, state, averaged):
        if arrays[name].shape == opt.parameters.gradient.shape:
            for p, view in zip(trained, views(arrays[name], trained), strict=True):
                opt.state[p][name] = view
        else:
            per_node[name] = arrays[name]
    return {
        "step": opt.t,
        "node": opt.network.local_nodes[0],
        "nodes": opt.network.nodes,
        "per_node": per_node,
        "memory": memory,
        "sent": [sent.messages, sent.bytes],
        "averaged": averaged,
    }


def loaded_state(opt: "Decentralized", state_dict: dict[str, Any]) -> tuple[Snapshot, int]:
    """The snapshot and the step in a saved state, if it is one of this node, model and rule."""
    own = _checked(opt, state_dict.get("decentralized"))
    numbers = {id(p): i for i, p in enumerate(p for group in opt.param_groups for p in group["params"])}
    saved = [state_dict["state"].get(numbers[id(p)], {}) for p in opt.parameters.trained]
    state = opt.snapshot.state
    memory = {
        number: tuple(tuple(a.to(opt.parameters.gradient.device) for a in arrays) for arrays in entries)
        for number, entries in own["memory"].items()
    }
    names = saved_names(opt, state, own.get("averaged", False))
    arrays = leaves(state) | _arrays(opt, names, saved, own["per_node"])
    return Snapshot(rebuilt(state, arrays), memory, Sent(*own["sent"])), own["step"]


def _checked(opt: "Decentralized", own: Any) -> dict[str, Any]:
    own, node = own if isinstance(own, dict) else {}, opt.network.local_nodes[0]
    if own.get("nodes") != opt.network.nodes or own.get("node") != node:
        raise InputError(
            f"This state is of node {own.get('node')} of {own.get('nodes')}, this process is node {node} of "
            f"{opt.network.nodes}: every node saves and loads a file of its own."
        )
    if OWN - own.keys():
        raise InputError(f"This state is damaged or of another version: it has no '{min(OWN - own.keys())}'.")
    return own


def _arrays(
    opt: "Decentralized", names: list[str], saved: list[dict[str, Tensor]], per_node: dict[str, Tensor]
) -> dict[str, Tensor]:
    expected, trained = leaves(opt.snapshot.state), opt.parameters.trained
    arrays = {}
    for name in names:
        whole = expected[name].shape != opt.parameters.gradient.shape
        good = (
            name in per_node and per_node[name].shape == expected[name].shape
            if whole
            else all(name in s and s[name].shape == p.shape for s, p in zip(saved, trained, strict=True))
        )
        if not good:
            raise InputError(
                "This state is of another model or another rule: make both as they were when it was saved."
            )
        joined = per_node[name] if whole else torch.cat([each[name].reshape(-1) for each in saved])[None]
        arrays[name] = joined.to(opt.parameters.gradient)
    return arrays
