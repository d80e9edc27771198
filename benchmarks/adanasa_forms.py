"""The measurements behind AdaNASA's form: what each part is worth, and which forms remain stable.

    python -m benchmarks.adanasa_forms                                  # stability limits of the forms
    python -m benchmarks.adanasa_forms covertype                        # accuracy of all forms, and of D-Adam
    python -m benchmarks.adanasa_forms gpt --device cuda --only tracked-first
Tasks: digits, a9a, covertype, mnist, cifar10 (residual net of 0.7 M parameters), gpt (4.8 M parameters; the test loss).
"""

import argparse
from typing import Any, NamedTuple

import numpy as np

from dnasa import solve, topology
from dnasa.arrays import nonzero, norm, unit
from dnasa.core import Array, Gradients, Messages, Rule, Schedule, size
from dnasa.data import load, partition
from dnasa.problems import Supervised
from dnasa.problems.augment import flip_and_shift
from dnasa.problems.models import resnet
from dnasa.problems.sharded import Sharded
from dnasa.problems.supervised import cross_entropy
from dnasa.rules import schedules
from dnasa.rules.adanasa import scaled
from dnasa.tasks import models, tasks
from dnasa.topology import Topology

NODES = 8
DADAM = (1e-3, 2e-3, 4e-3, 8e-3, 2e-2, 5e-2, 0.1)


class State(NamedTuple):
    x: Array
    y: Array  # tracker
    z: Array  # moving average
    m: Array  # second moments
    v: Array  # tracker of the gradients, where they are tracked first; then z is the last gradient and y the average


class Form(NamedTuple):
    """Where a form differs from AdaNASA without its radius."""

    late: bool = False  # the step uses the average before the newest gradient, as D-NASA's does
    mixed_first: bool = False  # x is mixed before the step instead of after it
    tracked_first: bool = False  # gradients are tracked, then averaged, as in D-NASA
    tracked: bool = True
    shared: bool = True  # second moments are mixed
    normalized: bool = False  # steps of one length, as D-NASA's

    def rule(self, eta: Schedule, alpha: Schedule, beta: Schedule, d: int) -> Rule:
        def direction(y: Array, m: Array) -> Array:
            q = scaled(y, m)
            return unit(q) * d**0.5 / 10 if self.normalized else q  # 1/10: about the length of q in a noisy network

        def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
            (g,) = gradients
            y, z, v = self.averaged(s, g, alpha(t))
            m = beta(t) * s.m + (1 - beta(t)) * (v if self.tracked_first else g) ** 2
            step = eta(t) * d ** (-1 / 3) * (direction(s.y, s.m) if self.late else direction(y, m))
            return self.messages(s, step, y, z, m, v)

        def receive(s: State, mixed: Messages) -> State:
            x, y, m, v = mixed
            return State(
                x - s.x if self.mixed_first else x,
                y if self.tracked else s.y,
                s.z,
                m if self.shared and not self.tracked_first else s.m,
                v,
            )

        return Rule(lambda x: State(x, *[0 * x] * 4), send, receive)

    def averaged(self, s: State, g: Array, a: float) -> tuple[Array, Array, Array]:
        """y, z and v with the gradient g."""
        if self.tracked_first:
            u = s.v + g - s.z
            return (1 - a) * s.y + a * u, g, u
        z = (1 - a) * s.z + a * g
        return (s.y + z - s.z if self.tracked else z), z, s.v

    def messages(self, s: State, step: Array, y: Array, z: Array, m: Array, v: Array) -> tuple[Messages, State]:
        """What is sent, and the state until messages arrive, which holds the step in the place of x."""
        return (s.x if self.mixed_first else s.x - step, y, m, v), State(step, y, z, m, v)


FORMS = {
    "no-radius": Form(),
    "late-step": Form(late=True),
    "mixed-first": Form(mixed_first=True),
    "tracked-first": Form(tracked_first=True),
    "tracked-first-late": Form(tracked_first=True, late=True),
    "not-tracked": Form(tracked=False),
    "own-moments": Form(shared=False),
    "one-length": Form(normalized=True),
}


def learned_step(eta: Schedule, alpha: Schedule, beta: Schedule) -> Rule:
    """Steps of length 0.8 r eta(t), where r is learned as AdaNASA's radius is."""

    class Learned(NamedTuple):
        x: Array
        y: Array
        z: Array
        m: Array
        start: Array
        way: Array
        back: Array
        r: Array

    def init(x: Array) -> Learned:
        return Learned(x, 0 * x, 0 * x, 0 * x, x, 0 * x, 0 * norm(x), 1e-4 * (1 + norm(x)))

    def send(s: Learned, gradients: Gradients, t: int) -> tuple[Messages, Learned]:
        (g,) = gradients
        z = (1 - alpha(t)) * s.z + alpha(t) * g
        y, m = s.y + z - s.z, beta(t) * s.m + (1 - beta(t)) * g**2
        step, h = 0.8 * s.r * eta(t), unit(scaled(g, m))
        way, back = s.way + step * h, s.back + step * (h * (s.start - s.x)).sum(-1)[..., None]
        found = back / nonzero(norm(way))
        r = s.r + (found > s.r) * (found - s.r)
        return (s.x - step * unit(scaled(y, m)), y, m), s._replace(z=z, way=way, back=back, r=r)

    def receive(s: Learned, mixed: Messages) -> Learned:
        x, y, m = mixed
        return s._replace(x=x, y=y, m=m)

    return Rule(init, send, receive)


