"""The lab's own scripts, on a machine that can run them."""

import fcntl
import os
import pathlib
import shutil
import subprocess

import pytest

from conftest import examples

LAB = pathlib.Path(__file__).parent.parent.parent / "lab"
LAB_DIR = pathlib.Path(os.environ.get("LAB_DIR", pathlib.Path.home() / ".cache/forebay-lab"))


def script(path, *words):
    """Runs a script to its end: its exit code and everything it said."""
    done = subprocess.run(
        [str(LAB / path), *map(str, words)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    print(done.stdout)
    return done.returncode, done.stdout


def skip_unless_done(what, done):
    code, said = done
    if code != 0:
        last = (said.strip().splitlines() or [f"exit {code}"])[-1]
        pytest.skip(f"{what}: {last}")


@pytest.fixture(scope="session")
def lab():
    return script


@pytest.fixture(scope="session")
def root():
    if os.geteuid() != 0:
        pytest.skip("only root captures packets and makes network namespaces")


@pytest.fixture(scope="session")
def rping(root):
    """Our end of rdma-core's rping."""
    return examples() / "rping"


@pytest.fixture(scope="session")
def tshark(root):
    if shutil.which("tshark") is None and shutil.which("apt-get") is None:
        pytest.skip("tshark is not installed and there is no apt-get")
    skip_unless_done("tshark cannot be installed", script("install.sh", "tshark"))
    look = ["dumpcap", "-q", "-i", "lo", "-a", "duration:1", "-w", "/dev/null"]
    if subprocess.run(look, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("packets of loopback cannot be captured here")


@pytest.fixture(scope="session")
def siw(root):
    """A guest with the kernel's own iWARP, and no other guest meanwhile."""
    if not os.path.exists("/dev/net/tun"):
        pytest.skip("no /dev/net/tun for a guest")
    if subprocess.run(["unshare", "--net", "true"], stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("network namespaces cannot be made here")
    skip_unless_done("the guest cannot be built", script("siw/build.sh"))
    with open(LAB_DIR / "turn", "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield
