"""Parser and builders of Pulsar's commands, as whole frames.

    offset size  field                    a frame without payload
         0    4  total size               of what follows, u32 big-endian
         4    4  command size             u32 big-endian
         8       BaseCommand              protobuf (pulsar.proto)

A parsed command consists of its type and its own message (`CommandFlow`, not the envelope around it). The envelope has
each message in the field whose number is the type, so a table built from the descriptor replaces a chain of cases.

A peer may send any bytes. `parse` raises only `CommandError`: for invalid protobuf, an unknown command, an envelope
without its message, a missing required field, and text that is not UTF-8 (which the generated parser would return as
bytes).

The frames sent for every entry, receipts and message headers, are in `entry_frames`.
"""

from collections.abc import Callable, Iterable
from struct import Struct
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError, Message

from quire.runtime.errors import ProtocolError
from quire.wire import pulsar_pb2 as pb
from quire.wire import varint
from quire.wire.text import text_is_valid

PROTOCOL_VERSION: Final = 19
"""Highest supported protocol version: versions 20 and later only add commands that Quire does not support."""

NO_REQUEST: Final = (1 << 64) - 1
"""Request id of an ERROR that belongs to no request, such as a failed handshake."""

REFRESH: Final = b"PulsarAuthRefresh"
"""Data of a challenge that requests new credentials; Java clients recognize the challenge by it."""

_Type = pb.BaseCommand
_SIZES: Final = Struct(">II")


class CommandError(ProtocolError):
    """Raised if a frame contains no known command, or a command with an invalid or missing part."""


class Command(NamedTuple):
    """Command without payload: `kind` is a `BaseCommand.Type`, `body` the message of that type."""

    kind: pb.BaseCommand.Type
    body: Message


# -- Parsing -------------------------------------------------------------------------------------------

_FIELD_OF_KIND: Final[dict[int, str]] = {
    number: _Type.DESCRIPTOR.fields_by_number[number].name for number in _Type.Type.values()
}
_PARSE: Final[Callable[[bytes], pb.BaseCommand]] = _Type.FromString
# Frequent commands whose text, if any, is not read, so that it need not be checked.
_TEXTLESS: Final = frozenset((_Type.SEND, _Type.SEND_RECEIPT, _Type.MESSAGE, _Type.ACK, _Type.FLOW))


def parse(raw: bytes) -> Command:
    """Parse `raw`, the bytes of one BaseCommand. Raises `CommandError`."""
    try:
        envelope = _PARSE(raw)
    except DecodeError:
        raise CommandError("a frame's command is not a protobuf message") from None
    # To the parser, a type that the enum lacks is an unknown field.
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
        raise CommandError(f"a {_name(kind)} command contains text that is not UTF-8")
    return Command(kind, body)


def _name(kind: int) -> str:
    return _Type.Type.Name(kind)


# -- Building ------------------------------------------------------------------------------------------


def frame(command: pb.BaseCommand) -> bytes:
    """Encode `command` as a frame without payload."""
    raw = command.SerializeToString()
    return _SIZES.pack(len(raw) + 4, len(raw)) + raw


def whole(kind: pb.BaseCommand.Type, body: Message) -> bytes:
    """Encode a frame of one command whose body is `body`."""
    command = pb.BaseCommand(type=kind)
    getattr(command, _FIELD_OF_KIND[kind]).CopyFrom(body)
    getattr(command, _FIELD_OF_KIND[kind]).SetInParent()
    return frame(command)


PING: Final = whole(_Type.PING, pb.CommandPing())
PONG: Final = whole(_Type.PONG, pb.CommandPong())

MessageId = pb.MessageIdData


def message_id(
    ledger_id: int,
    entry_id: int,
    partition: int = -1,
    batch_index: int = -1,
    ack_set: Iterable[int] = (),
    batch_size: int = 0,
) -> pb.MessageIdData:
    """Build a message id. A ledger or entry of -1 (earliest) is encoded as 2^64-1; `ack_set` words are signed."""
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
    """Return (ledger, entry) of a message id as signed numbers: (-1, -1) is earliest, both 2^63-1 is latest."""
    return _signed(id_data.ledgerId), _signed(id_data.entryId)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


# Commands that a broker sends.


def auth_challenge(method: str, client_protocol_version: int) -> bytes:
    """Build the AUTH_CHALLENGE that requests new credentials from a client whose credentials expired."""
    body = pb.CommandAuthChallenge(
        challenge=pb.AuthData(auth_method_name=method, auth_data=REFRESH),
        protocol_version=min(PROTOCOL_VERSION, client_protocol_version),
    )
    return whole(_Type.AUTH_CHALLENGE, body)


