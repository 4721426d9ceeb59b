"""zk:// URLs: what they mean, and one sentence for each that means nothing."""

from __future__ import annotations

import pytest

from quire.metadata.zookeeper_url import ZooKeeperUrl, parse_url
from quire.runtime.errors import ConfigurationError


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("zk://a", ZooKeeperUrl("a:2181")),
        ("zk://a:1,b:2/", ZooKeeperUrl("a:1,b:2")),
        ("zk://a:1,b/one/two/?session_timeout=2s", ZooKeeperUrl("a:1,b:2181", "/one/two", 2_000)),
        ("zk://[::1]:7/q%20r", ZooKeeperUrl("[::1]:7", "/q r")),
        ("zk://[::1]/q", ZooKeeperUrl("[::1]:2181", "/q")),
    ],
)
def test_what_a_url_means(url: str, parts: ZooKeeperUrl) -> None:
    assert parse_url(url) == parts


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("zk://", "has an invalid server"),
        ("zk:///chroot", "has an invalid server"),
        ("zk://a:port/", "has an invalid server"),
        ("zk://a:1,,b:2", "has an invalid server"),
        ("zk://user@a:1", "has an invalid server"),
        ("zk://a:99999", "has an invalid server"),
        ("zk://a/b//c", "not a valid chroot"),
        ("zk://a/../c", "not a valid chroot"),
        ("zk://a/zookeeper/x", "reserved for ZooKeeper itself"),
        ("zk://a/x?timeout=5s", "option other than session_timeout"),
        ("zk://a/x?session_timeout=1ms", "between 1s and 10min"),
        ("zk://a/x?session_timeout=soon", "a time such as"),
    ],
)
def test_what_means_nothing_is_refused_in_one_sentence(url: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        parse_url(url)
