"""The REST interface: what Pulsar's tools expect under `/admin/v2`, what Pulsar does not have under `/quire/v1`.

One file per resource; each has a `routes(broker)`, which calls the broker's parts. `requests` reads what callers send,
`policy_json` and `namespace_json` policies; `absent` refuses in words what Pulsar has and Quire does not; `app` joins
them and maps errors to status codes; `probes` is `/metrics` and `/health`.
"""
