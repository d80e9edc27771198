"""`dnasa keys`: secrets are private from their first moment, and nothing is overwritten."""

import os
import stat
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from certificates import sign
from cryptography import x509
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from dnasa import cli
from dnasa.core import InputError
from dnasa.sites import keys


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    keys.make_authority(folder)
    keys.make_site(folder, "berlin")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_secrets_are_private_from_their_first_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: dict[str, int] = {}
    really = os.open

    def watched(path: Path, flags: int, mode: int = 0o777, **rest: int) -> int:
        number = really(path, flags, mode, **rest)
        modes.setdefault(Path(path).name, stat.S_IMODE(os.fstat(number).st_mode))
        return number

    before = os.umask(0)
    try:
        monkeypatch.setattr(os, "open", watched)
        keys.make_authority(tmp_path / "keys")
        bundle = keys.make_site(tmp_path / "keys", "berlin")
    finally:
        os.umask(before)
    assert modes["authority.key"] == modes["site.key"] == 0o600
    for secret in (tmp_path / "keys" / "authority.key", bundle / "site.key"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    for private in (tmp_path / "keys", bundle):
        assert stat.S_IMODE(private.stat().st_mode) == 0o700


def test_nothing_is_overwritten(folder: Path) -> None:
    before = contents(folder)
    with pytest.raises(InputError, match=r"authority\.key exists, and nothing is overwritten: move it away"):
        keys.make_authority(folder)
    with pytest.raises(InputError, match=r"berlin exists, and nothing is overwritten: move it away"):
        keys.make_site(folder, "berlin")
    assert contents(folder) == before
    (folder / "authority.key").unlink()
    with pytest.raises(InputError, match=r"authority\.crt exists"):
        keys.make_authority(folder)
    assert not (folder / "authority.key").exists()


def test_links_are_not_followed_when_keys_are_made(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "authority.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="exists"):
        keys.make_authority(tmp_path / "keys")
    assert not (tmp_path / "elsewhere").exists()


FILES = ["authority.crt", "authority.key", "issued.pem", "revoked.pem"]


@pytest.mark.parametrize("name", [*FILES, "", ".", "..", "a/b", "-a", ".a", "ä", "a b", "a\n", "a" * 64, "a_b", "*"])
def test_bad_names_are_refused(name: str, folder: Path) -> None:
    with pytest.raises(InputError, match="choose another name" if name in FILES else "is no name of a site: use"):
        keys.make_site(folder, name)


@pytest.mark.parametrize("name", ["a", "7", "Berlin-2.example.org", "a" * 63])
def test_good_names_stand_in_the_certificate(name: str, folder: Path) -> None:
    certificate = load(keys.make_site(folder, name) / "site.crt")
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert found.get_values_for_type(x509.DNSName) == [name]


def test_certificates_are_valid_from_an_hour_ago_for_the_days_asked_for(folder: Path) -> None:
    now, minute = datetime.now(UTC), timedelta(minutes=1)
    made = {
        730: load(folder / "berlin" / "site.crt"),
        9: load(keys.make_site(folder, "paris", days=9) / "site.crt"),
        3650: load(folder / "authority.crt"),
    }
    for days, certificate in made.items():
        assert abs(certificate.not_valid_after_utc - now - timedelta(days=days)) < minute
        assert abs(certificate.not_valid_before_utc - now + timedelta(hours=1)) < minute
    with pytest.raises(InputError, match="give fewer --days"):
        keys.make_site(folder, "rome", days=3651)  # longer than the authority
    assert not (folder / "rome").exists()


def test_certificates_say_what_they_are_for(folder: Path) -> None:
    authority, site = load(folder / "authority.crt"), load(folder / "berlin" / "site.crt")
    for certificate, ca, uses in ((authority, True, {"key_cert_sign", "crl_sign"}), (site, False, {"digital_signature"})):
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage)
        assert constraints.critical
        assert constraints.value.ca == ca
        assert usage.critical
        names = ("digital_signature", "key_cert_sign", "crl_sign", "key_encipherment", "data_encipherment")
        assert {name for name in names if getattr(usage.value, name)} == uses
    own = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    assert site.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier == own
    site.verify_directly_issued_by(authority)


def test_revoking_adds_to_the_list_and_updates_the_bundles(folder: Path) -> None:
    keys.make_site(folder, "paris")
    (folder / "paris").rename(folder.parent / "paris")  # a bundle that was moved to its machine
    keys.revoke(folder, "paris")
    assert keys.revoke(folder, "paris") == [folder / "revoked.pem", folder / "berlin" / "revoked.pem"]
    keys.make_site(folder, "paris")  # a new certificate: the old one stays revoked
    new = load(folder / "paris" / "site.crt").serial_number
    assert new not in {entry.serial_number for entry in x509.load_pem_x509_crl((folder / "revoked.pem").read_bytes())}
    keys.revoke(folder, "berlin")
    data = (folder / "revoked.pem").read_bytes()
    crl = x509.load_pem_x509_crl(data)
    assert len({entry.serial_number for entry in crl}) == len(crl) == 2
    assert crl.next_update_utc is not None
    assert crl.next_update_utc > datetime.now(UTC) + timedelta(days=3600)
    for bundle in ("berlin", "paris"):
        assert (folder / bundle / "revoked.pem").read_bytes() == data


def test_bundles_of_other_authorities_are_left_alone(folder: Path) -> None:
    (folder / "own").mkdir()
    (folder / "own" / "authority.crt").write_bytes(sign("other", ca=True).pem)
    keys.revoke(folder, "berlin")
    assert not (folder / "own" / "revoked.pem").exists()


def test_mistakes_get_one_clear_line(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run `dnasa keys init` first"):
        keys.make_site(tmp_path / "nowhere", "berlin")
    with pytest.raises(InputError, match=r"No certificate was made for 'rome'.*Sites there: berlin"):
        keys.revoke(folder, "rome")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"Cannot read or write .*give another folder"):
        keys.make_authority(tmp_path / "file" / "keys")
    (folder / "authority.key").chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        keys.make_site(folder, "rome")
    keys.make_authority(tmp_path / "other")
    keys.make_site(tmp_path / "other", "rome")
    keys.revoke(tmp_path / "other", "rome")
    (folder / "revoked.pem").write_bytes((tmp_path / "other" / "revoked.pem").read_bytes())
    (folder / "authority.key").chmod(0o600)
    with pytest.raises(InputError, match="is not signed by the authority"):
        keys.revoke(folder, "berlin")
    (folder / "authority.key").write_bytes((tmp_path / "other" / "authority.key").read_bytes())
    (folder / "authority.key").chmod(0o600)
    with pytest.raises(InputError, match="do not belong together"):
        keys.revoke(folder, "berlin")


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1), new=st.binary(max_size=3), length=st.integers(0, 3))
def test_damaged_files_are_refused_in_one_line(name: str, folder: Path, place: float, new: bytes, length: int) -> None:
    keys.revoke(folder, "berlin")
    path = folder / name
    good = path.read_bytes()
    start = int(place * len(good))
    try:
        path.write_bytes(good[:start] + new + good[start + length :])
        with suppress(InputError):  # whose message is one line
            keys.revoke(folder, "berlin")
    finally:
        path.write_bytes(good)


def test_the_commands_make_and_revoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> str:
        done = CliRunner().invoke(cli.app, ["keys", *words], catch_exceptions=False)
        assert done.exit_code == 0
        return " ".join(done.stdout.split())

    assert "keep it secret" in run("init")
    assert "Made keys/berlin." in run("site", "berlin", "--days", "9")
    assert "Made keys/paris." in run("site", "paris")
    assert "Wrote keys/revoked.pem, keys/berlin/revoked.pem, keys/paris/revoked.pem." in run("revoke", "paris")
    last = load(Path("keys/berlin/site.crt")).not_valid_after_utc
    assert timedelta(days=8) < last - datetime.now(UTC) < timedelta(days=10)
    assert CliRunner().invoke(cli.app, ["keys", "site", "rome", "--days", "0"]).exit_code == 2
    run("init", "--keys", "others")
    assert (tmp_path / "others" / "authority.key").is_file()