def connected(server_version: str, client_protocol_version: int, message_bytes_max: int) -> bytes:
    """Build CONNECTED, with the lower protocol version of both sides, and the broker's maximum message size in bytes.

    The feature flag for requesting the number of partitions without creating the topic is necessary: without it, Java
    producers never discover new partitions.
    """
    flags = pb.FeatureFlags(
        supports_topic_watchers=True, supports_get_partitioned_metadata_without_auto_creation=True
    )
    return whole(
        _Type.CONNECTED,
        pb.CommandConnected(
            server_version=server_version,
            protocol_version=min(PROTOCOL_VERSION, client_protocol_version),
            max_message_size=message_bytes_max,
            feature_flags=flags,
        ),
    )


def success(request_id: int, schema: pb.Schema | None = None) -> bytes:
    return whole(_Type.SUCCESS, pb.CommandSuccess(request_id=request_id, schema=schema))


def error(request_id: int, code: pb.ServerError, message: str) -> bytes:
    """Build the ERROR for a request; `NO_REQUEST` is its id before the first request."""
    return whole(_Type.ERROR, pb.CommandError(request_id=request_id, error=code, message=message))


def partitions(request_id: int, count: int) -> bytes:
    """Build PARTITIONED_METADATA_RESPONSE: `count` partitions, 0 for an unpartitioned topic."""
    body = pb.CommandPartitionedTopicMetadataResponse(
        partitions=count,
        request_id=request_id,
        response=pb.CommandPartitionedTopicMetadataResponse.Success,
    )
    return whole(_Type.PARTITIONED_METADATA_RESPONSE, body)


def partitions_failed(request_id: int, code: pb.ServerError, message: str) -> bytes:
    body = pb.CommandPartitionedTopicMetadataResponse(
        request_id=request_id,
        response=pb.CommandPartitionedTopicMetadataResponse.Failed,
        error=code,
        message=message,
    )
    return whole(_Type.PARTITIONED_METADATA_RESPONSE, body)


def lookup_found(
    request_id: int,
    url: str,
    url_tls: str = "",
    *,
    redirect: bool = False,
    authoritative: bool = True,
    proxy: bool = False,
) -> bytes:
    """Build a LOOKUP_RESPONSE that makes the client connect to `url`, or with `redirect` repeat its lookup there.

    With `proxy`, the client keeps its connections to the service URL.
    """
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
    return whole(_Type.LOOKUP_RESPONSE, body)


def lookup_failed(request_id: int, code: pb.ServerError, message: str) -> bytes:
    kind = pb.CommandLookupTopicResponse
    body = kind(response=kind.Failed, request_id=request_id, error=code, message=message)
    return whole(_Type.LOOKUP_RESPONSE, body)


def producer_success(
    request_id: int,
    producer_name: str,
    last_sequence_id: int = -1,
    schema_version: bytes = b"",
    topic_epoch: int | None = None,
    *,
    ready: bool = True,
) -> bytes:
    """Build PRODUCER_SUCCESS; the schema version is always set, to b"" if the topic has no schema."""
    body = pb.CommandProducerSuccess(
        request_id=request_id,
        producer_name=producer_name,
        last_sequence_id=last_sequence_id,
        schema_version=schema_version,
        topic_epoch=topic_epoch,
        producer_ready=ready,
    )
    return whole(_Type.PRODUCER_SUCCESS, body)


def send_error(producer_id: int, sequence_id: int, code: pb.ServerError, message: str) -> bytes:
    """Build SEND_ERROR. With any code except ChecksumError, C++ clients reconnect and resend forever."""
    body = pb.CommandSendError(producer_id=producer_id, sequence_id=sequence_id, error=code, message=message)
    return whole(_Type.SEND_ERROR, body)


def send_error_of(head: bytes, code: pb.ServerError, message: str) -> bytes:
    """Build the SEND_ERROR for the SEND with this head, `08 producer-id 10 sequence-id` (`SendRun.heads`)."""
    body = pb.CommandSendError(error=code, message=message)
    body.MergeFromString(head)
    return whole(_Type.SEND_ERROR, body)


def ack_response(
    consumer_id: int, request_id: int, code: pb.ServerError | None = None, message: str | None = None
) -> bytes:
    body = pb.CommandAckResponse(consumer_id=consumer_id, request_id=request_id, error=code, message=message)
    return whole(_Type.ACK_RESPONSE, body)


def active_consumer_change(consumer_id: int, *, active: bool) -> bytes:
    body = pb.CommandActiveConsumerChange(consumer_id=consumer_id, is_active=active)
    return whole(_Type.ACTIVE_CONSUMER_CHANGE, body)


