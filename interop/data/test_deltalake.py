"""Delta Lake: a table whose log is a line of objects that each may be made once."""

import concurrent.futures

import pyarrow
import pytest
from deltalake import DeltaTable, write_deltalake

ROWS = 1000
WRITERS = 6


@pytest.fixture
def options(s3):
    return {
        "AWS_ENDPOINT_URL": s3.endpoint, "AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": s3.secret_key,
        "AWS_REGION": s3.region, "AWS_ALLOW_HTTP": "true", "aws_conditional_put": "etag",
    }


def test_writers_side_by_side_lose_nothing(bucket, options):
    place = f"s3://{bucket}/table"
    rows = pyarrow.table({"number": list(range(ROWS)), "text": ["x"] * ROWS})

    def append(_):
        write_deltalake(place, rows, mode="append", storage_options=options)

    append(None)
    with concurrent.futures.ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(append, range(WRITERS)))
    table = DeltaTable(place, storage_options=options)
    assert table.version() == WRITERS
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert DeltaTable(place, storage_options=options).to_pyarrow_table().num_rows == ROWS * (1 + WRITERS)
