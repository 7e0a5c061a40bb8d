"""Scripts of lab/, and what a machine cannot have of them."""

import os
import pathlib
import subprocess

import pytest

LAB = pathlib.Path(__file__).parent.parent / "lab"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
LAB_DIR = pathlib.Path(os.environ.get("LAB_DIR") or CACHE / "forebay-lab")
# The exit code of a script that wants what this machine cannot have; with any other something broke.
UNAVAILABLE = 77


def script(path, *words):
    """Runs a script to its end: its exit code and everything it said."""
    done = subprocess.run(
        [str(LAB / path), *map(str, words)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    print(done.stdout)
    return done.returncode, done.stdout


def last_line(said, code):
    return (said.strip().splitlines() or [f"exit {code}"])[-1]


def needs(what, path, *words):
    """Runs a script without which there is nothing to test."""
    code, said = script(path, *words)
    if code == UNAVAILABLE:
        pytest.skip(f"{what}: {last_line(said, code)}")
    assert code == 0, f"{what}: exit {code}\n{said}"


def root(why):
    if os.geteuid() != 0:
        pytest.skip(why)


def namespaces():
    """What network namespaces and the tap devices in them take. Root may lack it, as in a container."""
    root("only root makes network namespaces")
    if not os.path.exists("/dev/net/tun"):
        pytest.skip("no /dev/net/tun for network namespaces")
    # Scripts install `ip` where it is missing.
    try_one = "if command -v ip; then ip link set lo up; fi"
    done = subprocess.run(
        ["unshare", "--mount", "--net", "sh", "-c", try_one],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        pytest.skip("network namespaces cannot be made here")


def guest():
    """Has the guest built that runs Linux's own drivers."""
    namespaces()
    needs("the guest cannot be built", "guest-build.sh")
