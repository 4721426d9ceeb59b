"""Who is let in, and what for. Without a security file nothing of this is asked, and everybody may do everything.

Read `identity` (a role, and how it was proven), `configuration` (the security file), `authentication` (who is let in)
with its providers `tokens`, `basic` (and `turns`: who may have a password looked at), `oidc`, `certificate_roles`,
`followed` (keys whose files change), `authorization` (what a role may do), `audit` (what is written down), `security`
(joins them for a process). Before anybody says who he is: `tls` (contexts, made anew when files change), `listener`
(connections that begin with a handshake), `connections` (how many there may be), `certificates` (who a certificate says
its holder is), `certs` (an authority and certificates for a first try), `ending` (certificates that must be renewed).

What is protected, against whom:
- Who has no credentials, or wrong or expired ones, learns nothing and changes nothing; he costs a connection for ten
  seconds, and 64 KiB.
- Who is let in sees and changes what was granted to a role of his, and is not told of the rest.
- A tenant's administrators have all of their tenant, and nothing beside it; superusers have everything.
- A proxy speaks for others and gains nothing by it that they do not have; nobody else can.
- Who is denied, or changes permissions, is written down, without any secret.
- Not protected: against who reads the disks, the metadata store or the archive beside Quire, and against superusers.
"""
