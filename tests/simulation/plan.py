"""Plan of a history: its hosts, settings, and timed events.

A plan is drawn from a seed, and can be written as text, parsed and shrunk. Everything that is not in the plan (delays,
contents, surviving bytes) comes from random streams that are derived from the seed, so a plan determines the history.

    seed=17 kind=ledger seconds=10.0 bookies=4 clients=2 brokers=0 write_quorum=3 ack_quorum=2 …
       0.512  power_cut           1  2.0  0
       1.300  cut                 0  3  0.8

An event has a time, a kind, the number of its target, and up to two parameters, which depend on the kind (`faults`).
The rate of events varies within a history: some phases are quiet, others have many events at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, NamedTuple

CALM, BUSY = 0.0, 5.0

READ_ERROR: Final = 4
DISK_ERRORS: Final = (0, 1, 2, 3, READ_ERROR, READ_ERROR, READ_ERROR, 5)
"""Indexes into `faults.DISK_ERRORS`. Read errors are more frequent, because they may be mistaken for absence."""

LAGS_MS: Final = (0.0, 0.0, 10.0, 50.0, 300.0)
"""Possible lags of a metadata store's followers."""

LEDGER_EVENTS: Final = {
    "kill_bookie": 3.0,
    "power_cut": 3.0,
    "power_fails_after": 4.0,
    "wipe": 0.7,
    "flip": 1.0,
    "disk_error": 2.0,
    "disk_full": 0.5,
    "slow_disk": 1.0,
    "cut": 3.0,
    "isolate": 1.0,
    "reset": 2.0,
    "slow_link": 1.0,
    "pause": 1.5,
    "kill_client": 1.0,
    "metadata_cut": 1.0,
    "expire": 0.7,
    "metadata_loss": 1.0,
    "clock_jump": 0.3,
    "recover": 8.0,
    "read": 8.0,
    "delete": 2.0,
    "decommission": 0.2,
    "storm": 1.5,
}

WAL_EVENTS: Final = {
    "pause": 5.0,
    "kill_client": 3.0,
    "hand_over": 1.0,
    "metadata_cut": 3.0,
    "expire": 1.0,
    "metadata_loss": 1.0,
    "clock_jump": 0.3,
    "store_cut": 3.0,
    "store_slow": 3.0,
    "store_trouble": 3.0,
    "close": 4.0,
    "flush": 4.0,
    "recover": 6.0,
    "read": 6.0,
    "delete": 3.0,
}

CLUSTER_EVENTS: Final = {
    **LEDGER_EVENTS,
    "kill_client": 2.0,
    "metadata_cut": 2.0,
    "recover": 0.0,
    "read": 0.0,
    "delete": 0.0,
    "storm": 0.0,
    "pause": 3.0,
    "move": 3.0,
    "unload": 1.0,
    "archive_trouble": 2.0,
    "leave": 1.0,
    "usurp": 4.0,
}


LOG_EVENTS: Final = ("store_bars", "unmount", "raise", "scrub", "coordinate")
"""Events of WAL histories that are drawn separately."""

RESTORED_EVENTS: Final = {
    "kill_bookie": 3.0,
    "cut": 3.0,
    "isolate": 1.0,
    "reset": 2.0,
    "slow_link": 1.0,
    "kill_client": 1.0,
    "metadata_cut": 1.0,
    "recover": 4.0,
    "read": 6.0,
}

AFTER_PUT_BACK: Final = frozenset({"kill_client", "recover", "read"})
"""Kinds of events that may follow the restore of an older copy of the metadata."""

EVENTS: Final = {
    "ledger": LEDGER_EVENTS,
    "cluster": CLUSTER_EVENTS,
    "wal": WAL_EVENTS,
    "restored": RESTORED_EVENTS,
}


BROKER_EVENTS: Final = ("plan", "plan", "half_open", "half_open", "half_open", "grow", "remake")
"""Events of brokers alone: operators' requests, and connections that clients have abandoned."""


UNJUDGED_IN_RUIN: Final = frozenset({"disk_error", "flip", "spoil", "lose_disk", "older_disk"})
"""Events excluded if several bookies lose all data: the oracle cannot know whether a faulty disk still has a block."""


