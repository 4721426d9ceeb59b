"""REST interface: Pulsar's admin API under `/admin/v2`, and Quire's own requests under `/quire/v1`.

There is one file per resource; its `routes(broker)` returns rows, each of which names the function to call (`route`).
`requests` and `values` parse requests, `policy_json` (with `policy_shapes`) and `namespace_json` policies, which
`policy_prose` explains. `absent` rejects, with a reason, requests for features of Pulsar that Quire lacks. `overview`,
`tables`, `peek`, `search`, `publish` and `effective_policies` serve the console (`serving/console`); `looks` decodes
messages for it. `resources` lists all resources, `following` forwards requests for other brokers' topics, `app`
combines them with the requests that every process answers (`runtime/probes`), and `refusals` maps errors to statuses.
`openapi` generates an OpenAPI document from all rows.
"""
