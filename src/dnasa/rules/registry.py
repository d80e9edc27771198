"""The rules that can be used by name: `@rule` adds one, with its title, schedules, paper and equation."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce, wraps
from inspect import signature
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

from dnasa.checks import check_new_name, choose, positive
from dnasa.core import Array, InputError, Layout, Prox, Rule, Schedule
from dnasa.rules.composition import wrapper
from dnasa.rules.schedules import ETA, ScheduleSpec, side_by_side

Eta = float | Schedule
Maker = TypeVar("Maker", bound=Callable[..., Rule])
CUSTOM = "custom"  # the schedule of an eta that is a function of t, and of a rule that has its schedules inside
DEFAULT_RULE = "dnasa"  # of the command line and the estimators, and of `solve` with noise; it needs no stepsize
FULL_GRADIENT_RULE = "adgt"  # the default of `solve` without noise
# of `train --epsilon` with hidden layers: a row counts as at most 1, so no task needs another eta
PRIVATE_METHOD: dict[str, Any] = {"rule": "dsgd", "schedule": "cosine", "eta": 1.0}
COMPARED = ("dsgd", "dsgt", "dasagt", "adanasa", "dnasa")  # by default


class Method(NamedTuple):
    """A rule that can be used by name; the fields are the arguments of `rule`, and `make` is what it decorates."""

    make: Callable[..., Rule]
    schedules: dict[str, ScheduleSpec]
    needs_eta: bool = True
    title: str = ""
    color: str | None = None
    paper: str = ""
    equation: str = ""
    checked: str = ""

    @property
    def takes_prox(self) -> bool:
        return "prox" in signature(self.make).parameters


RULES: dict[str, Method] = {}
"""All rules that can be used by name."""
BUILT_IN: frozenset[str] = frozenset()  # set once all files of this package are imported


def rule(
    name: str,
    *,
    title: str | None = None,
    schedules: Mapping[str, Callable[[int, Any, Any], tuple[Schedule, ...]]] | None = None,
    needs_eta: bool = True,
    color: str | None = None,
    paper: str = "",
    equation: str = "",
    checked: str = "",
) -> Callable[[Maker], Maker]:
    """Decorate a function that makes a rule: its name then works in `solve`, the optimizer, commands, tables and plots.

    The function takes the rule's schedules and returns a `Rule`. If it has a parameter `layout`, it also gets the names and
    shapes of the parts of x; with a parameter `every`, the steps from one exchange to the next; with a parameter `prox`, the
    rule can minimize f + h. A name used again replaces a rule of your own, not a built-in one.

    Args:
        name: Letters, digits, - and _.
        title: Its name in tables and plots; by default `name`.
        schedules: Functions `(n, T, eta) -> (schedule, ...)` by name, the first being the default. One that computes with T,
            the number of steps, needs `steps=` in the optimizer, where T is None without it. By default eta alone, in the
            forms of D-SGD (diminishing, fixed, constant, cosine).
        needs_eta: Whether the user must give a stepsize.
        color: Its color in plots, #rrggbb; by default one that goes with its name.
        paper: Authors, year, title and arXiv number.
        equation: One step, in TeX.
        checked: What the rule was compared with: its paper's text, or somebody else's code; without it, it is experimental.

    Example:
        >>> from dnasa import rules
        >>> @rules.rule("half", title="D-SGD with half the stepsize")
        ... def half(eta):
        ...     return rules.dsgd(lambda t: eta(t) / 2)
    """

    def add(make: Maker) -> Maker:
        check_new_name("rule", name, BUILT_IN)
        if color is not None and not re.fullmatch("#[0-9a-fA-F]{6}", color):
            raise InputError(f"The color of rule '{name}' must be written as #1f77b4, not '{color!s:.40}'.")
        specs = {
            key: make_schedules if isinstance(make_schedules, ScheduleSpec) else ScheduleSpec(make_schedules, needs_steps=None)
            for key, make_schedules in (schedules or ETA).items()
        }
        RULES[name] = Method(make, specs, needs_eta, title or name, color, paper, equation, checked)
        return make

    return add


class Look(NamedTuple):
    """How tables and plots show a rule. Labels leave out `schedule`, the default of a rule without a stepsize."""

    title: str
    color: str | None = None
    schedule: str | None = None


def find(name: str) -> Method:
    """The rule of that name, also with its schedule, as in "dsgd:constant"; "clip:1+dsgd" is D-SGD with changed gradients."""
    name, _ = split_schedule(name)
    if "+" in name:
        return composed(name)
    method: Method = choose("rule", name, RULES)
    return method


def split_schedule(name: str) -> tuple[str, str]:
    """The rule and its schedule, empty if it names none: "clip:1+dsgd:constant" is "clip:1+dsgd" and "constant"."""
    changes, plus, rule = name.rpartition("+")
    rule, _, schedule = rule.partition(":")
    return changes + plus + rule, schedule


def composed(name: str) -> Method:
    """The method of a name such as "clip:1+adam+dsgt": gradients are changed from left to right."""
    *changes, inner = name.split("+")
    method, wrappers = find(inner), [wrapper(change) for change in changes]

    @wraps(method.make)
    def make(*schedules: Schedule, **options: Any) -> Rule:
        return reduce(lambda rule, wrap: wrap(rule), reversed(wrappers), method.make(*schedules, **options))

    titles = [change.capitalize().replace(":", " ", 1).replace(":", ", ") for change in changes]
    return method._replace(make=make, title=" + ".join([*titles, method.title]), color=None)


def look(name: str) -> Look | None:
    """How to show a rule; None if it is not registered in this process."""
    method = find(name) if name.rpartition("+")[2] in RULES else None
    tacit = next(iter(method.schedules)) if method and not method.needs_eta else None
    return method and Look(method.title or name, method.color, tacit)


class Variant(NamedTuple):
    """One way to run a rule: what a row of a comparison is labeled with.

    Attributes:
        rule: The rule's name.
        schedule: The schedule's name; "custom" for an eta that is a function of t.
        eta: A number, a function of t, or None for a rule without a stepsize.
    """

    rule: str
    schedule: str
    eta: Any = None

    @property
    def spec(self) -> ScheduleSpec | None:
        """Its schedule as registered; None for an eta that is a function of t."""
        return find(self.rule).schedules.get(self.schedule) if look(self.rule) else None

    @property
    def formula(self) -> str:
        """The stepsize at step t with its eta inserted; empty where it is not stated."""
        text = self.spec.formula if self.spec else ""
        return text.replace("eta", f"{self.eta:.3g}", 1) if isinstance(self.eta, float) else text

    def label(self) -> dict[str, Any]:
        """The variant's columns in tables: a function of t shows as its name, in the place of the schedule."""
        if not callable(self.eta):
            return self._asdict()
        name = getattr(self.eta, "__name__", CUSTOM)
        return {"rule": self.rule, "schedule": CUSTOM if name == "<lambda>" else name, "eta": None}


