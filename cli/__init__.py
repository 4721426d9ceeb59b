"""The `quire` command; here, and only here, processes are put together.

`main` is the entry point and finds the subcommands, one file per noun.

Processes: `standalone` (by `assemble`: a broker, a bookie, a metadata store and an archive in one), `broker`,
`bookie`, `gateway`, `zookeeper`, and `local`, which runs a cluster as child `processes`. What they share: `parts` (what
they are made of), `settings` (flags, environment and file), `audit_topic` (the audit log, published), `telemetry`
(what a collector is sent), `until_signal` (run, say `ready`, stop cleanly).

What each of them tells of itself is put together in `members`, of `member_checks`; `doctor` asks all, by
`cluster_checks`, and `support_bundle`. A bookie's port for that is `bookie_http`.

For people: `topics`, `subscriptions`, `schemas`, `brokers`, `bookies`, `ledgers`, `archive` and `config` ask or change
(`noun` asks a broker for them, `moments` reads times); `produce`, `consume` and `check` are clients (`client_command`,
`lines`); `demo` tells a story. `output` prints tables or JSON and turns errors into one sentence and an exit code.
"""