class Event(NamedTuple):
    at_s: float
    kind: str
    target: int
    first: float = 0.0
    second: float = 0.0

    def __str__(self) -> str:
        return f"{self.at_s:8.3f}  {self.kind:18}{self.target:3}  {self.first:g}  {self.second:g}"

    @classmethod
    def parse(cls, line: str) -> Event:
        at_s, kind, target, first, second = line.split()
        return cls(float(at_s), kind, int(target), float(first), float(second))


@dataclass(frozen=True)
class Plan:
    """Plan of one history.

    - `lossy` is the number of the only bookie that may lose data; -1 means none.
    - `metadata_lag_ms` is the maximum age of metadata reads, see `metadata`.
    - `keyed`: the second topic has keys. `led`, `parted`, `remade`: the topic of that name exists, see `operator`.
    - `narrow`: the limits of serving have small values.
    - `hostile`: there is a hostile peer, see `hostile`.
    - `resent`: restarted applications send some messages with receipts again.
    - `copies`: the metadata are copied into the archive, which an operator scrubs with wrong stores, see `stores`.
    """

    seed: int
    kind: str
    seconds: float
    bookies: int
    clients: int
    brokers: int
    write_quorum: int
    ack_quorum: int
    loss: float
    session_timeout_ms: int
    latency_ms: float
    lossy: int
    metadata_lag_ms: float = 0.0
    keyed: int = 0
    retention_ms: int = -1
    retention_bytes: int = -1
    led: int = 0
    parted: int = 0
    remade: int = 0
    narrow: int = 0
    hostile: int = 0
    resent: int = 0
    copies: int = 0
    events: tuple[Event, ...] = ()

    def __str__(self) -> str:
        names = [name for name in self.__dataclass_fields__ if name != "events"]
        return "\n".join(
            [" ".join(f"{name}={getattr(self, name)}" for name in names), *map(str, self.events)]
        )

    @classmethod
    def parse(cls, text: str) -> Plan:
        """Parse a plan from the text that `str` returns; lines that begin with # are comments."""
        head, *lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
        given = dict(pair.split("=") for pair in head.split())
        kinds = {"int": int, "float": float, "str": str}
        fields = {
            name: kinds[str(field.type)](given[name])
            for name, field in cls.__dataclass_fields__.items()
            if name in given
        }
        return cls(**fields, events=tuple(map(Event.parse, lines)))


def draw(seed: int, kind: str) -> Plan:
    """Draw the plan of a seed."""
    rng = Random(f"{seed}/{kind}/plan")
    write_quorum = rng.choice((1, 2, 3, 3, 3, 3))
    ack_quorum = rng.choice((1, 2, 3)) if write_quorum == 3 and rng.random() < 0.3 else min(2, write_quorum)
    if write_quorum == 2:
        ack_quorum = rng.choice((1, 2))
    bookies = write_quorum + rng.choice((0, 1, 1, 2))
    plan = Plan(
        seed=seed,
        kind=kind,
        seconds=rng.choice((5.0, 10.0, 20.0)),
        bookies=bookies,
        clients=rng.choice((1, 2, 2, 3)),
        brokers=rng.choice((1, 2, 2, 3)) if kind == "cluster" else 0,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        loss=rng.choice((0.0, 0.0, 0.01, 0.05)),
        session_timeout_ms=rng.choice((1_000, 4_000) if kind == "cluster" else (1_000, 4_000, 10_000)),
        latency_ms=rng.choice((0.2, 0.2, 3.0, 20.0)),
        lossy=rng.randrange(bookies) if 1 < ack_quorum < bookies and rng.random() < 0.7 else -1,
    )
    plan = replace(plan, **_traits(seed, kind))
    if kind == "wal":
        plan = replace(plan, bookies=0, clients=rng.choice((2, 2, 3)), write_quorum=1, ack_quorum=1, lossy=-1)
    if kind == "restored":
        plan = replace(plan, lossy=-1, seconds=rng.choice((10.0, 20.0)))
    events = [*_events(plan, rng), *_spoils(plan), *_halves(plan), *_of_brokers(plan), *_rots(plan)]
    events += [*_cuts_off(plan), *_scrubs(plan), *_of_logs(plan), *_copies(plan)]
    if kind == "restored":
        events = _restored(plan, events)
    if ruins := _ruins(plan):
        events = [event for event in events if event.kind not in UNJUDGED_IN_RUIN] + ruins
    events.sort()
    return replace(plan, events=tuple(events))


