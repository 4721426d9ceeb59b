"""The REST interface: what Pulsar's tools expect under `/admin/v2`, what Pulsar does not have under `/quire/v1`.

One file per resource; each has a `routes(target)`. `target` says what the broker must offer, `requests` reads
what callers send; `app` joins them and maps errors to status codes; `probes` is `/metrics` and `/health`.
"""
