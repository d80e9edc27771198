"""TLS between sites: version 1.3, certificates on both sides, and revoked ones refused."""

import os
import shlex
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

from dnasa.checks import first_line
from dnasa.core import InputError
from dnasa.files import read_bytes

AUTHORITY, CERTIFICATE, KEY, REVOKED = "authority.crt", "site.crt", "site.key", "revoked.pem"
DROPPED = "dropped.txt"  # in the same folder: a site that the operator has declared stopped
VOTED = "voted.txt"  # a process of this site has voted in a run that began without all sites, and may not have ended
REVOKED_CERTIFICATE = 23  # OpenSSL's number of the error


def server_context(keys: Path) -> ssl.SSLContext:
    """A context for accepting connections from other sites with the files in `keys`, as they are now."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, keys)
    context.num_tickets = 0  # every connection is checked, none resumes an earlier one
    return context


def client_context(keys: Path) -> ssl.SSLContext:
    """A context for connecting to other sites with the files in `keys`, as they are now.

    It does not compare host names: certificates name sites, so compare `names` with the site that was dialed.
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
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", "") or first_line(error)
        raise InputError(
            f"Other sites would refuse the certificate in {keys} ({reason}): check the clock of this machine, and that "
            f"{CERTIFICATE} and {REVOKED} are of the authority in {AUTHORITY}; or make a new bundle with `dnasa keys site`."
        ) from error
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
    try:
        context.load_verify_locations(keys / AUTHORITY)
        context.load_cert_chain(keys / CERTIFICATE, keys / KEY, password="")  # or it would ask for one
        if os.path.lexists(keys / REVOKED):
            _load_revoked(context, keys / REVOKED)
    except OSError as error:
        raise InputError(f"Cannot use the PEM files in {keys} ({first_line(error)}): copy the bundle again.") from error
    return context


def _load_revoked(context: ssl.SSLContext, path: Path) -> None:
    if b"CERTIFICATE-----" in read_bytes(path, follow=True):  # it would become an authority
        raise InputError(f"{path} must hold a list of revoked certificates only: copy it from the authority again.")
    context.load_verify_locations(path)
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
