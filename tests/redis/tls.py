"""Servers that speak TLS, under an authority that nobody knows unless the URL names it."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

HOST = "localhost"
"""The only host that the certificate is for."""


@dataclass(frozen=True)
class Authority:
    """An authority and what it signed, in a folder of its own."""

    folder: Path

    @property
    def certificate(self) -> Path:
        """What the authority is known by."""
        return self.folder / "authority.crt"

    def server_options(self, port: int) -> Sequence[str]:
        """Options of a server that speaks TLS there."""
        return (
            *("--bind", "127.0.0.1", "--tls-port", str(port), "--tls-auth-clients", "no"),
            *("--tls-cert-file", str(self.folder / "server.crt"), "--tls-key-file", str(self.folder / "server.key")),
            *("--tls-ca-cert-file", str(self.certificate)),
        )

    def url(self, port: int, *, host: str = HOST) -> str:
        """What a client is told that trusts the authority."""
        return f"rediss://{host}:{port}/0?ssl_ca_certs={self.certificate}"


def new_authority(folder: Path) -> Authority:
    """Make one that signs for `localhost`, by openssl; the test is skipped where there is none."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make certificates with")
    new_key = ("req", "-newkey", "rsa:2048", "-nodes")
    (folder / "names").write_text(f"subjectAltName=DNS:{HOST}", encoding="ascii")
    for command in (
        (
            *new_key,
            "-x509",
            "-days",
            "2",
            "-subj",
            "/CN=authority",
            "-keyout",
            "authority.key",
            "-out",
            "authority.crt",
        ),
        (*new_key, "-subj", f"/CN={HOST}", "-keyout", "server.key", "-out", "server.csr"),
        (
            *("x509", "-req", "-in", "server.csr", "-days", "2", "-CA", "authority.crt", "-CAkey", "authority.key"),
            *("-CAcreateserial", "-extfile", "names", "-out", "server.crt"),
        ),
    ):
        subprocess.run([openssl, *command], cwd=folder, check=True, capture_output=True)
    return Authority(folder)


def server_that_speaks_tls() -> str:
    """A binary built with TLS, as Debian's is and the bundled one is not; the test is skipped where there is none."""
    binary = shutil.which(os.environ.get("BUB_TEST_SERVER", "redis-server"))
    if binary is None:
        pytest.skip("there is no redis-server that speaks TLS")
    return binary
