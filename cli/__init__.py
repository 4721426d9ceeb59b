"""The `quire` command line.

`main` is the entry point and finds the subcommands, one file per noun.

Processes: `standalone`, `broker`, `bookie`, `gateway` (each runs a process of `quire.process`), `zookeeper`, and
`local`, which runs a cluster as child processes. `settings` creates their options, `variables` refuses misspelt ones in
the environment, and `first_steps` has the commands that a start prints.

`doctor` (by `cluster_checks`) and `support_bundle` ask all processes for their reports.

Administration: `tenants`, `namespaces`, `policies` (with `policy_values`), `topics`, `subscriptions`, `schemas`,
`brokers`, `bookies`, `ledgers`, `archive` and `config` query or change the cluster (`noun` sends their requests,
`moments` parses times; `login` and `contexts` store the addresses and credentials of clusters in `profile`); `produce`,
`consume` and `check` are clients (`client_command`, `lines`); `demo` shows the main features. `version` and `help` send
no request. `output` prints tables or JSON, and errors as one sentence with an exit code.
"""
