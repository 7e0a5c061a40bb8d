"""s3cmd: asks for the location before each command, lists by version 1, sets ACLs when it moves."""

import pytest


@pytest.fixture
def s3cmd(run, program, s3, tmp_path):
    config = tmp_path / "s3cfg"
    host = s3.endpoint.removeprefix("http://")
    config.write_text(
        f"[default]\naccess_key = {s3.access_key}\nsecret_key = {s3.secret_key}\n"
        f"host_base = {host}\nhost_bucket = {host}\nuse_https = False\n"
        "multipart_chunk_size_mb = 5\nmax_retries = 1\n"
    )
    path = program("s3cmd")
    return lambda *words: run(path, "-c", config, "--no-progress", *words)


def test_folder_goes_in_and_comes_out(s3cmd, bucket, tree, tmp_path, same):
    s3cmd("sync", f"{tree}/", f"s3://{bucket}/t/")
    assert "20971525" in s3cmd("ls", "-r", f"s3://{bucket}/t/")
    (tmp_path / "back").mkdir()
    s3cmd("sync", f"s3://{bucket}/t/", f"{tmp_path}/back/")
    same(tree, tmp_path / "back")


def test_info_copy_move_delete(s3cmd, bucket, tree):
    s3cmd("put", tree / "small.txt", f"s3://{bucket}/a")
    assert "12" in s3cmd("info", f"s3://{bucket}/a")
    s3cmd("cp", f"s3://{bucket}/a", f"s3://{bucket}/b")
    s3cmd("mv", f"s3://{bucket}/b", f"s3://{bucket}/c")
    s3cmd("del", "--recursive", "--force", f"s3://{bucket}/")
    assert s3cmd("ls", f"s3://{bucket}/").strip() == ""
    s3cmd("rb", f"s3://{bucket}")
