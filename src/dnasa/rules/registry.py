"""The rules that can be used by name, with the schedules, title and colour of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

from dnasa.core import Array, InputError, Layout, Prox, Rule, Schedule, check_new_name, choose, positive
from dnasa.rules import installed, schedules
from dnasa.rules.adanasa import adanasa
from dnasa.rules.d2 import d2
from dnasa.rules.dadam import dadam
from dnasa.rules.dasagt import dasagt
from dnasa.rules.demuon import demuon
from dnasa.rules.dmsgd import dmsgd
from dnasa.rules.dnasa import dnasa
from dnasa.rules.dsgd import dsgd
from dnasa.rules.dsgt import dsgt
from dnasa.rules.edm import edm
from dnasa.rules.extra import extra
from dnasa.rules.gt_adam import gt_adam
from dnasa.rules.gt_hsgd import gt_hsgd
from dnasa.rules.gt_nsgdm import gt_nsgdm
from dnasa.rules.kgt import kgt
from dnasa.rules.mt import mt
from dnasa.rules.push_dsgt import push_dsgt
from dnasa.rules.qg_dsgdm import qg_dsgdm
from dnasa.rules.sgp import sgp

Eta = float | Schedule
# The schedules a rule's maker is called with, given the nodes n, the steps T and the stepsize eta.
Schedules = Callable[[int, Any, Any], tuple[Schedule, ...]]


@dataclass(frozen=True)
class ScheduleSpec:
    """Schedules with the formula of the stepsize at step t = 0, 1, ..., for tables and help texts.

    `needs_steps` says whether they depend on T, the number of steps; None: not declared. Where T is not known, it is None, and
    schedules that compute with it are refused. Those that are 0 from step T on say `ends`.
    """

    make: Schedules
    formula: str = ""
    needs_steps: bool | None = False
    ends: bool = False

    def __call__(self, n: int, T: Any, eta: Any) -> tuple[Schedule, ...]:
        return self.make(n, T, eta)


class Method(NamedTuple):
    """A rule that can be used by name.

    Attributes:
        make: Makes the rule from its schedules.
        schedules: Its schedules by name; the first is the default.
        needs_eta: Whether the user must give a stepsize.
        needs_layout: Whether `make` is also given `layout`, the names and shapes of the parts of x.
        title: Its name in tables and plots.
        colour: Its colour in plots; None: an unused one.
        takes_prox: Whether `make` is given `prox` where f + h is minimized.
    """

    make: Callable[..., Rule]
    schedules: dict[str, ScheduleSpec]
    needs_eta: bool = True
    needs_layout: bool = False
    title: str = ""
    colour: str | None = None
    takes_prox: bool = False


class Look(NamedTuple):
    """How tables and plots show a rule. Labels leave out `schedule`, the default of a rule without a stepsize."""

    title: str
    colour: str | None = None
    schedule: str | None = None


ETA = {
    "diminishing": ScheduleSpec(lambda n, T, eta: (schedules.root_decay(eta, n),), "eta sqrt(n/(t+1))"),
    "fixed": ScheduleSpec(lambda n, T, eta: (schedules.root_fixed(eta, n, T),), "eta sqrt(n/T)", needs_steps=True),
    "constant": ScheduleSpec(lambda n, T, eta: (schedules.constant(eta),), "eta"),
    "cosine": ScheduleSpec(
        lambda n, T, eta: (schedules.cosine(eta, T),),
        "eta min(1, 10(t+1)/T) (1 + cos(pi t/T))/2",
        needs_steps=True,
        ends=True,
    ),
}
COSINE_FIRST = {"cosine": ETA["cosine"]} | ETA
PARAMETER_FREE = {
    "parameter-free": ScheduleSpec(lambda n, T, eta: (schedules.parameter_free(eta),), "eta/sqrt(t)"),
    "parameter-free-fixed": ScheduleSpec(
        lambda n, T, eta: (schedules.parameter_free_fixed(eta, T),), "eta/sqrt(T)", needs_steps=True
    ),
}
DNASA = {
    "diminishing": ScheduleSpec(lambda n, T, eta: schedules.diminishing(n), "n^(1/4)/t^(3/4)"),
    "fixed": ScheduleSpec(lambda n, T, eta: schedules.fixed(n, T), "n^(1/4)/T^(3/4)", needs_steps=True),
}
ADANASA = {
    "linear": ScheduleSpec(
        lambda n, T, eta: schedules.adanasa(n, T),
        "0.4 sqrt(n) min(2.5(t+1)/T, 1, (1 - t/T)/0.6)",
        needs_steps=True,
        ends=True,
    ),
    "averaged": ScheduleSpec(
        lambda n, T, eta: schedules.adanasa_averaged(n), "0.4 sqrt(n) min((t+1)/100, 10/sqrt(t+1))"
    ),
}
CUSTOM = "custom"  # the schedule of an eta that is a function of t, and of a rule that has its schedules inside


def and_also(etas: dict[str, ScheduleSpec], other: Callable[[int], Schedule]) -> dict[str, ScheduleSpec]:
    """For rules with a second schedule, which depends on n alone."""

    def both(made: ScheduleSpec) -> ScheduleSpec:
        return replace(made, make=lambda n, T, eta: (*made(n, T, eta), other(n)))

    return {name: both(made) for name, made in etas.items()}


GT_NSGDM = and_also(COSINE_FIRST, lambda n: schedules.constant(0.9)) | {
    "theorem-fixed": ScheduleSpec(lambda n, T, eta: schedules.gt_nsgdm_fixed(eta, T), "eta/T^(3/4)", needs_steps=True)
}
RULES: dict[str, Method] = {
    "dsgd": Method(dsgd, ETA, title="D-SGD", colour="#1f77b4", takes_prox=True),
    "dmsgd": Method(dmsgd, COSINE_FIRST, title="D-SGDm", colour="#17becf"),
    "dadam": Method(dadam, COSINE_FIRST, title="D-Adam", colour="#ff7f0e"),
    "d2": Method(d2, ETA, title="D2", colour="#8c564b"),
    "dsgt": Method(dsgt, ETA | PARAMETER_FREE, title="D-SGT", colour="#2ca02c", takes_prox=True),
    "dasagt": Method(dasagt, and_also(ETA, schedules.averaging), title="D-ASAGT", colour="#9467bd", takes_prox=True),
    "gt_hsgd": Method(
        gt_hsgd, and_also(ETA, schedules.variance_reduction), title="GT-HSGD", colour="#843c39", takes_prox=True
    ),
    "kgt": Method(kgt, ETA, title="K-GT", colour="#7b4173"),
    "demuon": Method(demuon, ETA, needs_layout=True, title="DeMuon", colour="#393b79"),
    "sgp": Method(sgp, ETA, title="SGP", colour="#637939"),
    "push_dsgt": Method(push_dsgt, ETA, title="Push-sum D-SGT", colour="#8c6d31"),
    "extra": Method(extra, ETA, title="EXTRA", colour="#17807e"),
    "edm": Method(edm, COSINE_FIRST, title="EDM", colour="#c49c94"),
    "qg_dsgdm": Method(qg_dsgdm, COSINE_FIRST, title="QG-DSGDm", colour="#bcbd22"),
    "mt": Method(mt, COSINE_FIRST, title="Momentum tracking", colour="#7f7f7f"),
    "gt_adam": Method(gt_adam, COSINE_FIRST, title="GTAdam", colour="#e7ba52"),
    "gt_nsgdm": Method(gt_nsgdm, GT_NSGDM, title="GT-NSGDm", colour="#000000"),
    "adanasa": Method(adanasa, ADANASA, needs_eta=False, needs_layout=True, title="AdaNASA", colour="#e377c2"),
    "dnasa": Method(dnasa, DNASA, needs_eta=False, title="D-NASA", colour="#d62728", takes_prox=True),
}
"""All rules that can be used by name, with registered ones."""
DEFAULT_RULE = "dnasa"  # of the command line and the estimators; it needs no stepsize
COMPARED = ("dsgd", "dsgt", "dasagt", "adanasa", "dnasa")  # by default


def register(
    name: str,
    make: Callable[..., Rule],
    *,
    title: str | None = None,
    schedules: dict[str, Schedules] | None = None,
    needs_eta: bool = True,
    needs_layout: bool = False,
    takes_prox: bool = False,
    colour: str | None = None,
) -> None:
    """Make a rule usable by name: in `solve`, the optimizer, `dnasa train --plugin`, `dnasa compare` and plots.

    Registering a name again replaces a rule of your own, not a built-in one.

    Args:
        name: Letters, digits, - and _.
        make: A function of the rule's schedules that returns a `Rule`.
        title: Its name in tables and plots; by default `name`.
        schedules: Functions `(n, T, eta) -> (schedule, ...)` by name, the first being the default. One that computes with T,
            the number of steps, needs `steps=` in the optimizer, where T is None without it. By default eta alone, in the
            forms of D-SGD (diminishing, fixed, constant, cosine).
        needs_eta: Whether the user must give a stepsize.
        needs_layout: Whether `make` is also given `layout`, the names and shapes of the parts of x.
        takes_prox: Whether the rule can minimize f + h: `make` is then also given `prox`.
        colour: Its colour in plots, as matplotlib takes it.
    """
    check_new_name("rule", name, BUILT_IN)
    if not callable(make):
        raise InputError(f"The maker of rule '{name}' must be a function that returns a Rule.")
    own = {
        key: made if isinstance(made, ScheduleSpec) else ScheduleSpec(made, needs_steps=None)
        for key, made in (schedules or {}).items()
    }
    RULES[name] = Method(make, own or ETA, needs_eta, needs_layout, title or name, colour, takes_prox)


BUILT_IN = frozenset(RULES)


def find(name: str) -> Method:
    """The rule of that name, also with its schedule, as in "dsgd:constant"; a package that has it is imported now."""
    name = name.partition(":")[0]
    if name not in RULES:
        installed.load(name)
    method: Method = choose("rule", name, RULES)
    return method


def look(name: str) -> Look | None:
    """How to show a rule; None if it is not registered in this process."""
    method = RULES.get(name)
    tacit = next(iter(method.schedules)) if method and not method.needs_eta else None
    return method and Look(method.title or name, method.colour, tacit)


class Variant(NamedTuple):
    """One way to run a rule: what a row of a comparison is labelled with.

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
        return RULES[self.rule].schedules.get(self.schedule) if self.rule in RULES else None

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