class VariantGroup(NamedTuple):
    """Variants of one method side by side, as one rule on `size` entries of the first axis."""

    rule: Rule
    variants: tuple[Variant, ...]

    @property
    def size(self) -> int:
        return len(self.variants)


def variants(rule: str, etas: Sequence[Eta] = (), schedule: str | None = None) -> list[Variant]:
    """The rule with each of these stepsizes, or once if it needs none. It may name its own schedule, as in "dsgd:constant"."""
    rule, named_schedule = split_schedule(rule)
    schedule = named_schedule or schedule
    method = find(rule)
    name = schedule or next(iter(method.schedules))
    choose("schedule", name, method.schedules, f" for {rule}")
    if not method.needs_eta:
        return [Variant(rule, name)]
    if not len(etas):
        raise InputError(f"Rule '{rule}' needs a stepsize: give eta, or use 'dnasa' or 'adanasa', which need none.")
    functions = [eta for eta in etas if callable(eta)]
    if functions and schedule is not None:
        raise InputError("An eta that is a function of t is a schedule of its own: leave schedule out.")
    for eta in etas:
        if not callable(eta):
            positive("eta", eta)
    plain = [Variant(rule, name, float(eta)) for eta in etas if not callable(eta)]
    return plain + [Variant(rule, CUSTOM, eta) for eta in functions]


