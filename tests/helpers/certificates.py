"""Certificates as others make them, and handshakes between contexts over a real connection."""

import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dnasa.sites import tls

PEM = serialization.Encoding.PEM


class Signed(NamedTuple):
    """A certificate and its key."""

    certificate: x509.Certificate
    key: Any

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(PEM)

    def key_pem(self, password: bytes | None = None) -> bytes:
        secret = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        return bytes(self.key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, secret))


def sign(
    name: str,
    issuer: Signed | None = None,
    days: tuple[float, float] = (-1, 30),
    ca: bool = False,
    dns: bool = True,
    others: tuple[str, ...] = (),
    uses: str = "CLIENT_AUTH SERVER_AUTH",
    bits: int = 0,
) -> Signed:
    """A certificate valid from and to these days from now; signed by itself without an issuer, with an RSA key of `bits`."""
    key: Any = rsa.generate_private_key(65537, bits) if bits else ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    start, end = (datetime.now(UTC) + timedelta(days=each) for each in days)
    parent = issuer.certificate.subject if issuer else subject
    builder = x509.CertificateBuilder(parent, subject, key.public_key(), x509.random_serial_number(), start, end)
    builder = builder.add_extension(x509.BasicConstraints(ca, None), critical=True)
    if dns:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([x509.DNSName(each) for each in (name, *others)]), critical=False
        )
    if uses and not ca:
        usage = x509.ExtendedKeyUsage([getattr(ExtendedKeyUsageOID, use) for use in uses.split()])
        builder = builder.add_extension(usage, critical=False)
    return Signed(builder.sign(issuer.key if issuer else key, hashes.SHA256()), key)


def bundle(folder: Path, authority: bytes, site: bytes, key: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    for name, data in (("authority.crt", authority), ("site.crt", site), ("site.key", key)):
        (folder / name).write_bytes(data)
    (folder / "site.key").chmod(0o600)
    return folder


def connect(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[Any, Any]:
    """What each side sees after one byte each way, the server first: the names of the other, or the error that ended it."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(2) as threads:
        accepting = threads.submit(lambda: _end(server, listener.accept()[0], server_side=True))
        dialing = threads.submit(lambda: _end(client, socket.create_connection(listener.getsockname()[:2])))
        return accepting.result(), dialing.result()


def _end(context: ssl.SSLContext, raw: socket.socket, server_side: bool = False) -> Any:
    raw.settimeout(20)
    try:
        with raw, context.wrap_socket(raw, server_side=server_side) as connection:
            connection.sendall(b"x")
            if connection.recv(1) != b"x":  # in TLS 1.3 a client learns only here that it was refused
                return ConnectionError("closed")
            return tls.names(connection)
    except OSError as error:
        return error
