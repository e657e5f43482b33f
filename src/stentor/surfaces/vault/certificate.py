"""The certificate that HTTPS shows: signed by itself, made at the first start, made anew before it ends."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import ssl
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from stentor.core import ids
from stentor.core.clock import Clock, SystemClock

FILE_NAME = "vault.pem"
VALIDITY, RENEWAL_MARGIN = timedelta(days=365), timedelta(days=30)
"""How long it lasts, and how long before its end a new one is made."""
CHECK_SECONDS = 3600.0
_LOCAL = ("localhost", "127.0.0.1", "::1")
_EVERYWHERE = {"0.0.0.0", "::"}  # noqa: S104 - not bound here: an address that no certificate can name
log = logging.getLogger(__name__)


class ServerCertificate:
    """Key and certificate lie in one file of the folder, for its owner alone. The file may raise OSError."""

    def __init__(self, folder: Path, host: str, clock: Clock | None = None) -> None:
        self.path = folder / FILE_NAME
        self._names = tuple(dict.fromkeys([*_LOCAL, *({host} - _EVERYWHERE)]))
        self._clock = clock or SystemClock()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._shown: x509.Certificate | None = None

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """What connections are opened with; a new certificate is taken up by those that come after it."""
        return self._context

    @property
    def pem(self) -> bytes | None:
        """For clients to trust; without the key."""
        return None if self._shown is None else self._shown.public_bytes(Encoding.PEM)

    def ensure(self) -> None:
        """Make it when there is none that lasts, and take it up."""
        present = self._read()
        if present is None or not self._lasts(present):
            self._write()
            present = self._read()
        if present is not None and present != self._shown:
            self._context.load_cert_chain(self.path)
            self._shown = present

    async def renew_periodically(self) -> None:
        """For ever: make a new one in time."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                await asyncio.to_thread(self.ensure)
            except OSError as error:
                log.error("The certificate %s cannot be made anew: %s.", self.path, error.strerror)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now() / 1_000_000, UTC)

    def _read(self) -> x509.Certificate | None:
        """None for a file that is missing, or holds no certificate."""
        try:
            return x509.load_pem_x509_certificate(self.path.read_bytes())
        except (FileNotFoundError, ValueError):
            return None

    def _lasts(self, present: x509.Certificate) -> bool:
        known = present.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        named = set(self._named(self._names)) <= set(known)
        return named and present.not_valid_after_utc - self._now() > RENEWAL_MARGIN

    def _write(self) -> None:
        """Aside, then under its name: another process never reads half of it."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside = self.path.with_name(f".{ids.new_id()}.pem")
        opened = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(opened, "wb") as file:
                file.write(self._made())
            aside.replace(self.path)
        finally:
            aside.unlink(missing_ok=True)

    def _made(self) -> bytes:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Stentor vault")])
        builder = x509.CertificateBuilder(
            issuer_name=name,
            subject_name=name,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=self._now() - timedelta(days=1),
            not_valid_after=self._now() + VALIDITY,
        )
        for extension, critical in self._extensions(key.public_key()):
            builder = builder.add_extension(extension, critical)
        signed = builder.sign(key, hashes.SHA256())
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return secret + signed.public_bytes(Encoding.PEM)

    def _extensions(self, key: ec.EllipticCurvePublicKey) -> list[tuple[x509.ExtensionType, bool]]:
        sign = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
        return [
            (x509.SubjectAlternativeName(self._named(self._names)), False),
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (sign, True),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
            (x509.SubjectKeyIdentifier.from_public_key(key), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(key), False),
        ]

    @staticmethod
    def _named(names: Iterable[str]) -> list[x509.GeneralName]:
        return [_address(name) or x509.DNSName(name) for name in names]


def _address(name: str) -> x509.IPAddress | None:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return None
