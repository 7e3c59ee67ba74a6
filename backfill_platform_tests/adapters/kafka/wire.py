"""A wire between clients and a broker, on which the broker's answers can get lost."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Thread


class Wire:
    """Takes connections at a port of its own and passes on what both sides say."""

    def __init__(self, server: socket.socket, broker_port: int) -> None:
        self._server, self._broker_port = server, broker_port
        self._clients: set[socket.socket] = set()  # that hear the broker's answers
        self.lost = 0

    def lose_answers(self) -> None:
        """From now on nobody who is connected hears the broker, and `lost` counts it; whoever connects again does."""
        self.lost = 0
        self._clients.clear()

    def serve(self) -> None:
        """Until the server is closed."""
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                try:
                    broker = socket.create_connection(("127.0.0.1", self._broker_port))
                except ConnectionRefusedError:
                    client.close()  # it is dead, and clients come again
                    continue
                self._clients.add(client)
                Thread(target=self._pass_on, args=(client, broker, lambda: True), daemon=True).start()
                hears = partial(self._clients.__contains__, client)
                Thread(target=self._pass_on, args=(broker, client, hears), daemon=True).start()

    def _pass_on(self, giver: socket.socket, taker: socket.socket, arrives: Callable[[], bool]) -> None:
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
        server.shutdown(socket.SHUT_RDWR)  # or `accept` waits on
