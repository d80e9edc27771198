"""The tasks of the experiments: data, model, and what is measured."""

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dnasa.data import Dataset, from_arrays, from_text, load
from dnasa.problems.augment import flip_and_shift
from dnasa.problems.supervised import Augment
from dnasa.tasks import models

NODES = 8
GENERATED = "generated-text"
TABLE = "generated-table"


class Measure(NamedTuple):
    """A metric of the test rows; `scale` times it is in `unit`, and larger is better."""

    column: str
    label: str
    scale: float
    unit: str
    target: float  # how far AdaNASA may be below the best tuned method

    def gain(self, value: Any, other: Any) -> Any:
        """The amount by which `value` is better than `other`."""
        return self.scale * (value - other)

    def text(self, value: float) -> str:
        if not np.isfinite(value):
            return "diverged"
        return f"{100 * value:.2f} %" if self.unit else f"{value:.3f}"

    def signed(self, gain: float) -> str:
        """Format a gain with its sign; adding 0.0 removes the minus sign of zeros."""
        if not np.isfinite(gain):
            return ""
        return f"{gain + 0.0:+.2f}" if self.unit else f"{gain + 0.0:+.3f}"

    def amount(self, gain: float) -> str:
        """A difference without its sign."""
        return f"{abs(gain):.2f} points" if self.unit else f"{abs(gain):.3f}"


ACCURACY = Measure("test_accuracy", "test accuracy", 100.0, "points", 0.5)
LOSS = Measure("test_loss", "test loss", -1.0, "", 0.02)
R2 = Measure("test_r2", "test R^2", 100.0, "points", 0.5)


Etas = dict[str, tuple[float, ...]]
CENTRAL = "central"  # AdamW on the joint batch
SCHEDULE_FREE, PRODIGY = "schedule-free", "prodigy"  # other optimizers of the joint batch
ROOT_DECAY, MOMENTUM, ADAM = (0.03, 0.1, 0.3, 1, 3, 10), (0.01, 0.03, 0.1, 0.3, 1), (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
LARGE_ETAS: Etas = {
    **dict.fromkeys(("dsgd", "dsgt", "kgt"), ROOT_DECAY),
    **dict.fromkeys(("dmsgd", "qg_dsgdm", "mt", "edm", "gt_nsgdm"), MOMENTUM),
    **dict.fromkeys(("dadam", "gt_adam", CENTRAL, SCHEDULE_FREE), ADAM),
    "demuon": (1e-3, 3e-3, 1e-2, 3e-2, 0.1),
}
MORE_ADAM = (1e-4, *ADAM, 0.1, 0.3, 1)  # the smaller the network, the larger the best
SMALL_ETAS: Etas = {
    "dsgd": (0.1, 0.3, 1, 3, 10, 30),
    "dmsgd": (0.003, *MOMENTUM),
    "dadam": MORE_ADAM,
    "dsgt": (0.1, 0.3, 1, 3, 10, 30),
    CENTRAL: MORE_ADAM,
    SCHEDULE_FREE: MORE_ADAM,
}
QUICK_ETAS: Etas = {
    "dsgd": (0.1, 1, 10),
    "dmsgd": (0.01, 0.1, 1),
    "dadam": (1e-3, 1e-2, 0.1),
    "dsgt": (0.1, 1, 10),
    CENTRAL: (1e-3, 1e-2, 0.1),
}


class Task(NamedTuple):
    """`different` is the partition under which the nodes' data differ; `rows` cuts the data for quick runs; `etas` are the
    stepsizes tried of each rule that needs one."""

    data: str
    model: str | None = None
    measure: Measure = ACCURACY
    different: str = "dirichlet(0.1)"
    batch: int = 32
    augment: Augment | None = None
    steps: int = 1500
    rows: int | None = None
    etas: Etas = SMALL_ETAS
    tuning_seeds: int = 3  # which choose the stepsize; further seeds run with the chosen one alone
    side_by_side: bool = False  # of a deep model: it is so small that a GPU computes many runs in the time of one

    def how(self, division: str) -> str:
        """The partition: 'heterogeneous' is the task's own."""
        return self.different if division == "heterogeneous" else division


CIFAR10 = Task("cifar10", "resnet", augment=flip_and_shift, etas=LARGE_ETAS, tuning_seeds=1)
TEXT = Task("shakespeare", "gpt", LOSS, "contiguous", batch=8, etas=LARGE_ETAS, tuning_seeds=1)
SMALL_TEXT = TEXT._replace(model="gpt:4,60,32", batch=32, side_by_side=True)
TASKS = {
    "cifar10": CIFAR10,
    "cifar10-group": CIFAR10._replace(model="resnet:32,group"),
    "shakespeare": TEXT,
    "mnist": Task("mnist"),
    "a9a": Task("a9a"),
    "covertype": Task("covertype"),
}
QUICK = {  # for two cores
    name: task._replace(etas=QUICK_ETAS)
    for name, task in {
        "cifar10": CIFAR10._replace(model="resnet:8", batch=8, steps=4, rows=200),
        "shakespeare": TEXT._replace(model="gpt:1,48,32", steps=30, rows=20_000),
        "mnist": Task("mnist", steps=40, rows=10_000),
        "a9a": Task("a9a", steps=300),
        "covertype": Task("covertype", steps=300),
    }.items()
}
WITHOUT_DATA = {  # where none of these is there
    "digits": Task("digits", steps=300, etas=QUICK_ETAS),
    GENERATED: QUICK["shakespeare"]._replace(data=GENERATED),
}


def read(task: Task) -> Dataset:
    """The data of a task; an InputError says how to get what is missing."""
    context = models.context(task.model)
    if task.data == TABLE:
        data = generated_table()
    else:
        data = generated_text(context) if task.data == GENERATED else load(task.data, context=context)
    return data if task.rows is None else _first(data, task.rows)


def _first(data: Dataset, rows: int) -> Dataset:
    """Fewer rows, a tenth as many for testing (of a text, windows that do not overlap)."""
    tests = rows // (10 if data.labels.ndim == 1 else 10 * data.labels.shape[1])
    return data._replace(
        inputs=data.inputs[:rows],
        labels=data.labels[:rows],
        test_inputs=data.test_inputs[:tests],
        test_labels=data.test_labels[:tests],
    )


def generated_text(context: int) -> Dataset:
    """Sentences of random words: something to learn for a character model, without any file."""
    generator = np.random.default_rng(0)
    letters = list("abcdefghijklmnop")
    words = ["".join(generator.choice(letters, size)) for size in generator.integers(2, 8, size=60)]
    sentences = [" ".join(generator.choice(words, 8)) + ".\n" for _ in range(1500)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{GENERATED}.txt"
        path.write_text("".join(sentences), encoding="utf-8")
        return from_text(path, context)._replace(name=GENERATED, source="generated")


def generated_table(rows: int = 20_000) -> Dataset:
    """A regression on ten inputs, of which five matter, with noise of variance 1: the first function of Friedman (1991)."""
    generator = np.random.default_rng(0)
    x = generator.random((rows, 10))
    y = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return from_arrays(x, y + generator.normal(size=rows), name=TABLE, task="regression")