def reached_end_of_topic(consumer_id: int) -> bytes:
    """Build REACHED_END_OF_TOPIC; only for clients that support it."""
    return whole(_Type.REACHED_END_OF_TOPIC, pb.CommandReachedEndOfTopic(consumer_id=consumer_id))


def last_message_id(
    request_id: int, last: pb.MessageIdData, mark_delete: pb.MessageIdData | None = None
) -> bytes:
    body = pb.CommandGetLastMessageIdResponse(
        request_id=request_id, last_message_id=last, consumer_mark_delete_position=mark_delete
    )
    return whole(_Type.GET_LAST_MESSAGE_ID_RESPONSE, body)


def topics_of_namespace(
    request_id: int,
    topics: Iterable[str],
    topics_hash: str | None = None,
    *,
    filtered: bool = False,
    changed: bool = True,
) -> bytes:
    """Build GET_TOPICS_OF_NAMESPACE_RESPONSE. `filtered`: by the request's pattern; `changed`: since its hash."""
    body = pb.CommandGetTopicsOfNamespaceResponse(
        request_id=request_id, topics=topics, topics_hash=topics_hash, filtered=filtered, changed=changed
    )
    return whole(_Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, body)


def topics_watched(request_id: int, watcher_id: int, topics: Iterable[str], topics_hash: str) -> bytes:
    """Build WATCH_TOPIC_LIST_SUCCESS."""
    body = pb.CommandWatchTopicListSuccess(
        request_id=request_id, watcher_id=watcher_id, topic=topics, topics_hash=topics_hash
    )
    return whole(_Type.WATCH_TOPIC_LIST_SUCCESS, body)


def topics_changed(watcher_id: int, new: Iterable[str], deleted: Iterable[str], topics_hash: str) -> bytes:
    """Build WATCH_TOPIC_UPDATE; only for clients that watch topics."""
    body = pb.CommandWatchTopicUpdate(
        watcher_id=watcher_id, new_topics=new, deleted_topics=deleted, topics_hash=topics_hash
    )
    return whole(_Type.WATCH_TOPIC_UPDATE, body)


def consumer_stats(body: pb.CommandConsumerStatsResponse) -> bytes:
    return whole(_Type.CONSUMER_STATS_RESPONSE, body)


def schema_found(request_id: int, schema: pb.Schema, version: bytes) -> bytes:
    """Build GET_SCHEMA_RESPONSE; a version is eight bytes, big-endian."""
    body = pb.CommandGetSchemaResponse(request_id=request_id, schema=schema, schema_version=version)
    return whole(_Type.GET_SCHEMA_RESPONSE, body)


def schema_failed(request_id: int, code: pb.ServerError, message: str) -> bytes:
    body = pb.CommandGetSchemaResponse(request_id=request_id, error_code=code, error_message=message)
    return whole(_Type.GET_SCHEMA_RESPONSE, body)


def schema_stored(request_id: int, version: bytes | None) -> bytes:
    """Build GET_OR_CREATE_SCHEMA_RESPONSE. If `version` is None, the field is omitted; b"" is encoded."""
    body = pb.CommandGetOrCreateSchemaResponse(request_id=request_id, schema_version=version)
    return whole(_Type.GET_OR_CREATE_SCHEMA_RESPONSE, body)


def schema_refused(request_id: int, code: pb.ServerError, message: str) -> bytes:
    body = pb.CommandGetOrCreateSchemaResponse(request_id=request_id, error_code=code, error_message=message)
    return whole(_Type.GET_OR_CREATE_SCHEMA_RESPONSE, body)


# Commands that a client sends; both sides send `close_producer` and `close_consumer`.


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
    return whole(_Type.CONNECT, body)


def auth_response(client_version: str, method: str, data: bytes) -> bytes:
    body = pb.CommandAuthResponse(
        client_version=client_version,
        response=pb.AuthData(auth_method_name=method, auth_data=data),
        protocol_version=PROTOCOL_VERSION,
    )
    return whole(_Type.AUTH_RESPONSE, body)


def ask_partitions(request_id: int, topic: str, *, create: bool = True) -> bytes:
    body = pb.CommandPartitionedTopicMetadata(
        topic=topic, request_id=request_id, metadata_auto_creation_enabled=create
    )
    return whole(_Type.PARTITIONED_METADATA, body)


