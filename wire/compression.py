"""The five ways a payload may be compressed, as stock clients do it.

    NONE    as it is
    LZ4     one LZ4 block, no frame, no size prefix: the size comes from the metadata
    ZLIB    one zlib stream
    ZSTD    one zstd frame
    SNAPPY  one raw snappy block, its size first as a varint

A compressed payload comes from outside and may claim any size. Nothing is allocated on a claim above
UNCOMPRESSED_BYTES_MAX, and what comes out must have exactly the size that the metadata tells.
"""

import zlib
from collections.abc import Callable
from typing import Final

import cramjam
import lz4.block
import zstandard

from quire.runtime.errors import QuireError
from quire.runtime.limits import UNCOMPRESSED_BYTES_MAX
from quire.wire import pulsar_pb2 as pb
from quire.wire import varint

Bytes = bytes | memoryview

NAMES: Final[dict[str, pb.CompressionType]] = {
    "none": pb.NONE,
    "lz4": pb.LZ4,
    "zlib": pb.ZLIB,
    "zstd": pb.ZSTD,
    "snappy": pb.SNAPPY,
}


class CompressionError(QuireError):
    """A payload does not decompress to the size that its metadata tells, or claims more than the limit."""


def compress(codec: int, data: Bytes) -> Bytes:
    """`data` compressed; `codec` is a `CompressionType`, one of `NAMES`' values."""
    return data if codec == pb.NONE else _COMPRESS[codec](data)


def decompress(codec: int, data: Bytes, size: int) -> Bytes:
    """The `size` bytes that `data` was made from. Raises `CompressionError`."""
    if codec == pb.NONE:
        return data
    if codec not in _DECOMPRESS:
        raise CompressionError(f"compression {codec} is not known here")
    if size > UNCOMPRESSED_BYTES_MAX:
        raise CompressionError(
            f"a payload of {size} bytes uncompressed; allowed are {UNCOMPRESSED_BYTES_MAX}"
        )
    try:
        result = _DECOMPRESS[codec](data, size)
    except (
        zlib.error,
        lz4.block.LZ4BlockError,
        zstandard.ZstdError,
        cramjam.DecompressionError,
        ValueError,
    ) as e:
        raise CompressionError(f"a payload does not decompress: {e}") from None
    if len(result) != size:
        raise CompressionError(f"a payload decompresses to {len(result)} bytes instead of {size}")
    return result


def _from_lz4(data: Bytes, size: int) -> bytes:
    if not size:
        return b""
    raw: bytes = lz4.block.decompress(data, uncompressed_size=size)
    return raw


def _from_zlib(data: Bytes, size: int) -> bytes:
    stream = zlib.decompressobj()
    result = stream.decompress(data, size + 1)
    if len(result) == size and not stream.eof:
        raise ValueError("the stream is cut short")
    return result


def _from_zstd(data: Bytes, size: int) -> bytes:
    # The library trusts the frame's own size over any limit it is given.
    if zstandard.frame_content_size(data) not in (-1, size):
        raise ValueError("the frame tells another size than the metadata")
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=size) if size else b""


def _from_snappy(data: Bytes, size: int) -> bytes:
    if varint.decode(data)[0] != size:
        raise ValueError("the block tells another size than the metadata")
    return bytes(cramjam.snappy.decompress_raw(data))


def _to_lz4(data: Bytes) -> bytes:
    raw: bytes = lz4.block.compress(data, store_size=False)
    return raw


_COMPRESS: Final[dict[int, Callable[[Bytes], bytes]]] = {
    pb.LZ4: _to_lz4,
    pb.ZLIB: lambda data: zlib.compress(data, 6),
    pb.ZSTD: lambda data: zstandard.ZstdCompressor(level=3).compress(data),
    pb.SNAPPY: lambda data: bytes(cramjam.snappy.compress_raw(data)),
}
_DECOMPRESS: Final[dict[int, Callable[[Bytes, int], bytes]]] = {
    pb.LZ4: _from_lz4,
    pb.ZLIB: _from_zlib,
    pb.ZSTD: _from_zstd,
    pb.SNAPPY: _from_snappy,
}
