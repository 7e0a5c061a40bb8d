"""s3torchconnector: data sets, checkpoints, and PyTorch's distributed checkpoint (DCP)."""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from s3torchconnector import S3Checkpoint, S3ClientConfig, S3IterableDataset, S3MapDataset, S3ReaderConstructor
from s3torchconnector._s3client import S3Client
from s3torchconnector.dcp import S3FileSystem, S3StorageReader, S3StorageWriter

CONFIG = S3ClientConfig(force_path_style=True, max_attempts=1)
MIB = 1 << 20


@pytest.fixture
def where(s3, bucket):
    return dict(region=s3.region, endpoint=s3.endpoint, s3client_config=CONFIG)


def test_data_sets(where, bucket, plain, data):
    for number in range(5):
        plain.put_object(Bucket=bucket, Key=f"set/{number}", Body=data(1000 + number))
    whole = S3IterableDataset.from_prefix(f"s3://{bucket}/set/", **where)
    assert {one.key: one.read() for one in whole} == {f"set/{n}": data(1000 + n) for n in range(5)}
    mapped = S3MapDataset.from_prefix(f"s3://{bucket}/set/", **where)
    assert len(mapped) == 5 and mapped[3].read() == data(1003)


def test_ranges(where, bucket, plain, data):
    plain.put_object(Bucket=bucket, Key="k", Body=data(20 * MIB))
    constructor = S3ReaderConstructor.range_based(buffer_size=MIB)
    reader = S3MapDataset.from_objects([f"s3://{bucket}/k"], reader_constructor=constructor, **where)[0]
    reader.seek(7 * MIB + 3)
    assert reader.read(100_000) == data(20 * MIB)[7 * MIB + 3 :][:100_000]


def test_checkpoint(where, bucket):
    checkpoint = S3Checkpoint(**where)
    for name, size in (("small", 10), ("big", 6 * MIB)):
        tensor = torch.arange(size, dtype=torch.float32)
        with checkpoint.writer(f"s3://{bucket}/{name}.pt") as writer:
            torch.save({"t": tensor}, writer)
        with checkpoint.reader(f"s3://{bucket}/{name}.pt") as reader:
            assert torch.equal(torch.load(reader, weights_only=True)["t"], tensor)


def test_distributed_checkpoint(where, bucket):
    """The connector's own constructors take no endpoint, so its file system is made with a client."""

    def at(kind):
        storage = kind(where["region"], f"s3://{bucket}/epoch-1/", CONFIG)
        storage.fs = S3FileSystem(where["region"], S3Client(**where))
        return storage

    state = {"w": torch.rand(1000, 1000), "b": torch.rand(7), "step": torch.tensor(3)}
    dcp.save(state, storage_writer=at(S3StorageWriter), no_dist=True)
    back = {name: torch.zeros_like(value) for name, value in state.items()}
    dcp.load(back, storage_reader=at(S3StorageReader), no_dist=True)
    assert all(torch.equal(state[name], back[name]) for name in state)
