"""Clients of the HTTP benchmark, in a process of their own: `recipe_clients.py PORT STREAMS`.

Plain sockets that count chunks: a client library would be the slowest part of the measurement.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys

_BODY = json.dumps(
    {
        "model": "stepahead",
        "stream": True,
        "messages": [{"role": "user", "content": "Once upon a time"}],
        "thinking": {"type": "disabled"},
    }
).encode()
_REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)
_END = b"data: [DONE]"


def main() -> None:
    port, streams = int(sys.argv[1]), int(sys.argv[2])
    selector = selectors.DefaultSelector()
    tails: dict[socket.socket, bytes] = {}
    for _ in range(streams):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(_REQUEST)
        selector.register(connection, selectors.EVENT_READ)
        tails[connection] = b""
    chunks = 0
    while tails:
        for key, _ in selector.select():
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            data = connection.recv(1 << 20)
            chunks += data.count(b"data: ")
            tail = tails[connection] + data[-len(_END) * 2 :]
            tails[connection] = tail[-len(_END) * 2 :]
            if _END in tail or not data:
                selector.unregister(connection)
                connection.close()
                del tails[connection]
    print(chunks)


main()
