"""A self-signed certificate for HTTPS, created at the first start and renewed before it expires.

Obsidian's plugin uses a self-signed certificate too; clients download and trust it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import re
import secrets
import ssl
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

FILE_NAME = "vault.pem"
COMMON_NAME = "Stentor vault"
# Some clients reject certificates that are valid much longer than a year.
VALIDITY, RENEWAL_MARGIN = timedelta(days=365), timedelta(days=30)
"""How long a certificate is valid, and how long before it expires it is renewed."""
CHECK_SECONDS = 3600.0
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_WILDCARD_ADDRESSES = {"0.0.0.0", "::"}  # noqa: S104 - not bound here: clients cannot connect to these, so the certificate omits them
log = logging.getLogger(__name__)


class ServerCertificate:
    """A private key and its certificate, in one file that only its owner may read.

    `host` and `more_names` are added to the local names and addresses that the certificate covers; those that no
    certificate can hold are left out. `now` returns seconds since 1970.
    """

    def __init__(
        self,
        folder: Path,
        host: str,
        now: Callable[[], float] = time.time,
        *,
        file_name: str = FILE_NAME,
        common_name: str = COMMON_NAME,
        more_names: Iterable[str] = (),
    ) -> None:
        self.path = folder / file_name
        names = [name for name in (host, *more_names) if name not in _WILDCARD_ADDRESSES]
        self._names = _to_general_names([*_LOCAL_NAMES, *names])
        self._common_name = common_name
        self._time = now
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._loaded: x509.Certificate | None = None

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """The TLS context of the listener; after a renewal, new connections get the new certificate."""
        return self._context

    @property
    def pem(self) -> bytes | None:
        """The certificate in PEM without the key, for clients to trust; None before `ensure`."""
        return None if self._loaded is None else self._loaded.public_bytes(Encoding.PEM)

    def ensure(self) -> None:
        """Create or renew the certificate if necessary, and load it. Raises OSError."""
        certificate = self._read()
        if certificate is None or not self._is_usable(certificate):
            self._write(self._names_with(certificate))
            certificate = self._read()
        # Another process may have renewed the file, so what was read decides, not what was written.
        if certificate is not None and certificate != self._loaded:
            # Into the same context: listeners hold it, and use the new certificate for the next connection.
            self._context.load_cert_chain(self.path)
            self._loaded = certificate

    async def renew_periodically(self) -> None:
        """Check every hour, forever, whether the certificate must be renewed."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                await asyncio.to_thread(self.ensure)
            except OSError as error:
                log.error("vault: certificate renewal failed path=%s error=%s", self.path, error.strerror)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._time(), UTC)

    def _read(self) -> x509.Certificate | None:
        """Return the stored certificate, None if the file is missing or has no certificate with its key."""
        try:
            certificate = x509.load_pem_x509_certificate(self.path.read_bytes())
            # Fails if the key is missing or of another certificate. Without a password OpenSSL would ask for one.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.path, password="")
        except (FileNotFoundError, ValueError, ssl.SSLError):
            return None
        return certificate

    def _is_usable(self, certificate: x509.Certificate) -> bool:
        """Return whether the certificate has all names and does not expire soon."""
        return set(self._names) <= set(_alternative_names(certificate)) and not self._expires_soon(certificate)

    def _expires_soon(self, certificate: x509.Certificate) -> bool:
        return certificate.not_valid_after_utc - self._now() <= RENEWAL_MARGIN

    def _names_with(self, certificate: x509.Certificate | None) -> list[x509.GeneralName]:
        """Return the names of a new certificate: with those of one that is only replaced for a missing name.

        Otherwise two processes on one folder that listen on different hosts would replace it forever.
        """
        is_kept = certificate is not None and not self._expires_soon(certificate)
        return list(
            dict.fromkeys([*self._names, *(_alternative_names(certificate) if certificate and is_kept else ())])
        )

    def _write(self, names: list[x509.GeneralName]) -> None:
        # A temporary file renamed into place: another process never reads a half-written certificate.
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{secrets.token_hex(12)}.pem")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(self._generate(names))
            temporary.replace(self.path)
        finally:
            temporary.unlink(missing_ok=True)

    def _generate(self, names: list[x509.GeneralName]) -> bytes:
        """Return a new private key and its certificate in PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self._common_name)])
        builder = x509.CertificateBuilder(
            issuer_name=name,
            subject_name=name,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            # One day back, for clients whose clock is slow.
            not_valid_before=self._now() - timedelta(days=1),
            not_valid_after=self._now() + VALIDITY,
        )
        for extension, critical in _extensions(key.public_key(), names):
            builder = builder.add_extension(extension, critical)
        signed = builder.sign(key, hashes.SHA256())
        private_key = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return private_key + signed.public_bytes(Encoding.PEM)


def _extensions(key: ec.EllipticCurvePublicKey, names: list[x509.GeneralName]) -> list[tuple[x509.ExtensionType, bool]]:
    # The first flag is digital_signature, all that TLS with an EC key needs.
    digital_signature = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    return [
        (x509.SubjectAlternativeName(names), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (digital_signature, True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectKeyIdentifier.from_public_key(key), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(key), False),
    ]


def _alternative_names(certificate: x509.Certificate) -> list[x509.GeneralName]:
    try:
        return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return []


def _to_general_names(names: Iterable[str]) -> tuple[x509.GeneralName, ...]:
    parsed = (_parse_ip_address(name) or _parse_dns_name(name) for name in dict.fromkeys(names))
    return tuple(name for name in parsed if name is not None)


def _parse_ip_address(name: str) -> x509.IPAddress | None:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return None


def _parse_dns_name(name: str) -> x509.DNSName | None:
    return x509.DNSName(name) if name.isascii() and re.fullmatch(r"[A-Za-z0-9_.-]{1,253}", name) else None
