"""Certificates of the security file that end soon. Whoever renews them writes new files, which are used at once."""

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
    """Paths of certificates and authorities, and what each is for."""
    tables = {"tls": configuration.tls, "internal": configuration.internal, "client": configuration.client}
    return {
        path: f"{name} of [{table}]"
        for table, found in tables.items()
        if found is not None
        for name in ("certificate", "authority")
        if (path := getattr(found, name))
    }


def ending(configuration: Configuration, now: datetime | None = None) -> Iterator[Finding]:
    """A finding for each certificate that ends within `SOON`, or cannot be read."""
    from cryptography import x509  # an extra: only processes with a security file need it

    now = now or datetime.now(UTC)
    for path, what in files_of(configuration).items():
        try:
            found = x509.load_pem_x509_certificates(Path(path).read_bytes())
        except (OSError, ValueError) as problem:
            yield error(f"{path} ({what}) cannot be read as certificates: {problem}", "write it anew, as PEM")
            continue
        ends = min(one.not_valid_after_utc for one in found)
        if ends <= now + SOON:
            words = "has ended" if ends <= now else "ends"
            yield (error if ends <= now + AT_ONCE else warning)(
                f"{path} ({what}) {words} on {ends:%Y-%m-%d %H:%M} UTC",
                "renew it: processes take the new file by themselves, without a restart",
            )
