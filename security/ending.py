"""Certificates of the security file that expire soon. Renewed files are loaded without a restart."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from quire.runtime.findings import Finding, error, warning
from quire.security.configuration import Configuration

SOON: Final = timedelta(days=21)
AT_ONCE: Final = timedelta(days=3)


def files_of(configuration: Configuration) -> dict[str, str]:
    """Return the use, such as `certificate of [tls]`, of each certificate and authority file, by path."""
    tables = {"tls": configuration.tls, "internal": configuration.internal, "client": configuration.client}
    return {
        path: f"{name} of [{table}]"
        for table, found in tables.items()
        if found is not None
        for name in ("certificate", "authority")
        if (path := getattr(found, name))
    }


def ending(configuration: Configuration, now: datetime | None = None) -> Iterator[Finding]:
    """Yield a finding for each certificate that expires within `SOON`, or is unreadable."""
    from cryptography import x509  # an extra: only processes with a security file need it

    now = now or datetime.now(UTC)
    for path, what in files_of(configuration).items():
        try:
            found = x509.load_pem_x509_certificates(Path(path).read_bytes())
        except (OSError, ValueError) as problem:
            yield error(
                f"{path} ({what}) is not a readable PEM certificate: {problem}", "replace it with a PEM file"
            )
            continue
        ends = min(one.not_valid_after_utc for one in found)
        if ends <= now + SOON:
            words = "expired" if ends <= now else "expires"
            yield (error if ends <= now + AT_ONCE else warning)(
                f"{path} ({what}) {words} on {ends:%Y-%m-%d %H:%M} UTC",
                "renew it; processes load the new file without a restart",
            )
