"""Pulsar's commands: parse one that came, and build every one that we send, as whole frames.

    offset size  field                    a frame without payload
         0    4  total size               of what follows, u32 big-endian
         4    4  command size             u32 big-endian
         8       BaseCommand              protobuf (pulsar.proto)

A command is handed on as its type and its own message (`CommandFlow`, not the envelope around it). The
envelope keeps each message in the field that has the type's number, so one table made from the descriptor
replaces a chain of cases.

What a peer sends may be any bytes. `parse` raises `CommandError` and nothing else: for what is no protobuf,
for a command we do not know, for an envelope without its message, for a missing required field and for text
that is not UTF-8 (which the parser would hand to whoever reads the field as bytes, far from here).

What is sent for every entry, receipts and the headers of messages, is in `entry_frames`.
"""

from collections.abc import Callable, Iterable
from enum import Enum
from functools import cache
from struct import Struct
from typing import Final, NamedTuple

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from quire.runtime.errors import ProtocolError
from quire.wire import pulsar_pb2 as pb
from quire.wire import varint

PROTOCOL_VERSION: Final = 19
"""The highest version we speak: 20 and later only add commands that we do not offer."""

NO_REQUEST: Final = (1 << 64) - 1
"""The request id of an ERROR that answers no request (a failed handshake)."""

REFRESH: Final = b"PulsarAuthRefresh"
"""What a challenge says that asks for new credentials: Java clients compare it."""

_Type = pb.BaseCommand
_SIZES: Final = Struct(">II")


class CommandError(ProtocolError):
    """A frame holds no command that we know, or one with a broken or missing part."""


class Command(NamedTuple):
    """One command without payload: `kind` is a `BaseCommand.Type`, `body` the message of that type."""

    kind: int
    body: Message


# -- Parsing -------------------------------------------------------------------------------------------

_FIELD_OF_KIND: Final[dict[int, str]] = {
    number: _Type.DESCRIPTOR.fields_by_number[number].name for number in _Type.Type.values()
}
_PARSE: Final[Callable[[bytes], pb.BaseCommand]] = _Type.FromString
# These carry no text, or none that is ever read, and come often.
_TEXTLESS: Final = frozenset((_Type.SEND, _Type.SEND_RECEIPT, _Type.MESSAGE, _Type.ACK, _Type.FLOW))


def parse(raw: bytes) -> Command:
    """The command in `raw`, the bytes of one BaseCommand. Raises `CommandError`."""
    try:
        envelope = _PARSE(raw)
    except DecodeError:
        raise CommandError("a frame's command is not a protobuf message") from None
    # A type that the enum does not have is an unknown field to the parser.
    if not envelope.HasField("type"):
        raise CommandError("a command's type is missing or unknown")
    kind = envelope.type
    name = _FIELD_OF_KIND[kind]
    if not envelope.HasField(name):
        raise CommandError(f"a {_name(kind)} command has no body")
    body: Message = getattr(envelope, name)
    if not body.IsInitialized():
        raise CommandError(f"a {_name(kind)} command lacks a required field")
    if kind not in _TEXTLESS and not text_is_valid(body):
        raise CommandError(f"a {_name(kind)} command holds text that is not UTF-8")
    return Command(kind, body)


def _name(kind: int) -> str:
    return _Type.Type.Name(kind)


def text_is_valid(message: Message) -> bool:
    """Whether every string in `message` and below is UTF-8: the parser gives one that is not as bytes.

    A command may hold 200,000 properties: so the fields of a type are looked up once (0.2 µs a property is left).
    """
    for name, kind in _fields_with_text(message.DESCRIPTOR):
        value = getattr(message, name)
        if kind is _Text.ONE:
            if type(value) is not str:
                return False
        elif kind is _Text.MANY:
            if bytes in set(map(type, value)):
                return False
        elif kind is _Text.INSIDE:
            if message.HasField(name) and not text_is_valid(value):
                return False
        elif not all(map(text_is_valid, value)):
            return False
    return True


class _Text(Enum):
    """How a field holds text."""

    ONE = "a string"
    MANY = "strings"
    INSIDE = "a message that may have some"
    INSIDE_MANY = "messages that may have some"


@cache
def _fields_with_text(kind: Descriptor) -> tuple[tuple[str, _Text], ...]:
    """The fields of a message's type in which text may stand."""
    found = []
    for field in kind.fields:
        if field.type == field.TYPE_STRING:
            found.append((field.name, _Text.MANY if field.is_repeated else _Text.ONE))
        elif field.message_type is not None and _has_text(field.message_type):
            found.append((field.name, _Text.INSIDE_MANY if field.is_repeated else _Text.INSIDE))
    return tuple(found)


