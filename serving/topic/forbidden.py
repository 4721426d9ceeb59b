"""Entries that a topic's policies forbid: too large, or not encrypted. Performs no I/O.

Only a topic with such a policy checks its entries. The check for encryption parses the metadata of each entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from quire.runtime.limits import METADATA_LOOKED_INTO_BYTES_MAX
from quire.serving.policy.resolved import TopicPolicies
from quire.wire.block import Buffer
from quire.wire.message import Undecodable, is_encrypted, read_metadata

NOT_ENCRYPTED: Final = "Messages must be encrypted: the namespace has the policy encryptionRequired"


def forbidden(topic: str, policies: TopicPolicies, entries: Sequence[Buffer]) -> Sequence[tuple[int, str]]:
    """List the offsets of the entries that the policies forbid, ascending, each with the reason."""
    bytes_max, must_be_encrypted = policies.message_bytes_max, policies.encryption_required
    if not must_be_encrypted and (not bytes_max or max(map(len, entries)) <= bytes_max):
        return ()
    found: list[tuple[int, str]] = []
    for at, entry in enumerate(entries):
        if 0 < bytes_max < len(entry):
            text = f"a message of {len(entry)} bytes is too large: the limit of topic {topic} is {bytes_max} bytes"
            found.append((at, text))
        elif must_be_encrypted and not _is_encrypted(entry):
            found.append((at, NOT_ENCRYPTED))
    return found


def _is_encrypted(entry: Buffer) -> bool:
    try:
        return is_encrypted(read_metadata(entry, METADATA_LOOKED_INTO_BYTES_MAX)[0])
    except Undecodable:
        return False
