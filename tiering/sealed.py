r"""Format of small objects in the archive beside segments: a line with a checksum, then the content.

QUIRE KIND VERSION CRC BYTES\n      in ASCII; CRC32C over the content as eight hex digits, and its length
content                             defined by the kind
"""

from __future__ import annotations

from quire.runtime.errors import CorruptionError
from quire.wire.block import Buffer
from quire.wire.checksum import crc32c


def seal(kind: str, version: int, content: bytes) -> bytes:
    return b"QUIRE %s %d %08x %d\n" % (kind.encode(), version, crc32c(content), len(content)) + content


def unseal(kind: str, version: int, sealed: Buffer, where: str) -> bytes:
    """Return the verified content of a sealed object.

    Raises `CorruptionError`, which contains `where`, for damage or another kind or version.
    """
    line, _, content = bytes(sealed).partition(b"\n")
    words = line.split(b" ")
    if len(words) != 5 or words[:2] != [b"QUIRE", kind.encode()]:
        raise CorruptionError(f"{where} is not a {kind}")
    if words[2] != b"%d" % version:
        raise CorruptionError(
            f"{where} is a {kind} of version {words[2].decode(errors='replace')}, not {version}"
        )
    if words[3:] != [b"%08x" % crc32c(content), b"%d" % len(content)]:
        raise CorruptionError(f"{where} does not match its checksum")
    return content