def _has_text(kind: Descriptor) -> bool:
    """Whether text may stand in a message of that type, or below; a type may contain itself."""
    seen: set[str] = set()
    ahead = [kind]
    while ahead:
        one = ahead.pop()
        if one.full_name not in seen:
            seen.add(one.full_name)
            if any(field.type == field.TYPE_STRING for field in one.fields):
                return True
            ahead += [field.message_type for field in one.fields if field.message_type is not None]
    return False


# -- Building ------------------------------------------------------------------------------------------


def frame(command: pb.BaseCommand) -> bytes:
    """`command` as a frame without payload."""
    raw = command.SerializeToString()
    return _SIZES.pack(len(raw) + 4, len(raw)) + raw


def _whole(kind: pb.BaseCommand.Type, body: Message) -> bytes:
    """A frame of one command whose body is `body`."""
    command = pb.BaseCommand(type=kind)
    getattr(command, _FIELD_OF_KIND[kind]).CopyFrom(body)
    getattr(command, _FIELD_OF_KIND[kind]).SetInParent()
    return frame(command)


PING: Final = _whole(_Type.PING, pb.CommandPing())
PONG: Final = _whole(_Type.PONG, pb.CommandPong())

MessageId = pb.MessageIdData


def message_id(
    ledger_id: int,
    entry_id: int,
    partition: int = -1,
    batch_index: int = -1,
    ack_set: Iterable[int] = (),
    batch_size: int = 0,
) -> pb.MessageIdData:
    """A message id. -1 stands for 2^64-1 in ledger and entry (earliest); `ack_set` words are signed."""
    made = pb.MessageIdData(ledgerId=ledger_id & varint.U64_MASK, entryId=entry_id & varint.U64_MASK)
    if partition >= 0:
        made.partition = partition
    if batch_index >= 0:
        made.batch_index = batch_index
    if batch_size:
        made.batch_size = batch_size
    made.ack_set.extend(ack_set)
    return made


def position(id_data: pb.MessageIdData) -> tuple[int, int]:
    """(ledger, entry) of a message id as signed numbers: (-1, -1) is earliest, both 2^63-1 is latest."""
    return _signed(id_data.ledgerId), _signed(id_data.entryId)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


# What a broker sends.


def auth_challenge(method: str, client_protocol_version: int) -> bytes:
    """Asks a client whose credentials have expired for new ones."""
    body = pb.CommandAuthChallenge(
        challenge=pb.AuthData(auth_method_name=method, auth_data=REFRESH),
        protocol_version=min(PROTOCOL_VERSION, client_protocol_version),
    )
    return _whole(_Type.AUTH_CHALLENGE, body)


def connected(server_version: str, client_protocol_version: int, message_bytes_max: int) -> bytes:
    """CONNECTED: the lower of both protocol versions, and the largest message we take, in bytes.

    That the number of partitions can be asked for without creating the topic has to be said: Java producers that are
    not told so never learn of new partitions.
    """
    flags = pb.FeatureFlags(
        supports_topic_watchers=True, supports_get_partitioned_metadata_without_auto_creation=True
    )
    return _whole(
        _Type.CONNECTED,
        pb.CommandConnected(
            server_version=server_version,
            protocol_version=min(PROTOCOL_VERSION, client_protocol_version),
            max_message_size=message_bytes_max,
            feature_flags=flags,
        ),
    )


def success(request_id: int, schema: pb.Schema | None = None) -> bytes:
    return _whole(_Type.SUCCESS, pb.CommandSuccess(request_id=request_id, schema=schema))


def error(request_id: int, code: pb.ServerError, message: str) -> bytes:
    """ERROR for a request; `NO_REQUEST` when none was made yet."""
    return _whole(_Type.ERROR, pb.CommandError(request_id=request_id, error=code, message=message))


def partitions(request_id: int, count: int) -> bytes:
    """PARTITIONED_METADATA_RESPONSE: `count` partitions, 0 for a topic that has none."""
    body = pb.CommandPartitionedTopicMetadataResponse(
        partitions=count,
        request_id=request_id,
        response=pb.CommandPartitionedTopicMetadataResponse.Success,
    )
    return _whole(_Type.PARTITIONED_METADATA_RESPONSE, body)


