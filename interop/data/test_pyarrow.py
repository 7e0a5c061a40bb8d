"""pyarrow's S3 file system and a Parquet data set on it (AWS C++ SDK: chunked, with trailers)."""

import pyarrow
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet
import pytest

MIB = 1 << 20


@pytest.fixture
def fs(s3):
    return pyarrow.fs.S3FileSystem(
        access_key=s3.access_key, secret_key=s3.secret_key, region=s3.region,
        endpoint_override=s3.endpoint.removeprefix("http://"), scheme="http",
        retry_strategy=pyarrow.fs.AwsStandardS3RetryStrategy(max_attempts=1),
    )


def test_files(fs, bucket, data):
    for key, size in (("small", 100), ("dir/big", 20 * MIB)):
        with fs.open_output_stream(f"{bucket}/{key}") as sink:
            sink.write(data(size))
        with fs.open_input_file(f"{bucket}/{key}") as source:
            assert source.size() == size
            assert source.read() == data(size)
    with fs.open_input_file(f"{bucket}/dir/big") as source:
        assert source.read_at(1000, 9 * MIB) == data(20 * MIB)[9 * MIB : 9 * MIB + 1000]


def test_folders(fs, bucket):
    fs.create_dir(f"{bucket}/d/e")
    with fs.open_output_stream(f"{bucket}/d/e/f") as sink:
        sink.write(b"x")
    fs.copy_file(f"{bucket}/d/e/f", f"{bucket}/d/g")
    fs.move(f"{bucket}/d/g", f"{bucket}/d/h")
    selector = pyarrow.fs.FileSelector(f"{bucket}/d", recursive=True)
    files = {one.path for one in fs.get_file_info(selector) if one.type == pyarrow.fs.FileType.File}
    assert files == {f"{bucket}/d/e/f", f"{bucket}/d/h"}
    fs.delete_dir(f"{bucket}/d")
    assert fs.get_file_info(f"{bucket}/d/h").type == pyarrow.fs.FileType.NotFound


def test_parquet_data_set(fs, bucket):
    table = pyarrow.table({"part": [n % 3 for n in range(30_000)], "n": list(range(30_000))})
    pyarrow.dataset.write_dataset(
        table, f"{bucket}/set", filesystem=fs, format="parquet",
        partitioning=["part"], partitioning_flavor="hive",
    )
    back = pyarrow.dataset.dataset(f"{bucket}/set", filesystem=fs, partitioning="hive").to_table()
    assert sorted(back["n"].to_pylist()) == list(range(30_000))
