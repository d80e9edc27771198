"""The keys of sites: an authority, a bundle of files for each site, and the list of revoked certificates."""

import inspect
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from dnasa.checks import first_line
from dnasa.core import InputError
from dnasa.extras import needed_by
from dnasa.files import read_bytes, write_durably
from dnasa.sites.file import check_name
from dnasa.sites.tls import AUTHORITY, CERTIFICATE, KEY, REVOKED, check_private

with needed_by("dnasa keys"):
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_KEY, ISSUED = "authority.key", "issued.pem"  # issued.pem: every certificate that was made, for revoking it
TEN_YEARS = timedelta(days=3650)
EARLIER = timedelta(hours=1)  # clocks differ: what is made now is also valid where it is still an hour ago


def make_authority(folder: Path) -> None:
    """Make the authority whose signature all sites accept: `authority.crt`, and `authority.key` to keep secret."""
    key, name = ec.generate_private_key(ec.SECP256R1()), _name(f"dnasa authority {secrets.token_hex(8)}")
    extensions = (x509.BasicConstraints(ca=True, path_length=0), _key_usage("key_cert_sign", "crl_sign"))
    certificate = _signed(name, key, TEN_YEARS, name, key, extensions)
    for path in (folder / AUTHORITY_KEY, folder / AUTHORITY):
        _refuse_existing(path)
    with _errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _create(folder / AUTHORITY_KEY, _key_pem(key))
        _create(folder / AUTHORITY, _pem(certificate))


def make_site(folder: Path, site: str, days: int = 730) -> Path:
    """Make the bundle of a site, a folder with its certificate, its key and the authority's certificate."""
    check_name(site)
    bundle, revoked = folder / site, folder / REVOKED
    if site in (AUTHORITY, AUTHORITY_KEY, ISSUED, REVOKED):
        raise InputError(f"{bundle} is a file of the authority: choose another name for the site.")
    authority, authority_key = _authority(folder)
    key, last = ec.generate_private_key(ec.SECP256R1()), authority.not_valid_after_utc
    if datetime.now(UTC) + timedelta(days=days) > last:
        raise InputError(f"The authority ends on {last:%Y-%m-%d}, before the site: give fewer --days, or make another one.")
    extensions = (
        x509.BasicConstraints(ca=False, path_length=None),
        _key_usage("digital_signature"),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.SubjectAlternativeName([x509.DNSName(site)]),
    )
    certificate = _signed(_name(site), key, timedelta(days=days), authority.subject, authority_key, extensions)
    _refuse_existing(bundle)
    with _errors(bundle):
        bundle.mkdir(mode=0o700)
        _create(folder / ISSUED, _pem(certificate), os.O_APPEND)
        _create(bundle / KEY, _key_pem(key))
        _create(bundle / CERTIFICATE, _pem(certificate))
        _create(bundle / AUTHORITY, _pem(authority))
        if revoked.exists():
            _create(bundle / REVOKED, read_bytes(revoked))
    return bundle


def revoke(folder: Path, site: str) -> list[Path]:
    """Revoke all certificates made for a site so far; return the lists written, in the folder and in the bundles in it."""
    (authority, key), issued = _authority(folder), folder / ISSUED
    certificates = _parse(issued, x509.load_pem_x509_certificates) if issued.exists() else []
    if site not in (names := dict.fromkeys(map(_site_of, certificates))):
        known = ", ".join(names) or "none"
        raise InputError(f"No certificate was made for '{site:.70}' in {folder}. Sites there: {known:.200}.")
    serials = {each.serial_number for each in certificates if _site_of(each) == site} | _revoked(folder / REVOKED, authority)
    data, own = _crl(authority, key, sorted(serials)), _pem(authority)
    bundles = sorted(path.parent for path in folder.glob(f"*/{AUTHORITY}") if _parse(path, bytes) == own)
    written = [place / REVOKED for place in (folder, *bundles)]
    for path in written:
        with _errors(path):
            write_durably(path, data)
    return written


