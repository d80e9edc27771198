"""The methods, one file each. `@rule` adds a method to those that can be used by name, here and in your own code."""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from dnasa.rules import registry
from dnasa.rules.push_sum import push_sum
from dnasa.rules.registry import RULES, Method, Variant, rule

if TYPE_CHECKING:  # type checkers see the arguments of the makers; a new rule works without a line here
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

__all__ = [
    "RULES",
    "Method",
    "Variant",
    "adanasa",
    "d2",
    "dadam",
    "dasagt",
    "demuon",
    "dmsgd",
    "dnasa",
    "dsgd",
    "dsgt",
    "edm",
    "extra",
    "gt_adam",
    "gt_hsgd",
    "gt_nsgdm",
    "kgt",
    "mt",
    "push_dsgt",
    "push_sum",
    "qg_dsgdm",
    "rule",
    "sgp",
]

for module in iter_modules(__path__):
    import_module(f"{__name__}.{module.name}")
registry.BUILT_IN = frozenset(RULES)
__all__ += [name for name in sorted(registry.BUILT_IN) if name not in __all__]
# Import has set `dsgd` and the others to modules: now they are the functions of the same names.
globals().update({name: method.make for name, method in RULES.items()})