def variants(rule: str, etas: Sequence[Eta] = (), schedule: str | Sequence[str] | None = None) -> list[Variant]:
    """Every stepsize with every schedule given; a rule without a stepsize comes once per schedule.

    A rule may name its own schedule, as in "dsgd:constant".
    """
    rule, colon, own = rule.partition(":")
    schedule = own if colon else schedule
    method = find(rule)
    names = [schedule] if isinstance(schedule, str) else list(schedule or [next(iter(method.schedules))])
    for name in names:
        choose(f"schedule for {rule}", name, method.schedules)
    if not method.needs_eta:
        return [Variant(rule, name) for name in names]
    if not len(etas):
        raise InputError(f"Rule '{rule}' needs a stepsize: give eta, or use 'dnasa' or 'adanasa', which need none.")
    functions = [eta for eta in etas if callable(eta)]
    if functions and schedule is not None:
        raise InputError("An eta that is a function of t is a schedule of its own: leave schedule out.")
    for eta in etas:
        if not callable(eta):
            positive("eta", eta)
    plain = [Variant(rule, name, float(eta)) for name in names for eta in etas if not callable(eta)]
    return plain + [Variant(rule, CUSTOM, eta) for eta in functions]


def check_used(schedule: str | Sequence[str] | None, runs: Sequence[Variant | Rule]) -> None:
    """Refuse a schedule that no rule uses, such as where each names its own."""
    given = {schedule} if isinstance(schedule, str) else {*(schedule or ())}
    if given and not given & {run.schedule for run in runs if isinstance(run, Variant)}:
        names = dict.fromkeys(run.rule for run in runs if isinstance(run, Variant))
        known = "; ".join(f"{name} has {', '.join(RULES[name].schedules)}" for name in names)
        raise InputError(f"No rule uses the schedule {', '.join(given)}: leave it out, or choose another ({known}).")


