"""Authentication, authorization and TLS. Without a security file every client may do everything.

Read `identity` (a role and its proof), `configuration` (the security file), `authentication` with its providers
`tokens`, `basic` (and `fair_executor`: the order of password checks), `oidc`, `certificates`, and `followed` (keys
whose files change). Then read `authorization` (the rules), `audit` (the log), and `security`, which joins them for a
process. The other modules work before authentication: `tls` (contexts that follow their files), `listener` (connections
that begin with a handshake), `connections` (limits of their numbers), `certs` (a certificate authority for tests), and
`ending` (certificates that expire soon).

Guarantees:
- A client without valid credentials learns nothing and changes nothing. It occupies one connection for at most ten
  seconds, and at most 64 KiB.
- An authenticated client sees and changes only objects that its role was granted.
- A tenant's administrators control their tenant and nothing else; superusers control everything.
- Only a proxy speaks for other roles, and it gains no permission that they lack.
- Refusals and changes of permissions are logged, without secrets.
- There is no protection against superusers, or against readers who access the disks, the metadata store or the archive
  directly.
"""
