#!/usr/bin/env python3
"""Exit code 0 when what a URL names is well: `healthy http://127.0.0.1:8080/health/ready`, `healthy zk://HOST:2181`."""

import socket
import sys
from urllib.parse import urlsplit
from urllib.request import urlopen

TIMEOUT_S = 3

url = urlsplit(sys.argv[1])
if url.scheme == "zk":
    with socket.create_connection((url.hostname, url.port), TIMEOUT_S) as connection:
        connection.sendall(b"srvr")
        sys.exit(b"Mode: " not in connection.recv(65536))
with urlopen(sys.argv[1], timeout=TIMEOUT_S):  # a status that is an error raises
    pass
