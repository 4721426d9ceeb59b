"""What a session asks of its broker, and nothing more. `serving.broker.Broker` implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from quire.runtime.budget import ByteBudget
from quire.runtime.clock import Clock
from quire.runtime.slices import Share, Slices
from quire.runtime.tasks import Tasks
from quire.serving.cluster.port import Owner
from quire.serving.cluster.topic_lists import Listener, Watched
from quire.serving.model.ports import ConsumerPort
from quire.serving.session.frame_room import FrameRoom
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.topic.non_persistent import AnyTopic
from quire.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from quire.serving.session.connection import Connection


class SessionHost(Protocol):
    """The broker, as its sessions see it. Topics are named as clients name them; see `quire.serving.names`."""

    budget: ByteBudget
    held: ByteBudget
    """For what waits in sessions until its topic takes it."""
    frame_room: FrameRoom
    slices: Slices
    read_share: Share
    """For what is read from sockets."""
    clock: Clock
    tasks: Tasks

    @property
    def service_url(self) -> str: ...

    @property
    def entry_metadata(self) -> bool:
        """Whether clients that can take it are told the index of each entry."""
        ...

    @property
    def message_bytes_max(self) -> int:
        """The largest message that clients may send in one piece."""
        ...

    def session_opened(self, connection: Connection) -> bool:
        """False when there are too many connections already."""
        ...

    def session_closed(self, connection: Connection) -> None: ...

    def new_producer_name(self) -> str:
        """One that no other producer of the cluster has."""
        ...

    async def client_partitions(self, topic: str, *, create: bool) -> int:
        """Number of partitions, 0 for a topic that has none, or that would be created on first use.

        Raises `NotFound`.
        """
        ...

    async def look_up(self, topic: str, *, take: bool) -> Owner:
        """The broker that serves the topic or, with `owns` False, should be asked for it; see `Ownership.owner_of`.

        Whether the topic is there is not looked at. Raises `NotFound` for an unknown namespace, `Unavailable`.
        """
        ...

    async def client_topics(self, tenant: str, namespace: str, domain: str) -> list[str]:
        """Full names, partitions one by one, their parents not; none in a namespace that is not there."""
        ...

    async def admit_producer_schema(self, topic: AnyTopic, schema: pb.Schema | None) -> bytes:
        """The version of what a producer will write, which may be new. Raises `SchemaRefused`, `SchemaInvalid`."""
        ...

    async def admit_consumer_schema(self, topic: AnyTopic, schema: pb.Schema) -> None:
        """Raises as `admit_producer_schema`."""
        ...

    async def find_schema(self, topic: str, version: bytes | None) -> tuple[bytes, pb.Schema]:
        """A version of a topic's schema, or the newest, and its number on the wire. Raises `NotFound`."""
        ...

    async def watch_topics(self, tenant: str, namespace: str, listener: Listener) -> Watched:
        """The namespace's persistent topics, and from then on what changes. Raises `NotFound`, `Unavailable`."""
        ...

    async def open_topic(self, topic: str, *, create: bool = True) -> AnyTopic:
        """Load a topic, with `create` making it where that is allowed.

        Raises `NotFound`, `NotOwner`, `Unavailable`, `ConfigurationError`.
        """
        ...

    async def ensure_subscription(self, topic: AnyTopic, name: str) -> None:
        """A durable subscription from the first message on, made if there is none."""
        ...

    async def subscribe(
        self, topic: AnyTopic, command: pb.CommandSubscribe, port: ConsumerPort, address: str
    ) -> Consumer: ...
