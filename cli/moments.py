"""Moments as users write and read them: 2026-01-31T12:00:00 (UTC unless it says otherwise), or 15m for so long ago."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from quire.runtime.errors import ConfigurationError
from quire.runtime.settings import parse_duration_ms

HELP = "a moment (2026-01-31T12:00:00, UTC unless it says otherwise; 15m: so long ago)"


def time_ms(text: str) -> int | None:
    """ms since 1970; None when it is no moment."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            moment = datetime.now(UTC) - timedelta(milliseconds=parse_duration_ms(text))
        except (ConfigurationError, OverflowError):
            return None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def shown(time_ms: int) -> str:
    """Such as 2026-01-31 12:00:00Z."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
