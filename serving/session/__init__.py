"""Sessions: client connections with their producers, consumers and topic watchers.

Read `context` (objects that all sessions share), then a connection from the bottom up: `frame_room` (memory for large
frames), `inbound` (reads the socket), `outbound` (writes it), `peer`, `requests`, and `connection`, which joins them.
These build on it:

- `lane`: queue of the commands for one producer, consumer or watcher, in the client's order
- `bounds` (limits of names and properties), `permissions`, `login`
- `producer_end`, `consumer_end`, `topic_watch`: the session's side of producers, consumers and topic watchers
- `session`: joins all of these, and calls the handler of each command in `handshake`, `lookup`, `produce` or `consume`
- `revocation`: closes producers, consumers and watchers that are no longer allowed
- `sessions`: all sessions of a broker
"""
