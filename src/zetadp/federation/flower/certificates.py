"""A test set of certificates and keys: an authority, the server's certificate, and a key pair for every node."""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from zetadp.base.validation import UserError

DAYS = 365
LOOPBACK = ("127.0.0.1", "localhost")
_MADE_BY = "as `zetadp federation key` makes it"


@dataclass(frozen=True)
class Credentials:
    """Files of a federation's certificates and keys, in one folder.

    Attributes
    ----------
    folder
        The folder.
    """

    folder: Path

    @property
    def authority(self) -> Path:
        """Certificate of the authority, for everybody."""
        return self.folder / "authority.pem"

    @property
    def server(self) -> tuple[Path, Path]:
        """Certificate and private key of the server."""
        return self.folder / "server.pem", self.folder / "server.key"

    def node(self, name: str) -> tuple[Path, Path]:
        """Return a node's public key, for the server, and its private key, for the node alone."""
        return self.folder / f"{name}.pub.pem", self.folder / f"{name}.key"

    def check_server(self) -> None:
        """Check the files that a server needs.

        Raises
        ------
        UserError
            If one of them cannot be read or is something else, or if the server's key and certificate are no pair.
        """
        certificate, key = self.server
        check_certificate(self.authority)
        check_certificate(certificate)
        _read(key, lambda content: serialization.load_pem_private_key(content, None), "a private key in PEM, unlocked")
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        except ssl.SSLError as error:
            raise UserError(
                f"Expected {key} to be the private key of {certificate}, found another: {error}."
            ) from error


def check_certificate(path: Path) -> None:
    """Raise a `UserError` unless a file holds a certificate."""
    _read(path, x509.load_pem_x509_certificate, "a certificate in PEM")


def check_node_key(path: Path) -> None:
    """Raise a `UserError` unless a file holds a node's private key."""
    _read(path, lambda content: serialization.load_ssh_private_key(content, None), f"a private key {_MADE_BY}")


def read_public_key(path: Path) -> bytes:
    """Return a node's public key; raise a `UserError` unless the file holds one."""
    return _read(path, serialization.load_pem_public_key, f"a public key {_MADE_BY}")


def _read(path: Path, parse: Callable[[bytes], object], expected: str) -> bytes:
    try:
        content = path.read_bytes()
        parse(content)
    except OSError as error:
        raise UserError(f"Expected {path} to hold {expected}: {error.strerror}.") from error
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise UserError(f"Expected {path} to hold {expected}, found something else: {error}.") from error
    return content


def make_credentials(folder: Path, nodes: Sequence[str], hosts: Sequence[str] = ()) -> Credentials:
    """Make a test set; the private key of the authority is not kept.

    For a real federation let every hospital make its own key, and let the server's certificate be signed by an
    authority that the hospitals trust: private keys that travel are no longer private.

    Parameters
    ----------
    folder
        New or empty folder.
    nodes
        Names of the nodes.
    hosts
        Names and addresses by which nodes reach the server; the loopback address is always among them, for operators.

    Raises
    ------
    UserError
        If the folder holds something already: keys in use must not be lost.
    """
    hosts = [*hosts, *(host for host in LOOPBACK if host not in hosts)]
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"Expected a new folder, or an empty one, found {folder}. Name another: keys must not be lost.")
    folder.mkdir(parents=True, exist_ok=True)
    made = Credentials(folder)
    signer = ec.generate_private_key(ec.SECP384R1())
    issuer = _name("zetadp test authority")
    authority = (
        _certificate(issuer, issuer, signer.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    made.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    key = ec.generate_private_key(ec.SECP384R1())
    certificate = (
        _certificate(_name(hosts[0]), issuer, key.public_key())
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    path, secret = made.server
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    _write_secret(secret, key, serialization.PrivateFormat.PKCS8)
    for name in nodes:
        make_node_key(*made.node(name))
    return made


def make_node_key(public: Path, private: Path) -> None:
    """Make a node's key pair: the public key in PEM for the server, the private one in OpenSSH's form for Flower."""
    key = ec.generate_private_key(ec.SECP384R1())
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    _write_secret(private, key, serialization.PrivateFormat.OpenSSH)


def _write_secret(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    content = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=DAYS))
    )


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )
