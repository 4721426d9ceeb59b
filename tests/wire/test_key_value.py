"""Keys and values in one payload: there and back, null, and what is no pair."""

from __future__ import annotations

import pytest

from quire.wire.key_value import join, split


@pytest.mark.parametrize(("key", "value"), [(b"", b""), (b"k", b"value"), (b"\xff" * 300, b"")])
def test_there_and_back(key: bytes, value: bytes) -> None:
    assert split(join(key, value)) == (key, value)


def test_bytes() -> None:
    assert join(b"k", b"ab") == b"\0\0\0\1k\0\0\0\2ab"
    assert split(b"\xff\xff\xff\xff\0\0\0\1v") == (None, b"v")
    assert split(b"\0\0\0\0\xff\xff\xff\xff") == (b"", None)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "cut short"),
        (b"\0\0\0\1k", "cut short"),
        (b"\0\0\0\1k\0\0\0\2v", "cut short"),
        (b"\x7f\xff\xff\xffk", "cut short"),
        (join(b"k", b"v") + b"!!", "2 bytes are left over"),
    ],
)
def test_what_is_no_pair(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        split(data)