# ---------------------------------------------------------------- certificates


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _site_of(certificate: x509.Certificate) -> str:
    return ", ".join(str(part.value) for part in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME))


def _key_usage(*allowed: str) -> x509.KeyUsage:
    flags = list(inspect.signature(x509.KeyUsage).parameters)
    return x509.KeyUsage(**{flag: flag in allowed for flag in flags})


def _signed(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    valid: timedelta,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    extensions: Iterable[x509.ExtensionType],
) -> x509.Certificate:
    now, public = datetime.now(UTC), key.public_key()
    number = x509.random_serial_number()
    builder = x509.CertificateBuilder(issuer, subject, public, number, now - EARLIER, now + valid)
    for extension in (x509.SubjectKeyIdentifier.from_public_key(public), _issued_by(issuer_key), *extensions):
        builder = builder.add_extension(extension, isinstance(extension, (x509.BasicConstraints, x509.KeyUsage)))
    return builder.sign(issuer_key, hashes.SHA256())


def _issued_by(key: ec.EllipticCurvePrivateKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())


def _crl(authority: x509.Certificate, key: ec.EllipticCurvePrivateKey, serials: Iterable[int]) -> bytes:
    """The list of revoked certificates; it is valid for ten years, so that an old one does not stop a run."""
    now = datetime.now(UTC)
    builder = x509.CertificateRevocationListBuilder(authority.subject, now - EARLIER, now + TEN_YEARS)
    for serial in serials:
        builder = builder.add_revoked_certificate(x509.RevokedCertificateBuilder(serial, now).build())
    builder = builder.add_extension(x509.CRLNumber(int(now.timestamp())), critical=False)
    return _pem(builder.add_extension(_issued_by(key), critical=False).sign(key, hashes.SHA256()))


# ---------------------------------------------------------------- files


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate = _parse(folder / AUTHORITY, _certificate)
    key = _parse(folder / AUTHORITY_KEY, lambda data: serialization.load_pem_private_key(data, None))
    check_private(folder / AUTHORITY_KEY)
    if key.public_key() != certificate.public_key():
        raise InputError(f"{AUTHORITY} and {AUTHORITY_KEY} in {folder} do not belong together: use those of one init.")
    return certificate, key


def _certificate(data: bytes) -> x509.Certificate:
    """A certificate whose key can be used: `load_pem_x509_certificate` does not look at it."""
    certificate = x509.load_pem_x509_certificate(data)
    certificate.public_key()
    return certificate


def _revoked(path: Path, authority: x509.Certificate) -> set[int]:
    if not path.exists():
        return set()
    revoked: x509.CertificateRevocationList = _parse(path, x509.load_pem_x509_crl)
    if not revoked.is_signature_valid(authority.public_key()):  # type: ignore[arg-type]
        raise InputError(f"{path} is not signed by the authority in {path.parent}: move it away.")
    return {entry.serial_number for entry in revoked}


def _parse(path: Path, parse: Callable[[bytes], Any]) -> Any:
    if not path.exists():
        raise InputError(f"There is no file {path}: run `dnasa keys init` first, or give --keys.")
    try:
        with _errors(path):
            return parse(read_bytes(path, follow=True))
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion) as error:  # TypeError: it has a password
        raise InputError(f"Cannot use {path} ({first_line(error)}): it must be as `dnasa keys` made it.") from error


def _pem(signed: x509.Certificate | x509.CertificateRevocationList) -> bytes:
    return signed.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _refuse_existing(path: Path) -> None:
    if os.path.lexists(path):
        raise InputError(f"{path} exists, and nothing is overwritten: move it away, or give another folder with --keys.")


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"Cannot read or write {path}: {error.strerror}. Or give another folder with --keys.") from error


def _create(path: Path, data: bytes, flag: int = os.O_EXCL) -> None:
    """Write a new file that only its owner can read, from its first moment on; with `O_APPEND`, also to the end of one."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | flag, 0o600), "wb") as file:
        file.write(data)
        os.fsync(file.fileno())
