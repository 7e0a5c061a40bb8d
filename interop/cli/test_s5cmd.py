"""s5cmd: many small requests at once, multipart both ways."""

import pytest


@pytest.fixture
def s5cmd(run, program, s3):
    return lambda *words: run(program("s5cmd"), "--endpoint-url", s3.endpoint, *words)


def test_folder_goes_in_and_comes_out(s5cmd, bucket, tree, tmp_path, same):
    s5cmd("cp", f"{tree}/", f"s3://{bucket}/t/")
    listed = s5cmd("ls", f"s3://{bucket}/t/*")
    assert "dir/deep/big.bin" in listed
    s5cmd("cp", f"s3://{bucket}/t/*", f"{tmp_path}/back/")
    same(tree, tmp_path / "back")
    s5cmd("sync", f"{tree}/", f"s3://{bucket}/t/")


def test_copy_move_cat_remove(s5cmd, bucket, tree):
    s5cmd("cp", tree / "small.txt", f"s3://{bucket}/a")
    s5cmd("cp", f"s3://{bucket}/a", f"s3://{bucket}/b")
    s5cmd("mv", f"s3://{bucket}/b", f"s3://{bucket}/c")
    assert "12" in s5cmd("du", f"s3://{bucket}/c")
    s5cmd("rm", f"s3://{bucket}/*")
    s5cmd("rb", f"s3://{bucket}")


def test_many(s5cmd, bucket, tmp_path, data, same):
    many = tmp_path / "many"
    many.mkdir()
    for number in range(500):
        (many / f"{number:04}").write_bytes(data(number * 7, seed=number))
    s5cmd("--numworkers", "32", "cp", f"{many}/", f"s3://{bucket}/m/")
    s5cmd("--numworkers", "32", "cp", f"s3://{bucket}/m/*", f"{tmp_path}/back/")
    same(many, tmp_path / "back")
