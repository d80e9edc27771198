"""Differential privacy: gradients are those of the equations, the noise keeps the budget, and only the site can draw it."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import refused, succeed
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri
from scipy.stats import norm
from thread_network import run_threads
from torch import nn
from torch.nn.functional import mse_loss

import dnasa
from dnasa import topology
from dnasa.channels import exchange
from dnasa.channels.secure_sum import secure_sum
from dnasa.communication import Network
from dnasa.core import InputError, RunError
from dnasa.data import Dataset
from dnasa.networks import dry_run, simulated
from dnasa.problems import Classification, Privacy, Supervised
from dnasa.problems.privacy import Budget, Noise, noise_multiplier, uniform
from dnasa.rules import RULES, registry
from dnasa.runs.releases import Releases

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((90, 4)), RNG.integers(0, 2, 90)
SHARDS = np.array_split(np.arange(60), 3)
GRAPH = topology.complete(3)
NAMES = ["berlin", "lyon", "oslo"]


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True), nn.Linear(3, 2))


def scalar() -> nn.Module:
    return nn.Linear(4, 1)


def problem(inputs: np.ndarray = X, shards: Sequence[np.ndarray] = SHARDS, **more: Any) -> Classification:
    chosen: dict[str, Any] = {"batch": 8, "dtype": "float64", "privacy": Privacy(3, 1e-3)} | more
    return Classification(chosen.pop("model", model), inputs[:60], Y[:60], shards, inputs[60:], Y[60:], **chosen)


@pytest.mark.parametrize("sigma", [[0.5, 1.0, 2.0], [5.0, 10.0, 20.0]])
def test_the_gradient_is_that_of_a_loop_over_the_drawn_rows(sigma: list[float]) -> None:
    task = problem()
    task.private_noise = Noise(Budget(Privacy(3), 10, sigma, False), b"secret")
    points = torch.stack([task.start(seed) for seed in range(3)])
    found, module = task.gradient(points[None, None], range(3), [7], 5)[0, 0], model().double()
    for node, point in enumerate(points):
        rows = SHARDS[node]
        data = f"{task.inputs.checksum(rows)} {task.labels.checksum(rows)}"
        key = task.private_noise.key(7, node, 5, data, point.numpy().tobytes())
        expected = sigma[node] * ndtri(uniform(key, b"noise", len(point)))
        for row in rows[uniform(key, b"rows", 20) < 8 / 20]:
            nn.utils.vector_to_parameters(point, module.parameters())
            module.zero_grad()
            outputs = module(torch.as_tensor(X[[row]]))
            nn.functional.cross_entropy(outputs, torch.as_tensor(Y[[row]])).backward()
            wrong = [np.linalg.norm(outputs.softmax(1)[0].detach().numpy() - one) for one in np.eye(2)]  # by label
            g = torch.cat([part.grad.ravel() for part in module.parameters()]).numpy()  # type: ignore[union-attr]
            expected += wrong[Y[row]] / max(wrong) * g / (1.0001 * np.linalg.norm(g) + 1e-6)
        of_mean = math.sqrt(sum(each**2 for each in sigma) * len(point)) / 3
        np.testing.assert_allclose(found[node], expected / max(8, of_mean), rtol=1e-9)


@pytest.mark.parametrize("names", [(), NAMES])
@pytest.mark.parametrize("privacy", [None, Privacy(3, 1e-3)])
def test_own_test_rows_are_not_measured_during_a_run_of_sites_or_with_a_budget(
    names: Any, privacy: Privacy | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dnasa.engine.budget.noise_multiplier", lambda *given: 1.0)  # the accountant takes seconds
    for counts in ([], [4, 4, 4]):
        task = problem(privacy=privacy)
        task.test_counts = counts
        network = dry_run.connect(GRAPH, None, None, names) if names else simulated.connect(GRAPH)
        history = solved(network, task).history
        assert ("test_loss" in history) == (not counts or (not names and privacy is None))


@given(st.integers(0, 59), st.floats(allow_nan=True, allow_infinity=True, width=32), st.sampled_from([0, 1e-21, 1, 1e9]))
@settings(max_examples=40, deadline=None)
def test_whatever_a_row_and_the_model_hold_it_moves_the_sum_by_at_most_1(row: int, value: float, scale: float) -> None:
    inputs = X.copy()
    inputs[row] *= value
    for task in (
        problem(inputs),
        problem(inputs, dtype="float32"),
        Supervised(scalar, mse_loss, Dataset("rows", inputs, 9.0 * X[:, :1], X, X[:, :1]), SHARDS, privacy=Privacy(3)),
    ):
        g = task.executor.unit_gradients(scale * task.start(0), torch.arange(60)).double()  # type: ignore[attr-defined]
        assert torch.isfinite(g).all()
        assert (g.sum(0) - g[torch.arange(60) != row].sum(0)).norm() <= 1 + 1e-12


def test_rare_events_count_as_in_cross_entropy() -> None:
    x, events = np.repeat(X[:60, :1] > 0, 20, axis=0).astype(float), np.tile(np.arange(20) < 2, 60)  # 10 % of each kind
    task = Classification(
        lambda: nn.Linear(1, 2), x, events.astype(int), [np.arange(1200)], X[:2, :1], Y[:2], dtype="float64", privacy=Privacy(3)
    )
    logit = math.log(0.1 / 0.9)
    point = torch.tensor([0.0, 0.0, 0.0, logit], dtype=torch.float64)
    g = task.executor.unit_gradients(point, torch.arange(1200))  # type: ignore[attr-defined]
    assert g.norm(dim=1).max() > 0.99, "the worst label counts as much as a row may"
    assert g.mean(0).norm() < 1e-6, "the true probabilities are stationary"


def test_each_row_is_drawn_by_itself_at_its_rate_and_noise_is_normal() -> None:
    noise = Noise(Budget(Privacy(3), 1, [1.0], False))
    keys = [noise.key(0, 0, t, "", b"") for t in range(4000)]
    drawn = np.array([uniform(key, b"rows", 20) < 0.4 for key in keys])
    assert np.abs(drawn.mean(0) - 0.4).max() < 4.5 * math.sqrt(0.24 / 4000)
    assert np.abs(np.corrcoef(drawn.T) - np.eye(20)).max() < 5 / math.sqrt(4000)
    normal = ndtri(np.concatenate([uniform(key, b"noise", 20) for key in keys]))
    assert np.abs([normal.mean(), normal.var() - 1, (normal**4).mean() - 3]).max() < 0.1


def test_without_sampling_the_noise_is_that_of_the_exact_formula() -> None:
    def delta(sigma: float) -> float:  # Balle and Wang, 2018, of 40 steps
        mu = math.sqrt(40) / sigma
        return float(norm.cdf(mu / 2 - 2 / mu) - math.exp(2) * norm.cdf(-mu / 2 - 2 / mu))

    sigma = noise_multiplier(1.0, 40, Privacy(2, 1e-5))
    assert delta(sigma) <= 1e-5 < delta(0.99 * sigma)


@pytest.mark.parametrize("added", [False, True])
def test_with_sampling_losses_that_are_drawn_keep_the_budget(added: bool) -> None:
    rate, steps, sigma = 0.2, 30, noise_multiplier(0.2, 30, Privacy(1, 0.02))

    def delta(sigma: float) -> float:
        z = sigma * RNG.standard_normal((100_000, steps)) + added * (RNG.random((100_000, steps)) < rate)
        loss = np.log1p(rate * np.expm1((2 * z - 1) / (2 * sigma**2))).sum(1) * (1 if added else -1)
        return float(np.maximum(0, -np.expm1(1 - loss)).mean())

    assert delta(sigma) < 0.0207
    assert not added or delta(0.9 * sigma) > 0.0207


def test_rules_that_can_share_noise_see_the_sums_of_gradients_alone() -> None:
    network, g = simulated.connect(GRAPH), RNG.standard_normal((12, 3, 5))
    moved = g + np.array([1, -3, 2])[:, None] * RNG.standard_normal((12, 1, 5))  # with the same sums
    same = set()
    for name in RULES:
        rule, found = registry.example(name), list[list[Any]]()
        if rule.needs.directed or rule.then or rule.points:
            continue
        for gradients in (g, moved):
            state, seen = rule.init(np.ones((3, 5))), list[Any]()
            for t, each in enumerate(gradients):
                early = rule.early_messages(state, t)
                messages, state = rule.send(state, (each,), t)
                mixed = network.multiply((*early, *messages), t) if early or messages else ()
                state, seen = rule.receive(state, mixed), [*seen, *mixed]
            found.append(seen)
        same |= {name} if all(np.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(*found, strict=True)) else set()
    assert {name for name in RULES if registry.example(name).only_sums} == {"dsgd", "dsgt", "dasagt", "dnasa"} <= same
    assert "adanasa" not in same


def test_what_the_wide_channel_shows_depends_on_the_sums_alone() -> None:
    network, y = simulated.connect(GRAPH, channel=secure_sum(wide=True)), RNG.integers(-99, 99, (2, 3, 9)) / 1024
    moved = y + np.array([300, -700, 400])[:, None] * RNG.integers(-3, 4, (2, 1, 9)) / 1024
    memories: list[Any] = [(), ()]
    for t in range(2):
        found = []
        for i, each in enumerate((y, moved)):
            mixed, memories[i] = exchange(network, memories[i], (each[t],), t)
            found.append(mixed[0])
        np.testing.assert_array_equal(*found)
        np.testing.assert_allclose(found[0], np.broadcast_to(y[t].mean(0), (3, 9)), rtol=0, atol=1e-6)


def solved(network: Network, task: Classification | None = None, **options: Any) -> Any:
    chosen: dict[str, Any] = {"rule": "dnasa", "steps": 24, "evaluate": [24], "progress": False, "record": dnasa.Record()}
    return dnasa.solve(task or problem(), network, **chosen | options)


@pytest.mark.long
def test_the_noise_of_the_sum_is_enough_for_the_site_that_counts_most_if_one_tells_its_own() -> None:
    def budget(wide: bool, **options: Any) -> Budget:
        task = problem(shards=[np.arange(20), np.arange(20, 40), np.arange(40, 50)])
        result = solved(simulated.connect(GRAPH, channel=secure_sum(wide)), task, **options)
        assert task.private_noise is not None
        assert result.settings["privacy"] == str(task.private_noise.budget)
        return task.private_noise.budget

    full = budget(wide=False)
    assert full == budget(wide=True, rule="adanasa")
    assert not full.shared
    for weights in (np.ones(3), np.array([1.0, 2.0, 3.0])):
        found = budget(wide=True, node_weights=weights.tolist())
        added = (weights * found.sigma) ** 2
        assert found.shared
        assert added.sum() - added.max() >= (weights * full.sigma).max() ** 2 * (1 - 1e-12)


def at_sites(folder: Path, stop: int = -1, task: Any = problem, shared: bool = False, **options: Any) -> list[Any]:
    class Stopping(Classification):
        def gradient(self, x: Any, nodes: range, seeds: Any, t: int) -> Any:
            if t == stop and (not shared or nodes[0] == 1):
                raise SystemExit if shared else RunError("stopped")
            return super().gradient(x, nodes, seeds, t)

    def work(network: Network) -> Any:
        processes = replace(network.processes, names=NAMES, own_folders=True)
        own, site = task(), folder / NAMES[network.rank]
        own.__class__ = Stopping
        record = dnasa.Record(checkpoint_every=8)
        return solved(replace(network, processes=processes), own, folder=site, record=record, **options)

    return run_threads(GRAPH, work, channel=secure_sum(wide=True) if shared else None, survive=shared)


def test_a_resumed_run_is_the_undisturbed_one_and_ends_without_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_bytes", lambda count: bytes(range(count)))
    whole = at_sites(tmp_path / "whole")
    with pytest.raises(RunError):
        at_sites(tmp_path / "a", stop=21)
    assert (tmp_path / "a/lyon/noise.key").stat().st_size == 32 + 21 * 16
    resumed = at_sites(tmp_path / "a", resume=True)
    np.testing.assert_array_equal(resumed[0].x, whole[0].x)
    assert not list(tmp_path.glob("*/*/noise.key"))


def test_a_site_that_would_spend_more_than_the_budget_stops(tmp_path: Path) -> None:
    with pytest.raises(RunError):
        at_sites(tmp_path, stop=21)
    for message, change in (
        ("steps was 24 and is 48", {"steps": 48}),
        ("own data was .* and is .* now", {"task": lambda: problem(np.vstack([X[:60] + 1e-9, X[60:]]))}),
        ("noise.key is missing", {}),
    ):
        with pytest.raises(InputError, match=message):
            at_sites(tmp_path, resume=True, **change)
        if "own data" in message:
            (tmp_path / "oslo/noise.key").unlink()


def test_sites_that_share_noise_stop_without_one_and_repeat_no_step_with_other_gradients(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"share the noise .* need each other: resume when all are there"):
        at_sites(tmp_path, stop=21, shared=True)
    spent = Releases(None, most=24, shared=True, resumed=False)
    for t, mark in ((0, b"first"), (0, b"first"), (1, b"second")):
        spent.spend(mark, t)
    with pytest.raises(InputError, match="The privacy budget is spent: 2 gradients"):
        spent.spend(b"another", 1)


def test_sites_with_one_seed_have_unrelated_noise_and_tell_nobody_their_secret(tmp_path: Path) -> None:
    with pytest.raises(RunError):
        at_sites(tmp_path, stop=9)
    keys = [(tmp_path / name / "noise.key") for name in NAMES]
    secrets = [key.read_bytes()[:32] for key in keys]
    draws = [uniform(Noise(Budget(Privacy(3), 9, [], False), secret).key(0, 0, 0, "", b""), b"", 10_000) for secret in secrets]
    assert np.abs(np.corrcoef(draws) - np.eye(3)).max() < 0.05
    assert {key.stat().st_mode & 0o777 for key in keys} == {0o600}
    others = [path.read_bytes() for path in tmp_path.glob("**/*") if path.is_file() and path not in keys]
    assert len(others) > 20
    assert not any(form in text for text in others for secret in secrets for form in (secret, secret.hex().encode()))
    audited = "".join(path.read_text() for path in tmp_path.glob("*/audit-*"))
    assert '\\"epsilon\\": 3, \\"delta\\": 0.001, \\"steps\\": 24, \\"sigma\\": [' in audited
    assert json.loads((tmp_path / "oslo/config.json").read_text())["run"]["privacy"]["epsilon"] == 3


def test_what_would_tell_of_rows_without_noise_is_refused() -> None:
    normed = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    options: dict[str, Any]
    for message, options in (
        ("validation rows and early stopping", {"validation": SHARDS}),
        ("batch norm, which mixes rows", {"model": normed}),
        ("augmentation", {"augment": lambda x, generator: x}),
        ("class weights", {"class_weight": [1.0, 2.0]}),
        ("epsilon must be a positive number", {"privacy": Privacy(0)}),
        ("delta must be below 1, not 2", {"privacy": Privacy(1, 2)}),
    ):
        with pytest.raises(InputError, match=message):
            problem(**options)
    for message, task, options in (
        ("delta must be below 1 / rows of each site, 0.05 at node 0, not 0.06", problem(privacy=Privacy(3, 0.06)), {}),
        (r"node 0 has 20, not 21\. Give --batch 20 \(batch=20\), or leave node 0 out", problem(batch=21), {}),
        ("rules with one gradient in each step", problem(), {"rule": "gt_hsgd", "eta": 0.1}),
    ):
        with pytest.raises(InputError, match=message):
            solved(simulated.connect(GRAPH), task, **options)
    with pytest.raises(InputError, match="for sites and for one process: leave out mpirun"):
        run_threads(GRAPH, solved)
    with pytest.raises(InputError, match="belong to a run"):
        problem().gradient(problem().start(0)[None, None, None], range(1), [0], 0)
    assert "train_loss" not in solved(simulated.connect(GRAPH)).history


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", ["dsgd", "cosine", 1.0]),
        ("--model linear", ["dnasa", None, None]),
        ("--rule dasagt --eta 0.5", ["dasagt", None, 0.5]),
    ],
)
def test_the_default_with_hidden_layers_is_the_rule_for_much_noise(
    words: str, expected: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dnasa.engine.budget.noise_multiplier", lambda *_: 1.0)  # the accountant takes a while
    rows = "".join(f"{x[0]},{x[1]},{'ny'[y]}\n" for x, y in zip(X, Y, strict=True))
    (tmp_path / "rows.csv").write_text("a,b,y\n" + rows)
    command = f"train --data rows.csv --target y --nodes 3 --epsilon 3 --batch 4 --steps 2 {words} --out run --quiet"
    succeed(*command.split(), cwd=tmp_path)
    stored = json.loads((tmp_path / "run/config.json").read_text())["options"]
    assert [stored.get(name) for name in ("rule", "schedule", "eta")] == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--delta 1e-3", "--delta belongs to --epsilon"),
        ("--again", "--again does nothing without --sites"),
        ("--epsilon 3 --early-stopping", "does not allow validation rows and early stopping"),
        ("--epsilon 3 --class-weight balanced", "does not allow class weights"),
        ("--epsilon 3 --problem spike", "--epsilon belongs to --data"),
        ("--epsilon 3 --delta 0.01", "delta must be below 1 / rows"),
        ("--epsilon 3 --rule adanasa --clock clock.toml --late 2", "leave late out"),
    ],
)
def test_mistakes_get_one_line(words: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "clock.toml").write_text("compute = 0.1\nbandwidth = 10\nlatency = 1\n")
    assert message in refused(*f"train {words} --nodes 4 --steps 20".split(), cwd=tmp_path)


def test_the_noise_is_printed_with_the_names_of_sites() -> None:
    assert str(Budget(Privacy(3), 2, [1.0, 2.5], True, NAMES[:2])).endswith("noise (sigma): berlin 1, lyon 2.5.")
    assert str(Budget(Privacy(3), 2, [1.0, 2.5], False)).endswith("noise (sigma): 1, 2.5.")
