"""Certificates of one small authority, made by the package `cryptography`."""

import datetime as dt
import ipaddress
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rankpatrol.core.errors import BadInput
from rankpatrol.core.records import Record
from rankpatrol.exchange.key_files import CA, CERTIFICATE, KEY
from rankpatrol.system.clock import Clock
from rankpatrol.system.files import write_private

# Clocks of nodes differ; a certificate is good a little before it was made.
_BEFORE = dt.timedelta(hours=1)
_AUTHORITY_LASTS = dt.timedelta(days=3650)
RENEWED_BEFORE = dt.timedelta(days=30)


class Wanted(Record, frozen=True, kw_only=True):
    """One certificate: whose, and what for. `hosts` are the names and addresses of a server; without any it is a client's."""

    name: str
    lasts_days: int
    hosts: tuple[str, ...] = ()


class Authority:
    """Signs certificates. Its key lies in a folder of its own, which the nodes never see."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._clock = clock
        self._key, self._certificate = self._load(folder) if (folder / CERTIFICATE).exists() else self._make(folder)
        self._pem = self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, folder: Path, wanted: Wanted) -> bool:
        """Have this certificate, its key and the authority's certificate in `folder`. False where a good one was there already."""
        if self._stands(folder, wanted):
            return False
        key = ec.generate_private_key(ec.SECP256R1())
        usage = ExtendedKeyUsageOID.SERVER_AUTH if wanted.hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = (
            self._builder(wanted.name, key.public_key(), dt.timedelta(days=wanted.lasts_days))
            .issuer_name(self._certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if wanted.hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_general_name(host) for host in wanted.hosts]), critical=False)
        _write(folder, key, builder.sign(self._key, hashes.SHA256()))
        write_private(folder / CA, self._pem)
        return True

    def _stands(self, folder: Path, wanted: Wanted) -> bool:
        """A certificate of ours, for the same, that will still do for a while."""
        try:
            there = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes())
            there.verify_directly_issued_by(self._certificate)
            key = serialization.load_pem_private_key((folder / KEY).read_bytes(), None)
        except (OSError, ValueError, TypeError, InvalidSignature):
            return False
        same = there.subject == _subject(wanted.name) and key.public_key() == there.public_key() and _hosts_of(there) == wanted.hosts
        return same and there.not_valid_after_utc > self._now() + RENEWED_BEFORE and (folder / CA).exists()

    def _load(self, folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        try:
            certificate = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes())
            key = serialization.load_pem_private_key((folder / KEY).read_bytes(), None)
        except (OSError, ValueError, TypeError) as problem:
            raise BadInput(
                f"the authority in {folder} cannot be used: {problem}",
                help="Bring its key.pem back to make certificates, or begin in another folder: then all nodes need new ones.",
            ) from problem
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise BadInput(f"{folder / KEY} is not the key of {folder / CERTIFICATE}", help="Bring the right one back.")
        if certificate.not_valid_after_utc < self._now() + RENEWED_BEFORE:
            raise BadInput(f"the authority in {folder} ends soon", help="Begin in another folder: all nodes need new certificates.")
        return key, certificate

    def _make(self, folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            self._builder("rankpatrol exchange", key.public_key(), _AUTHORITY_LASTS)
            .issuer_name(_subject("rankpatrol exchange"))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_signs_certificates(), critical=True)
            .sign(key, hashes.SHA256())
        )
        _write(folder, key, certificate)
        return key, certificate

    def _builder(self, name: str, key: ec.EllipticCurvePublicKey, lasts: dt.timedelta) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(_subject(name))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now() - _BEFORE)
            .not_valid_after(self._now() + lasts)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        )

    def _now(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self._clock.unix_s(), dt.UTC)


def _write(folder: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
    """The key first: a certificate without its key is made anew."""
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_private(folder / KEY, pem)
    write_private(folder / CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM))


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def hosts_in(folder: Path) -> tuple[str, ...]:
    """The names and addresses of the server's certificate in `folder`; none where there is none that can be read."""
    try:
        return _hosts_of(x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes()))
    except (OSError, ValueError):
        return ()


def _hosts_of(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        names: Iterable[x509.GeneralName] = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(name.value) for name in names)


def _signs_certificates() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
