"""Sites know each other by certificates: every other machine is refused, whether it dials or is dialed."""

import asyncio
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from certificates import Signed, bundle, connect, sign
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from dnasa.core import InputError
from dnasa.sites import keys, tls
from dnasa.sites.connecting import connect as dial
from dnasa.sites.connecting import explain
from dnasa.sites.file import Site


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An authority and two sites."""
    folder = tmp_path / "keys"
    keys.make_authority(folder)
    for site in ("berlin", "paris"):
        keys.make_site(folder, site)
    return folder


def authority_of(folder: Path) -> Signed:
    certificate = x509.load_pem_x509_certificate((folder / "authority.crt").read_bytes())
    return Signed(certificate, serialization.load_pem_private_key((folder / "authority.key").read_bytes(), None))


def site_of(bundle: Path) -> Signed:
    certificate = x509.load_pem_x509_certificate((bundle / "site.crt").read_bytes())
    return Signed(certificate, serialization.load_pem_private_key((bundle / "site.key").read_bytes(), None))


def stranger(protocol: int, chain: bytes | None, key: bytes, folder: Path) -> ssl.SSLContext:
    """A context that accepts everybody and shows these certificates."""
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if chain is not None:
        (folder / "chain.pem").write_bytes(chain)
        (folder / "key.pem").write_bytes(key)
        context.load_cert_chain(folder / "chain.pem", folder / "key.pem")
    return context


def accepted(own: Path, chain: bytes | None, key: bytes, scratch: Path) -> tuple[bool, bool]:
    """Whether a site accepts somebody with these certificates who dials it, and whom it dials."""
    dialed_by = connect(tls.server_context(own), stranger(ssl.PROTOCOL_TLS_CLIENT, chain, key, scratch))
    dialed = connect(stranger(ssl.PROTOCOL_TLS_SERVER, chain, key, scratch), tls.client_context(own))
    assert isinstance(dialed_by[0], list) == isinstance(dialed_by[1], list)  # both learn of a refusal
    return isinstance(dialed_by[0], list), isinstance(dialed[1], list)


def test_sites_of_one_authority_know_each_others_names(folder: Path) -> None:
    server, client = tls.server_context(folder / "berlin"), tls.client_context(folder / "paris")
    assert connect(server, client) == (["paris"], ["berlin"])


def test_connections_use_tls_1_3_and_none_resumes_another(folder: Path) -> None:
    server, client = tls.server_context(folder / "berlin"), tls.client_context(folder / "paris")
    assert server.num_tickets == 0
    for context in (server, client):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_3
        assert context.verify_mode == ssl.CERT_REQUIRED
    old = tls.client_context(folder / "paris")
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert all(isinstance(end, OSError) for end in connect(server, old))


STRANGERS = "another authority,namesake,self-signed,expired,not yet valid,signed by a site,no certificate,good".split(",")


@pytest.mark.parametrize("kind", STRANGERS)
def test_strangers_are_refused_whether_they_dial_or_are_dialed(kind: str, folder: Path, tmp_path: Path) -> None:
    authority, site = authority_of(folder), site_of(folder / "paris")
    other = {
        "another authority": lambda: sign("paris", sign("other", ca=True)),
        "namesake": lambda: sign("paris", sign(str(next(iter(authority.certificate.subject)).value), ca=True)),
        "self-signed": lambda: sign("paris"),
        "expired": lambda: sign("paris", authority, days=(-9, -0.001)),
        "not yet valid": lambda: sign("paris", authority, days=(0.1, 9)),
        "signed by a site": lambda: sign("berlin", site),
        "no certificate": lambda: sign("paris"),
        "good": lambda: sign("paris", authority),
    }[kind]()
    chain = other.pem + (site.pem if kind == "signed by a site" else b"")
    if kind == "no certificate":  # a server must have one: it is refused as self-signed
        server = tls.server_context(folder / "berlin")
        seen = connect(server, stranger(ssl.PROTOCOL_TLS_CLIENT, None, b"", tmp_path))
        assert all(isinstance(end, OSError) for end in seen)
    else:
        assert accepted(folder / "berlin", chain, other.key_pem(), tmp_path) == ((kind == "good"),) * 2


def test_a_revoked_site_is_refused_by_the_next_contexts(folder: Path, tmp_path: Path) -> None:
    keys.make_site(folder, "lyon")
    own, old = folder / "berlin", tls.server_context(folder / "berlin")
    paris, lyon = site_of(folder / "paris"), site_of(folder / "lyon")
    assert accepted(own, paris.pem, paris.key_pem(), tmp_path) == (True, True)
    keys.revoke(folder, "paris")
    assert accepted(own, paris.pem, paris.key_pem(), tmp_path) == (False, False)
    assert connect(old, tls.client_context(folder / "lyon")) == (["lyon"], ["berlin"])
    assert accepted(own, lyon.pem, lyon.key_pem(), tmp_path) == (True, True)
    keys.revoke(folder, "lyon")
    for site in (paris, lyon):
        assert accepted(own, site.pem, site.key_pem(), tmp_path) == (False, False)
    new = site_of(keys.make_site(folder, "rome"))
    assert accepted(own, new.pem, new.key_pem(), tmp_path) == (True, True)
    assert accepted(folder / "rome", paris.pem, paris.key_pem(), tmp_path) == (False, False)


def test_a_list_of_revoked_certificates_adds_no_authority(folder: Path) -> None:
    (folder / "berlin" / "revoked.pem").write_bytes(sign("other", ca=True).pem)
    with pytest.raises(InputError, match="must hold a list of revoked certificates only"):
        tls.server_context(folder / "berlin")


@pytest.mark.parametrize("bits", [0, 2048])
def test_own_certificates_work(bits: int, tmp_path: Path) -> None:
    """RSA or EC, with an authority between, several authorities in the file, and a common name only."""
    root, other = sign("root", ca=True, bits=bits), sign("other", ca=True)
    between = sign("between", root, ca=True)
    berlin, paris = sign("berlin", between, bits=bits), sign("paris", other, dns=False, uses="")
    trusted = other.pem + root.pem
    one = bundle(tmp_path / "one", trusted, berlin.pem + between.pem, berlin.key_pem())
    two = bundle(tmp_path / "two", trusted, paris.pem, paris.key_pem())
    assert connect(tls.server_context(one), tls.client_context(two)) == (["paris"], ["berlin"])
    assert tls.own_names(one) == ["berlin"]
    assert tls.own_names(two) == ["paris"]


def test_own_certificates_that_others_would_refuse_are_named(tmp_path: Path) -> None:
    root = sign("root", ca=True)
    site = sign("site", root)
    made = {
        "has expired.*clock.*new bundle": sign("berlin", root, days=(-9, -1)),
        "not yet valid.*clock": sign("berlin", root, days=(1, 9)),
        "self-signed": sign("berlin"),
        "unable to get local issuer": sign("berlin", sign("other", ca=True)),
        "unsuitable certificate purpose": sign("berlin", root, uses="SERVER_AUTH"),
        "unsuitable certificate purpose ": sign("berlin", root, uses="CLIENT_AUTH"),
    }
    for cause, signed in made.items():
        folder = bundle(tmp_path / "bundle", root.pem, signed.pem, signed.key_pem())
        with pytest.raises(InputError, match=cause.strip()):
            tls.own_names(folder)
    by_site = sign("berlin", site)
    folder = bundle(tmp_path / "bundle", root.pem, by_site.pem + site.pem, by_site.key_pem())
    with pytest.raises(InputError, match="invalid CA certificate"):
        tls.own_names(folder)


def revoked_by(issuer: Signed, name: x509.Name, days: tuple[int, int], serials: tuple[int, ...] = ()) -> bytes:
    """A list in this name, whoever signs it."""
    now = datetime.now(UTC)
    start, end = (now + timedelta(days=each) for each in days)
    builder = x509.CertificateRevocationListBuilder(name, start, end)
    for serial in serials:
        builder = builder.add_revoked_certificate(x509.RevokedCertificateBuilder(serial, now).build())
    return builder.sign(issuer.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_lists_that_would_stop_every_connection_are_named(folder: Path) -> None:
    authority, other = authority_of(folder), sign("other", ca=True)
    name, serial = authority.certificate.subject, site_of(folder / "berlin").certificate.serial_number
    lists = {
        r"\(certificate revoked\).* make a new bundle": revoked_by(authority, name, (-1, 9), (serial,)),
        "CRL has expired": revoked_by(authority, name, (-9, -1)),
        "CRL is not yet valid": revoked_by(authority, name, (1, 9)),
        "unable to get certificate CRL": revoked_by(other, other.certificate.subject, (-1, 9)),
        "CRL signature failure": revoked_by(other, name, (-1, 9)),
    }
    for cause, data in lists.items():
        (folder / "berlin" / "revoked.pem").write_bytes(data)
        with pytest.raises(InputError, match=cause):
            tls.own_names(folder / "berlin")


def test_files_that_cannot_be_used_are_named(folder: Path) -> None:
    own = folder / "berlin"
    key = (own / "site.key").read_bytes()

    def refused(name: str, data: bytes | None, cause: str) -> None:
        before = (own / name).read_bytes()
        (own / name).unlink() if data is None else (own / name).write_bytes(data)
        with pytest.raises(InputError, match=cause):
            tls.own_names(own)
        (own / name).write_bytes(before)
        (own / "site.key").chmod(0o600)

    for name in ("authority.crt", "site.crt", "site.key"):
        refused(name, None, rf"There is no file .*{name}: make a bundle")
        refused(name, b"nothing", "Cannot use the PEM files")
    refused("site.key", (folder / "paris" / "site.key").read_bytes(), "Cannot use the PEM files")
    refused("site.key", sign("x", bits=2048).key_pem(), "Cannot use the PEM files")
    refused("site.key", sign("x").key_pem(b"password"), "Cannot use the PEM files")
    (own / "revoked.pem").write_bytes(b"")
    with pytest.raises(InputError, match="Cannot use the PEM files"):
        tls.own_names(own)
    (own / "revoked.pem").unlink()
    assert (own / "site.key").read_bytes() == key
    assert tls.own_names(own) == ["berlin"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_that_others_can_read_is_refused(mode: int, folder: Path) -> None:
    (folder / "berlin" / "site.key").chmod(mode)
    with pytest.raises(InputError, match=r"run `chmod 600 .*site\.key`"):
        tls.client_context(folder / "berlin")


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("SSLV3_ALERT_CERTIFICATE_REVOKED", "it refuses this site's certificate: certificate revoked"),
        ("TLSV1_ALERT_UNKNOWN_CA", "it refuses this site's certificate: unknown ca"),
        ("WRONG_VERSION_NUMBER", "it closed the connection, as it does to certificates it refuses: what OpenSSL says"),
    ],
)
def test_what_the_other_site_has_against_this_one_is_told_in_words(reason: str, told: str) -> None:
    error = ssl.SSLError(1, "what OpenSSL says")
    error.reason = reason
    assert explain(error) == told


def test_a_site_still_dials_others_when_its_script_has_ended() -> None:
    async def dials(port: int) -> None:
        ended = ThreadPoolExecutor()
        ended.shutdown()  # as Python does before the exit handlers
        asyncio.get_running_loop().set_default_executor(ended)
        (await dial(Site("berlin", "localhost", port))).close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        asyncio.run(dials(listener.getsockname()[1]))
