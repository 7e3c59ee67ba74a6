"""Three hours of requests, one with a line whose text is an attack on the page that shows it as a sample of what failed."""

import tempfile
from dataclasses import replace
from pathlib import Path

from backfill_platform.adapters.files.hourly import ArchiveFile
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.uris import local_uri
from backfill_platform.examples import clickstream

LAUNCH = (
    "/graphql?query=mutation{launchPartitionBackfill(backfillParams:"
    '{assetSelection:[{path:["raw","hostile"]}],partitionNames:["1998-04-30-23:00"]}){__typename}}'
)
ATTACK = f"/![x]({LAUNCH}) http://evil.example/beacon <img src={LAUNCH}> a\\| b"

_HOURS = HourRange(clickstream.HOURS.start, clickstream.HOURS.start + 3 * HOUR)
_LINES = [
    *(f"{client},30/Apr/1998,22:10:00,/{client}.html,200,100" for client in range(20)),
    f"1,30/Apr/1998,22:11:00,{ATTACK},-,0",
]
# A module is imported by several processes: each reads the same file.
_FILE = Path(tempfile.gettempdir()) / "backfill-hostile-requests.csv"


pipeline = replace(
    clickstream.pipeline,
    name="hostile",
    end=_HOURS.end,
    source=ArchiveFile(local_uri(_FILE), _HOURS, encoding="ISO-8859-1"),
    raw=replace(clickstream.pipeline.raw, name="hostile"),
    derived=(),
)


def write_requests() -> None:
    """Write the file of the pipeline."""
    _FILE.write_text("\n".join(_LINES) + "\n")
