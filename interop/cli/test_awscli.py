"""AWS CLI version 1: cp, ls, sync, mv, rm, and its low-level calls."""

import json

import pytest


@pytest.fixture
def aws(run, program, s3):
    return lambda *words: run(program("aws"), "--endpoint-url", s3.endpoint, *words)


def test_folder_goes_in_and_comes_out(aws, bucket, tree, tmp_path, same):
    aws("s3", "cp", "--recursive", tree, f"s3://{bucket}/t/")
    listed = aws("s3", "ls", "--recursive", f"s3://{bucket}/t/")
    assert "dir/a b+c.bin" in listed and str(20 * (1 << 20) + 5) in listed
    assert "PRE dir/" in aws("s3", "ls", f"s3://{bucket}/t/")
    aws("s3", "sync", f"s3://{bucket}/t/", tmp_path / "back")
    same(tree, tmp_path / "back")
    assert aws("s3", "sync", tree, f"s3://{bucket}/t/").strip() == ""


def test_move_copy_remove(aws, bucket, tree):
    aws("s3", "cp", tree / "small.txt", f"s3://{bucket}/a")
    aws("s3", "mv", f"s3://{bucket}/a", f"s3://{bucket}/b")
    aws("s3", "cp", f"s3://{bucket}/b", f"s3://{bucket}/c")
    aws("s3", "rm", "--recursive", f"s3://{bucket}/")
    assert aws("s3", "ls", f"s3://{bucket}/").strip() == ""
    aws("s3", "rb", f"s3://{bucket}")


def test_low_level(aws, bucket, tree, tmp_path):
    put = json.loads(aws("s3api", "put-object", "--bucket", bucket, "--key", "k", "--body", tree / "small.txt"))
    part = json.loads(aws("s3api", "get-object", "--bucket", bucket, "--key", "k", "--range", "bytes=2-5",
                          tmp_path / "part"))
    assert put["ETag"] == part["ETag"]
    assert (tmp_path / "part").read_bytes() == (tree / "small.txt").read_bytes()[2:6]
    assert "k" in aws("s3api", "list-objects", "--bucket", bucket)


def test_standard_streams(program, s3, bucket, data, run, tmp_path):
    (tmp_path / "in").write_bytes(data(9 << 20))
    line = f'"$1" --endpoint-url {s3.endpoint} s3 cp'
    run("sh", "-c", f'{line} - s3://{bucket}/k < "$2"', "sh", program("aws"), tmp_path / "in")
    run("sh", "-c", f'{line} s3://{bucket}/k - > "$2"', "sh", program("aws"), tmp_path / "out")
    assert (tmp_path / "in").read_bytes() == (tmp_path / "out").read_bytes()
