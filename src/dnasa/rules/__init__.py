"""The methods, one file each; `register` adds your own to those that can be used by name."""

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
from dnasa.rules.push_sum import push_sum
from dnasa.rules.qg_dsgdm import qg_dsgdm
from dnasa.rules.registry import RULES, Method, Variant, register
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
    "register",
    "sgp",
]