def partitions_failed(request_id: int, code: pb.ServerError, message: str) -> bytes:
    body = pb.CommandPartitionedTopicMetadataResponse(
        request_id=request_id,
        response=pb.CommandPartitionedTopicMetadataResponse.Failed,
        error=code,
        message=message,
    )
    return _whole(_Type.PARTITIONED_METADATA_RESPONSE, body)


def lookup_found(
    request_id: int,
    url: str,
    url_tls: str = "",
    *,
    redirect: bool = False,
    authoritative: bool = True,
    proxy: bool = False,
) -> bytes:
    """LOOKUP_RESPONSE: connect to `url`, or (`redirect`) ask there; `proxy`: keep using the service URL."""
    kind = pb.CommandLookupTopicResponse
    body = kind(
        brokerServiceUrl=url,
        response=kind.Redirect if redirect else kind.Connect,
        request_id=request_id,
        authoritative=authoritative,
        proxy_through_service_url=proxy,
    )
    if url_tls:
        body.brokerServiceUrlTls = url_tls
    return _whole(_Type.LOOKUP_RESPONSE, body)


def lookup_failed(request_id: int, code: pb.ServerError, message: str) -> bytes:
    kind = pb.CommandLookupTopicResponse
    body = kind(response=kind.Failed, request_id=request_id, error=code, message=message)
    return _whole(_Type.LOOKUP_RESPONSE, body)


def producer_success(
    request_id: int,
    producer_name: str,
    last_sequence_id: int = -1,
    schema_version: bytes = b"",
    topic_epoch: int | None = None,
    *,
    ready: bool = True,
) -> bytes:
    """PRODUCER_SUCCESS; the schema version is always there, empty when the topic has no schema."""
    body = pb.CommandProducerSuccess(
        request_id=request_id,
        producer_name=producer_name,
        last_sequence_id=last_sequence_id,
        schema_version=schema_version,
        topic_epoch=topic_epoch,
        producer_ready=ready,
    )
    return _whole(_Type.PRODUCER_SUCCESS, body)


def send_error(producer_id: int, sequence_id: int, code: pb.ServerError, message: str) -> bytes:
    """SEND_ERROR. Any code but ChecksumError makes C++ clients reconnect and send again for ever."""
    body = pb.CommandSendError(producer_id=producer_id, sequence_id=sequence_id, error=code, message=message)
    return _whole(_Type.SEND_ERROR, body)


def send_error_of(head: bytes, code: pb.ServerError, message: str) -> bytes:
    """SEND_ERROR for the SEND whose head, `08 producer-id 10 sequence-id`, is this (`SendRun.heads`)."""
    body = pb.CommandSendError(error=code, message=message)
    body.MergeFromString(head)
    return _whole(_Type.SEND_ERROR, body)


def ack_response(
    consumer_id: int, request_id: int, code: pb.ServerError | None = None, message: str | None = None
) -> bytes:
    body = pb.CommandAckResponse(consumer_id=consumer_id, request_id=request_id, error=code, message=message)
    return _whole(_Type.ACK_RESPONSE, body)


def active_consumer_change(consumer_id: int, *, active: bool) -> bytes:
    body = pb.CommandActiveConsumerChange(consumer_id=consumer_id, is_active=active)
    return _whole(_Type.ACTIVE_CONSUMER_CHANGE, body)


def reached_end_of_topic(consumer_id: int) -> bytes:
    """REACHED_END_OF_TOPIC; only for clients that know it."""
    return _whole(_Type.REACHED_END_OF_TOPIC, pb.CommandReachedEndOfTopic(consumer_id=consumer_id))


def last_message_id(
    request_id: int, last: pb.MessageIdData, mark_delete: pb.MessageIdData | None = None
) -> bytes:
    body = pb.CommandGetLastMessageIdResponse(
        request_id=request_id, last_message_id=last, consumer_mark_delete_position=mark_delete
    )
    return _whole(_Type.GET_LAST_MESSAGE_ID_RESPONSE, body)


def topics_of_namespace(
    request_id: int,
    topics: Iterable[str],
    topics_hash: str | None = None,
    *,
    filtered: bool = False,
    changed: bool = True,
) -> bytes:
    """GET_TOPICS_OF_NAMESPACE_RESPONSE; `filtered` by the pattern that was asked for, not `changed` since its hash."""
    body = pb.CommandGetTopicsOfNamespaceResponse(
        request_id=request_id, topics=topics, topics_hash=topics_hash, filtered=filtered, changed=changed
    )
    return _whole(_Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, body)


