"""TLS between sites: version 1.3, certificates on both sides, and revoked ones refused."""

import os
import shlex
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dnasa.checks import first_line
from dnasa.core import InputError
from dnasa.files import read_bytes

AUTHORITY, CERTIFICATE, KEY, REVOKED = "authority.crt", "site.crt", "site.key", "revoked.pem"
REVOKED_CERTIFICATE = 23  # OpenSSL's number of the error
REMEDIES = {  # by OpenSSL's number of the error
    3: f"{REVOKED} must be of the same authority",
    8: f"{REVOKED} must be of the same authority",
    9: "check the clock of this machine",
    10: "check the clock of this machine, or make a new bundle with `dnasa keys site`",
    11: f"check the clock of this machine, or copy a newer {REVOKED}",
    12: f"copy a newer {REVOKED}",
    REVOKED_CERTIFICATE: "ask for a new bundle of `dnasa keys site`",
    26: f"{CERTIFICATE} must be valid for servers and for clients",
    79: f"{CERTIFICATE} must be signed by an authority, not by another site",
}


def server_context(keys: Path) -> ssl.SSLContext:
    """A context for accepting connections from other sites with the files in `keys`, as they are now."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, keys)
    context.num_tickets = 0  # every connection is checked, none resumes an earlier one
    return context


def client_context(keys: Path) -> ssl.SSLContext:
    """A context for connecting to other sites with the files in `keys`, as they are now.

    It does not compare host names: certificates name sites, so compare `names` with the site that was dialled.
    """
    return _context(ssl.PROTOCOL_TLS_CLIENT, keys)


def names(connection: ssl.SSLSocket | ssl.SSLObject) -> list[str]:
    """The names in the certificate of the other side: its DNS names, or its common name if it has none."""
    certificate: Any = connection.getpeercert() or {}
    found = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
    return found or [value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"]


def own_names(keys: Path) -> list[str]:
    """The names in a site's own certificate. The site connects to itself first: what others would refuse is refused here."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context(keys).wrap_bio(to_server, to_client, server_side=True)
    client = client_context(keys).wrap_bio(to_client, to_server)
    try:
        for end in (client, server, client, server):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLCertVerificationError as error:
        remedy = REMEDIES.get(error.verify_code, f"{CERTIFICATE} must be signed by the authority in {AUTHORITY}")
        raise InputError(f"The certificate in {keys} would be refused ({error.verify_message}): {remedy}.") from error
    except ssl.SSLError as error:
        raise InputError(f"The certificate in {keys} cannot be used ({first_line(error)}): make another.") from error
    return names(server)


def check_private(path: Path) -> None:
    """A key that others on this machine can read is refused."""
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise InputError(f"Others on this machine can read or change {path}: run `chmod 600 {shlex.quote(str(path))}`.")


def _context(protocol: int, keys: Path) -> ssl.SSLContext:
    for name in (AUTHORITY, CERTIFICATE, KEY):
        if not os.path.isfile(keys / name):
            raise InputError(f"There is no file {keys / name}: make a bundle with `dnasa keys site` and copy it there.")
    check_private(keys / KEY)
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    with _loading(keys / AUTHORITY):
        context.load_verify_locations(keys / AUTHORITY)
    with _loading(keys / CERTIFICATE):
        context.load_cert_chain(keys / CERTIFICATE, keys / KEY, password=_refuse_password)
    if os.path.lexists(keys / REVOKED):
        with _loading(keys / REVOKED):
            _load_revoked(context, keys / REVOKED)
    return context


def _load_revoked(context: ssl.SSLContext, path: Path) -> None:
    if b"CERTIFICATE-----" in read_bytes(path, follow=True):  # it would become an authority
        raise InputError(f"{path} must hold a list of revoked certificates only: copy it from the authority again.")
    context.load_verify_locations(path)
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _refuse_password() -> str:
    raise InputError(f"{KEY} is encrypted, and nobody may be there to type its password: decrypt it, with mode 600.")


@contextmanager
def _loading(path: Path) -> Iterator[None]:
    try:
        yield
    except ssl.SSLError as error:
        if error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"):
            raise InputError(f"{path} and {KEY} do not belong together: copy both from one bundle.") from error
        raise InputError(f"Cannot use {path} ({first_line(error)}): it must be a PEM file.") from error
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.") from error
