"""Where each record lies. Every path of the metadata store is made here and nowhere else.

    /quire/cluster                                          ClusterRecord: which cluster this is
    /quire/ids/ledgers                                      empty: its version counts ranges of ledger ids
    /quire/bookies/{uuid}                                   BookieRecord (persistent: identity, incarnation)
    /quire/bookies-available/{uuid}                         ephemeral, address: this bookie is up
    /quire/underreplicated                                  changed with each report in it, and with intents of bookies
    /quire/underreplicated/all                              an operator asks for an audit of all ledgers
    /quire/underreplicated/{d}/{ledger id}                  UnderreplicatedRecord, in 16 folders by the id's last digit
    /quire/damage/{uuid}/{ledger id}                        DamageRecord, of versions before the queue above
    /quire/repair/coordinator                               ephemeral: who repairs
    /quire/repair/progress                                  RepairRecord: what the coordinator is doing
    /quire/wals/{uuid}                                      WalRecord of a write-ahead log on object storage
    /quire/wal-tombstones/{uuid}/{ledger id in 16 digits}   a ledger was deleted that has blocks there; its version
    /quire/brokers/{broker id}                              ephemeral BrokerRecord: addresses
    /quire/loads/{broker id}                                ephemeral LoadRecord: its bundles and what they cost
    /quire/tenants/{tenant}                                 TenantRecord
    /quire/namespaces/{tenant}/{namespace}                  NamespaceRecord: policies, bundle boundaries
    /quire/policies/{tenant}/{namespace}/{name}             Policies of one topic (of a parent: of all its partitions)
    /quire/schemas/{tenant}/{namespace}/{name}              SchemasRecord of one topic (a parent's: of all partitions)
    /quire/schema-bodies/{tenant}/{namespace}/{name}-{uuid} immutable SchemaBody that its topic's node has no room for
    /quire/owners/{tenant}/{namespace}/{bundle}             ephemeral OwnerRecord: the broker that owns it
    /quire/state/{tenant}/{namespace}/{bundle}              StateLogRecord: ledgers of the bundle's state log
    /quire/topics/{tenant}/{namespace}/{domain}/{name}      TopicRecord: segments or partitions
    /quire/manifests/{tenant}/{namespace}/{domain}/{name}-{uuid}   immutable: older segments of a long topic
    /quire/ledgers/{ab}/{ledger id in 16 hex digits}        LedgerRecord, in 256 folders by the id's last digits

Names are percent-encoded, so a topic may hold any character.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

ROOT = "/quire"
CLUSTER = f"{ROOT}/cluster"
LEDGER_IDS = f"{ROOT}/ids/ledgers"
BOOKIES = f"{ROOT}/bookies"
BOOKIES_AVAILABLE = f"{ROOT}/bookies-available"
DAMAGE = f"{ROOT}/damage"
UNDERREPLICATED = f"{ROOT}/underreplicated"
UNDERREPLICATED_ALL = f"{UNDERREPLICATED}/all"
REPAIR_COORDINATOR = f"{ROOT}/repair/coordinator"
REPAIR_PROGRESS = f"{ROOT}/repair/progress"
WALS = f"{ROOT}/wals"
WAL_TOMBSTONES = f"{ROOT}/wal-tombstones"
BROKERS = f"{ROOT}/brokers"
LOADS = f"{ROOT}/loads"
TENANTS = f"{ROOT}/tenants"
NAMESPACES = f"{ROOT}/namespaces"
POLICIES = f"{ROOT}/policies"
SCHEMAS = f"{ROOT}/schemas"
SCHEMA_BODIES = f"{ROOT}/schema-bodies"
STATE = f"{ROOT}/state"
TOPICS = f"{ROOT}/topics"
MANIFESTS = f"{ROOT}/manifests"
LEDGERS = f"{ROOT}/ledgers"


def encode(name: str) -> str:
    """A name as one path component; `.` and `..` are escaped too, for ZooKeeper refuses them."""
    return quote(name, safe="-_.~") if name.strip(".") else name.replace(".", "%2E")


def decode(component: str) -> str:
    """The reverse of `encode`."""
    return unquote(component)


def bookie(uuid: str) -> str:
    return f"{BOOKIES}/{uuid}"


def bookie_available(uuid: str) -> str:
    return f"{BOOKIES_AVAILABLE}/{uuid}"


def damage_of(uuid: str) -> str:
    return f"{DAMAGE}/{uuid}"


def damage(uuid: str, ledger_id: int) -> str:
    return f"{damage_of(uuid)}/{ledger_id:016x}"


def underreplicated_folders() -> list[str]:
    return [f"{UNDERREPLICATED}/{digit:x}" for digit in range(16)]


def underreplicated(ledger_id: int) -> str:
    return f"{UNDERREPLICATED}/{ledger_id % 16:x}/{ledger_id:016x}"


def wal(uuid: str) -> str:
    return f"{WALS}/{uuid}"


def wal_tombstones(uuid: str) -> str:
    return f"{WAL_TOMBSTONES}/{uuid}"


def wal_tombstone(uuid: str, ledger_id: int) -> str:
    return f"{wal_tombstones(uuid)}/{ledger_id:016x}"


def broker(broker_id: str) -> str:
    return f"{BROKERS}/{encode(broker_id)}"


def load(broker_id: str) -> str:
    return f"{LOADS}/{encode(broker_id)}"


def tenant(name: str) -> str:
    return f"{TENANTS}/{encode(name)}"


def namespaces_of(tenant_name: str) -> str:
    return f"{NAMESPACES}/{encode(tenant_name)}"


def namespace(tenant_name: str, name: str) -> str:
    return f"{namespaces_of(tenant_name)}/{encode(name)}"


def policies_of(tenant_name: str, namespace_name: str) -> str:
    """The folder of the topics' own policies in a namespace."""
    return f"{POLICIES}/{encode(tenant_name)}/{encode(namespace_name)}"


