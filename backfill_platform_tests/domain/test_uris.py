from pathlib import Path

import pytest

from backfill_platform.domain.uris import local_path, local_uri


@pytest.mark.parametrize("path", ["/a/b.parquet", "/with space/and%20percent/ü"])
def test_local_paths_survive_being_named_by_uri(path: str) -> None:
    assert local_path(local_uri(Path(path))) == path == local_path(path)


def test_an_object_store_has_no_local_path() -> None:
    assert local_path("s3://bucket/key") is None
