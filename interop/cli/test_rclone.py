"""rclone as Debian ships it (lists by version 1) and a current one (lists by version 2)."""

import pytest


@pytest.fixture(params=["debian", "current"])
def rclone(request, run, program, s3):
    path = program("rclone", installed=request.param == "current")
    env = {
        "RCLONE_CONFIG": "/dev/null",
        "RCLONE_CONFIG_FB_TYPE": "s3",
        "RCLONE_CONFIG_FB_PROVIDER": "Other",
        "RCLONE_CONFIG_FB_ENDPOINT": s3.endpoint,
        "RCLONE_CONFIG_FB_ACCESS_KEY_ID": s3.access_key,
        "RCLONE_CONFIG_FB_SECRET_ACCESS_KEY": s3.secret_key,
        "RCLONE_RETRIES": "1",
        "RCLONE_LOW_LEVEL_RETRIES": "1",
        "RCLONE_S3_UPLOAD_CUTOFF": "8M",
    }
    return lambda *words: run(path, *words, **env)


def test_folder_goes_in_and_comes_out(rclone, bucket, tree, tmp_path, same):
    rclone("copy", tree, f"fb:{bucket}/t")
    assert "20971525" in rclone("ls", f"fb:{bucket}/t")
    rclone("check", tree, f"fb:{bucket}/t")
    rclone("copy", f"fb:{bucket}/t", tmp_path / "back")
    same(tree, tmp_path / "back")
    rclone("sync", tree / "dir", f"fb:{bucket}/t")
    assert sorted(rclone("lsf", "-R", "--files-only", f"fb:{bucket}/t").split("\n")[:-1]) == [
        "a b+c.bin", "deep/big.bin"
    ]


def test_move_cat_purge(rclone, bucket, tree):
    rclone("copyto", tree / "dir/deep/big.bin", f"fb:{bucket}/a")
    rclone("moveto", f"fb:{bucket}/a", f"fb:{bucket}/d/b")
    assert sorted(rclone("lsf", "-R", f"fb:{bucket}").split()) == ["d/", "d/b"]
    assert len(rclone("md5sum", f"fb:{bucket}/d").split()[0]) == 32
    rclone("delete", f"fb:{bucket}/d")
    rclone("purge", f"fb:{bucket}")
    assert bucket not in rclone("lsd", "fb:")


def test_range(rclone, bucket, tmp_path):
    (tmp_path / "digits").write_text("0123456789")
    rclone("copyto", tmp_path / "digits", f"fb:{bucket}/k")
    assert rclone("cat", "--offset", "3", "--count", "4", f"fb:{bucket}/k") == "3456"
