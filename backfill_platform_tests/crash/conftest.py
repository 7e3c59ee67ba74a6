"""A warehouse that may be killed."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.devstack.embedded_clickhouse import server as embedded


class Mortal:
    """A separate embedded server that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.server = embedded.start(folder)
        self.warehouse = Warehouse(self.server.url)

    def restart(self) -> None:
        """Start it again, killing it first if it lives."""
        self.warehouse.close()
        with suppress(ProcessLookupError):
            os.kill(self.server.pid, signal.SIGKILL)
        self.server.stop()
        self.server = embedded.start(self._folder)
        self.warehouse = Warehouse(self.server.url)

    def end(self) -> None:
        self.warehouse.close()
        self.server.stop()


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mortal]:
    server = Mortal(tmp_path_factory.mktemp("mortal"))
    yield server
    server.end()
