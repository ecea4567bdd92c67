"""Addresses of servers: unix:/path, unix:@name, tcp:host:port, tls:host:port ([...] around IPv6
addresses)."""
from __future__ import annotations

import ssl
from typing import NamedTuple


class Address(NamedTuple):
    transport: str
    host: str  # unix: the path
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        transport, _, rest = text.partition(":")
        if transport == "unix" and rest:
            return cls(transport, "\0" + rest[1:] if rest[0] == "@" else rest, 0)
        host, _, port = rest.rpartition(":")
        if transport not in ("tcp", "tls") or not host or not port.isascii() or not port.isdecimal():
            raise ValueError(f"{text!r} is no address: unix:/path, tcp:host:port or tls:host:port are")
        return cls(transport, host.removeprefix("[").removesuffix("]"), int(port))


def tls(
    ca_file: str | None = None, certificate_file: str | None = None, key_file: str | None = None
) -> ssl.SSLContext:
    """TLS 1.3, for `connect`: whom to trust (default: whom the system trusts) and the certificate
    to show."""
    context = ssl.create_default_context(cafile=ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if certificate_file is not None:
        context.load_cert_chain(certificate_file, key_file)
    return context