def ask_lookup(request_id: int, topic: str, *, authoritative: bool = False) -> bytes:
    body = pb.CommandLookupTopic(topic=topic, request_id=request_id, authoritative=authoritative)
    return whole(_Type.LOOKUP, body)


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
    return whole(_Type.GET_TOPICS_OF_NAMESPACE, body)


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
    return whole(_Type.WATCH_TOPIC_LIST, body)


def watch_topics_no_more(request_id: int, watcher_id: int) -> bytes:
    body = pb.CommandWatchTopicListClose(request_id=request_id, watcher_id=watcher_id)
    return whole(_Type.WATCH_TOPIC_LIST_CLOSE, body)


def producer(body: pb.CommandProducer) -> bytes:
    return whole(_Type.PRODUCER, body)


def subscribe(body: pb.CommandSubscribe) -> bytes:
    return whole(_Type.SUBSCRIBE, body)


def send(
    producer_id: int,
    sequence_id: int,
    message_count: int,
    entry: bytes,
    highest_sequence_id: int = 0,
    *,
    chunk: bool = False,
) -> list[bytes]:
    """Build the SEND of one entry: header and entry, for `writelines`.

    A message count of one is omitted, because brokers parse such a SEND faster.
    """
    raw = b"\x08" + varint.encode(producer_id) + b"\x10" + varint.encode(sequence_id)
    if message_count != 1:
        raw += b"\x18" + varint.encode(message_count)
    if highest_sequence_id:
        raw += b"\x30" + varint.encode(highest_sequence_id)
    if chunk:
        raw += b"\x38\x01"
    return [_SIZES.pack(len(raw) + 8 + len(entry), len(raw) + 4) + b"\x08\x06\x32%c" % len(raw) + raw, entry]


def flow(consumer_id: int, permits: int) -> bytes:
    """Build FLOW: `permits` more messages (not entries) may be sent to the consumer."""
    return whole(_Type.FLOW, pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits))


def ack(
    consumer_id: int,
    ids: Iterable[pb.MessageIdData],
    *,
    cumulative: bool = False,
    request_id: int | None = None,
) -> bytes:
    kind = pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual
    body = pb.CommandAck(consumer_id=consumer_id, ack_type=kind, message_id=ids, request_id=request_id)
    return whole(_Type.ACK, body)


def redeliver(consumer_id: int, ids: Iterable[pb.MessageIdData] = ()) -> bytes:
    """Build REDELIVER_UNACKNOWLEDGED_MESSAGES for the messages `ids`; without ids, for all messages of the consumer."""
    body = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=consumer_id, message_ids=ids)
    return whole(_Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, body)


def unsubscribe(consumer_id: int, request_id: int) -> bytes:
    body = pb.CommandUnsubscribe(consumer_id=consumer_id, request_id=request_id)
    return whole(_Type.UNSUBSCRIBE, body)


def ask_schema(request_id: int, topic: str, version: bytes = b"") -> bytes:
    """Build GET_SCHEMA for a version, or the newest version."""
    body = pb.CommandGetSchema(request_id=request_id, topic=topic, schema_version=version or None)
    return whole(_Type.GET_SCHEMA, body)


def seek(
    consumer_id: int,
    request_id: int,
    to: pb.MessageIdData | None = None,
    publish_time_ms: int | None = None,
) -> bytes:
    body = pb.CommandSeek(
        consumer_id=consumer_id, request_id=request_id, message_id=to, message_publish_time=publish_time_ms
    )
    return whole(_Type.SEEK, body)


def ask_last_message_id(consumer_id: int, request_id: int) -> bytes:
    body = pb.CommandGetLastMessageId(consumer_id=consumer_id, request_id=request_id)
    return whole(_Type.GET_LAST_MESSAGE_ID, body)


def ask_consumer_stats(consumer_id: int, request_id: int) -> bytes:
    body = pb.CommandConsumerStats(consumer_id=consumer_id, request_id=request_id)
    return whole(_Type.CONSUMER_STATS, body)


def close_producer(producer_id: int, request_id: int, service_url: str = "") -> bytes:
    """Build CLOSE_PRODUCER. A broker sends it to redirect a client to `service_url`, or to a new lookup."""
    body = pb.CommandCloseProducer(producer_id=producer_id, request_id=request_id)
    if service_url.startswith("pulsar+ssl:"):
        body.assignedBrokerServiceUrlTls = service_url
    elif service_url:
        body.assignedBrokerServiceUrl = service_url
    return whole(_Type.CLOSE_PRODUCER, body)


def close_consumer(consumer_id: int, request_id: int) -> bytes:
    """Build CLOSE_CONSUMER. A broker sends it to make a client look up the topic again."""
    body = pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=request_id)
    return whole(_Type.CLOSE_CONSUMER, body)
