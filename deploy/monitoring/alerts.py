"""Alerts of `alerts.yml`, each with advice for the operator.

An alert's `watched` is an expression that has a value as long as its metrics exist, and `fires` compares it. So a test
can distinguish a silent alert from one whose metrics do not exist.

    critical    page the operator on duty: a service is interrupted, or data are in danger
    warning     for the next working day
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Alert(NamedTuple):
    """Alert that is sent with `summary` and `todo` when `watched` `fires` for `lasts`."""

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
"""Selector of metrics that every process has."""
STUCK: Final = "unacked|no_permits|not_writable|draining|no_owner|chunks|look_ahead"
FREE: Final = "quire_bookie_disk_free_bytes / quire_bookie_disk_size_bytes"

# fmt: off
ALERTS: Final[dict[str, tuple[Alert, ...]]] = {
    "quire-processes": (
        Alert("QuireDown", CRITICAL, "1m",
              f"up{OURS}", "== 0",
              f"{AT} does not answer",
              "Check whether the process runs, read the end of its log, and start it again. Confirmed data are kept; "
              "a broker's topics move to other brokers automatically."),
        Alert("QuireStartsAgain", WARNING, "0m",
              f'changes(process_start_time_seconds{OURS}[30m])', "> 2",
              f"{AT} restarts repeatedly",
              "Read the end of its log before each start. Usual causes: memory (the kernel's log names killed "
              "processes), a disk, or the metadata store."),
        Alert("QuireLoopStalls", WARNING, "5m",
              "increase(quire_loop_stalls_total[10m])", "> 5",
              f"The event loop of {AT} stalls",
              "Its log has the stack of each stall. Stacks of all kinds mean that the machine has too little CPU, or "
              "swaps: move bundles to other brokers (quire brokers unload) or add brokers."),
        Alert("QuireFilesRunOut", WARNING, "5m",
              f"process_open_fds{OURS} / process_max_fds", "> 0.8",
              f"{AT} has opened most of its allowed files",
              "Raise LimitNOFILE of its unit (ulimit -n) and start it again, or find the client that opens "
              "too many connections."),
        Alert("QuireVersionsMixed", WARNING, "6h",
              "count(count by (version) (quire_build_info))", "> 1",
              "Processes of several versions have been running for hours",
              "An upgrade has stopped halfway: finish it, or roll it back."),
        Alert("QuireMetadataSessionsLost", WARNING, "0m",
              "increase(quire_metadata_sessions_lost_total[15m])", "> 2",
              f"{AT} loses its sessions with the metadata store",
              "Check ZooKeeper's latency and disks, the network to it, and stalls of this process's event loop."),
        Alert("QuireAuditIncomplete", CRITICAL, "0m",
              'increase(quire_security_events_total{event=~"not-written|not-published"}[15m])', "> 0",
              f"The audit log of {AT} misses events",
              "Check that the audit log's disk has space and that its topic accepts messages; the process's log has "
              "the missing events."),
    ),
    "quire-brokers": (
        Alert("QuireBundlesDamaged", CRITICAL, "0m",
              "quire_serving_bundles_damaged", "> 0",
              f"{AT} has bundles whose state cannot be read: their topics are not served",
              "Its log names the bundle, its topics and the unreadable ledger. Start every absent bookie; the state is "
              "read again at the next request for one of the topics."),
        Alert("QuireSessionInDoubt", CRITICAL, "1m",
              "quire_serving_session_in_doubt", "== 1",
              f"{AT} cannot verify that it owns its bundles, and confirms nothing",
              "It does not reach the metadata store: check ZooKeeper and the network to it."),
        Alert("QuireBrokerCannotWrite", CRITICAL, "1m",
              "quire_serving_cannot_write", "== 1",
              f"{AT} reaches too few bookies to write",
              "Check the network between it and the bookies (quire bookies list), and its certificates. Brokers that "
              "can write take over its bundles; if no broker can, check the bookies."),
        Alert("QuireBudgetUsedUp", WARNING, "5m",
              "quire_serving_bytes_in_flight / quire_serving_bytes_in_flight_max", "> 0.9",
              f"{AT} has used up its budget: producers wait",
              "Bookies are slower than producers: check the journals' sync times, and bookies that lag behind the "
              "quorum; otherwise add brokers or bookies."),
        Alert("QuirePublishSlow", WARNING, "10m",
              p99_of("quire_serving_publish_latency_seconds"), "> 0.5",
              f"One publish of a hundred at {AT} takes longer than 0.5 s",
              "Compare it with the bookies' journal sync latency (disks) and with this broker's loop lag "
              "(CPU)."),
        Alert("QuireLimitsMet", WARNING, "10m",
              "sum by (instance, limit) (increase(quire_serving_limits_met_total[10m]))", "> 0",
              f"{AT} refuses clients: the limit {{{{ $labels.limit }}}} is met",
              "Its log names the client. If the demand is justified, raise the limit (quire limits set, or the "
              "broker's setting)."),
        Alert("QuireReadsFail", CRITICAL, "5m",
              'sum by (namespace) (quire_namespace_subscriptions_blocked{reason="read_error"})', "> 0",
              f"Subscriptions of {NS} are blocked: reading fails",
              "quire subscriptions stats names the error. Start absent bookies; for archived segments check the object "
              "store (quire archive verify)."),
        Alert("QuireConsumersStuck", WARNING, "15m",
              f'sum by (namespace, reason) (quire_namespace_subscriptions_blocked{{reason=~"{STUCK}"}})', "> 0",
              f"Subscriptions of {NS} have a backlog and are blocked: {{{{ $labels.reason }}}}",
              "quire subscriptions stats shows the reason at each consumer: mostly it does not acknowledge, or hangs. "
              "Restart that consumer."),
        Alert("QuireBacklogOld", WARNING, "15m",
              "max by (namespace) (quire_namespace_backlog_age_seconds)", "> 86400",
              f"The oldest message of a backlog in {NS} is more than a day old",
              "Find the subscription (row Subscriptions of the dashboard). Start or add its consumers; "
              "delete an unused one, because its backlog occupies storage."),
    ),
    "quire-bookies": (
        Alert("QuireBookieFailed", CRITICAL, "0m",
              "quire_bookie_failed", "== 1",
              f"The journal or the checkpoints of {AT} failed",
              "Its log has the disk's error. Check the disk and start the bookie again; replace a broken disk, and let "
              "repair copy its data from other bookies (quire bookies recover)."),
        Alert("QuireBookieReadOnly", WARNING, "5m",
              "quire_bookie_read_only", "== 1",
              f"{AT} accepts no new blocks",
              "Mostly its disk is full: see QuireDiskNearlyFull. A bookie that is being decommissioned is read-only, "
              "too."),
        Alert("QuireDiskNearlyFull", CRITICAL, "5m",
              FREE, "< 0.1",
              f"Less than a tenth of the disk of {AT} is free",
              "Add bookies, shorten retention, let the archive release segments (quire archive status), or "
              "delete unused subscriptions. Delete no files by hand."),
        Alert("QuireDiskFillsUp", WARNING, "1h",
              "predict_linear(quire_bookie_disk_free_bytes[6h], 86400)", f"< 0 and {FREE} < 0.4",
              f"At this rate the disk of {AT} is full within a day",
              "As for QuireDiskNearlyFull; there is time to order a disk."),
        Alert("QuireJournalSlow", WARNING, "10m",
              p99_of("quire_bookie_journal_sync_latency_seconds"), "> 0.1",
              f"One sync of a hundred at {AT} takes longer than 0.1 s",
              "Give the journal a disk of its own, and find other processes that write to this one. A disk whose "
              "latency grows is about to fail."),
        Alert("QuireScrubFindsDamage", WARNING, "0m",
              "increase(quire_bookie_scrub_damaged_total[1h])", "> 0",
              f"Blocks on the disk of {AT} are damaged",
              "Repair copies them from other bookies automatically (quire bookies repair). Read the disk's own report "
              "(smartctl), and replace the disk if the alert returns."),
        Alert("QuireNoBookieWritable", CRITICAL, "1m",
              "max(quire_ledger_bookies_writable)", "== 0",
              "No bookie accepts new blocks: publishing has stopped",
              "quire bookies list shows which are up and which are read-only: start them, or make room on "
              "their disks."),
        Alert("QuireBookiesAbsent", WARNING, "5m",
              "max(quire_repair_bookies_absent + quire_repair_bookies_lost)", "> 0",
              "A bookie is absent",
              "Start it again: its data are used as they are. If it is lost for good: quire bookies recover, and start "
              "a new one."),
    ),
    "quire-data": (
        Alert("QuireLedgersLost", CRITICAL, "0m",
              "max(quire_repair_ledgers_lost)", "> 0",
              "Ledgers have entries that no bookie has any more",
              "quire ledgers lost lists them with their topics. Restore every bookie, and every disk, that was ever "
              "removed; delete nothing before that."),
        Alert("QuireReadsMetLostEntries", CRITICAL, "0m",
              "sum(quire_ledger_lost_ledgers)", "> 0",
              "Brokers read ledgers with lost entries",
              "As for QuireLedgersLost."),
        Alert("QuireLedgersUnderreplicated", WARNING, "1h",
              "max(quire_repair_ledgers_underreplicated)", "> 0",
              "Ledgers have had too few copies for an hour",
              "quire bookies repair shows the progress of copying, and errors."),
        Alert("QuireLedgersUnplaced", CRITICAL, "10m",
              "max(quire_repair_ledgers_unplaced)", "> 0",
              "No bookie can store the missing copies of some ledgers",
              "Add bookies, or start absent ones: there are fewer writable bookies than copies of a ledger."),
        Alert("QuireNoRepair", WARNING, "10m",
              "sum(quire_repair_coordinator)", "< 1",
              "No broker coordinates repair",
              "A broker does so automatically when it reaches the metadata store: read the brokers' logs, and restart "
              "one."),
        Alert("QuireArchiveFails", WARNING, "30m",
              "sum by (instance) (quire_tiering_segments_failing)", "> 0",
              f"{AT} cannot archive or release segments",
              "quire archive status shows the reason: credentials, bucket or network. Meanwhile bookies keep the data, "
              "and their disks fill."),
        Alert("QuireArchiveDamaged", CRITICAL, "0m",
              "sum(quire_tiering_objects_damaged)", "> 0",
              "Objects of the archive are damaged or missing",
              "quire archive verify lists them; quire archive repair uploads again what bookies still have. "
              "Find the process or lifecycle rule that changes the bucket."),
        Alert("QuireSidecarsFail", WARNING, "0m",
              "increase(quire_tiering_sidecars_failed_total[1h])", "> 0",
              f"{AT} cannot build sidecars of archived segments",
              "Nothing is lost: Spark reads the segments instead, which is slower. The broker's log has the reason."),
    ),
    "quire-gateways": (
        Alert("QuireGatewayAlone", CRITICAL, "1m",
              "quire_gateway_brokers", "== 0",
              f"{AT} finds no broker: its clients are not served",
              "Start brokers. If they run, check that they and the gateway use the same metadata store and chroot."),
    ),
}
# fmt: on