def _traits(seed: int, kind: str) -> dict[str, Any]:
    """Draw traits that were added later. They have their own random stream, so that they do not change other draws."""
    rng = Random(f"{seed}/{kind}/traits")
    lag_ms = rng.choice(LAGS_MS)
    if kind != "cluster":
        return {"metadata_lag_ms": lag_ms}
    retention_ms, retention_bytes = rng.choice(((-1, -1), (-1, -1), (0, 0), (2_000, -1), (-1, 6_000)))
    traits = {
        "keyed": int(seed % 2 == 1 and rng.random() < 0.7),
        "retention_ms": retention_ms,
        "retention_bytes": retention_bytes,
    }
    is_trimmed = (retention_ms, retention_bytes) != (-1, -1)
    traits["led"] = int(rng.random() < 0.3)
    for name in ("parted", "remade"):
        traits[name] = int(rng.random() < 0.35 and not is_trimmed)
    traits["narrow"] = int(rng.random() < 0.5)
    traits["hostile"] = int(rng.random() < 0.3)
    traits["resent"] = int(rng.random() < 0.5)
    traits["copies"] = int(rng.random() < 0.4)
    return traits


def _spoils(plan: Plan) -> list[Event]:
    """Draw events that make pages unreadable, from their own random stream, as for traits."""
    rng = Random(f"{plan.seed}/{plan.kind}/spoils")
    count = rng.choice((0, 0, 1, 3)) if plan.lossy >= 0 else 0
    times = (round(rng.uniform(0.5, plan.seconds), 3) for _ in range(count))
    return [Event(at_s, "spoil", plan.lossy) for at_s in times]


def _ruins(plan: Plan) -> list[Event]:
    """Draw the loss of several bookies and an operator's acceptance, from their own random stream."""
    rng = Random(f"{plan.seed}/{plan.kind}/ruins")
    if plan.kind != "ledger" or rng.random() >= 0.1:
        return []
    at_s, first, count = (
        rng.uniform(0.5, plan.seconds * 0.8),
        rng.randrange(plan.bookies),
        rng.randint(1, plan.bookies),
    )
    events = [Event(round(at_s, 3), "ruin", first, count, 0.3)]
    if count < plan.bookies:  # another bookie, which may have the last copies, is down for a while
        away = Event(
            round(at_s, 3), "kill_bookie", (first + count) % plan.bookies, rng.choice((0.3, 3.0, 8.0))
        )
        events.append(away)
    for _ in range(rng.choice((0, 4, 12))):
        at_s += rng.expovariate(2.0)
        events.append(Event(round(at_s, 3), "accept_loss", rng.randrange(6), rng.randrange(8)))
    return events


def _restored(plan: Plan, events: list[Event]) -> list[Event]:
    """Draw events that empty the metadata store, or restore it from a copy, from their own random stream."""
    rng = Random(f"{plan.seed}/{plan.kind}/restored")
    copied_s = rng.uniform(0.5, plan.seconds / 2)
    put_back_s = rng.uniform(copied_s, plan.seconds * 0.8)
    events = [event for event in events if event.at_s < put_back_s or event.kind in AFTER_PUT_BACK]
    events.append(Event(round(copied_s, 3), "copy_metadata", 0))
    events.append(Event(round(put_back_s, 3), "put_back", rng.randrange(plan.bookies)))
    if rng.random() < 0.5:
        at_s = rng.uniform(0.5, put_back_s)
        events.append(Event(round(at_s, 3), "emptied", 0, rng.choice((0.3, 2.0))))
    if rng.random() < 0.5:
        at_s = max(put_back_s - rng.uniform(0.05, 1.5), 0.1)
        events.append(Event(round(at_s, 3), "decommission", rng.randrange(plan.bookies)))
    if rng.random() < 0.3:
        with_copy = rng.choice((0, 1))
        events = [
            each._replace(kind="lost", first=with_copy) if each.kind == "put_back" else each
            for each in events
        ]
    return events


def _rots(plan: Plan) -> list[Event]:
    """Draw events in which objects of WALs rot, or vanish alone or with neighbours, from their own random stream."""
    rng = Random(f"{plan.seed}/{plan.kind}/rots")
    if plan.kind != "wal" or rng.random() >= 0.2:
        return []
    times = (round(rng.uniform(0.5, plan.seconds), 3) for _ in range(rng.choice((1, 2, 6))))
    events = [Event(at_s, rng.choice(("rot", "vanish")), rng.randrange(8)) for at_s in times]
    return [
        event._replace(first=rng.choice((0, 0, 9))) if event.kind == "vanish" else event for event in events
    ]


