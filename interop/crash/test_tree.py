"""A real folder and a very large file go in, survive a kill -9, and come out identical.

Ten thousand files and 5 GiB where FOREBAY_KILLS asks for thoroughness, else a tenth and less.
"""

import filecmp
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

import pytest

from conftest import binary
from server import Server

THOROUGH = int(os.environ.get("FOREBAY_KILLS", "0")) >= 200
FILES = 10_000 if THOROUGH else 1_000
LARGE_BYTES = (5 << 30) + 4097 if THOROUGH else (100 << 20) + 4097


def real_files(into):
    """Copies files as they are found on this machine, until there are enough."""
    roots = [sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), "/usr/share", "/usr/lib"]
    count = 0
    for number, root in enumerate(roots):
        for folder, _, names in os.walk(root):
            for name in names:
                source = pathlib.Path(folder, name)
                if source.is_symlink() or not source.is_file() or source.stat().st_size > 4 << 20:
                    continue
                target = into / str(number) / source.relative_to(root)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
                count += 1
                if count == FILES:
                    return
    pytest.fail(f"only {count} files on this machine")


def same(left, right):
    """Paths that differ or are in one place only."""
    comparison = filecmp.dircmp(left, right, ignore=[], hide=[])
    yield from comparison.left_only + comparison.right_only + comparison.funny_files
    _, different, failed = filecmp.cmpfiles(left, right, comparison.common_files, shallow=False)
    yield from different + failed
    for name in comparison.common_dirs:
        yield from same(left / name, right / name)


@pytest.mark.timeout(1800)
def test_tree_and_large_file(scratch):
    source = scratch / "in"
    source.mkdir()
    real_files(source)
    with open("/dev/urandom", "rb") as random, open(source / "large", "wb") as large:
        left = LARGE_BYTES
        while left > 0:
            left -= large.write(random.read(min(left, 8 << 20)))
    server = Server(binary(), scratch / "data").start()
    access_key, secret_key = server.keys
    env = {**os.environ, "AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret_key}

    def s5cmd(*words):
        program = pathlib.Path(sys.executable).parent / "s5cmd"
        command = [program, "--log", "error", "--endpoint-url", server.endpoint, "--numworkers", "16"]
        subprocess.run([*command, *words], env=env, check=True)

    s5cmd("mb", "s3://tree")
    s5cmd("cp", f"{source}/", "s3://tree/")
    server.kill()
    server.start()
    before = server.held()
    s5cmd("cp", "s3://tree/*", f"{scratch}/out/")
    server.settled(before)
    server.stop()
    assert not list(same(source, scratch / "out"))
