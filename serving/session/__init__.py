"""Sessions: one client connection each. Read `connection`, then its parts `inbound`, `outbound`, `peer`, `requests`,
`lane`, then the commands: `handshake`, `lookup`, `produce`, `consume`, `topic_watch`. Where people log in, `login`
says who it is, `permissions` what each command needs, and `revocation` closes what is no longer allowed.

`table` joins what the files handle: each command has one handler. `sessions` has all of a broker's, and what they
share; `frame_room` has the memory for large frames, `bounds` says what names and properties may be.
"""
