"""Certificates and keys of a federation: made, checked before anything starts, and used to sign what sites promise."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from zetadp.base.storage import write_text
from zetadp.base.validation import UserError, shown

DAYS = 365
LOOPBACK = ("127.0.0.1", "localhost")
KEY_COMMAND = "zetadp federation key"
ECDSA = ec.ECDSA(hashes.SHA256())
_LABEL = "(?!-)[A-Za-z0-9_-]{1,63}(?<!-)"
Parsed = TypeVar("Parsed")
_HOST = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")


def checked_host(host: str, option: str) -> str:
    """Return the name or the address of a server.

    Parameters
    ----------
    host
        The host.
    option
        The option with the host, for the message.

    Raises
    ------
    UserError
        If it is neither the name of a host in ASCII nor an address.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if _HOST.fullmatch(host) and not host.rpartition(".")[2].isdecimal():
            return host
    else:
        if not getattr(address, "scope_id", None):
            return host
    raise UserError(
        f"{option}: Expected the name of a host, such as server.example, or an address, such as 192.0.2.7 or "
        f"2001:db8::1, without a port, found '{shown(host)}'. Write other letters than a to z as your browser sends "
        "them (xn--...)."
    )


def checked_server(server: str, option: str = "--server") -> tuple[str, int]:
    """Return the host and the port of ``host:port`` in an option; an address with colons is in brackets.

    Raises
    ------
    UserError
        If it is anything else.
    """
    host, _, port = server.rpartition(":")
    if not (port.isascii() and port.isdecimal() and str(int(port)) == port and 0 < int(port) < 1 << 16):
        raise UserError(f"{option}: Expected HOST:PORT, such as server.example:9443, found '{shown(server)}'.")
    if ":" in host and not (host[0] == "[" and host[-1] == "]"):
        raise UserError(f"{option}: Expected brackets, as in [2001:db8::1]:9443, found '{shown(server)}'.")
    return checked_host(host.strip("[]"), option), int(port)


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
        """Certificate that the server's must go back to, for everybody: the server's own, or an authority's."""
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
            If one of them cannot be read or is something else, if the server's key does not belong to the certificate,
            or if the nodes would refuse the certificate.
        """
        certificate, key = self.server
        authority, issued = read_certificate(self.authority), read_certificate(certificate)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
        except OSError as error:
            raise UserError(
                f"Expected {key} to be the private key of {certificate}, without a password: {error.strerror}."
            ) from error
        if fault := _fault_of(issued, authority):
            raise UserError(f"The certificate {certificate} cannot serve: {fault}. Make another one.")


def _fault_of(certificate: x509.Certificate, authority: x509.Certificate) -> str:
    """Return why nodes that trust an authority refuse a certificate of a server; empty if they accept it."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return "this authority did not issue it"
    now = datetime.now(UTC)
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        return (
            f"it is in force from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC, and this machine's clock says "
            f"{now:%Y-%m-%d %H:%M}. Compare the clock first"
        )
    extensions = {type(extension.value): extension.value for extension in certificate.extensions}
    basic, usage = extensions.get(x509.BasicConstraints), extensions.get(x509.ExtendedKeyUsage)
    if isinstance(basic, x509.BasicConstraints) and basic.ca:
        return "it is a certificate of an authority"
    if isinstance(usage, x509.ExtendedKeyUsage) and ExtendedKeyUsageOID.SERVER_AUTH not in usage:
        return "it is not a certificate for servers"
    return "" if x509.SubjectAlternativeName in extensions else "it is for no host"


def read_certificate(path: Path) -> x509.Certificate:
    """Return the certificate in a file; raise a `UserError` unless the file holds one."""
    return _read(path, x509.load_pem_x509_certificate, "a certificate in PEM")


def read_node_key(path: Path, command: str = KEY_COMMAND) -> ec.EllipticCurvePrivateKey:
    """Return a node's private key, for signing or agreement; raise a `UserError` unless the file holds one.

    ``command`` is the one that makes such a key.
    """
    expected = f"a private key as `{command}` makes it"
    key = _read(path, lambda text: serialization.load_ssh_private_key(text, None), expected)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"Expected {path} to hold {expected}, found a private key of another kind.")
    return key


