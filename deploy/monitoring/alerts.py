"""What somebody is told at night: the alerts of `alerts.yml`, each with what to do.

An alert's `watched` is an expression that has a value as long as its metrics are there, and `fires` compares it: so a
test can tell an alert that is silent because all is well from one that looks at nothing.

    critical    somebody is to get up: something is not served, or data is in danger
    warning     it can wait until the morning, but not until next week
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Alert(NamedTuple):
    """When `watched` `fires` for `lasts`, somebody is told `summary`, and `todo`."""

    name: str
    severity: str
    lasts: str
    watched: str
    fires: str
    summary: str
    todo: str

    @property
    def expr(self) -> str:
        return f"{self.watched} {self.fires}"


def p99_of(histogram: str) -> str:
    return f"histogram_quantile(0.99, sum by (instance, le) (rate({histogram}_bucket[5m])))"


CRITICAL, WARNING = "critical", "warning"
AT: Final = "{{ $labels.instance }}"
NS: Final = "namespace {{ $labels.namespace }}"
OURS: Final = '{job=~"quire-.*"}'
"""Of what every process that Prometheus scrapes has."""
STUCK: Final = "unacked|no_permits|not_writable|draining|no_owner|chunks|look_ahead"
FREE: Final = "quire_bookie_disk_free_bytes / quire_bookie_disk_size_bytes"

# fmt: off
ALERTS: Final[dict[str, tuple[Alert, ...]]] = {
    "quire-processes": (
        Alert("QuireDown", CRITICAL, "1m",
              f"up{OURS}", "== 0",
              f"{AT} does not answer",
              "See whether the process runs and what its log ends with, and start it again. Whatever it had "
              "confirmed is kept; brokers' topics move to others by themselves."),
        Alert("QuireStartsAgain", WARNING, "0m",
              f'changes(process_start_time_seconds{OURS}[30m])', "> 2",
              f"{AT} starts again and again",
              "Read the end of its log before each start: memory (the kernel's log names what it killed), a "
              "disk, or the metadata store."),
        Alert("QuireLoopStalls", WARNING, "5m",
              "increase(quire_loop_stalls_total[10m])", "> 5",
              f"The event loop of {AT} stands still at times",
              "Its log has the stack of each stall. Where that shows nothing long, the machine has too "
              "little CPU, or it swaps: move bundles away (quire brokers unload) or add brokers."),
        Alert("QuireFilesRunOut", WARNING, "5m",
              f"process_open_fds{OURS} / process_max_fds", "> 0.8",
              f"{AT} has opened most of the files that it may",
              "Raise LimitNOFILE of its unit (ulimit -n) and start it again, or find the client that opens "
              "so many connections."),
        Alert("QuireVersionsMixed", WARNING, "6h",
              "count(count by (version) (quire_build_info))", "> 1",
              "Processes of several versions have been running for hours",
              "An upgrade has stopped half-way: bring the others to the same version, or go back."),
        Alert("QuireMetadataSessionsLost", WARNING, "0m",
              "increase(quire_metadata_sessions_lost_total[15m])", "> 2",
              f"{AT} loses its sessions with the metadata store",
              "Look at ZooKeeper's latency and disks, at the network to it, and at stalls of the event loop "
              "here."),
        Alert("QuireAuditIncomplete", CRITICAL, "0m",
              'increase(quire_security_events_total{event=~"not-written|not-published"}[15m])', "> 0",
              f"The audit log of {AT} misses events",
              "See that the audit log's disk has space and that its topic takes messages; the process's log "
              "names what is missing."),
    ),
    "quire-brokers": (
        Alert("QuireBundlesDamaged", CRITICAL, "0m",
              "quire_serving_bundles_damaged", "> 0",
              f"{AT} has bundles whose state cannot be read: their topics are not served",
              "Its log names the bundle, its topics and what cannot be read. Bring back every bookie that is away; it "
              "is read again whenever a client asks for one of the topics."),
        Alert("QuireSessionInDoubt", CRITICAL, "1m",
              "quire_serving_session_in_doubt", "== 1",
              f"{AT} cannot tell whether its bundles are its own and confirms nothing",
              "It does not reach the metadata store: look at ZooKeeper and at the network between them."),
        Alert("QuireBrokerCannotWrite", CRITICAL, "1m",
              "quire_serving_cannot_write", "== 1",
              f"{AT} reaches too few bookies to write",
              "Look at the network between it and the bookies (quire bookies list), and at its certificates. While "
              "other brokers can write, they have its bundles; when none can, look at the bookies."),
        Alert("QuireBudgetUsedUp", WARNING, "5m",
              "quire_serving_bytes_in_flight / quire_serving_bytes_in_flight_max", "> 0.9",
              f"{AT} has no budget left: producers wait",
              "Bookies are slower than producers: look at the journals' sync times and at bookies behind "
              "their quorum; otherwise add brokers or bookies."),
        Alert("QuirePublishSlow", WARNING, "10m",
              p99_of("quire_serving_publish_latency_seconds"), "> 0.5",
              f"One publish of a hundred at {AT} takes longer than 0.5 s",
              "Compare it with the bookies' journal sync latency (disks) and with this broker's loop lag "
              "(CPU)."),
        Alert("QuireLimitsMet", WARNING, "10m",
              "sum by (instance, limit) (increase(quire_serving_limits_met_total[10m]))", "> 0",
              f"{AT} refuses clients: the limit {{{{ $labels.limit }}}} is met",
              "Find who asks for so much in its log; raise the limit (quire limits set, or the broker's "
              "setting) when it is rightly so."),
        Alert("QuireReadsFail", CRITICAL, "5m",
              'sum by (namespace) (quire_namespace_subscriptions_blocked{reason="read_error"})', "> 0",
              f"Subscriptions of {NS} get nothing: reading fails",
              "quire subscriptions stats names the error. Bring back bookies that are away; for archived "
              "segments look at the object store (quire archive verify)."),
        Alert("QuireConsumersStuck", WARNING, "15m",
              f'sum by (namespace, reason) (quire_namespace_subscriptions_blocked{{reason=~"{STUCK}"}})', "> 0",
              f"Subscriptions of {NS} have a backlog and get nothing: {{{{ $labels.reason }}}}",
              "quire subscriptions stats shows the consumers and what each lacks: mostly one that does not "
              "acknowledge or hangs. Restart that consumer."),
        Alert("QuireBacklogOld", WARNING, "15m",
              "max by (namespace) (quire_namespace_backlog_age_seconds)", "> 86400",
              f"The oldest message of a backlog in {NS} is more than a day old",
              "Find the subscription (row Subscriptions of the dashboard). Start or add its consumers; "
              "delete or skip it when nobody needs it, for it keeps storage."),
    ),
    "quire-bookies": (
        Alert("QuireBookieFailed", CRITICAL, "0m",
              "quire_bookie_failed", "== 1",
              f"The journal or the checkpoints of {AT} failed",
              "Its log has the disk's error. Check the disk and start the bookie again; replace the disk "
              "and have the rest copied (quire bookies recover) when it is broken."),
        Alert("QuireBookieReadOnly", WARNING, "5m",
              "quire_bookie_read_only", "== 1",
              f"{AT} takes no new blocks",
              "Mostly its disk is full: see QuireDiskNearlyFull. It is as it should be while the bookie is "
              "decommissioned."),
        Alert("QuireDiskNearlyFull", CRITICAL, "5m",
              FREE, "< 0.1",
              f"Less than a tenth of the disk of {AT} is free",
              "Add bookies, shorten retention, let the archive release segments (quire archive status), or "
              "delete subscriptions that nobody reads. Delete no files by hand."),
        Alert("QuireDiskFillsUp", WARNING, "1h",
              "predict_linear(quire_bookie_disk_free_bytes[6h], 86400)", f"< 0 and {FREE} < 0.4",
              f"At this rate the disk of {AT} is full within a day",
              "As for QuireDiskNearlyFull, but there is time."),
        Alert("QuireJournalSlow", WARNING, "10m",
              p99_of("quire_bookie_journal_sync_latency_seconds"), "> 0.1",
              f"One sync of a hundred at {AT} takes longer than 0.1 s",
              "Give the journal a disk of its own, and see who else writes to this one; a disk that grew "
              "slow is about to fail."),
        Alert("QuireScrubFindsDamage", WARNING, "0m",
              "increase(quire_bookie_scrub_damaged_total[1h])", "> 0",
              f"Blocks on the disk of {AT} are damaged",
              "Repair copies them from other bookies by itself (quire bookies repair). Look at the disk's "
              "own report (smartctl): replace it when this comes again."),
        Alert("QuireNoBookieWritable", CRITICAL, "1m",
              "max(quire_ledger_bookies_writable)", "== 0",
              "No bookie takes new blocks: nothing can be published",
              "quire bookies list shows which are up and which are read-only: start them, or make room on "
              "their disks."),
        Alert("QuireBookiesAbsent", WARNING, "5m",
              "max(quire_repair_bookies_absent + quire_repair_bookies_lost)", "> 0",
              "A bookie is away",
              "Start it again: its data is used as it is. One that never comes back: quire bookies recover, "
              "and bring a new one."),
    ),
    "quire-data": (
        Alert("QuireLedgersLost", CRITICAL, "0m",
              "max(quire_repair_ledgers_lost)", "> 0",
              "There are ledgers with entries that no bookie can give",
              "quire ledgers lost names them with their topics. Bring back every bookie, and every disk, "
              "that was ever taken away; delete nothing before that."),
        Alert("QuireReadsMetLostEntries", CRITICAL, "0m",
              "sum(quire_ledger_lost_ledgers)", "> 0",
              "Brokers met entries that no bookie can give",
              "As for QuireLedgersLost."),
        Alert("QuireLedgersUnderreplicated", WARNING, "1h",
              "max(quire_repair_ledgers_underreplicated)", "> 0",
              "Ledgers have been below their copies for an hour",
              "quire bookies repair shows whether copying goes on and what holds it up."),
        Alert("QuireLedgersUnplaced", CRITICAL, "10m",
              "max(quire_repair_ledgers_unplaced)", "> 0",
              "No bookie can take the missing copies of some ledgers",
              "Add bookies, or bring back those that are away: there are fewer writable ones than copies "
              "are wanted."),
        Alert("QuireNoRepair", WARNING, "10m",
              "sum(quire_repair_coordinator)", "< 1",
              "No broker coordinates repair",
              "One takes it up by itself when it reaches the metadata store: read the brokers' logs, and "
              "restart one."),
        Alert("QuireArchiveFails", WARNING, "30m",
              "sum by (instance) (quire_tiering_segments_failing)", "> 0",
              f"{AT} cannot archive or release segments",
              "quire archive status says why: credentials, bucket, network. Meanwhile bookies keep the "
              "data, and their disks fill."),
        Alert("QuireArchiveDamaged", CRITICAL, "0m",
              "sum(quire_tiering_objects_damaged)", "> 0",
              "Objects of the archive are damaged or missing",
              "quire archive verify lists them; quire archive repair uploads again what bookies still have. "
              "Find out who writes or deletes in the bucket."),
        Alert("QuireSidecarsFail", WARNING, "0m",
              "increase(quire_tiering_sidecars_failed_total[1h])", "> 0",
              f"{AT} cannot build sidecars of archived segments",
              "Nothing is lost: Spark reads the segments themselves, slower. The broker's log has the "
              "reason."),
    ),
    "quire-gateways": (
        Alert("QuireGatewayAlone", CRITICAL, "1m",
              "quire_gateway_brokers", "== 0",
              f"{AT} knows of no broker: its clients get nothing",
              "Start brokers; when they run, see that they and the gateway use the same metadata store and "
              "path."),
    ),
}
# fmt: on
