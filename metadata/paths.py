"""Paths of all records. All paths of the metadata store are built in this module.

    /quire/cluster                                          ClusterRecord: identity of the cluster
    /quire/ids/ledgers                                      empty; its version is the number of allocated id ranges
    /quire/ids/producer-names                               decimal number that the last started broker uses in the
                                                            names that it gives to producers
    /quire/bookies/{uuid}                                   BookieRecord (persistent: identity, incarnation)
    /quire/bookies-available/{uuid}                         ephemeral BookieRecord: this bookie is running
    /quire/retired/{uuid}                                   empty: this bookie was drained, and its record removed
    /quire/underreplicated                                  touched with each report below it, and when an operator
                                                            changes a bookie's intent
    /quire/underreplicated/all                              touched when an operator requests an audit of all ledgers
    /quire/underreplicated/{d}/{ledger id}                  UnderreplicatedRecord, in 16 folders by the id's last digit
    /quire/damage/{uuid}/{ledger id}                        DamageRecord, written by versions without the queue above
    /quire/repair/coordinator                               ephemeral: the process that coordinates repair
    /quire/repair/progress                                  RepairRecord: progress of the coordinator
    /quire/wals/{uuid}                                      WalRecord of a write-ahead log on object storage
    /quire/wal-writers/{uuid}                               ephemeral, a broker's id: this log's writer is alive
    /quire/wal-tombstones/{uuid}/{ledger id in 16 digits}   a deleted ledger with blocks in the log; contains the
                                                            version of the ledger's record
    /quire/brokers/{broker id}                              ephemeral BrokerRecord: addresses
    /quire/loads/{broker id}                                ephemeral LoadRecord: its bundles and their load
    /quire/settings/{name}                                  SettingRecord: a setting of all brokers, changed at run time
    /quire/tenants/{tenant}                                 TenantRecord
    /quire/namespaces/{tenant}/{namespace}                  NamespaceRecord: policies, bundle boundaries
    /quire/policies/{tenant}/{namespace}/{name}             Policies of one topic (of a parent: of all its partitions)
    /quire/schemas/{tenant}/{namespace}/{name}              SchemasRecord of one topic (a parent's: of all partitions)
    /quire/schema-bodies/{tenant}/{namespace}/{name}-{uuid} immutable SchemaBody, too large for its topic's node
    /quire/owners/{tenant}/{namespace}/{bundle}             ephemeral OwnerRecord: the broker that owns it
    /quire/state/{tenant}/{namespace}/{bundle}              StateLogRecord: ledgers of the bundle's state log
    /quire/{policies, schemas or schema-bodies}/{tenant}/{namespace}:non-persistent/…   same, of non-persistent topics
    /quire/topics/{tenant}/{namespace}/{domain}/{name}      TopicRecord: segments or partitions
    /quire/manifests/{tenant}/{namespace}/{domain}/{name}-{uuid}   immutable: older segments of a long topic
    /quire/ledgers/{ab}/{ledger id in 16 hex digits}        LedgerRecord, in 256 folders by the id's last digits

Names are percent-encoded, so a topic's name may contain any character.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

ROOT = "/quire"
CLUSTER = f"{ROOT}/cluster"
LEDGER_IDS = f"{ROOT}/ids/ledgers"
PRODUCER_NAMES = f"{ROOT}/ids/producer-names"
BOOKIES = f"{ROOT}/bookies"
BOOKIES_AVAILABLE = f"{ROOT}/bookies-available"
RETIRED = f"{ROOT}/retired"
DAMAGE = f"{ROOT}/damage"
UNDERREPLICATED = f"{ROOT}/underreplicated"
UNDERREPLICATED_ALL = f"{UNDERREPLICATED}/all"
REPAIR_COORDINATOR = f"{ROOT}/repair/coordinator"
REPAIR_PROGRESS = f"{ROOT}/repair/progress"
WALS = f"{ROOT}/wals"
WAL_WRITERS = f"{ROOT}/wal-writers"
WAL_TOMBSTONES = f"{ROOT}/wal-tombstones"
BROKERS = f"{ROOT}/brokers"
LOADS = f"{ROOT}/loads"
SETTINGS = f"{ROOT}/settings"
TENANTS = f"{ROOT}/tenants"
NAMESPACES = f"{ROOT}/namespaces"
POLICIES = f"{ROOT}/policies"
SCHEMAS = f"{ROOT}/schemas"
SCHEMA_BODIES = f"{ROOT}/schema-bodies"
STATE = f"{ROOT}/state"
TOPICS = f"{ROOT}/topics"
MANIFESTS = f"{ROOT}/manifests"
LEDGERS = f"{ROOT}/ledgers"
PERSISTENT = "persistent"


def encode(name: str) -> str:
    """Encode a name as one path component. `.` and `..` are also escaped, because ZooKeeper refuses them."""
    return quote(name, safe="-_.~") if name.strip(".") else name.replace(".", "%2E")


def decode(component: str) -> str:
    """Decode a path component that `encode` returned."""
    return unquote(component)


def bookie(uuid: str) -> str:
    return f"{BOOKIES}/{uuid}"


def bookie_available(uuid: str) -> str:
    return f"{BOOKIES_AVAILABLE}/{uuid}"


def retired(uuid: str) -> str:
    return f"{RETIRED}/{uuid}"


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


def wal_writer(uuid: str) -> str:
    return f"{WAL_WRITERS}/{uuid}"


def wal_tombstones(uuid: str) -> str:
    return f"{WAL_TOMBSTONES}/{uuid}"


def wal_tombstone(uuid: str, ledger_id: int) -> str:
    return f"{wal_tombstones(uuid)}/{ledger_id:016x}"


def broker(broker_id: str) -> str:
    return f"{BROKERS}/{encode(broker_id)}"


def load(broker_id: str) -> str:
    return f"{LOADS}/{encode(broker_id)}"


def setting(name: str) -> str:
    return f"{SETTINGS}/{encode(name)}"


def tenant(name: str) -> str:
    return f"{TENANTS}/{encode(name)}"


def namespaces_of(tenant_name: str) -> str:
    return f"{NAMESPACES}/{encode(tenant_name)}"


def namespace(tenant_name: str, name: str) -> str:
    return f"{namespaces_of(tenant_name)}/{encode(name)}"


def _of_domain(namespace_name: str, domain: str) -> str:
    """Return the folder name for a namespace's topics in one domain: for persistent topics, the namespace's name."""
    return encode(namespace_name) if domain == PERSISTENT else f"{encode(namespace_name)}:{domain}"


def policies_of(tenant_name: str, namespace_name: str, domain: str = PERSISTENT) -> str:
    """Return the folder of topic-level policies in a namespace."""
    return f"{POLICIES}/{encode(tenant_name)}/{_of_domain(namespace_name, domain)}"


def policies(tenant_name: str, namespace_name: str, topic_name: str, domain: str = PERSISTENT) -> str:
    return f"{policies_of(tenant_name, namespace_name, domain)}/{encode(topic_name)}"


def schemas(tenant_name: str, namespace_name: str, topic_name: str, domain: str = PERSISTENT) -> str:
    return f"{schema_folders(tenant_name, namespace_name, domain)[0]}/{encode(topic_name)}"


def schema_folders(tenant_name: str, namespace_name: str, domain: str = PERSISTENT) -> tuple[str, str]:
    """Return two folders for a namespace's topics: the folder of their schemas, and that of large schema bodies."""
    ending = f"{encode(tenant_name)}/{_of_domain(namespace_name, domain)}"
    return f"{SCHEMAS}/{ending}", f"{SCHEMA_BODIES}/{ending}"


