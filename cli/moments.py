"""Times as users write and read them: 2026-01-31T12:00:00 (UTC by default), or 15m for 15 minutes ago."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from quire.runtime.errors import ConfigurationError
from quire.runtime.settings import parse_duration_ms

HELP = "a moment (2026-01-31T12:00:00, UTC unless it says otherwise; 15m: so long ago)"


def time_ms(text: str) -> int | None:
    """Return a time in ms since 1970 (0 for earlier times), or None if `text` is not a time."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            moment = datetime.now(UTC) - timedelta(milliseconds=duration_ms(text))
        except (ConfigurationError, OverflowError):
            return None
    return max(0, round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000))


def duration_ms(text: str) -> int:
    """Parse a duration with its unit. Raises `ConfigurationError`.

    A number alone could be seconds, as in Pulsar's tools, or milliseconds. A negative one would be a future time, which
    skips a subscription's whole backlog.
    """
    ms = parse_duration_ms(text)
    if ms < 0 or not text.strip()[-1].isalpha():
        raise ConfigurationError(f"{text!r} is not a duration with a unit, such as 90s, 15m or 7d")
    return ms


def shown(time_ms: int) -> str:
    """Format a time, such as 2026-01-31 12:00:00Z."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
