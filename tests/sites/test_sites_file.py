"""`sites.toml` is read completely or refused in one line that says what to change."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from certificates import bundle, sign
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dnasa.core import InputError
from dnasa.sites import keys
from dnasa.sites.file import Site, Sites, read_sites

GOOD = """
keys = "keys/berlin"
[sites]
berlin = "berlin.example.org:7400"
paris = "[2001:db8::7]:7400"
lyon = ""
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the keys of three sites."""
    home = tmp_path_factory.mktemp("sites")
    keys.make_authority(home / "keys")
    for site in ("berlin", "paris", "lyon"):
        keys.make_site(home / "keys", site)
    return home


@pytest.fixture
def home(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DNASA_KEYS", raising=False)
    return made


def read(home: Path, text: str) -> Sites:
    (home / "sites.toml").write_text(text, encoding="utf-8")
    return read_sites(home / "sites.toml")


def test_the_order_numbers_the_sites_and_the_certificate_names_this_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = [Site("berlin", "berlin.example.org", 7400), Site("paris", "2001:db8::7", 7400), Site("lyon", "", 0)]
    assert read(home, GOOD) == Sites(sites, 0, ("berlin.example.org", 7400), home / "keys/berlin")
    assert [site.reachable for site in sites] == [True, True, False]
    monkeypatch.setenv("DNASA_KEYS", "paris")  # relative to the current folder
    monkeypatch.chdir(home / "keys")
    assert read(home, GOOD) == Sites(sites, 1, ("2001:db8::7", 7400), Path("paris"))
    monkeypatch.setenv("DNASA_KEYS", str(home / "keys/lyon"))
    assert read(home, GOOD.replace('keys = "keys/berlin"', "")) == Sites(sites, 2, None, home / "keys/lyon")


def test_a_site_may_listen_on_another_address_and_one_alone_needs_none(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(home, "keys = 'keys/berlin'\n[sites]\nberlin = ''").sites == [Site("berlin", "", 0)]
    for address, listen in (("0.0.0.0:7401", ("0.0.0.0", 7401)), ("[::]:7400", ("::", 7400))):
        text = f"listen = '{address}'\n{GOOD}"
        monkeypatch.setenv("DNASA_KEYS", str(home / "keys/berlin"))
        assert read(home, text).listen == listen
        monkeypatch.setenv("DNASA_KEYS", str(home / "keys/lyon"))  # it accepts no connections, wherever others listen
        assert read(home, text).listen is None


def with_line(line: str) -> str:
    return GOOD + line


MISTAKES = {
    "unknown key 'key'. The keys here: keys, listen, sites": "key = 1" + GOOD,
    "is not TOML": GOOD + "lyon = ",
    "a name stands there twice": with_line("lyon = ''"),
    "sites are missing": "keys = 'keys/berlin'",
    "sites are missing:": "keys = 'keys/berlin'\nsites = []",
    "keys must be the folder of this site's keys": GOOD.replace('"keys/berlin"', "7"),
    "or set DNASA_KEYS": GOOD.replace('keys = "keys/berlin"', ""),
    "There is no file .*keys/rome/authority.crt": GOOD.replace("keys/berlin", "keys/rome"),
    "There is no file": GOOD.replace("keys/berlin", "a" * 5000),
    "There is no file ": GOOD.replace("keys/berlin", "a\\u0000b"),
    "rome needs an address": with_line("rome.example.org = 'x:1'"),
    "'r_me' is no name of a site": with_line("r_me = 'x:1'"),
    "'' is no name of a site": with_line("'' = 'x:1'"),
    "rome needs an address with a port from 1 to 65535": with_line("rome = 'x'"),
    **{
        f"rome needs an address with .*, not {re.escape(repr(wrong))}": with_line(f"rome = {wrong!r}")
        for wrong in ("x:0", "x:65536", "x:٣", 7400, "x:", "2001:db8::8:7400", "[2001:db8::x]:7400", ":7400", "a..b:7400")
    },
    "listen needs an address with a port": "listen = ''" + GOOD,
    "rome and oslo have the same address, x:1": with_line("rome = 'x:1'\noslo = 'x:1'"),
    "berlin and lyon have no address: give one of them one": "keys = 'keys/berlin'\n[sites]\nberlin = ''\nlyon = ''",
    "names berlin, none of the sites paris": "keys = 'keys/berlin'\n[sites]\nparis = 'x:1'",
}


@pytest.mark.parametrize("cause", MISTAKES)
def test_mistakes_are_named_with_their_remedy(cause: str, home: Path) -> None:
    with pytest.raises(InputError, match=cause) as raised:
        read(home, MISTAKES[cause])
    assert str(raised.value).startswith(str(home / "sites.toml"))
    assert str(raised.value).endswith(".")
    with pytest.raises(InputError, match=r"Cannot read the sites in .*none\.toml: No such file"):
        read_sites(home / "none.toml")


def test_a_certificate_with_the_names_of_two_sites_is_nobodys(home: Path, tmp_path: Path) -> None:
    authority = sign("root", ca=True)
    site = sign("berlin", authority)
    bundle(tmp_path / "b", authority.pem, site.pem, site.key_pem())
    text = f"keys = '{tmp_path / 'b'}'\n[sites]\nberlin = 'x:1'\nparis = 'x:2'"
    assert read(home, text).own == 0
    both = sign("berlin", authority, others=("paris",))
    bundle(tmp_path / "b", authority.pem, both.pem, both.key_pem())
    with pytest.raises(InputError, match=r"names berlin, paris"):
        read(home, text)


def test_reading_needs_no_package_for_making_keys(home: Path) -> None:
    (home / "sites.toml").write_text(GOOD)
    code = "import sys; from dnasa.sites.file import read_sites; read_sites(sys.argv[1]); print('cryptography' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, str(home / "sites.toml")], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
PIECES = st.sampled_from(["[", "]", ":", ".", "'", '"', "\n", "=", "0", "70000", "::", "-", "", "\\", "\x00", "é", "{}"])


def read_or_refuse(home: Path, text: str) -> None:
    """What is accepted can be used."""
    try:
        found = read(home, text)
    except InputError:  # whose message is one line
        return
    assert found.sites[found.own].name == "berlin"
    for site in found.sites:
        site.host.encode("idna")  # as the system's resolver does
        assert 1 <= site.port <= 65535 or not site.reachable


@quick
@given(places=st.lists(st.tuples(st.integers(0, len(GOOD)), st.integers(0, 4), PIECES), min_size=1, max_size=3))
def test_damaged_files_are_refused_in_one_line(home: Path, places: list[tuple[int, int, str]]) -> None:
    text = GOOD
    for place, length, new in places:
        text = text[:place] + new + text[place + length :]
    read_or_refuse(home, text)


VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.text("[]:.0719a%-_/é", max_size=12), st.integers(-1, 99999), st.just(True), st.just([])
)


@quick
@given(address=VALUES, listen=VALUES, name=st.text("aZ0.-_é /", max_size=5))
def test_any_value_is_used_or_refused_in_one_line(home: Path, address: Any, listen: Any, name: str) -> None:
    lines = [] if listen is None else [f"listen = {listen!r}".replace("True", "true")]
    if address is not None:
        read_or_refuse(home, "\n".join([*lines, GOOD, f"'{name}' = {address!r}".replace("True", "true")]))
