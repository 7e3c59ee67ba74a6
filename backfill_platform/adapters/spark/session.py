"""The Spark session: one set of options for a classic local session and for a Connect server."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from backfill_platform.errors import PreconditionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIONS: Mapping[str, str] = {
    # Instants are UTC everywhere; INT96, Spark's default on disk, is refused by pyiceberg.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    # If on, the text is parsed once for each field that is taken out of it: three fields take 2.6 times as long.
    "spark.sql.optimizer.enableJsonExpressionOptimization": "false",
    # A time that cannot be parsed becomes NULL, which the checks find, instead of ending the job.
    "spark.sql.ansi.enabled": "false",
    # Adaptive execution merges small partitions again; with fewer than these, millions of rows are sorted on disk.
    "spark.sql.shuffle.partitions": "16",
    # For cached rows, too: otherwise sixteen tasks each compute, check and write a small hour.
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
    # With Spark's default of 64 MB, a million rows make three tasks, and one of two cores idles during the last.
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "4m",
    # Files are looked up by this many tasks; by default each file is a task of its own.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "16",
}
_JVM_OPTIONS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.speculation": "false",
    "spark.log.level": "ERROR",
    # If on, errors name the line that made a column, but making columns takes one of the six seconds of a small repair.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Sessions of eight hours of a million events take 3 to 9 % less time than with Java's default collector.
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}
FEW_ROWS = 1_000_000
_FOR_FEW_ROWS: Mapping[str, str] = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "2"}
_LOG_BYTES = 5_000_000  # a longer log is begun anew
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def use_this_interpreter() -> None:
    """Make Spark's Python workers run this interpreter: the `python3` on PATH may have none of our packages."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


def session_options(
    *, master: str, remote: str | None, driver_memory: str, more: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The options of a session: on the Connect server at `remote` if given, else in this process on `master`.

    `more` are those of an installation, and win.
    Options that only a new JVM can take are left to the server when there is one; those of SQL are sent to it.
    """
    if remote:
        # A server that somebody else started may have another time zone, which would shift event times silently.
        return {**OPTIONS, "spark.remote": remote}
    return {
        **OPTIONS,
        **_JVM_OPTIONS,
        **(_LOOPBACK if master.startswith("local") else {}),
        "spark.master": master,
        "spark.app.name": "backfill-platform",
        "spark.driver.memory": driver_memory,
        "spark.pyspark.python": sys.executable,
        **(more or {}),
    }


def has_s3_client(options: Mapping[str, str]) -> bool:
    """Whether a JVM that is started with these options may find Hadoop's S3 client: the wheel of pyspark does not have it."""
    import pyspark

    given = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
    return any(name in options for name in given) or any(Path(pyspark.__file__).parent.glob("jars/hadoop-aws-*.jar"))


def open_session(options: Mapping[str, str], log: Path) -> SparkSession:
    """The session with these options. What a JVM that is started for it prints goes to `log`, and not among our own words.

    Raises PreconditionError when the JVM does not start.
    """
    from pyspark.sql import SparkSession

    if "spark.remote" not in options:
        _start_jvm(options, log)
    builder = SparkSession.builder
    for name, value in options.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _start_jvm(options: Mapping[str, str], log: Path) -> None:
    """Start Spark in a JVM of its own, unless this process has one."""
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    full = log.exists() and log.stat().st_size > _LOG_BYTES
    conf = SparkConf().setAll(list(options.items()))
    with log.open("wb" if full else "ab") as printed:
        log.chmod(0o600)
        try:
            gateway = launch_gateway(conf, {"stdout": printed, "stderr": printed})  # type: ignore[no-untyped-call]
        except PySparkRuntimeError as error:
            raise PreconditionError(f"Spark's JVM did not start; {log} has what it printed. Is there a Java 17?") from error
    SparkContext(conf=conf, gateway=gateway)


@contextmanager
def sized_for(spark: SparkSession, rows: int) -> Iterator[None]:
    """The session for work on so many rows: few of them are computed in few tasks by plans that are made once.

    Adaptive execution plans again after every shuffle, and runs each part of a query as a job of its own: what pays for
    millions of rows is most of the time that a small hour takes.
    """
    if rows > FEW_ROWS:
        yield
        return
    before = {name: str(spark.conf.get(name)) for name in _FOR_FEW_ROWS}
    try:
        for name, value in _FOR_FEW_ROWS.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def connect_server_command(
    *, port: int, master: str, driver_memory: str, private: bool = False, more: Mapping[str, str] | None = None
) -> list[str]:
    """The command of a Spark Connect server on the loopback address, from the installed pyspark wheel.

    `more` are the options of an installation. Only the owner may read the local files that a `private` one writes: Hadoop has a
    umask of its own.
    """
    import pyspark

    home = os.path.dirname(pyspark.__file__)
    options = {
        **session_options(master=master, remote=None, driver_memory=driver_memory, more=more),
        **({"spark.hadoop.fs.permissions.umask-mode": "077"} if private else {}),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        # The job of a killed run keeps both cores from the run that replaces it, by default for seven minutes. A client that
        # lives reattaches to its stream by itself.
        "spark.connect.execute.reattachable.senderMaxStreamDuration": "30s",
        "spark.connect.execute.manager.detachedTimeout": "30s",
        "spark.connect.execute.manager.maintenanceInterval": "10s",
    }
    confs = [part for key, value in options.items() for part in ("--conf", f"{key}={value}")]
    return [
        os.path.join(home, "bin", "spark-submit"),
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        *confs,
        "spark-internal",
    ]
