"""Running command-line clients, and the files they move."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

MIB = 1 << 20
TREE = {"small.txt": 12, "empty": 0, "dir/a b+c.bin": 70_000, "dir/deep/big.bin": 20 * MIB + 5}


@pytest.fixture
def run():
    """Runs a command that must succeed and gives back what it printed."""

    def command(*words, **env):
        done = subprocess.run(
            [str(word) for word in words], env={**os.environ, **env}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
        )
        assert done.returncode == 0, f"{words}: exit {done.returncode}\n{done.stdout}"
        return done.stdout

    return command


@pytest.fixture
def program():
    """The path of a program of this virtual environment, or else of the machine."""

    def find(name, installed=True):
        own = pathlib.Path(sys.executable).parent / name
        path = str(own) if installed and own.exists() else shutil.which(name, path=SYSTEM_PATH)
        return path or pytest.skip(f"{name} is not installed")

    return find


SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


@pytest.fixture
def tree(tmp_path, data):
    root = tmp_path / "tree"
    for name, size in TREE.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data(size, seed=size))
    return root


@pytest.fixture
def same():
    """Two folders hold the same files with the same bytes."""

    def check(left, right):
        def files(root):
            return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}

        assert files(left) == files(right)

    return check
