"""OpenTelemetry spans of messages whose producers trace them.

The context of a message is its property `traceparent`, as defined by
[W3C Trace Context](https://www.w3.org/TR/trace-context/).

    durable    ─▶ `published`: a span from the arrival of its block's first entry until it is durable  ┐ children of the
    dispatched ─▶ `delivered`: a span of zero length for each delivery to a consumer                   ┘ producer's span

If tracing is disabled, there is no `Tracing` object, and the only cost is one check for each group of blocks and each
run of entries. With tracing, the event loop only passes entries to a thread. The thread parses them and creates the
spans, with pauses in which the event loop can run. Entries that arrive while `BEHIND_BYTES_MAX` bytes are queued are
counted and not traced, so that messages never wait for tracing.

Attributes have [OpenTelemetry's names for messaging](https://opentelemetry.io/docs/specs/semconv/messaging/). Each
message of a batch has its own context. An encrypted message has a context only if it is not in a batch, because the
properties of batched messages are encrypted, too. Of a chunked message, only the first chunk is traced.
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
    """Published block; `came_s` is the monotonic time, in seconds, at which its first entry arrived."""

    @property
    def block(self) -> Buffer: ...
    @property
    def byte_count(self) -> int: ...
    @property
    def came_s(self) -> float: ...


class _Moment(NamedTuple):
    """Operation on entries, its times, and additional attributes (`more`) of their spans."""

    operation: str
    topic: str
    start_ns: int
    end_ns: int
    more: Mapping[str, str | int]


class Tracing:
    """Tracing for all topics of a broker."""

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
        """Create the remaining spans within `patience_s` seconds. Blocks."""
        self._threads.close(patience_s)

    def metrics(self) -> Values:
        return {"quire_serving_untraced_total": self._untraced}

    def published(self, topic: str, flights: Sequence[DurableBlock], now_s: float) -> None:
        """Record the spans of the blocks `flights`, which became durable at monotonic time `now_s`."""
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
        """Record the spans of `entries`, as (entry id, entry), that were sent to a consumer.

        If the only entry is a partly acknowledged batch, `remaining` has a bit set for each message that was sent;
        otherwise it is 0.
        """
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
            _log.exception("internal error while tracing messages; they are delivered without spans")
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
        """Yield (batch index or -1, payload bytes, the producer's context) for each message that has a context."""
        try:
            for at, size, properties in _properties(entry):
                if remaining and at >= 0 and not remaining >> at & 1:
                    continue
                carrier = {one.key: one.value for one in properties if one.key in (PARENT, _STATE)}
                if PARENT in carrier:
                    yield at, size, self._extract(carrier)
        except message.Undecodable:
            return  # the entry is malformed, and its consumers report the error


def _properties(entry: Buffer) -> Iterator[tuple[int, int, Sequence[pb.KeyValue]]]:
    """Yield (batch index or -1, payload bytes, properties) for each message that may be traced.

    Raises `Undecodable`.
    """
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
