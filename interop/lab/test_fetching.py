"""What the lab's scripts cannot fetch is a skip, and a failure where CI is set; what nobody has for this machine is a skip there, too."""

import os
import subprocess

import pytest

from laboratory import LAB, UNAVAILABLE

BROKEN = 2
# Root, on a machine without the package, whose apt says this.
INSTALL = """
. "$1/lab-lib.sh"
id() { echo 0; }
dpkg-query() { return 1; }
apt-get() { :; }
lab_host_install() { echo "$SAID"; return 100; }
need_host_pkgs tshark
"""
CUT_OFF = "E: Failed to fetch http://mirror/tshark.deb  Could not connect to mirror:80"
UNKNOWN = "E: Unable to locate package tshark"


@pytest.mark.parametrize(
    "said, ci, code",
    [(CUT_OFF, "", UNAVAILABLE), (CUT_OFF, "true", BROKEN), (UNKNOWN, "true", UNAVAILABLE)],
    ids=["cut off", "cut off in CI", "unknown in CI"],
)
def test_what_cannot_be_fetched(tmp_path, said, ci, code):
    done = subprocess.run(
        ["bash", "-c", INSTALL, "install", str(LAB)],
        env={**os.environ, "LAB_DIR": str(tmp_path), "CI": ci, "SAID": said},
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )
    assert done.returncode == code, done.stderr
    assert "could not install: tshark" in done.stderr
