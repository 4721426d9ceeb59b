"""The ports through which Quire reaches the world: clock, disk, network, tasks, settings, the process's memory.

Nothing here knows what a ledger or a topic is. Every core takes what it needs of the world from a port of
this room, so that a test, or a whole simulated cluster, can put another world in its place.

Read in this order: `errors`, `limits`, `transitions` (tables of states), `clock`, `budget`, `token_bucket` (of rates),
`request_rate` (of a connection), `disk`, `network`, `tls` (of a client), `credentials` (of one as well), `rest` (a
broker, asked over HTTP), `metrics` (what they are), `metric_table` (all of them), `metric_docs` (the page of them),
`exposition` (their text), `probes` (`/health`, `/metrics`), `telemetry` (OpenTelemetry), `http_door` (connections to
`/metrics` and REST), `other_sites` (whose pages ask nothing here), `tasks`, `turn` (its end), `slices`, `threads`
(for calls that may hang), `watchdog`, `redaction` (of secrets), `settings`, `slow` (operations that take long), `log`,
`findings` (what is wrong, what to change), `machine` (whether it is fit), `member` (a process, as it tells of itself),
`memory`, `weak` (callbacks that keep nobody).
"""
