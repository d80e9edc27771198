"""What channels remember and refuse, and that lost messages leave the mean where it is."""

import json
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load, save

import dnasa
from dnasa import Result, channels, core, rules, topology
from dnasa.communication import Channel
from dnasa.core import Array, Gradients, InputError, Messages, Rule
from dnasa.networks import simulated
from dnasa.problems import Custom
from dnasa.runs.history import Evaluation
from dnasa.topology import Topology

RING = topology.ring(4)
CHOCO = channels.choco(channels.top_k(0.4), gamma=0.3)


def flat(dtype: Any = np.float64) -> Custom:
    return Custom(lambda x, node, rng: 0 * x, start=np.zeros(5, dtype), fingerprint="flat")


def run(
    channel: Channel | None = None,
    rule: Rule | str | None = None,
    graph: Topology = RING,
    problem: Custom | None = None,
    overlap: bool = False,
    **options: Any,
) -> Result:
    network = dnasa.connect(graph, channel=channel, overlap=overlap)
    chosen: Any = {"steps": 20, "progress": False} | options
    return dnasa.solve(problem or flat(), network, rule or rules.dsgd(lambda t: 0.1), **chosen)


CHANNELS = {
    "float16": channels.compression("float16"),
    "bfloat16": channels.compression("bfloat16"),
    "compressed": CHOCO,
    **{name: channels.compression(name) for name in ("sign", "moniqua:8", "moniqua:4,8/3")},
    "lost": channels.faulty(drop=0.3),
}
KINDS = [["float16", "bfloat16"], ["compressed", "sign", "moniqua:8", "moniqua:4,8/3"], ["lost"]]
AMPLIFY = ("d2", "edm", "extra")  # differences between iterates, and so what was lost or late
SCALE_FREE = ("dadam", "gt_adam", "gt_nsgdm", "demuon")  # their steps do not scale with the loss
LEARNERS = [name for name in rules.RULES if name not in (*AMPLIFY, "adgt")]  # adgt learns without noise only


@pytest.mark.parametrize(("rule", "channel"), [(r, kind[i % len(kind)]) for i, r in enumerate(LEARNERS) for kind in KINDS])
def test_every_rule_learns_through_every_kind_of_channel(rule: str, channel: str) -> None:
    """Rounding and compression make small messages negative that are positive by themselves, such as second moments."""
    target = np.random.default_rng(0).standard_normal((4, 40))

    def gradient(x: Array, node: int, rng: np.random.Generator) -> Array:
        return 2e-4 * (x - target[node] + 0.1 * rng.standard_normal(40) * (np.arange(40) % 8 == node))

    problem = Custom(gradient, start=np.zeros(40, np.float32), fingerprint="small gradients")
    eta: Any = {} if not rules.RULES[rule].needs_eta else {"eta": 0.05 if rule in SCALE_FREE else 100.0}
    done = run(CHANNELS[channel], rule, problem=problem, steps=80, evaluate=[80], **eta)
    assert done.runs.diverged.isna().all()
    mean = target.mean(0)
    assert np.linalg.norm(done.mean - mean) < 0.7 * np.linalg.norm(mean)


def test_compression_with_memory_is_refused_on_a_changing_graph() -> None:
    changing = topology.changing([topology.ring(4), topology.path(4)])
    with pytest.raises(InputError, match="does not suit changing, which changes"):
        simulated.connect(changing, channel=CHOCO)
    simulated.connect(changing, channel=channels.faulty(drop=0.2))


def test_links_fail_both_ways_where_w_is_symmetric_to_rounding() -> None:
    W = RING.weights.copy()
    W[0, 1] += 1e-12
    W[1, 1] -= 1e-12
    graph = topology.from_matrix(W)
    assert not graph.directed
    done = run(channels.faulty(drop=0.3), graph=graph, start=np.ones((4, 5)), steps=200)
    np.testing.assert_allclose(done.x, 1, atol=1e-8)


class Plain(NamedTuple):
    x: Array


def alternating() -> Rule:
    """Messages of another width in every second step."""

    def send(s: Any, gradients: Gradients, t: int) -> tuple[Messages, Any]:
        return ((s.x,) if t % 2 == 0 else (s.x[..., :1],)), s

    return Rule(Plain, send, lambda s, mixed: s)


def test_messages_that_change_their_width_are_refused_by_channels_with_memory() -> None:
    with pytest.raises(InputError, match=r"Message 0 has shape \(1, 1, 4, 1\), the channel remembers .*same widths"):
        run(CHOCO, alternating())


class Stop(Exception): ...


def stop_late(evaluation: Evaluation) -> None:
    if evaluation.step > 10:
        raise Stop


def interrupted(folder: Path, **options: Any) -> None:
    with pytest.raises(Stop):
        run(folder=folder, record=dnasa.Record(checkpoint_every=5, callback=stop_late), **options)


def change(folder: Path, name: str, array: Array | None) -> None:
    """Replace an array of the newest checkpoint, or remove it, and give the file its new checksum."""
    *older, newest = sorted((folder / "checkpoints").glob("step-*"))
    data = newest.read_bytes()
    arrays = load(data)
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    for path in (*older, newest):
        path.unlink()
    arrays.pop(name, None)
    changed = save(arrays | ({} if array is None else {name: array}), metadata=metadata)
    newest.with_name(f"{newest.name[:17]}-{zlib.crc32(changed):08x}.safetensors").write_bytes(changed)


@pytest.mark.parametrize(
    ("channel", "name", "array"),
    [
        (CHOCO, "0.memory.0.0.1", None),
        (CHOCO, "0.memory.0.0.1", np.zeros((1, 1, 4, 3))),
        (CHOCO, "0.memory.0.0.2", np.zeros((1, 1, 4, 5))),
        (channels.moniqua(4), "0.memory.0.0.0", np.zeros((1, 1, 4, 2))),
    ],
)
def test_a_checkpoint_with_another_channel_memory_is_refused(channel: Channel, name: str, array: Array, tmp_path: Path) -> None:
    interrupted(tmp_path / "a", channel=channel)
    change(tmp_path / "a", name, array)
    with pytest.raises(InputError, match="the channel remembers"):
        run(channel, folder=tmp_path / "a", resume=True)


def test_early_messages_that_hidden_exchanges_need_are_missed_with_a_clear_line() -> None:
    rule = Rule(
        Plain,
        lambda s, gradients, t: (() if t % 2 else (s.x,), s),
        lambda s, mixed: s._replace(x=mixed[0]),
        early=lambda s, t: (s.x,) if t % 2 else (),
    )
    run(rule=rule)
    with pytest.raises(core.InputError, match="no early message at step 0"):
        run(rule=rule, overlap=True)
