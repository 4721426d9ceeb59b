"""Sessions: one client connection each. Read `connection`, then `lane`, `handshake`, `lookup`, `produce`, `consume`,
`topic_watch`.

`table` joins what the files handle: each command has one handler. `host` is what a session asks of its broker,
`frame_room` has the memory for large frames, `bounds` says what names and properties may be.
"""