def check_used(schedule: str | None, runs: Sequence[Variant]) -> None:
    """Refuse a schedule that no rule uses, such as where each names its own."""
    if schedule and all(run.schedule != schedule for run in runs):
        names = dict.fromkeys(run.rule for run in runs)
        known = "; ".join(f"{name} has {', '.join(find(name).schedules)}" for name in names)
        raise InputError(f"No rule uses the schedule {schedule}: leave it out, or choose another ({known}).")


def groups(
    runs: Sequence[Variant | Rule],
    nodes: int,
    steps: int,
    like: Array,
    layout: Layout,
    prox: Prox | None = None,
    every: int = 1,
) -> list[VariantGroup]:
    """One rule for neighboring variants of the same method; the user's rules one by one."""
    custom = sum(isinstance(run, Rule) for run in runs)
    if prox is not None and custom:
        raise InputError("A rule of your own must be given prox by its maker: decorate the maker with @rule.")
    labels = iter([CUSTOM] if custom == 1 else [f"{CUSTOM} {number}" for number in range(1, custom + 1)])

    def kind(run: Variant | Rule) -> tuple[str, int] | None:
        """What variants must share to be one rule, which is made from as many schedules."""
        return None if isinstance(run, Rule) else (run.rule, len(schedules_of(run, nodes, steps)))

    out: list[VariantGroup] = []
    for _, neighbours in groupby(runs, key=kind):
        same = list(neighbours)
        out += [VariantGroup(run, (Variant(next(labels), CUSTOM),)) for run in same if isinstance(run, Rule)]
        if variants := tuple(run for run in same if isinstance(run, Variant)):
            each = [schedules_of(run, nodes, steps) for run in variants]
            columns = [side_by_side(column, like, steps) for column in zip(*each, strict=True)]
            out.append(VariantGroup(make(find(variants[0].rule), columns, layout, prox, every), variants))
    return out


def schedules_of(variant: Variant, nodes: int, steps: int | None) -> tuple[Schedule, ...]:
    """The schedules of a variant; an eta that is a function of t takes the place of the constant one.

    Without `steps`, those that depend on the number of steps are refused.
    """
    known = find(variant.rule).schedules
    custom = callable(variant.eta)
    if custom:
        spec, eta = known.get("constant") or next(iter(known.values())), 1.0
    else:
        spec, eta = known[variant.schedule], variant.eta
    try:
        if steps is None and spec.needs_steps:
            raise TypeError("it needs T")
        schedules = spec(nodes, steps, eta)
        if steps is None:
            for schedule in schedules[1:] if custom else schedules:
                schedule(0)  # most use T only when they are called
    except (TypeError, IndexError) as error:  # None is neither a number nor a size
        if steps is not None:
            raise
        raise InputError(
            f"Schedule '{variant.schedule}' depends on the number of steps: give steps= or another schedule ({error})."
        ) from error
    if not isinstance(schedules, tuple) or not all(map(callable, schedules)):
        raise InputError(
            f"Schedule '{variant.schedule}' of '{variant.rule}' must return a tuple of functions of t, not {schedules!r:.60}."
        )
    return (variant.eta, *schedules[1:]) if custom else schedules


def example(name: str) -> Rule:
    """The rule of that name for a single parameter, which shows what it needs of W."""
    variant = variants(name, [1.0])[0]
    return make(find(variant.rule), schedules_of(variant, 2, 1), (("x", (1, 1)),))


def make(method: Method, values: Sequence[Schedule], layout: Layout, prox: Prox | None = None, every: int = 1) -> Rule:
    if prox is not None and not method.takes_prox:
        able = ", ".join(name for name, each in RULES.items() if each.takes_prox)
        raise InputError(f"Rule '{method.title}' has no proximal step: choose from {able}, or leave prox out.")
    wanted = signature(method.make).parameters
    options: dict[str, Any] = {name: value for name, value in (("layout", layout), ("every", every)) if name in wanted}
    try:
        rule = method.make(*values, **options, **({} if prox is None else {"prox": prox}))
    except TypeError as error:
        raise InputError(f"Rule '{method.title}' cannot be made from its {len(values)} schedules: {error}.") from error
    if not isinstance(rule, Rule):
        raise InputError(f"The maker of rule '{method.title}' must return a Rule, not {type(rule).__name__}.")
    return rule
