"""Access to the operating system: clock, disk, network, tasks, settings, the process's memory.

This package does not know ledgers or topics. Cores and their shells use the clock, the disk and the network only
through ports of this package, so that a test, or a simulation of a whole cluster, can replace them.

Read in this order: `errors`, `limits`, `transitions` (tables of states), `clock`, `disk`, `network`, the throttles
(`budget` of bytes, `semaphore`, `token_bucket` with its `rate_queue`; their callers wait in a `waiting` queue, which is
a `fair_queue`), `tls` (of a client), `credentials` (of a client), `rest` (a client of a broker's REST interface),
`metrics` (kinds and values), `metric_table` (all metrics), `metric_docs` (their page), `exposition` (their text),
`probes` (`/health`, `/metrics`), `telemetry` (OpenTelemetry), `sources` (connections by their networks), `http_room`
(memory for answers), `http_headers`, `http_server` (connections to `/metrics` and REST), `csrf`, `tasks`, `turn`
(callbacks at the end of an iteration of the event loop), `slices` (of long work), `threads` (for calls that may hang),
`watchdog`, `redaction` (of secrets), `settings`, `installation` (pip commands for missing packages), `slow` (slow
operations), `log`, `findings` (faults and advice), `machine` (checks of the machine), `member` (a process's report),
`memory`, `weak` (weak callbacks).
"""
