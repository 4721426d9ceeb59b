"""The REST interface: what Pulsar's tools expect under `/admin/v2`, what Pulsar does not have under `/quire/v1`.

One file per resource; each has `routes(broker)`, rows that name what of the broker's parts is called (`route`).
`requests` reads what callers send, `policy_json` and `namespace_json` policies; `absent` refuses in words what Pulsar
has and Quire does not. `overview`, `tables` and `peek` are for people, who come by the console (`serving/console`).
`resources` lists all, `following` has requests for other brokers' topics, `app` joins them with what every process
answers (`runtime/probes`), `refusals` maps errors to statuses. `openapi` makes of all rows the document that says what
the interface is.
"""