def _copies(plan: Plan) -> list[Event]:
    """Draw operators' closes of WALs by an older copy of the metadata, from their own random stream."""
    rng = Random(f"{plan.seed}/{plan.kind}/copies")
    if plan.kind != "wal" or rng.random() >= 0.25:
        return []
    copied_s = rng.uniform(0.5, plan.seconds / 2)
    times = (round(rng.uniform(copied_s, plan.seconds), 3) for _ in range(rng.choice((1, 2, 4))))
    closes = [Event(at_s, "close_by_copy", rng.randrange(8), rng.randrange(8)) for at_s in times]
    return [Event(round(copied_s, 3), "copy_metadata", 0), *closes]


def _of_logs(plan: Plan) -> list[Event]:
    """Draw forbidden and missing stores, exceptions, scrubs and second coordinators, from their own random stream."""
    rng = Random(f"{plan.seed}/{plan.kind}/logs")
    if plan.kind != "wal" or rng.random() < 0.5:
        return []
    times = (round(rng.uniform(0.5, plan.seconds), 3) for _ in range(int(0.8 * plan.seconds)))
    return [
        Event(
            at_s,
            rng.choice(LOG_EVENTS),
            rng.randrange(8),
            round(rng.choice((0.3, 1.0, 4.0)) * rng.uniform(0.5, 1.5), 3),
        )
        for at_s in times
    ]


def _of_brokers(plan: Plan) -> list[Event]:
    """Draw the events `BROKER_EVENTS`, from their own random stream."""
    if plan.kind != "cluster":
        return []
    rng = Random(f"{plan.seed}/{plan.kind}/brokers")
    times = (round(rng.uniform(0.5, plan.seconds), 3) for _ in range(int(1.5 * plan.seconds)))
    return [
        Event(
            at_s, rng.choice(BROKER_EVENTS), rng.randrange(8), rng.randrange(8), rng.choice((0.3, 1.0, 4.0))
        )
        for at_s in times
    ]


def _scrubs(plan: Plan) -> list[Event]:
    """Draw backups of the metadata store and scrubs of the archive, from their own random stream."""
    if not plan.copies:
        return []
    rng = Random(f"{plan.seed}/{plan.kind}/scrubs")
    times = (round(rng.uniform(0.5, plan.seconds), 3) for _ in range(int(plan.seconds)))
    return [
        Event(at_s, rng.choice(("back_up", "scrub", "scrub")), rng.randrange(8), rng.choice((0, 1, 1, 2)))
        for at_s in times
    ]


def _cuts_off(plan: Plan) -> list[Event]:
    """Draw events that cut brokers off from the bookies, from their own random stream."""
    if plan.kind != "cluster":
        return []
    rng = Random(f"{plan.seed}/{plan.kind}/cuts off")
    count = rng.choice((0, 0, 1, 2))
    times = (round(rng.uniform(0.5, plan.seconds), 3) for _ in range(count))
    return [Event(at_s, "cut_off", rng.randrange(8), rng.choice((1.0, 4.0, 8.0))) for at_s in times]


def _halves(plan: Plan) -> list[Event]:
    """Draw the loss of one of a bookie's disks, or the restore of its older copy, from their own random stream."""
    rng = Random(f"{plan.seed}/{plan.kind}/halves")
    kind = rng.choice(("", "", "", "lose_disk", "older_disk", "older_disk"))
    if plan.lossy < 0 or not kind:
        return []
    at_s, later_s = rng.uniform(0.5, plan.seconds * 0.7), rng.uniform(0.3, plan.seconds * 0.3)
    return [Event(round(at_s, 3), kind, plan.lossy, round(later_s, 3), rng.randrange(2))]


