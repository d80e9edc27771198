"""The file `sites.toml`: which sites there are, where they listen, and which of them this machine is."""

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from dnasa.core import InputError
from dnasa.files import read_toml
from dnasa.sites.tls import own_names

KEYS = ("keys", "listen", "sites")
HOST = r"(?=.{1,253}$)([A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}\.?"
EXAMPLE = "'host.example.org:7400', '192.0.2.7:7400' or '[2001:db8::7]:7400'"


@dataclass(frozen=True)
class Site:
    """A machine that takes part; without a host and a port it accepts no connections and dials the others."""

    name: str
    host: str = ""
    port: int = 0

    @property
    def reachable(self) -> bool:
        return bool(self.host)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}" if self.reachable else ""


@dataclass(frozen=True)
class Sites:
    """The sites in the order of their nodes, the number of this one, where it listens, and the folder of its keys."""

    sites: list[Site]
    own: int
    listen: tuple[str, int] | None
    keys: Path


def read_sites(path: str | Path) -> Sites:
    """The sites in a TOML file, checked together with the keys of this one."""
    path = Path(path)
    return read_toml(path, "sites", lambda given: _sites(given, path.parent))


def check_name(name: str) -> None:
    """Names of sites are names of folders, too, and stand in certificates."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}", name):
        raise InputError(f"'{name:.70}' is no name of a site: use up to 63 letters, digits, '-' and '.', no sign first.")


def _sites(given: Mapping[str, Any], folder: Path) -> Sites:
    for key in given:
        if key not in KEYS:
            raise InputError(f"unknown key '{key:.40}'. The keys here: {', '.join(KEYS)}.")
    sites = _listed(given.get("sites"))
    listen = _address("listen", given["listen"]) if "listen" in given else None
    here, named = os.environ.get("DNASA_KEYS"), given.get("keys")
    if not here and not (isinstance(named, str) and named):
        raise InputError("keys must be the folder of this site's keys: write keys = 'keys/NAME', or set DNASA_KEYS.")
    keys = Path(here) if here else folder / str(named)
    own = _own(sites, keys)
    site = sites[own]
    return Sites(sites, own, (listen or (site.host, site.port)) if site.reachable else None, keys)


def _own(sites: list[Site], keys: Path) -> int:
    """The number of the site that the certificate names."""
    certified = own_names(keys)
    found = [number for number, site in enumerate(sites) if site.name in certified]
    if len(found) != 1:
        named, listed = ", ".join(certified) or "nothing", ", ".join(site.name for site in sites)
        raise InputError(f"the certificate in {keys} names {named:.80}, none of the sites {listed:.200}: use the keys of one.")
    return found[0]


def _listed(given: Any) -> list[Site]:
    if not isinstance(given, dict) or not given:
        raise InputError("sites are missing: write a line NAME = 'HOST:PORT' for each below [sites].")
    for name in given:
        check_name(name)
    sites = [Site(name, *(_address(name, address) if address != "" else ())) for name, address in given.items()]
    for one, other in combinations(sites, 2):
        if one.reachable and one.address == other.address:
            raise InputError(f"{one.name} and {other.name} have the same address, {one.address}: give each its own.")
    if len(hidden := [site.name for site in sites if not site.reachable]) > 1:
        raise InputError(f"{hidden[0]} and {hidden[1]} have no address: give one of them one, or use a VPN.")
    return sites


def _address(what: str, given: Any) -> tuple[str, int]:
    """The host, without brackets, and the port."""
    host, _, port = given.rpartition(":") if isinstance(given, str) else ("", "", "")
    host = _ipv6(host[1:-1]) if host[:1] + host[-1:] == "[]" else host if re.fullmatch(HOST, host) else ""
    if not host or not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise InputError(f"{what} needs an address with a port from 1 to 65535, such as {EXAMPLE}, not {given!r:.80}.")
    return host, int(port)


def _ipv6(text: str) -> str:
    try:
        return str(ipaddress.IPv6Address(text))
    except ValueError:
        return ""