def groups(
    runs: Sequence[Variant | Rule], nodes: int, steps: int, like: Array, layout: Layout, prox: Prox | None = None
) -> list[VariantGroup]:
    """One rule for neighbouring variants of the same method; the user's rules one by one."""
    own = sum(isinstance(run, Rule) for run in runs)
    if prox is not None and own:
        raise InputError("A rule of your own must be given prox by its maker: register it with takes_prox=True.")
    labels = iter([CUSTOM] if own == 1 else [f"{CUSTOM} {number}" for number in range(1, own + 1)])

    def kind(run: Variant | Rule) -> tuple[str, int] | None:
        """What variants must share to be one rule, which is made from as many schedules."""
        return None if isinstance(run, Rule) else (run.rule, len(schedules_of(run, nodes, steps)))

    out: list[VariantGroup] = []
    for _, neighbours in groupby(runs, key=kind):
        same = list(neighbours)
        out += [VariantGroup(run, (Variant(next(labels), CUSTOM),)) for run in same if isinstance(run, Rule)]
        if variants := tuple(run for run in same if isinstance(run, Variant)):
            each = [schedules_of(run, nodes, steps) for run in variants]
            columns = [schedules.side_by_side(column, like, steps) for column in zip(*each, strict=True)]
            out.append(VariantGroup(make(RULES[variants[0].rule], columns, layout, prox), variants))
    return out


