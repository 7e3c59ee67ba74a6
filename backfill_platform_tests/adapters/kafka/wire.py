"""A TCP proxy between clients and a broker that can lose the broker's answers."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Thread


class Wire:
    """Accepts connections on its own port and forwards the bytes of both sides."""

    def __init__(self, server: socket.socket, broker_port: int) -> None:
        self._server, self._broker_port = server, broker_port
        self._clients: set[socket.socket] = set()  # connections that get the broker's answers
        self.lost = 0

    def lose_answers(self) -> None:
        """From now on drop the broker's answers on all open connections and count them in `lost`; new ones get answers."""
        self.lost = 0
        self._clients.clear()

    def serve(self) -> None:
        """Forward until the server is closed."""
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                try:
                    broker = socket.create_connection(("127.0.0.1", self._broker_port))
                except ConnectionRefusedError:
                    client.close()  # the broker is down; clients connect again
                    continue
                self._clients.add(client)
                Thread(target=self._forward, args=(client, broker, lambda: True), daemon=True).start()
                hears = partial(self._clients.__contains__, client)
                Thread(target=self._forward, args=(broker, client, hears), daemon=True).start()

    def _forward(self, giver: socket.socket, taker: socket.socket, arrives: Callable[[], bool]) -> None:
        with suppress(OSError):
            while data := giver.recv(65_536):
                if arrives():
                    taker.sendall(data)
                else:
                    self.lost += 1
        for end in (giver, taker):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextmanager
def wire(port: int, broker_port: int) -> Iterator[Wire]:
    """A wire for the block."""
    with socket.create_server(("127.0.0.1", port)) as server:
        made = Wire(server, broker_port)
        Thread(target=made.serve, daemon=True).start()
        yield made
        server.shutdown(socket.SHUT_RDWR)  # otherwise `accept` waits forever