def schema_body(schemas_path: str, unique: str) -> str:
    """Return the path for a new body of the schema at `schemas_path`; `unique` distinguishes it from others."""
    assert schemas_path.startswith(f"{SCHEMAS}/")
    return f"{SCHEMA_BODIES}{schemas_path.removeprefix(SCHEMAS)}-{unique}"


def owner(tenant_name: str, namespace_name: str, bundle: str) -> str:
    return f"{ROOT}/owners/{encode(tenant_name)}/{encode(namespace_name)}/{bundle}"


def state_logs_of(tenant_name: str, namespace_name: str) -> str:
    """Return the folder of the state logs of a namespace's bundles."""
    return f"{STATE}/{encode(tenant_name)}/{encode(namespace_name)}"


def state_log(tenant_name: str, namespace_name: str, bundle: str) -> str:
    return f"{state_logs_of(tenant_name, namespace_name)}/{bundle}"


def topics_of(tenant_name: str, namespace_name: str, domain: str = PERSISTENT) -> str:
    return f"{TOPICS}/{encode(tenant_name)}/{encode(namespace_name)}/{domain}"


def topic(tenant_name: str, namespace_name: str, name: str, domain: str = PERSISTENT) -> str:
    return f"{topics_of(tenant_name, namespace_name, domain)}/{encode(name)}"


def manifest(topic_path: str, unique: str) -> str:
    """Return the path for a new manifest of the topic at `topic_path`; `unique` distinguishes it from others."""
    assert topic_path.startswith(f"{TOPICS}/")
    return f"{MANIFESTS}{topic_path.removeprefix(TOPICS)}-{unique}"


def ledger(ledger_id: int) -> str:
    digits = f"{ledger_id:016x}"
    return f"{LEDGERS}/{digits[-2:]}/{digits}"
