"""The lab's own scripts, on a machine that can run them."""

import shutil
import subprocess

import pytest

import laboratory
from conftest import examples


@pytest.fixture(scope="session")
def lab():
    return laboratory.script


@pytest.fixture(scope="session")
def root():
    laboratory.root("only root captures packets and makes network namespaces")


@pytest.fixture(scope="session")
def rping(root):
    """Our end of rdma-core's rping."""
    return examples() / "rping"


@pytest.fixture(scope="session")
def tshark(root):
    if shutil.which("tshark") is None and shutil.which("apt-get") is None:
        pytest.skip("tshark is not installed and there is no apt-get")
    laboratory.needs("tshark cannot be installed", "install.sh", "tshark")
    look = ["dumpcap", "-q", "-i", "lo", "-a", "duration:1", "-w", "/dev/null"]
    if subprocess.run(look, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("packets of loopback cannot be captured here")


@pytest.fixture(scope="session")
def siw(root):
    """What a guest takes that has the kernel's own iWARP."""
    laboratory.guest()
    laboratory.needs("the kernel's own iWARP cannot be built", "siw/build.sh")
