"""Where the embedded ClickHouse of a folder answers, for its clients; the server itself is in `devstack`.

In the data folder: `lock` (locked while a server runs), `endpoint.json` (url, pid and version; exists while it answers), and
`secret`, which every statement must bring along: whoever may read that file may do everything with the warehouse.
"""

import fcntl
import http.client
import json
from pathlib import Path
from urllib.parse import urlsplit

HOST = "127.0.0.1"
USER = "default"
SECRET_FILE = "secret"
PING_SECONDS = 5.0


def running_url(data_dir: Path) -> str | None:
    """The address of the server that owns this folder and answers, with the secret as its password; else None.

    For example `http://default:Xk3...@127.0.0.1:8123`: for a client, and never to be shown.
    """
    owner = read_json(data_dir / "endpoint.json")
    url = owner.get("url")
    if not isinstance(url, str) or not is_locked(data_dir) or not _answers(url):
        return None
    return with_secret(url, data_dir)


def with_secret(url: str, data_dir: Path) -> str | None:
    """The address with the secret of the folder in it; None when this user may not read that."""
    try:
        secret = (data_dir / SECRET_FILE).read_text()
    except OSError:
        return None
    scheme, _, place = url.partition("://")
    return f"{scheme}://{USER}:{secret}@{place}"


def read_json(path: Path) -> dict[str, object]:
    """The JSON object in a file; empty when the file is absent or incomplete."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def is_locked(data_dir: Path) -> bool:
    """Whether a server has locked the folder."""
    try:
        with (data_dir / "lock").open("rb") as lock:
            # A shared lock: two processes that only check must not take each other for a server.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def _answers(url: str) -> bool:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or HOST, address.port, timeout=PING_SECONDS)
    try:
        connection.request("GET", "/ping")
        return connection.getresponse().read() == b"Ok.\n"
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
