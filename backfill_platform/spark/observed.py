"""What Spark has seen while it did something else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

if TYPE_CHECKING:
    from pyspark.sql import Observation


def observed(observation: Observation) -> dict[str, Any] | None:
    """The metrics of an observation after an action over its rows; None where Spark found that it need not read them."""
    try:
        return observation.get or None
    except Py4JJavaError:
        # Spark left the rows out of its plan, for example because what they were joined with is empty.
        return None