def _events(plan: Plan, rng: Random) -> list[Event]:
    """Draw events in phases with different rates. Some kinds are left out altogether."""
    weights = EVENTS[plan.kind]
    kinds = {kind: weight * rng.choice((0.0, 1.0, 1.0, 4.0)) for kind, weight in weights.items()}
    if not any(kinds.values()):
        kinds = dict(weights)
    if plan.lossy < 0:
        kinds["wipe"] = kinds["flip"] = 0.0
    events: list[Event] = []
    at_s, phase_ends_s, rate = 0.3, 0.0, 0.0
    while at_s < plan.seconds:
        if at_s >= phase_ends_s:
            phase_ends_s = at_s + rng.uniform(0.5, 3.0)
            rate = rng.choice((0.5, 2.0, 5.0))
        at_s += rng.expovariate(rate)
        kind = rng.choices(list(kinds), list(kinds.values()))[0]
        events += (_storm if kind == "storm" else _single)(plan, rng, round(at_s, 3), kind)
    return events


def _storm(plan: Plan, rng: Random, at_s: float, _: str) -> list[Event]:
    """Return events of concurrent recoveries of a ledger, while a bookie is slow and has a power or read failure."""
    bookie = rng.randrange(plan.bookies)
    short_s = round(rng.uniform(0.3, 2.0), 3)
    trouble = rng.choice(
        (
            [
                Event(at_s, "slow_disk", bookie, short_s),
                Event(at_s, "power_fails_after", bookie, rng.randrange(12)),
            ],
            [Event(at_s, "disk_error", bookie, READ_ERROR, rng.randrange(1, 4))],
        )
    )
    return [*trouble, Event(at_s, "recover", rng.randrange(3), rng.choice((2, 3)), rng.randrange(2))]


def _single(plan: Plan, rng: Random, at_s: float, kind: str) -> list[Event]:
    return [_event(plan, rng, at_s, kind)]


def _event(plan: Plan, rng: Random, at_s: float, kind: str) -> Event:
    everybody = plan.bookies + plan.clients + plan.brokers
    short_s = round(rng.choice((0.05, 0.3, 1.0, 3.0)) * rng.uniform(0.5, 1.5), 3)
    match kind:
        case "pause" | "metadata_cut" if plan.brokers and rng.random() < 0.5:
            # A broker outlives its session. Its successor must prevent it from confirming anything.
            broker = plan.bookies + rng.randrange(plan.brokers)
            return Event(at_s, kind, broker, plan.session_timeout_ms / 1000 * rng.choice((1.1, 1.5, 3.0)))
        case "pause" | "metadata_cut" | "store_cut" if plan.kind == "wal" and rng.random() < 0.5:
            # The process is suspended during a takeover, or continues without learning of it.
            return Event(
                at_s, kind, rng.randrange(everybody), plan.session_timeout_ms / 1000 * rng.choice((1.1, 3.0))
            )
        case "store_trouble":
            return Event(at_s, kind, 0, short_s, rng.choice((0.1, 0.5, 1.0)))
        case "close":
            return Event(at_s, kind, rng.randrange(4), rng.randrange(8), rng.choice((0.0, 0.0, 0.02, 0.3)))
        case "wipe" | "flip":
            return Event(at_s, kind, plan.lossy, short_s)
        case "kill_bookie" | "power_cut" | "slow_disk" | "disk_full" | "decommission":
            return Event(at_s, kind, rng.randrange(plan.bookies), short_s)
        case "power_fails_after":
            return Event(at_s, kind, rng.randrange(plan.bookies), rng.randrange(60))
        case "disk_error":
            return Event(
                at_s, kind, rng.randrange(plan.bookies), rng.choice(DISK_ERRORS), rng.randrange(1, 4)
            )
        case "cut" | "reset":
            return Event(at_s, kind, rng.randrange(everybody), rng.randrange(everybody), short_s)
        case "recover":
            return Event(at_s, kind, rng.randrange(8), rng.choice((1, 2, 2, 3)), rng.randrange(2))
        case "read" | "delete" | "move" | "unload" | "leave":
            return Event(at_s, kind, rng.randrange(8), rng.randrange(8))
        case "usurp":
            return Event(at_s, kind, rng.randrange(8), rng.randrange(8), short_s)
        case "archive_trouble" | "metadata_loss":
            return Event(at_s, kind, 0, short_s, rng.choice((0.1, 0.5)))
        case "clock_jump":
            return Event(at_s, kind, rng.randrange(everybody), rng.choice((-60_000, -500, 500, 60_000)))
        case _:
            return Event(at_s, kind, rng.randrange(everybody), short_s)
