"""Keys of a cluster: an authority, a TLS certificate for each device, a token that all share, and the settings of Ray.

TLS keeps others out and encrypts the traffic; the token decides who may give the cluster work. Everyone who holds the
token and a certificate can make every device run code: Ray does not restrict rights further.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from downset.errors import LoadError, UsageError
from downset.extras import optional_library
from downset.process.whole_files import part_beside, write_private

__all__ = [
    "DeviceKeys",
    "issue_keys",
    "known_keys",
    "make_authority",
    "new_token",
    "open_keys",
    "ray_environment",
    "token_environment",
]

_CERTIFICATE, _KEY = "authority.crt", "authority.key"
_DEVICE_CERTIFICATE, _DEVICE_KEY = "device.crt", "device.key"
_TOKEN = "token"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_LOOPBACK = ("localhost", "127.0.0.1")
"""Additional names in every certificate: Ray's processes on one machine also connect by them, and so do all nodes where
the head is on loopback."""
_BEFORE = timedelta(days=1)
"""Certificates are valid from a day before, because the clock of a board may be behind until it has asked for the time.
"""
_FOREIGN = ("RAY_AUTH_TOKEN", "RAY_AUTH_MODE", "RAY_USE_TLS")
"""Variables of the environment that would override or switch off these settings."""


@dataclass(frozen=True, slots=True)
class DeviceKeys:
    """The folder of one device after its files were checked, and what its certificate names: the device, and `hosts`,
    the addresses and host names under which TLS accepts it."""

    folder: Path
    name: str
    expires: datetime
    hosts: tuple[str, ...]

    @property
    def token(self) -> Path:
        return self.folder / _TOKEN

    @property
    def authority(self) -> Path:
        return self.folder / _CERTIFICATE

    @property
    def certificate(self) -> Path:
        return self.folder / _DEVICE_CERTIFICATE

    @property
    def key(self) -> Path:
        return self.folder / _DEVICE_KEY

    def check_name(self, name: str) -> None:
        """Raise UsageError if these are the keys of a device with another name. A name that no keys can have, such as
        one with spaces, is not checked."""
        if name != self.name and _NAME.fullmatch(name):
            raise UsageError(
                f"{self.folder} holds the keys of {self.name!r}, and the name is {name!r}: give the name "
                f"{self.name!r}, or the keys of {name!r}"
            )

    def check_host(self, host: str) -> None:
        """Raise UsageError if TLS would refuse this device under that address or host name."""
        if _normal(host) not in map(_normal, self.hosts):
            raise UsageError(
                f"{self.folder} holds keys of {self.name!r} for {', '.join(self.hosts)}, so that others would refuse "
                f"it at {host}: issue keys for the host {host}, too"
            )


def make_authority(folder: str | os.PathLike[str], *, days: int = 3650) -> Path:
    """Make the folder with a new authority (certificate and key) and a new token. Files have mode 600, the folder 700.

    If anything fails, no folder is left. `days`: how long the certificate is valid. Raises UsageError if the folder
    exists."""
    x509, _, _ = _cryptography()
    key = _new_key()
    name = _subject(f"downset authority {secrets.token_hex(4)}")
    certificate = (
        _certificate(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    with _made(Path(folder)) as beside:
        write_private(beside / _KEY, _pem_of_key(key))
        write_private(beside / _CERTIFICATE, _signed(certificate, key))
        write_private(beside / _TOKEN, secrets.token_hex(32).encode())
    return Path(folder)


def issue_keys(
    authority: str | os.PathLike[str],
    name: str,
    *,
    hosts: Sequence[str] | None,
    folder: str | os.PathLike[str] | None = None,
    days: int = 825,
) -> Path:
    """Make the folder that a device needs: its certificate and key, the authority's certificate, and the token.

    `hosts`: the addresses or host names under which other nodes reach the device; TLS accepts only these. None: the
    keys are those of a client of a service: they have no token, and nobody takes their owner for a server.
    `folder`: AUTHORITY/NAME if not given. `days`: how long the certificate is valid. Raises UsageError for an invalid
    name or host, and LoadError for an authority that is damaged or that other users can read."""
    x509, _, _ = _cryptography()
    from cryptography.x509.oid import ExtendedKeyUsageOID

    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a device name: letters, digits, _ . and -, at most 63")
    if hosts is not None and not hosts:
        raise UsageError(f"{name}: give at least one address or host name under which other nodes reach it")
    source = Path(authority)
    _check_private(source, (_CERTIFICATE, _KEY, _TOKEN))
    issuer, issuer_key = _read_certificate(source / _CERTIFICATE), _read_key(source / _KEY)
    if issuer.public_key() != issuer_key.public_key():
        raise LoadError(f"{source / _KEY} is not the key of {source / _CERTIFICATE}")
    key = _new_key()
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
    names = [_host(host) for host in dict.fromkeys((*hosts, *_LOOPBACK))] if hosts else []
    certificate = (
        _certificate(_subject(name), issuer.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
    )
    if names:
        certificate = certificate.add_extension(x509.SubjectAlternativeName(names), critical=False)
    target = source / name if folder is None else Path(folder)
    with _made(target) as beside:
        write_private(beside / _DEVICE_KEY, _pem_of_key(key))
        write_private(beside / _DEVICE_CERTIFICATE, _signed(certificate, issuer_key))
        write_private(beside / _CERTIFICATE, (source / _CERTIFICATE).read_bytes())
        if hosts:
            write_private(beside / _TOKEN, (source / _TOKEN).read_bytes())
    return target


def new_token(authority: str | os.PathLike[str]) -> list[Path]:
    """Replace the token of an authority and of the device folders inside it; return the files written.

    Nodes keep the token with which they were started. The new one takes effect once every node has its file and has
    been restarted."""
    source = Path(authority)
    _check_private(source, (_CERTIFICATE, _KEY, _TOKEN))
    token = secrets.token_hex(32).encode()
    files = [source / _TOKEN, *sorted(path for path in source.glob(f"*/{_TOKEN}") if path.parent.is_dir())]
    for file in files:
        write_private(file, token)
    return files


def open_keys(folder: str | os.PathLike[str], *, token: bool = True) -> DeviceKeys:
    """The checked keys of a device: no other user can read them, the certificate belongs to this key and is signed by
    this authority, it is valid today, and there is a token, which a client of a service does without (`token`). Raises
    LoadError that says which of these does not hold."""
    place = Path(folder)
    if token and not (place / _TOKEN).exists() and (place / _DEVICE_CERTIFICATE).exists():
        raise LoadError(
            f"cannot read {place / _TOKEN}: no such file; keys of a client of a service have none and open no cluster"
        )
    _check_private(place, (_DEVICE_CERTIFICATE, _DEVICE_KEY, _CERTIFICATE, *([_TOKEN] if token else [])))
    certificate, key = _read_certificate(place / _DEVICE_CERTIFICATE), _read_key(place / _DEVICE_KEY)
    issuer = _read_certificate(place / _CERTIFICATE)
    if certificate.public_key() != key.public_key():
        raise LoadError(f"{place / _DEVICE_KEY} is not the key of {place / _DEVICE_CERTIFICATE}; issue them again")
    try:
        certificate.verify_directly_issued_by(issuer)
    except Exception:
        raise LoadError(
            f"{place / _DEVICE_CERTIFICATE} was not issued by {place / _CERTIFICATE}; all devices need keys of one "
            "authority"
        ) from None
    now = datetime.now(UTC)
    for what in (certificate, issuer):
        if not what.not_valid_before_utc <= now <= what.not_valid_after_utc:
            raise LoadError(
                f"{place}: a TLS certificate is valid from {what.not_valid_before_utc:%Y-%m-%d} to "
                f"{what.not_valid_after_utc:%Y-%m-%d}, and this machine's clock says {now:%Y-%m-%d}"
            )
    if token and not re.fullmatch(rb"[0-9a-f]{64}", (place / _TOKEN).read_bytes().strip()):
        raise LoadError(f"{place / _TOKEN} holds no token of downset keys")
    _, _, oid = _cryptography()
    name = certificate.subject.get_attributes_for_oid(oid.COMMON_NAME)[0].value
    return DeviceKeys(place.absolute(), str(name), certificate.not_valid_after_utc, _hosts(certificate))


def known_keys(folder: str | os.PathLike[str], name: str) -> DeviceKeys:
    """The keys of a folder that `open_keys` has checked before, with the name that it found. What else is in their
    certificate is not read."""
    return DeviceKeys(Path(folder), name, datetime.max.replace(tzinfo=UTC), ())


def ray_environment(keys: DeviceKeys, *, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment variables of every process of a node: TLS in both directions with these keys, and the token.

    Raises UsageError if `inherited` has a variable of Ray's that would override these."""
    return token_environment(keys.token, inherited=inherited) | {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(keys.certificate),
        "RAY_TLS_SERVER_KEY": str(keys.key),
        "RAY_TLS_CA_CERT": str(keys.authority),
    }


