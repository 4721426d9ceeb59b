"""Processes: broker, bookie, gateway and standalone are assembled in this package only.

`settings` loads settings from flags, environment and file. `parts` has the builder: `Parts` start in order and stop in
reverse. A `Process` adds the common parts: `listeners` for its clients, the security file, the metadata store, the
watchdog, its report (with `member_checks`), HTTP, metrics and traces. `until_signal` runs it, prints `ready`, and stops
it cleanly.

Each process is one function that lists its parts in start order: `broker`, `bookie` (with `bookie_http`), `gateway`,
`standalone`. The two with a broker share `broker_parts` (the broker, sidecars, `audit_topic`,
`dynamic_settings`), `object_stores` (the
archive, write-ahead logs) and `ledger_home` (ledgers, and the evidence in these stores).

`child` starts any of them as a child process, for `quire local`.
"""