def topics_watched(request_id: int, watcher_id: int, topics: Iterable[str], topics_hash: str) -> bytes:
    """WATCH_TOPIC_LIST_SUCCESS."""
    body = pb.CommandWatchTopicListSuccess(
        request_id=request_id, watcher_id=watcher_id, topic=topics, topics_hash=topics_hash
    )
    return _whole(_Type.WATCH_TOPIC_LIST_SUCCESS, body)


def topics_changed(watcher_id: int, new: Iterable[str], deleted: Iterable[str], topics_hash: str) -> bytes:
    """WATCH_TOPIC_UPDATE; only for clients that watch."""
    body = pb.CommandWatchTopicUpdate(
        watcher_id=watcher_id, new_topics=new, deleted_topics=deleted, topics_hash=topics_hash
    )
    return _whole(_Type.WATCH_TOPIC_UPDATE, body)


def consumer_stats(body: pb.CommandConsumerStatsResponse) -> bytes:
    return _whole(_Type.CONSUMER_STATS_RESPONSE, body)


def schema_found(request_id: int, schema: pb.Schema, version: bytes) -> bytes:
    """GET_SCHEMA_RESPONSE; a version is eight bytes, big-endian."""
    body = pb.CommandGetSchemaResponse(request_id=request_id, schema=schema, schema_version=version)
    return _whole(_Type.GET_SCHEMA_RESPONSE, body)


def schema_failed(request_id: int, code: pb.ServerError, message: str) -> bytes:
    body = pb.CommandGetSchemaResponse(request_id=request_id, error_code=code, error_message=message)
    return _whole(_Type.GET_SCHEMA_RESPONSE, body)


def schema_stored(request_id: int, version: bytes) -> bytes:
    """An empty version, and not none, for what is no schema: the Java client reads the field without asking."""
    body = pb.CommandGetOrCreateSchemaResponse(request_id=request_id, schema_version=version)
    return _whole(_Type.GET_OR_CREATE_SCHEMA_RESPONSE, body)


def schema_refused(request_id: int, code: pb.ServerError, message: str) -> bytes:
    body = pb.CommandGetOrCreateSchemaResponse(request_id=request_id, error_code=code, error_message=message)
    return _whole(_Type.GET_OR_CREATE_SCHEMA_RESPONSE, body)


# What a client sends; `close_producer` and `close_consumer` are sent by both sides.


def connect(
    client_version: str, auth_method: str = "none", auth_data: bytes = b"", proxy_to_url: str = ""
) -> bytes:
    body = pb.CommandConnect(
        client_version=client_version,
        protocol_version=PROTOCOL_VERSION,
        auth_method_name=auth_method,
        auth_data=auth_data,
        feature_flags=pb.FeatureFlags(supports_auth_refresh=True),
    )
    if proxy_to_url:
        body.proxy_to_broker_url = proxy_to_url
    return _whole(_Type.CONNECT, body)


def auth_response(client_version: str, method: str, data: bytes) -> bytes:
    body = pb.CommandAuthResponse(
        client_version=client_version,
        response=pb.AuthData(auth_method_name=method, auth_data=data),
        protocol_version=PROTOCOL_VERSION,
    )
    return _whole(_Type.AUTH_RESPONSE, body)


def ask_partitions(request_id: int, topic: str, *, create: bool = True) -> bytes:
    body = pb.CommandPartitionedTopicMetadata(
        topic=topic, request_id=request_id, metadata_auto_creation_enabled=create
    )
    return _whole(_Type.PARTITIONED_METADATA, body)


def ask_lookup(request_id: int, topic: str, *, authoritative: bool = False) -> bytes:
    body = pb.CommandLookupTopic(topic=topic, request_id=request_id, authoritative=authoritative)
    return _whole(_Type.LOOKUP, body)


def ask_topics(
    request_id: int, namespace: str, pattern: str | None = None, topics_hash: str | None = None
) -> bytes:
    body = pb.CommandGetTopicsOfNamespace(
        request_id=request_id,
        namespace=namespace,
        mode=pb.CommandGetTopicsOfNamespace.PERSISTENT,
        topics_pattern=pattern,
        topics_hash=topics_hash,
    )
    return _whole(_Type.GET_TOPICS_OF_NAMESPACE, body)


def watch_topics(
    request_id: int, watcher_id: int, namespace: str, pattern: str, topics_hash: str | None = None
) -> bytes:
    body = pb.CommandWatchTopicList(
        request_id=request_id,
        watcher_id=watcher_id,
        namespace=namespace,
        topics_pattern=pattern,
        topics_hash=topics_hash,
    )
    return _whole(_Type.WATCH_TOPIC_LIST, body)


