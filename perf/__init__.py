"""Load generator of `quire bench`: processes that publish and consume, and the measurements that they add up.

To read the code: `histogram` and `tally` are the measurements; `payload` puts the time at which a message was due into
it. `job` is the work of one child process, which `worker` does with a `Client`: `publishing`, `consuming` and
`round_trips`, paced by `pacer`. `fleet` runs the child processes and adds up their measurements.

`cli/bench.py` has the options and the report. The directory `bench/` of a clone is something else: it measures the
parts of a server.
"""
