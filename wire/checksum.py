"""CRC32C, the checksum of all bytes that are sent or stored: entries, blocks, journal records, frames.

It uses the hardware instruction, through the `crc32c` package. The interpreter lock is not released, because that would
cost more than the checksum of any entry that a broker handles.
"""

from crc32c import crc32c as crc32c

__all__ = ["crc32c"]
