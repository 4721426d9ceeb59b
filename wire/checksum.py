"""CRC32C, the checksum of all bytes that are sent or stored: entries, blocks, journal records, frames.

It uses the hardware instruction, through the `crc32c` package. The interpreter lock is not released, because that would
cost more than the checksum of any entry that a broker handles.
"""

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec

__all__ = ["crc32c"]


def _extension() -> Callable[..., int]:
    """Load the function from the package's extension, without the package.

    The package imports its command line and `importlib.metadata`, with `argparse`, `email` and `zipfile`: a tenth of a
    server's start.
    """
    package = find_spec("crc32c")
    places = package.submodule_search_locations if package is not None else None
    spec = PathFinder.find_spec("crc32c._crc32c", places)
    if spec is None or spec.loader is None:
        from crc32c import crc32c

        return crc32c
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[..., int] = module.crc32c
    return found


crc32c = _extension()
