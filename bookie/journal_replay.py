"""Replay of the journal: finds the valid groups after the checkpoint mark, and damage.

A *group* is a batch of records that the journal writes and syncs together. The last group may be only in the page
cache, if the process crashed or failed before the sync. So the replay writes that group again, and syncs it, before the
bookie serves its blocks. (Earlier groups were synced before the last one was begun.)

An unreadable page counts as damage, not as a torn tail, because groups on it may have been acknowledged. Two kinds of
pages are exceptions: pages before a group whose number is at most mark + 1, and pages after the last group of an epoch
that another epoch continues. A segment with such damage is renamed (`unreadable-…`) and kept, because a failing disk
may be able to read it later.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from quire.bookie.journal_core import (
    BadSegment,
    Chain,
    FoundGroup,
    SegmentHeader,
    decode_segment_header,
    scan_segment,
    segments_needed,
)
from quire.bookie.segment_pool import PREFIX, Segment, SegmentPool
from quire.runtime.disk import PAGE_BYTES, aligned_buffer, pages_up, read_around
from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import MIB, UNREADABLE_PAGES_MAX

log = logging.getLogger(__name__)

_ASIDE: Final = "unreadable-"
_READ_BYTES: Final = 8 * MIB

Apply = Callable[[int, bytes], None]
"""Callback for each replayed group, with a mark and the group's bytes; see `Journal.replay`."""


class JournalReplay:
    """One replay of the journal. It passes the groups to `apply`, and adds the segments that it finds to the pool.

    `damage` describes missing groups; it is empty after an ordinary stop or crash.
    """

    def __init__(self, pool: SegmentPool, apply: Apply, *, durable: bool) -> None:
        self._pool = pool
        self._disk = pool.disk
        self._apply = apply
        self._durable = durable
        self._bad: list[Segment] = []
        self._unreadable: list[Segment] = []
        self.groups = 0
        self.bytes = 0
        self.last_number = 0
        self.damage: list[str] = []

    def run(self, mark: int, *, mark_is_lost: bool) -> None:
        """Replay the journal; see `Journal.replay`."""
        pool, disk = self._pool, self._disk
        used = self._find_segments()
        known = max((header.mark for _, header in used), default=0)
        index_mark, mark = mark, max(mark, known)
        epoch = max((header.epoch for _, header in used), default=0)
        pool.newest = pool.newest._replace(epoch=epoch, mark=mark)
        needed = segments_needed([(segment.name, header) for segment, header in used], mark)
        by_name = {segment.name: segment for segment, _ in used}
        names = {name for name, _ in needed}
        pool.spares += [segment for segment, _ in used if segment.name not in names]
        pool.live += [by_name[name] for name, _ in needed]
        chain = Chain(mark)
        if index_mark < mark and not mark_is_lost:
            chain.whole_to = index_mark
            chain.damage.append(
                f"the index is older than the journal in {disk.root}, which was flushed up to group {mark}"
            )
        if not needed and mark > 0:
            chain.damage.append(
                f"the journal in {disk.root} has no segment, but groups up to {mark} were written"
            )
        ends: list[int | None] = [header.first_number for _, header in needed[1:]]
        for (name, header), end_number in zip(needed, [*ends, None], strict=False):
            self._replay_segment(by_name[name], header, chain, end_number)
        chain.damage += [f"{segment.name} in {disk.root} has an invalid header" for segment in self._bad]
        chain.damage += [f"{segment.name} in {disk.root} cannot be read" for segment in self._unreadable]
        self.damage, self.last_number = chain.damage, chain.last_number

    def _find_segments(self) -> list[tuple[Segment, SegmentHeader]]:
        pool, used = self._pool, []
        with memoryview(aligned_buffer(PAGE_BYTES)) as page:
            for name in self._disk.names():
                if not name.startswith(PREFIX):
                    continue
                pool.next_file = max(pool.next_file, int(name.removeprefix(PREFIX)) + 1)
                file = self._disk.open(name)
                count, unreadable = read_around(file, page, 0, 1)
                segment = Segment(self._disk, name, file.size_bytes() // PAGE_BYTES * PAGE_BYTES)
                file.close()
                header = decode_segment_header(page[:count])
                if unreadable:
                    self._unreadable.append(segment)
                elif isinstance(header, BadSegment):
                    self._bad.append(segment)
                elif header is not None:
                    self._check_owner(name, header)
                    segment.header = header
                    used.append((segment, header))
                elif segment.size_bytes >= pool.segment_bytes:
                    pool.spares.append(segment)
                else:  # its creation was interrupted
                    self._disk.remove(name)
        return used

    def _check_owner(self, name: str, header: SegmentHeader) -> None:
        own = self._pool.newest.bookie
        if header.bookie != own:
            raise ConfigurationError(
                f"journal segment {self._disk.root}/{name} belongs to bookie {header.bookie.hex()}, not to "
                f"{own.hex()}; give this bookie its own journal directory"
            )

    def _replay_segment(
        self, segment: Segment, header: SegmentHeader, chain: Chain, end_number: int | None
    ) -> None:
        path = f"{self._disk.root}/{segment.name}"
        chain.segment(path, header.first_number)
        image, unreadable = self._read_image(segment)
        groups = list(scan_segment(image, header))
        if lost := [why for page, why in unreadable.items() if chain.may_matter(page, groups, end_number)]:
            chain.damage += lost
            self._unreadable.append(segment)
        last: FoundGroup | None = None
        for found in groups:
            mark = chain.whole_to
            if chain.group(path, found, end_number):
                self._apply(mark, bytes(image[found.offset : found.offset + found.length]))
                self.groups += 1
                self.bytes += found.length
                last = found
        if last is not None and end_number is None:
            pages = image[last.offset : last.offset + pages_up(last.length)]
            segment.write(pages, last.offset, durable=self._durable)
            segment.close()

    def _read_image(self, segment: Segment) -> tuple[memoryview, dict[int, str]]:
        """Return the segment's bytes, and the errors of unreadable pages by offset; such pages contain zeros."""
        image = memoryview(aligned_buffer(segment.size_bytes))
        unreadable: dict[int, str] = {}
        file = self._disk.open(segment.name)
        try:
            for offset in range(0, segment.size_bytes, _READ_BYTES):
                piece, left = image[offset : offset + _READ_BYTES], UNREADABLE_PAGES_MAX - len(unreadable)
                unreadable |= read_around(file, piece, offset, left)[1]
        finally:
            file.close()
        return image, unreadable

    def forget_damage(self) -> None:
        """Clear invalid headers, so that their segments are reused; rename unreadable segments, which are not. Blocks.

        Call it only after the damage is recorded elsewhere, and the replayed groups are in the entry log.
        """
        pool = self._pool
        for segment in self._bad:
            segment.write(aligned_buffer(PAGE_BYTES), 0, durable=True)
            segment.close()
        pool.spares += self._bad
        for segment in self._unreadable:
            log.error(
                "renaming unreadable journal segment %s/%s to %s",
                self._disk.root,
                segment.name,
                _ASIDE + segment.name,
            )
            self._disk.rename(segment.name, _ASIDE + segment.name)
        self._disk.sync_directory()
        pool.live = deque(live for live in pool.live if live not in self._unreadable)
