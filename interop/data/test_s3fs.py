"""s3fs (fsspec), the file system under much of the Python data world."""

import pytest
import s3fs

MIB = 1 << 20


@pytest.fixture
def fs(s3):
    return s3fs.S3FileSystem(
        key=s3.access_key, secret=s3.secret_key, skip_instance_cache=True, use_listings_cache=False,
        client_kwargs={"endpoint_url": s3.endpoint, "region_name": s3.region},
        default_block_size=5 * MIB,
    )


def test_files(fs, bucket, data):
    for key, size in (("small", 100), ("dir/big", 20 * MIB + 1)):
        with fs.open(f"{bucket}/{key}", "wb") as file:
            file.write(data(size))
        assert fs.cat_file(f"{bucket}/{key}") == data(size)
        assert fs.info(f"{bucket}/{key}")["size"] == size
    assert fs.cat_file(f"{bucket}/dir/big", start=100, end=7 * MIB) == data(20 * MIB + 1)[100 : 7 * MIB]
    with fs.open(f"{bucket}/dir/big", "rb", block_size=MIB) as file:
        file.seek(-10, 2)
        assert file.read() == data(20 * MIB + 1)[-10:]


def test_tree(fs, bucket, tmp_path, data):
    source = tmp_path / "in"
    (source / "d").mkdir(parents=True)
    for name, size in (("a", 10), ("d/b c", 6 * MIB), ("d/empty", 0)):
        (source / name).write_bytes(data(size))
    fs.put(f"{source}/", f"{bucket}/t/", recursive=True)
    assert {one.removeprefix(f"{bucket}/t/") for one in fs.find(f"{bucket}/t")} == {"a", "d/b c", "d/empty"}
    fs.get(f"{bucket}/t/", f"{tmp_path}/out/", recursive=True)
    for name in ("a", "d/b c", "d/empty"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()


def test_list_copy_move_remove(fs, bucket):
    for key in ("a/1", "a/2", "b"):
        fs.pipe_file(f"{bucket}/{key}", key.encode())
    assert set(fs.ls(bucket, detail=False)) == {f"{bucket}/a", f"{bucket}/b"}
    assert fs.glob(f"{bucket}/a/*") == [f"{bucket}/a/1", f"{bucket}/a/2"]
    fs.copy(f"{bucket}/b", f"{bucket}/c")
    fs.mv(f"{bucket}/c", f"{bucket}/d")
    assert fs.cat_file(f"{bucket}/d") == b"b" and not fs.exists(f"{bucket}/c")
    fs.rm(f"{bucket}/", recursive=True)
    assert not fs.exists(bucket)
