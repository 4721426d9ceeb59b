"""Short names of topics and what they mean."""

import pytest

from quire.runtime.errors import ConfigurationError
from quire.wire import topic_name


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ("orders", ("persistent", "public", "default", "orders")),
        ("t/n/orders", ("persistent", "t", "n", "orders")),
        ("non-persistent://t/n/orders", ("non-persistent", "t", "n", "orders")),
        ("persistent://t/n/a/b", ("persistent", "t", "n", "a/b")),
    ],
)
def test_parts(given: str, parts: tuple[str, ...]) -> None:
    assert topic_name.split(given) == parts


@pytest.mark.parametrize("given", ["", "a/b", "t//x", "t/n/", "http://t/n/x", "persistent://orders"])
def test_what_is_no_topic_is_refused(given: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a topic"):
        topic_name.split(given)
