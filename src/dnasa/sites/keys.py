"""The keys of sites: an authority, a bundle of files for each site, and the list of revoked certificates."""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Issued:
    """A certificate that the authority has made for a site."""

    site: str
    serial: str
    expires: datetime
    revoked: bool


@dataclass(frozen=True)
class Authority:
    pem: bytes
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make_authority(folder: Path) -> None:
    """Make the authority whose signature all sites accept: `authority.crt`, and `authority.key` to keep secret."""
    key, name = _new_key(), _name(f"dnasa authority {secrets.token_hex(8)}")
    usage = _key_usage("key_cert_sign", "crl_sign")
    built = _builder(name, key, datetime.now(UTC) + TEN_YEARS, name, key)
    built = built.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    certificate = built.add_extension(usage, critical=True).sign(key, hashes.SHA256())
    for path in (folder / AUTHORITY_KEY, folder / AUTHORITY):
        _refuse_existing(path)
    with _writing(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _create(folder / AUTHORITY_KEY, _key_pem(key))
        _create(folder / AUTHORITY, _pem(certificate))


def make_site(folder: Path, site: str, days: int = 730) -> Path:
    """Make the bundle of a site, a folder with its certificate, its key and the authority's certificate."""
    check_name(site)
    bundle = folder / site
    if site in (AUTHORITY, AUTHORITY_KEY, ISSUED, REVOKED):
        raise InputError(f"{bundle} is a file of the authority: choose another name for the site.")
    authority = _authority(folder)
    certificate, key = _site_certificate(authority, site, days)
    _refuse_existing(bundle)
    revoked = folder / REVOKED
    with _writing(bundle):
        _append(folder / ISSUED, _pem(certificate))
        bundle.mkdir(mode=0o700)
        _create(bundle / KEY, _key_pem(key))
        _create(bundle / CERTIFICATE, _pem(certificate))
        _create(bundle / AUTHORITY, authority.pem)
        if revoked.exists():
            _create(bundle / REVOKED, read_bytes(revoked))
    return bundle


def revoke(folder: Path, site: str) -> list[Path]:
    """Revoke all certificates made for a site so far; return the lists written, in the folder and in the bundles in it."""
    authority, certificates = _authority(folder), _issued(folder)
    serials = [each.serial_number for each in certificates if _site_of(each) == site]
    if not serials:
        known = ", ".join(dict.fromkeys(map(_site_of, certificates))) or "none"
        raise InputError(f"No certificate was made for '{site:.70}' in {folder}. Sites there: {known:.200}.")
    data = _crl(authority, _revoked(folder, authority.certificate), serials)
    bundles = sorted(path.parent for path in folder.glob(f"*/{AUTHORITY}") if _read(path) == authority.pem)
    written = [place / REVOKED for place in (folder, *bundles)]
    for path in written:
        with _writing(path):
            write_durably(path, data)
    return written


def issued(folder: Path) -> list[Issued]:
    """All certificates that the authority in this folder has made, the oldest first."""
    authority = _parse(folder / AUTHORITY, _certificate)
    revoked = _revoked(folder, authority)
    return [
        Issued(
            _site_of(each),
            f"{each.serial_number:x}",
            each.not_valid_after_utc,
            revoked is not None and revoked.get_revoked_certificate_by_serial_number(each.serial_number) is not None,
        )
        for each in _issued(folder)
    ]


# ---------------------------------------------------------------- certificates


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _key_usage(*allowed: str) -> x509.KeyUsage:
    usages = (
        "digital_signature content_commitment key_encipherment data_encipherment key_agreement key_cert_sign crl_sign"
    )
    flags = dict.fromkeys([*usages.split(), "encipher_only", "decipher_only"], False)
    return x509.KeyUsage(**(flags | dict.fromkeys(allowed, True)))


def _builder(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    end: datetime,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
) -> x509.CertificateBuilder:
    """What certificates of authorities and of sites share."""
    public = key.public_key()
    return (
        x509.CertificateBuilder(issuer, subject, public, x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - EARLIER)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(_issued_by(issuer_key), critical=False)
    )


def _issued_by(key: ec.EllipticCurvePrivateKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())


def _site_certificate(
    authority: Authority, site: str, days: int
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key, end, last = _new_key(), datetime.now(UTC) + timedelta(days=days), authority.certificate.not_valid_after_utc
    if end > last:
        raise InputError(
            f"The authority's certificate ends on {last:%Y-%m-%d}, before that of the site: give fewer --days, "
            "or make another authority."
        )
    both = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    built = _builder(_name(site), key, end, authority.certificate.subject, authority.key)
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_key_usage("digital_signature"), True),
        (x509.ExtendedKeyUsage(both), False),
        (x509.SubjectAlternativeName([x509.DNSName(site)]), False),
    ):
        built = built.add_extension(extension, critical)
    return built.sign(authority.key, hashes.SHA256()), key