def schedules_of(variant: Variant, nodes: int, steps: int | None) -> tuple[Schedule, ...]:
    """The schedules of a variant; an eta that is a function of t takes the place of the constant one.

    Without `steps`, those that depend on the number of steps are refused.
    """
    if steps is not None:
        return _made(variant, nodes, steps)
    refusal = f"Schedule '{variant.schedule}' depends on the number of steps: give steps= or another schedule"
    if variant.spec and variant.spec.needs_steps:
        raise InputError(f"{refusal}.")
    try:
        made = _made(variant, nodes, None)
        for schedule in made[1:] if callable(variant.eta) else made:
            schedule(0)  # most use T only when they are called
    except (TypeError, IndexError) as error:  # None is neither a number nor a size
        raise InputError(f"{refusal} ({error}).") from error
    return made


def _made(variant: Variant, nodes: int, T: int | None) -> tuple[Schedule, ...]:
    known = RULES[variant.rule].schedules
    if callable(variant.eta):
        constant = known.get("constant") or next(iter(known.values()))
        return (variant.eta, *constant(nodes, T, 1.0)[1:])
    made = known[variant.schedule](nodes, T, variant.eta)
    if not isinstance(made, tuple) or not all(map(callable, made)):
        raise InputError(
            f"Schedule '{variant.schedule}' of '{variant.rule}' must return a tuple of functions of t, not {made!r:.60}."
        )
    return made


def example(name: str) -> Rule:
    """The rule of that name for a single parameter, which shows what it needs of W."""
    variant = variants(name, [1.0])[0]
    return make(RULES[variant.rule], schedules_of(variant, 2, 1), (("x", (1, 1)),))


def make(method: Method, values: Sequence[Schedule], layout: Layout, prox: Prox | None = None) -> Rule:
    if prox is not None and not method.takes_prox:
        able = ", ".join(name for name, each in RULES.items() if each.takes_prox)
        raise InputError(f"Rule '{method.title}' has no proximal step: choose from {able}, or leave prox out.")
    options: dict[str, Any] = {"layout": layout} if method.needs_layout else {}
    try:
        rule = method.make(*values, **options, **({} if prox is None else {"prox": prox}))
    except TypeError as error:
        raise InputError(f"Rule '{method.title}' cannot be made from its {len(values)} schedules: {error}.") from error
    if not isinstance(rule, Rule):
        raise InputError(f"The maker of rule '{method.title}' must return a Rule, not {type(rule).__name__}.")
    return rule
