"""PyFlink as a contender: its own virtual environment, a process that stays warm, and its rows brought to ClickHouse.

Everything it needs is kept in `.bench/` for the next time: `apache-flink` from the package index, and Flink's Parquet format,
fetched by Maven. Flink reads Parquet with Hadoop's classes and decompresses zstd with a library that it does not ship: both are
taken from the jars of PySpark. Where any of it fails, the reason is told and the benchmark goes on without.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyspark

from benchmarks.contenders import LIGHT, Contender, replace_range
from benchmarks.contest import Ground, Took, load
from benchmarks.end_to_end import GAP

FLINK = "PyFlink in batch mode, `DELETE FROM`, insert"
VERSION = "2.3.0"
ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".bench"
PATIENCE = 1200  # seconds for the installation, and for one job
MEMORY = "4g"  # of Flink's heap, as Spark's driver has


class NoFlink(Exception):
    """Flink cannot be installed or does not run here; says why."""


@dataclass
class Worker:
    """A PyFlink process that takes one order after the other."""

    process: "subprocess.Popen[str]"
    jvm: int = 0

    def ask(self, order: dict[str, Any]) -> float:
        assert self.process.stdin is not None
        # A job that hangs ends with its process, and the answer with it.
        watch = threading.Timer(PATIENCE, self.process.kill)
        watch.start()
        try:
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
            return float(self.answer()["seconds"])
        except BrokenPipeError as error:
            raise NoFlink(f"the process ended with code {self.process.wait()}; see {CACHE / 'flink.log'}") from error
        finally:
            watch.cancel()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                if "error" in found:
                    raise NoFlink(f"the job failed: {found['error'].strip()[:2000]}")
                return found
        raise NoFlink(f"the process ended with code {self.process.wait()}; see {CACHE / 'flink.log'}")


def install() -> dict[str, str]:
    """Make the environment where it is missing, and return the variables its processes need. Raises NoFlink."""
    home, ready = CACHE / "flink", CACHE / f"flink-{VERSION}.ready"
    jar = CACHE / "jars" / f"flink-sql-parquet-{VERSION}.jar"
    try:
        if not ready.exists():
            shutil.rmtree(home, ignore_errors=True)
            commands = (
                [sys.executable, "-m", "venv", str(home)],
                [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", f"apache-flink=={VERSION}"],
            )
            for command in commands:
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
            ready.touch()
        if not jar.exists():
            artifact = f"-Dartifact=org.apache.flink:flink-sql-parquet:{VERSION}"
            command = ["mvn", "-q", "-B", "dependency:copy", artifact, f"-DoutputDirectory={jar.parent}"]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.SubprocessError as error:
        told = "".join(getattr(error, name, None) or "" for name in ("stdout", "stderr"))
        raise NoFlink(f"the installation failed: {error} {told}".strip()[:2000]) from error
    except OSError as error:
        raise NoFlink(f"the installation failed: {error}") from error
    sparks = Path(pyspark.__file__).parent / "jars"
    borrowed = [next(sparks.glob(f"{name}-[0-9]*.jar")) for name in ("hadoop-client-api", "hadoop-client-runtime", "zstd-jni")]
    return {"HADOOP_CLASSPATH": os.pathsep.join(map(str, (jar, *borrowed))), "JVM_ARGS": f"-Xmx{MEMORY}"}


@contextmanager
def worker() -> Iterator[Worker]:
    """A worker that has started its JVM. Raises NoFlink."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYSPARK_PYTHON")}
    environment |= install()
    command = [str(CACHE / "flink" / "bin" / "python"), str(ROOT / "benchmarks" / "flink_job.py")]
    with open(CACHE / "flink.log", "wb") as log:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    found = Worker(process)
    try:
        found.jvm = int(found.answer()["jvm"])
        yield found
    finally:
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def contender(flink: Worker, folder: Path) -> Contender:
    """PyFlink on a ground; the folder takes links to the raw files, and what Flink writes."""

    def run(ground: Ground) -> Iterator[Took]:
        source, sink = folder / "raw", folder / "sessions"
        for each in (source, sink):
            shutil.rmtree(each, ignore_errors=True)
        source.mkdir(parents=True)
        # Flink reads one folder: links to the same files, and no copies.
        for number, uri in enumerate(ground.files(1, len(ground.hours))):
            os.link(uri.removeprefix("file://"), source / f"{number}.parquet")
        start, end = int(ground.span.start.timestamp()), int(ground.span.end.timestamp())
        order = {"source": str(source), "sink": str(sink), "gap": int(GAP.total_seconds()), "start": start, "end": end}
        with ground.watched() as memory:
            computed = flink.ask(order)
            began = time.perf_counter()
            rows = _rows(pq.read_table(sink), int(ground.hours.end.timestamp()))
            parts = {"compute": computed, "read its rows": time.perf_counter() - began}
            took = replace_range(ground, FLINK, LIGHT, rows, parts)
            yield replace(took, memory=memory(), load=load())

    return run


def _rows(found: pa.Table, landed_to: int) -> pa.Table:
    """Flink's rows with all columns of the target."""
    began, ended = found["started_at"], found["ended_at"]

    def moment(seconds: pa.ChunkedArray) -> pa.ChunkedArray:
        return pc.cast(pc.multiply(seconds, 1_000_000), pa.timestamp("us", "UTC"))

    return pa.table(
        {
            "hour": moment(pc.multiply(pc.divide(began, 3600), 3600)),
            "client_id": found["client_id"],
            "started_at": moment(began),
            "ended_at": moment(ended),
            "duration_seconds": pc.subtract(ended, began),
            **{name: found[name] for name in ("requests", "errors", "bytes", "entry_url")},
            "is_open": pc.greater(pc.add(ended, int(GAP.total_seconds())), landed_to),
        }
    )