def _site_of(certificate: x509.Certificate) -> str:
    return ", ".join(str(part.value) for part in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME))


def _crl(authority: Authority, before: x509.CertificateRevocationList | None, serials: list[int]) -> bytes:
    """The list with further serial numbers; it is valid for ten years, so that an old one does not stop a run."""
    now = datetime.now(UTC)
    builder = x509.CertificateRevocationListBuilder(authority.certificate.subject, now - EARLIER, now + TEN_YEARS)
    entries = {entry.serial_number: entry for entry in before or ()}
    for serial in serials:
        entries.setdefault(serial, x509.RevokedCertificateBuilder(serial, now).build())
    for entry in entries.values():
        builder = builder.add_revoked_certificate(entry)
    builder = builder.add_extension(x509.CRLNumber(int(now.timestamp())), critical=False)
    signed = builder.add_extension(_issued_by(authority.key), critical=False).sign(authority.key, hashes.SHA256())
    return _pem(signed)


# ---------------------------------------------------------------- files


def _authority(folder: Path) -> Authority:
    certificate = _parse(folder / AUTHORITY, _certificate)
    key = _parse(folder / AUTHORITY_KEY, lambda data: serialization.load_pem_private_key(data, None))
    check_private(folder / AUTHORITY_KEY)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise InputError(
            f"{AUTHORITY} and {AUTHORITY_KEY} in {folder} do not belong together: use those of one `dnasa keys init`."
        )
    return Authority(_read(folder / AUTHORITY), certificate, key)


def _certificate(data: bytes) -> x509.Certificate:
    """A certificate whose key can be used: `load_pem_x509_certificate` does not look at it."""
    certificate = x509.load_pem_x509_certificate(data)
    certificate.public_key()
    return certificate


def _issued(folder: Path) -> list[x509.Certificate]:
    path = folder / ISSUED
    return _parse(path, x509.load_pem_x509_certificates) if path.exists() else []


def _revoked(folder: Path, authority: x509.Certificate) -> x509.CertificateRevocationList | None:
    path = folder / REVOKED
    if not path.exists():
        return None
    found: x509.CertificateRevocationList = _parse(path, x509.load_pem_x509_crl)
    if not found.is_signature_valid(authority.public_key()):  # type: ignore[arg-type]
        raise InputError(f"{path} is not signed by the authority in {folder}: move it away.")
    return found


def _parse(path: Path, parse: Callable[[bytes], Any]) -> Any:
    data = _read(path)
    try:
        return parse(data)
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion) as error:  # TypeError: it has a password
        raise InputError(f"Cannot use {path} ({first_line(error)}): it must be as `dnasa keys` made it.") from error


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path, follow=True)
    except FileNotFoundError as error:
        raise InputError(f"There is no file {path}: run `dnasa keys init` first, or give --keys.") from error
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.") from error


def _pem(signed: x509.Certificate | x509.CertificateRevocationList) -> bytes:
    return signed.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _refuse_existing(path: Path) -> None:
    if os.path.lexists(path):
        raise InputError(
            f"{path} exists, and nothing is overwritten: move it away, or give another folder with --keys."
        )


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}. Give another folder with --keys.") from error


def _create(path: Path, data: bytes) -> None:
    """Write a new file that only its owner can read, from its first moment on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        os.fsync(file.fileno())


def _append(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as file:
        file.write(data)
        os.fsync(file.fileno())
