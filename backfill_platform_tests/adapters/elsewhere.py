"""A Python worker of a Spark cluster, where this package is not installed."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

WORKER = """
import pickle, sys
sys.modules["backfill_platform"] = None  # an import of it fails
import pyarrow as pa
read = pickle.load(open(sys.argv[1], "rb"))
with pa.ipc.open_stream(sys.argv[2]) as given:
    print(sum(batch.num_rows for batch in read(iter(list(given)))))
"""


def rows_elsewhere(folder: Path, read: Callable[..., Any], given: pa.Table) -> int:
    """How many rows a function for `mapInArrow` gives in such a worker, of the given ones."""
    (folder / "function").write_bytes(cloudpickle.dumps(read))  # type: ignore[no-untyped-call]
    with pa.ipc.new_stream(str(folder / "given"), given.schema) as stream:
        stream.write_table(given)
    command = [sys.executable, "-c", WORKER, str(folder / "function"), str(folder / "given")]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)
