"""The methods, one file each. `@rule` adds a method to those that can be used by name, here and in your own code."""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from dnasa.rules import registry
from dnasa.rules.composition import with_adam, with_clipping, with_gradients, with_momentum
from dnasa.rules.push_sum import push_sum
from dnasa.rules.registry import RULES, Method, Variant, rule

if TYPE_CHECKING:  # type checkers see the arguments of the makers; a new rule works without a line here
    from dnasa.rules.adanasa import adanasa as adanasa
    from dnasa.rules.adgt import adgt as adgt
    from dnasa.rules.d2 import d2 as d2
    from dnasa.rules.dadam import dadam as dadam
    from dnasa.rules.dasagt import dasagt as dasagt
    from dnasa.rules.demuon import demuon as demuon
    from dnasa.rules.dmsgd import dmsgd as dmsgd
    from dnasa.rules.dnasa import dnasa as dnasa
    from dnasa.rules.dsgd import dsgd as dsgd
    from dnasa.rules.dsgt import dsgt as dsgt
    from dnasa.rules.edm import edm as edm
    from dnasa.rules.extra import extra as extra
    from dnasa.rules.gt_adam import gt_adam as gt_adam
    from dnasa.rules.gt_hsgd import gt_hsgd as gt_hsgd
    from dnasa.rules.gt_nsgdm import gt_nsgdm as gt_nsgdm
    from dnasa.rules.kgt import kgt as kgt
    from dnasa.rules.mt import mt as mt
    from dnasa.rules.push_dsgt import push_dsgt as push_dsgt
    from dnasa.rules.qg_dsgdm import qg_dsgdm as qg_dsgdm
    from dnasa.rules.sgp import sgp as sgp

__all__ = ["RULES", "Method", "Variant", "push_sum", "rule", "with_adam", "with_clipping", "with_gradients", "with_momentum"]

for module in iter_modules(__path__):
    import_module(f"{__name__}.{module.name}")
for name in sorted(RULES):  # not in the order in which the files import each other
    RULES[name] = RULES.pop(name)
registry.BUILT_IN = frozenset(RULES)
__all__ += sorted(RULES)
# Import has set `dsgd` and the others to modules: now they are the functions of the same names.
globals().update({name: method.make for name, method in RULES.items()})
