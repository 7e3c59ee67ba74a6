"""Sessions by PyFlink in batch mode; runs in Flink's own virtual environment, see `benchmarks/flink.py`.

Reads orders from its input, one line of JSON each, and answers on its output with the seconds that the job took. The seconds
of a warm session: the JVM runs before the first order comes.
"""

import json
import sys
import time
from typing import Any

from pyflink.common import Configuration
from pyflink.java_gateway import get_gateway
from pyflink.table import EnvironmentSettings, TableEnvironment

EVENTS = """CREATE TEMPORARY TABLE events (
    event_time TIMESTAMP(6), client_id BIGINT, url STRING, status INT, `bytes` BIGINT
) WITH ('connector' = 'filesystem', 'path' = '{source}', 'format' = 'parquet', 'parquet.utc-timezone' = 'true')"""

SESSIONS = """CREATE TEMPORARY TABLE sessions (
    client_id BIGINT, started_at BIGINT, ended_at BIGINT, requests BIGINT, errors BIGINT, `bytes` BIGINT, entry_url STRING
) WITH ('connector' = 'filesystem', 'path' = '{sink}', 'format' = 'parquet', 'parquet.compression' = 'ZSTD')"""

# The smallest text, of ten digits and the path, is the first request, and of several in one second that of the smallest path.
INSERT = """INSERT INTO sessions
SELECT client_id, started_at, ended_at, requests, errors, `bytes`, SUBSTRING(entry, 11) FROM (
    SELECT client_id, session, MIN(moment) AS started_at, MAX(moment) AS ended_at, COUNT(*) AS requests,
        COUNT(*) FILTER (WHERE status >= 400) AS errors, COALESCE(SUM(`bytes`), 0) AS `bytes`,
        MIN(LPAD(CAST(moment AS STRING), 10, '0') || url) AS entry
    FROM (
        SELECT *, SUM(starts) OVER (PARTITION BY client_id ORDER BY moment) AS session FROM (
            SELECT *,
                CASE WHEN moment - LAG(moment) OVER (PARTITION BY client_id ORDER BY moment) < {gap} THEN 0 ELSE 1 END AS starts
            FROM (SELECT DISTINCT client_id, url, status, `bytes`,
                    TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', event_time) AS moment FROM events)))
    GROUP BY client_id, session)
WHERE started_at >= {start} AND started_at < {end}"""

OPTIONS = {
    "parallelism.default": "2",
    "pipeline.object-reuse": "true",
    "table.local-time-zone": "UTC",
    "taskmanager.memory.managed.size": "2g",
    "taskmanager.memory.network.max": "256m",
    "execution.batch.adaptive.auto-parallelism.max-parallelism": "2",
}


def run(order: dict[str, Any]) -> float:
    configuration = Configuration()
    for name, value in OPTIONS.items():
        configuration.set_string(name, value)
    began = time.perf_counter()
    settings = EnvironmentSettings.new_instance().in_batch_mode().with_configuration(configuration).build()
    environment = TableEnvironment.create(settings)
    environment.execute_sql(EVENTS.format(**order))
    environment.execute_sql(SESSIONS.format(**order))
    environment.execute_sql(INSERT.format(**order)).wait()
    return time.perf_counter() - began


def main() -> None:
    pid = int(get_gateway().jvm.java.lang.ProcessHandle.current().pid())
    say({"jvm": pid})
    for line in sys.stdin:
        try:
            say({"seconds": run(json.loads(line))})
        except Exception as error:  # noqa: BLE001 whatever Flink raises is told to who asked
            say({"error": str(error)})


def say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