# ---------------------------------------------------------------- accuracy


def make_problem(task: str, how: str, device: str) -> Sharded:
    if task in ("cifar10", "gpt"):
        rows = load("shakespeare" if task == "gpt" else task, context=128)  # of the text
        how = "contiguous" if task == "gpt" and how != "iid" else how
        options: Any = {"train_metrics": False, "device": device, "batch": 8 if task == "gpt" else 32}
        if device == "cuda":
            options["autocast"] = "bfloat16"
        shards = partition(how, rows.labels, NODES)
        if task == "gpt":
            return Supervised(models.make("gpt:6,252,128", rows), cross_entropy, rows, shards, **options)
        return Supervised(resnet, cross_entropy, rows, shards, augment=flip_and_shift, **options)
    return tasks.classification(task, NODES, how, device=device, train_metrics=False)


def accuracy(task: str, how: str, graph: Topology, steps: int, device: str, only: str | None) -> None:
    problem = make_problem(task, how, device)
    eta = schedules.linear(0.4 * NODES**0.5, steps)
    runs: dict[str, tuple[Any, dict[str, Any]]] = {"adanasa": ("adanasa", {}), "dnasa": ("dnasa", {})}
    runs |= {"averaged": ("adanasa", {"schedule": "averaged"})}
    runs |= {name: (form.rule(eta, *schedules.moments(), size(problem.layout)), {}) for name, form in FORMS.items()}
    runs["learned-step"] = (learned_step(schedules.linear(1.0, steps), *schedules.moments()), {})
    runs |= {f"dadam-{eta:g}": ("dadam", {"eta": eta}) for eta in DADAM}
    for name, (rule, options) in runs.items():
        if only and name not in only.split(","):
            continue
        result = solve(problem, graph, rule, steps=steps, evaluate=steps, progress=False, **options)
        last = result.final().iloc[0]
        value = f"test loss {last.test_loss:.3f}" if task == "gpt" else f"accuracy {100 * last.test_accuracy:.2f} %"
        print(f"{task} {how} {graph.name} {steps} steps, {name}: {value}, consensus {last.consensus:.2g}", flush=True)


# ---------------------------------------------------------------- stability


def growth(form: Form, w: float, h: float, alpha: float = 0.1) -> float:
    """The largest factor per step of the mode with eigenvalue w of W, for a quadratic whose stepsize times curvature is h."""
    rule = form.rule(lambda t: 1.0, lambda t: alpha, lambda t: 0.0, d=1)

    def step(state: np.ndarray) -> np.ndarray:
        """A step without the scaling by second moments."""
        s = State(*state[:, None])
        y, z, v = form.averaged(s, h * s.x, alpha)
        messages, after = form.messages(s, s.y if form.late else y, y, z, 0 * s.m, v)
        received = rule.receive(after, tuple(w * message for message in messages))
        return np.concatenate([np.ravel(part) for part in received])

    columns = [step(unit_vector) for unit_vector in np.eye(5)]
    return float(np.abs(np.linalg.eigvals(np.array(columns).T)).max())


def limit(form: Form, eigenvalues: np.ndarray) -> float:
    """The largest stepsize times curvature, up to 100, at which no mode grows."""
    for h in np.geomspace(0.05, 100, 500):
        if any(growth(form, w, h) > 1 + 1e-9 for w in eigenvalues):
            return float(h)
    return 100.0


def stability() -> None:
    graphs = {"ring of 8": topology.ring(8), "ring of 32": topology.ring(32), "complete": topology.complete(8)}
    forms = {name: FORMS[name] for name in ("no-radius", "late-step", "mixed-first", "tracked-first", "not-tracked")}
    forms["mixed-first, lazy W"] = Form(mixed_first=True)
    forms["tracked-first, mixed first"] = Form(tracked_first=True, mixed_first=True)
    for graph_name, graph in graphs.items():
        w = np.unique(np.linalg.eigvalsh(graph.weights).round(6))
        for name, form in forms.items():
            eigenvalues = (1 + w) / 2 if "lazy" in name else w
            print(f"{graph_name}, {name}: stepsize times curvature below {limit(form, eigenvalues):.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?")
    parser.add_argument("--partition", default="iid")
    parser.add_argument("--topology", default="ring")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", help="names of forms, separated by commas")
    given = parser.parse_args()
    if given.task:
        graph = topology.make(given.topology, NODES)
        accuracy(given.task, given.partition, graph, given.steps, given.device, given.only)
    else:
        stability()