def watch_topics_no_more(request_id: int, watcher_id: int) -> bytes:
    body = pb.CommandWatchTopicListClose(request_id=request_id, watcher_id=watcher_id)
    return _whole(_Type.WATCH_TOPIC_LIST_CLOSE, body)


def producer(body: pb.CommandProducer) -> bytes:
    return _whole(_Type.PRODUCER, body)


def subscribe(body: pb.CommandSubscribe) -> bytes:
    return _whole(_Type.SUBSCRIBE, body)


def send(
    producer_id: int,
    sequence_id: int,
    message_count: int,
    entry: bytes,
    highest_sequence_id: int = 0,
    *,
    chunk: bool = False,
) -> list[bytes]:
    """SEND of one entry: header and entry, for `writelines`. One message needs no count: the fast form."""
    raw = b"\x08" + varint.encode(producer_id) + b"\x10" + varint.encode(sequence_id)
    if message_count != 1:
        raw += b"\x18" + varint.encode(message_count)
    if highest_sequence_id:
        raw += b"\x30" + varint.encode(highest_sequence_id)
    if chunk:
        raw += b"\x38\x01"
    return [_SIZES.pack(len(raw) + 8 + len(entry), len(raw) + 4) + b"\x08\x06\x32%c" % len(raw) + raw, entry]


def flow(consumer_id: int, permits: int) -> bytes:
    """FLOW: `permits` more messages (not entries) may be sent to the consumer."""
    return _whole(_Type.FLOW, pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits))


def ack(
    consumer_id: int,
    ids: Iterable[pb.MessageIdData],
    *,
    cumulative: bool = False,
    request_id: int | None = None,
) -> bytes:
    kind = pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual
    body = pb.CommandAck(consumer_id=consumer_id, ack_type=kind, message_id=ids, request_id=request_id)
    return _whole(_Type.ACK, body)


def redeliver(consumer_id: int, ids: Iterable[pb.MessageIdData] = ()) -> bytes:
    """REDELIVER_UNACKNOWLEDGED_MESSAGES: those of `ids`, or without ids all of the consumer's."""
    body = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=consumer_id, message_ids=ids)
    return _whole(_Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, body)


def unsubscribe(consumer_id: int, request_id: int) -> bytes:
    body = pb.CommandUnsubscribe(consumer_id=consumer_id, request_id=request_id)
    return _whole(_Type.UNSUBSCRIBE, body)


def ask_schema(request_id: int, topic: str, version: bytes = b"") -> bytes:
    """GET_SCHEMA: of a version, or the newest."""
    body = pb.CommandGetSchema(request_id=request_id, topic=topic, schema_version=version or None)
    return _whole(_Type.GET_SCHEMA, body)


def seek(
    consumer_id: int,
    request_id: int,
    to: pb.MessageIdData | None = None,
    publish_time_ms: int | None = None,
) -> bytes:
    body = pb.CommandSeek(
        consumer_id=consumer_id, request_id=request_id, message_id=to, message_publish_time=publish_time_ms
    )
    return _whole(_Type.SEEK, body)


def ask_last_message_id(consumer_id: int, request_id: int) -> bytes:
    body = pb.CommandGetLastMessageId(consumer_id=consumer_id, request_id=request_id)
    return _whole(_Type.GET_LAST_MESSAGE_ID, body)


def ask_consumer_stats(consumer_id: int, request_id: int) -> bytes:
    body = pb.CommandConsumerStats(consumer_id=consumer_id, request_id=request_id)
    return _whole(_Type.CONSUMER_STATS, body)


def close_producer(producer_id: int, request_id: int, service_url: str = "") -> bytes:
    """From a client: it is done. From a broker: go to `service_url`, or look the topic up again."""
    body = pb.CommandCloseProducer(producer_id=producer_id, request_id=request_id)
    if service_url.startswith("pulsar+ssl:"):
        body.assignedBrokerServiceUrlTls = service_url
    elif service_url:
        body.assignedBrokerServiceUrl = service_url
    return _whole(_Type.CLOSE_PRODUCER, body)


def close_consumer(consumer_id: int, request_id: int) -> bytes:
    """From a client: it is done. From a broker: look the topic up again."""
    body = pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=request_id)
    return _whole(_Type.CLOSE_CONSUMER, body)
