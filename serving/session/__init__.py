"""Sessions: one client connection each. Read `connection`, then `handshake`, `lookup`, `produce`, `consume`.

`table` joins what the files handle: each command has one handler.
"""