def read_public_key(path: Path) -> ec.EllipticCurvePublicKey:
    """Return a node's public key; raise a `UserError` unless the file holds one."""
    expected = f"a public key as `{KEY_COMMAND}` makes it"
    key = _read(path, serialization.load_pem_public_key, expected)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UserError(f"Expected {path} to hold {expected}, found a public key of another kind.")
    return key


def _read(path: Path, parse: Callable[[bytes], Parsed], expected: str) -> Parsed:
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise UserError(f"Expected {path} to hold {expected}: {error.strerror}.") from error
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise UserError(f"Expected {path} to hold {expected}, found something else: {error}.") from error


def public_bytes(key: ec.EllipticCurvePublicKey) -> bytes:
    """Return a public key in PEM, as files, rosters and Flower have it."""
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def fingerprint(certificate: Path) -> str:
    """Return the SHA-256 of a certificate, as OpenSSL prints it."""
    return read_certificate(certificate).fingerprint(hashes.SHA256()).hex(":").upper()


def signature(content: Mapping[str, Any], key: ec.EllipticCurvePrivateKey) -> str:
    """Return the signature of facts by a private key, in hexadecimal."""
    return key.sign(_signed(content), ECDSA).hex()


def check_signature(content: Mapping[str, Any], key: ec.EllipticCurvePublicKey) -> None:
    """Check facts and their ``signature`` by a public key.

    Raises
    ------
    UserError
        If the facts were altered, or signed with another key.
    """
    facts = {name: value for name, value in content.items() if name != "signature"}
    try:
        key.verify(bytes.fromhex(content["signature"]), _signed(facts), ECDSA)
    except (InvalidSignature, TypeError, ValueError) as error:
        raise UserError("it was altered after it was signed, or signed with another key") from error


def _signed(content: Mapping[str, Any]) -> bytes:
    return json.dumps(dict(content), sort_keys=True).encode()


def make_credentials(folder: Path, nodes: Sequence[str] = (), hosts: Sequence[str] = ()) -> Credentials:
    """Make a certificate of a server that is its own authority, and the server's private key.

    Keys of nodes are for trials on one machine. In a real federation let every hospital make its own key: private keys
    that travel are no longer private.

    Parameters
    ----------
    folder
        New or empty folder.
    nodes
        Names of the nodes whose keys are made too.
    hosts
        Names and addresses by which nodes reach the server; the loopback names of this machine are always added.

    Raises
    ------
    UserError
        If a host is not valid, or the folder is not empty: keys in use must not be lost.
    """
    hosts = [checked_host(host, "--hosts") for host in hosts]
    hosts = [*hosts, *(host for host in LOOPBACK if host not in hosts)]
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"Expected a new folder, or an empty one, found {folder}. Name another: keys must not be lost.")
    folder.mkdir(parents=True, exist_ok=True)
    credentials = Credentials(folder)
    certificate, secret = credentials.server
    key = ec.generate_private_key(ec.SECP384R1())
    text = _certificate(key, hosts).public_bytes(serialization.Encoding.PEM).decode()
    for path in (credentials.authority, certificate):
        write_text(path, text)
    _write_secret(secret, key, serialization.PrivateFormat.PKCS8)
    for name in nodes:
        make_node_key(*credentials.node(name))
    return credentials


def make_node_key(public: Path, private: Path) -> None:
    """Make a node's key pair: the public key in PEM for the server, the private one in OpenSSH's form."""
    key = make_private_key(private)
    try:
        public.write_bytes(public_bytes(key.public_key()))
    except OSError:
        private.unlink()  # half a pair is useless, and would block the next attempt
        raise


def make_private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Make a node's private key, write it to a new file, and return it."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_secret(path, key, serialization.PrivateFormat.OpenSSH)
    return key


def _write_secret(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    content = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate(key: ec.EllipticCurvePrivateKey, hosts: Sequence[str]) -> x509.Certificate:
    """Return a certificate of a server for one year, signed with the server's own key."""
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "zetadp server")]), datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    # A day early, for hospitals whose clocks are behind.
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=DAYS))
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.sign(key, hashes.SHA256())
