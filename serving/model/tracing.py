"""Spans of messages whose sender traces them: W3C's `traceparent` among a message's properties.

    durable   ─▶ `published`: a span from when its block's first entry came until it is durable     ┐ both below the
    dispatched ─▶ `delivered`: a span of no length, for each time that it is sent to a consumer      ┘ sender's span

Where nobody asks for traces there is no `Tracing`, which is looked at once for each group of blocks and each run of
entries. Where somebody does, the event loop hands over bytes that it has anyway. A thread of its own reads the entries
and makes the spans; it rests, so that the loop has the interpreter, and what comes when it is `BEHIND_BYTES_MAX`
behind is counted, and not traced: messages do not wait for it.

Names of attributes are OpenTelemetry's for messaging. A batch is a row of messages, each with its own context. What
its producer encrypted has none but in the open (outside a batch); of a chunked message the first chunk is traced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from quire.runtime.clock import Clock
from quire.runtime.limits import MIB
from quire.runtime.metrics import Values
from quire.runtime.threads import Breather, DaemonThreads
from quire.wire import block as blocks
from quire.wire import message
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import Buffer

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

BEHIND_BYTES_MAX: Final = 32 * MIB
PARENT: Final = "traceparent"
_STATE: Final = "tracestate"
_NS_PER_MS: Final = 1_000_000

_log = logging.getLogger(__name__)


class DurableBlock(Protocol):
    """A block as its publisher has it; `came_s`: when its first entry came, monotonic."""

    @property
    def block(self) -> Buffer: ...
    @property
    def byte_count(self) -> int: ...
    @property
    def came_s(self) -> float: ...


class _Moment(NamedTuple):
    """What was done with entries, and when; `more` is said of their spans as well."""

    operation: str
    topic: str
    start_ns: int
    end_ns: int
    more: Mapping[str, str | int]


class Tracing:
    """For all topics of a broker."""

    def __init__(self, tracer: Tracer, clock: Clock) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = tracer
        self._clock = clock
        self._extract = TraceContextTextMapPropagator().extract
        self._threads = DaemonThreads(1, "quire-tracing")
        self._breathe = Breather()
        self._lock = Lock()
        self._behind_bytes = 0
        self._untraced = 0

    def close(self, patience_s: float) -> None:
        """Make what spans there are to make, if that takes no longer. Blocks."""
        self._threads.close(patience_s)

    def metrics(self) -> Values:
        return {"quire_serving_untraced_total": self._untraced}

    def published(self, topic: str, flights: Sequence[DurableBlock], now_s: float) -> None:
        """`flights` are durable since `now_s`, monotonic."""
        end_ns = self._clock.now_ms() * _NS_PER_MS
        for flight in flights:
            start_ns = end_ns - int((now_s - flight.came_s) * 1e9)
            moment = _Moment("publish", topic, start_ns, end_ns, {})
            self._later(flight.byte_count, partial(self._trace_published, moment, flight.block))

    def delivered(
        self,
        topic: str,
        subscription: str,
        ledger_id: int,
        entries: Sequence[tuple[int, Buffer]],
        remaining: int,
        redelivery_count: int,
    ) -> None:
        """Entries, by their ids, were sent to a consumer; `remaining` is not 0 where only these of a batch were."""
        now_ns = self._clock.now_ms() * _NS_PER_MS
        more: dict[str, str | int] = {
            "messaging.destination.subscription.name": subscription,
            "quire.redelivery_count": redelivery_count,
        }
        moment = _Moment("deliver", topic, now_ns, now_ns, more)
        size = sum(len(entry) for _, entry in entries)
        self._later(size, partial(self._trace, moment, ledger_id, entries, remaining))

    # -- on the thread ---------------------------------------------------------------------------------

    def _later(self, size: int, work: Callable[[], None]) -> None:
        with self._lock:
            if self._behind_bytes + size > BEHIND_BYTES_MAX:
                self._untraced += 1
                return
            self._behind_bytes += size
        self._threads.submit(self._carry_out, size, work)

    def _carry_out(self, size: int, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            _log.exception("messages are not traced")
        finally:
            with self._lock:
                self._behind_bytes -= size

    def _trace_published(self, moment: _Moment, block: Buffer) -> None:
        header = blocks.peek(block)
        entries = enumerate(blocks.entries(block, header), header.first_entry)
        self._trace(moment, header.ledger_id, entries)

    def _trace(
        self, moment: _Moment, ledger_id: int, entries: Iterable[tuple[int, Buffer]], remaining: int = 0
    ) -> None:
        from opentelemetry.trace import SpanKind

        operation, topic, start_ns, end_ns, more = moment
        for entry_id, entry in entries:
            self._breathe()
            for at, size, context in self._contexts(entry, remaining):
                attributes = {
                    "messaging.system": "pulsar",
                    "messaging.operation.name": operation,
                    "messaging.destination.name": topic,
                    "messaging.message.id": f"{ledger_id}:{entry_id}" + (f":{at}" if at >= 0 else ""),
                    "messaging.message.body.size": size,
                    **more,
                }
                name = f"{operation} {topic}"
                span = self._tracer.start_span(
                    name, context, SpanKind.SERVER, attributes, start_time=start_ns
                )
                span.end(end_ns)

    def _contexts(self, entry: Buffer, remaining: int) -> Iterator[tuple[int, int, Context]]:
        """(index in the batch, or -1; bytes of the payload; its sender's context) of messages that have one."""
        try:
            for at, size, properties in _properties(entry):
                if remaining and at >= 0 and not remaining >> at & 1:
                    continue
                carrier = {one.key: one.value for one in properties if one.key in (PARENT, _STATE)}
                if PARENT in carrier:
                    yield at, size, self._extract(carrier)
        except message.Undecodable:
            return  # its bytes are its sender's: readers are told


def _properties(entry: Buffer) -> Iterator[tuple[int, int, Sequence[pb.KeyValue]]]:
    """Of each message of an entry that may be traced. Raises `Undecodable`."""
    metadata, payload = message.read_metadata(entry)
    if not message.is_batch(metadata):
        if not (message.is_chunk(metadata) and metadata.chunk_id):
            yield -1, len(payload), metadata.properties
        return
    plain = message.plain_payload(metadata, payload)
    if PARENT.encode() not in plain.tobytes():
        return
    for at, (single, content) in enumerate(message.split_batch(metadata, plain)):
        yield at, len(content), single.properties
