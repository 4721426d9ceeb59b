"""CRC32C, the one checksum of every byte that is sent or kept: entries, blocks, journal records, frames.

The hardware instruction through the `crc32c` package; the interpreter lock is kept (a release costs more
than the sum of any entry that a broker sees).
"""

from crc32c import crc32c as crc32c

__all__ = ["crc32c"]
