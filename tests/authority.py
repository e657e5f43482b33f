"""A certificate authority that issues whatever a test needs."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID


class Authority:
    """Issues certificates into a folder, over the ones that are there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificate_file, self.key_file = folder / "fullchain.pem", folder / "privkey.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("Test authority")
        builder = _builder(self._name, self._name, self._key.public_key(), timedelta(days=30))
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # signs certificates
        for extension in (x509.BasicConstraints(ca=True, path_length=None), usage):
            builder = builder.add_extension(extension, critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False)
        self.pem = builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
        self.file = folder / "authority.pem"
        self.file.write_bytes(self.pem)

    @property
    def settings(self) -> dict[str, str]:
        return {"SERVICE_TLS_CERT": str(self.certificate_file), "SERVICE_TLS_KEY": str(self.key_file)}

    def issue(
        self,
        *names: str,
        days: float = 10,
        starts_in: timedelta = timedelta(days=-400),
        password: bytes | None = None,
        is_reversed: bool = False,
        curve: ec.EllipticCurve | None = None,
    ) -> str:
        """Write a certificate with its chain and its key; return its PEM."""
        key = ec.generate_private_key(curve or ec.SECP256R1())
        builder = _builder(_name("Test"), self._name, key.public_key(), timedelta(days=days), starts_in)
        shown = x509.SubjectAlternativeName([_general_name(name) for name in names])
        # Python 3.13 and later require the last of these.
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        for extension in (shown, issuer):
            builder = builder.add_extension(extension, critical=False)
        pem = builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
        encryption = BestAvailableEncryption(password) if password else NoEncryption()
        # The key first, as between the two writes of a program that renews: the pair does not match for a moment.
        self.key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
        self.certificate_file.write_bytes(self.pem + pem if is_reversed else pem + self.pem)
        return pem.decode()


def _builder(
    name: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    lifetime: timedelta,
    starts_in: timedelta = timedelta(days=-400),
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(issuer, name, key, x509.random_serial_number(), now + starts_in, now + lifetime)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(name: str) -> x509.GeneralName:
    return x509.IPAddress(ipaddress.ip_address(name)) if name[0].isdigit() else x509.DNSName(name)