def policies(tenant_name: str, namespace_name: str, topic_name: str) -> str:
    return f"{policies_of(tenant_name, namespace_name)}/{encode(topic_name)}"


def schemas(tenant_name: str, namespace_name: str, topic_name: str) -> str:
    return f"{SCHEMAS}/{encode(tenant_name)}/{encode(namespace_name)}/{encode(topic_name)}"


def schema_folders(tenant_name: str, namespace_name: str) -> tuple[str, str]:
    """Where the schemas of a namespace's topics are, and their bodies."""
    ending = f"{encode(tenant_name)}/{encode(namespace_name)}"
    return f"{SCHEMAS}/{ending}", f"{SCHEMA_BODIES}/{ending}"


def schema_body(schemas_path: str, unique: str) -> str:
    """A node for the body of one version of the schema at `schemas_path`."""
    assert schemas_path.startswith(f"{SCHEMAS}/")
    return f"{SCHEMA_BODIES}{schemas_path.removeprefix(SCHEMAS)}-{unique}"


def owner(tenant_name: str, namespace_name: str, bundle: str) -> str:
    return f"{ROOT}/owners/{encode(tenant_name)}/{encode(namespace_name)}/{bundle}"


def state_logs_of(tenant_name: str, namespace_name: str) -> str:
    """The folder of the state logs of a namespace's bundles."""
    return f"{STATE}/{encode(tenant_name)}/{encode(namespace_name)}"


def state_log(tenant_name: str, namespace_name: str, bundle: str) -> str:
    return f"{state_logs_of(tenant_name, namespace_name)}/{bundle}"


def topics_of(tenant_name: str, namespace_name: str, domain: str = "persistent") -> str:
    return f"{TOPICS}/{encode(tenant_name)}/{encode(namespace_name)}/{domain}"


def topic(tenant_name: str, namespace_name: str, name: str, domain: str = "persistent") -> str:
    return f"{topics_of(tenant_name, namespace_name, domain)}/{encode(name)}"


def manifest(topic_path: str, unique: str) -> str:
    """A node for older segments of the topic at `topic_path`."""
    assert topic_path.startswith(f"{TOPICS}/")
    return f"{MANIFESTS}{topic_path.removeprefix(TOPICS)}-{unique}"


def ledger(ledger_id: int) -> str:
    digits = f"{ledger_id:016x}"
    return f"{LEDGERS}/{digits[-2:]}/{digits}"