def token_environment(token: Path, *, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment variables of nodes on loopback: a token without TLS. Raises UsageError as `ray_environment` does,
    and LoadError if other users can read the file."""
    for name in _FOREIGN:
        if name in inherited:
            raise UsageError(f"{name} is set in the environment and would override {token.parent}; unset it")
    _check_private(token.parent, (token.name,))
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token.absolute()),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _check_private(folder: Path, names: Sequence[str]) -> None:
    """Raise LoadError for files that are missing, belong to another user, or that other users can read or write."""
    for path in (folder, *(folder / name for name in names)):
        try:
            status = path.stat()
        except OSError as error:
            raise LoadError(f"cannot read {path}: {error.strerror}; downset keys makes such folders") from None
        folder_expected = path == folder
        if stat.S_ISDIR(status.st_mode) != folder_expected:
            raise LoadError(f"{path} is {'no' if folder_expected else 'a'} folder")
        if not folder_expected and not stat.S_ISREG(status.st_mode):  # reading a pipe might wait for ever
            raise LoadError(f"{path} is a pipe or a device, not a file of keys")
        if status.st_uid != os.geteuid():
            raise LoadError(f"{path} belongs to another user; keys belong to the user who runs downset")
        forbidden = 0o022 if folder_expected else 0o077
        if status.st_mode & forbidden:
            mode = "go-w" if folder_expected else "600"
            raise LoadError(f"{path} is open to other users (mode {status.st_mode & 0o777:o}); chmod {mode} {path}")


@contextmanager
def _made(folder: Path) -> Iterator[Path]:
    """A new folder of mode 700 next to `folder`. At the end it is renamed to `folder`; after an error it is removed."""
    if folder.exists() or folder.is_symlink():
        raise UsageError(f"{folder} is there already; keys are never written over: name another folder or remove it")
    beside = part_beside(folder)
    try:
        beside.mkdir(mode=0o700)
        beside.chmod(0o700)
        yield beside
        beside.rename(folder)
    except OSError as error:
        raise UsageError(f"cannot make the folder {folder}: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(beside)


def _cryptography() -> tuple[Any, Any, Any]:
    """The modules x509 and serialization and the class NameOID of `cryptography`."""
    x509 = optional_library("cryptography.x509", what="making or checking keys", extra="cluster")
    from cryptography.hazmat.primitives import serialization
    from cryptography.x509.oid import NameOID

    return x509, serialization, NameOID


def _new_key() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _subject(name: str) -> Any:
    x509, _, oid = _cryptography()
    return x509.Name([x509.NameAttribute(oid.COMMON_NAME, name)])


def _certificate(subject: Any, issuer: Any, public_key: Any, days: int) -> Any:
    x509, _, _ = _cryptography()
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> Any:
    x509, _, _ = _cryptography()
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> Any:
    from ipaddress import ip_address

    x509, _, _ = _cryptography()
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    if not re.fullmatch(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9-]+)*", host):
        raise UsageError(f"{host!r} is neither an address nor a host name") from None
    return x509.DNSName(host)


def _hosts(certificate: Any) -> tuple[str, ...]:
    """The addresses and host names in a certificate."""
    x509, _, _ = _cryptography()
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(name.value) for name in names)


def _normal(host: str) -> str:
    """One spelling of each address and host name."""
    from ipaddress import ip_address

    bare = host.strip("[]")
    try:
        return str(ip_address(bare))
    except ValueError:
        return bare.rstrip(".").lower()


def _signed(certificate: Any, key: Any) -> bytes:
    from cryptography.hazmat.primitives import hashes, serialization

    pem: bytes = certificate.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    return pem


def _pem_of_key(key: Any) -> bytes:
    _, serialization, _ = _cryptography()
    pem: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem


def _read_certificate(path: Path) -> Any:
    x509, _, _ = _cryptography()
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise LoadError(f"{path} is not a TLS certificate") from None


def _read_key(path: Path) -> Any:
    _, serialization, _ = _cryptography()
    try:
        return serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError):
        raise LoadError(f"{path} is not a private key") from None
