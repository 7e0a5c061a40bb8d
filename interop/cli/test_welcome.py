"""The three commands that `forebay serve` prints at its start, run word for word by a shell."""

import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest

from conftest import binary
from server import DOORS, READY_SECONDS, STOP_SECONDS

SOURCE = pathlib.Path("/etc/os-release")


class Terminal:
    """A shell of a user who has our program and this virtual environment on the path, and nothing set up."""

    def __init__(self, home, *path):
        home.mkdir()
        self.home = home
        places = [*path, pathlib.Path(sys.executable).parent, *SYSTEM]
        self.env = {"HOME": str(home), "PATH": os.pathsep.join(map(str, places)), "LANG": "C.UTF-8"}

    def __call__(self, line):
        done = subprocess.run(
            ["sh", "-c", line], cwd=self.home, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{line}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout


SYSTEM = ["/usr/local/bin", "/usr/bin", "/bin"]


@pytest.fixture
def welcome(scratch):
    """`welcome(terminal, *words)`: what `forebay serve` prints with these words in a terminal, up to its three commands."""
    running = []

    def start(terminal, program, *words):
        said = scratch / "said"
        # Of all that it does by itself only the ports are not its own: others may have them.
        ports = [word for door in DOORS for word in (f"--{door}", "127.0.0.1:0")]
        with open(said, "wb") as out, open(scratch / "log", "wb") as log:
            process = subprocess.Popen(
                [program, "serve", *words, *ports], cwd=terminal.home, env=terminal.env, stdin=subprocess.DEVNULL,
                stdout=out, stderr=log,
            )
        running.append(process)
        deadline = time.monotonic() + READY_SECONDS
        while "\nTry, " not in (text := said.read_text()) or not text.endswith("\n\n"):
            assert process.poll() is None, f"exit {process.returncode}\n{(scratch / 'log').read_text()}"
            assert time.monotonic() < deadline, f"nothing to try in\n{text}"
            time.sleep(0.01)
        return text

    yield start
    for process in running:
        process.terminate()
        try:
            code = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        assert code == 0


def commands(text):
    lines = text.partition("\nTry, in another terminal:\n")[2].split("\n")
    assert lines[3:] == ["", ""] and all(line.startswith("  ") for line in lines[:3]), text
    return [line.removeprefix("  ") for line in lines[:3]]


def follow(text, terminal):
    """Each command does what the one before it made possible."""
    store, list_them, read = commands(text)
    terminal(store)
    listed = terminal(list_them).split()
    assert listed[-2:] == [str(SOURCE.stat().st_size), "hello"] and len(listed) == 4
    # What Python prints ends with a newline of its own.
    assert terminal(read) == SOURCE.read_text() + "\n"


@pytest.fixture
def has(program):
    """The two clients are those of this environment, which the commands find by name."""
    assert pathlib.Path(program("aws")).parent == pathlib.Path(sys.executable).parent
    pytest.importorskip("boto3")


def test_by_name_in_the_default_directory(scratch, welcome, has):
    if binary().name != "forebay":
        pytest.skip(f"{binary()} is not called forebay")
    terminal = Terminal(scratch / "home", binary().resolve().parent)
    text = welcome(terminal, "forebay")
    assert (terminal.home / "forebay-data" / "credentials").exists()
    store, list_them, read = commands(text)
    assert store.startswith("forebay cp ")
    assert " aws --endpoint-url http://" in list_them and " python3 -c " in read
    follow(text, terminal)


def test_by_path_in_a_directory_that_needs_quotes(scratch, welcome, has):
    terminal = Terminal(scratch / "home")
    text = welcome(terminal, str(binary().resolve()), "it's my data")
    assert commands(text)[0].startswith(str(binary().resolve()))
    follow(text, terminal)


def test_with_tls(scratch, welcome, has, certificate):
    """They name a file CA.pem in the folder where they are run: that is the user's to bring."""
    terminal = Terminal(scratch / "home")
    shutil.copyfile(certificate.ca, terminal.home / "CA.pem")
    text = welcome(terminal, str(binary().resolve()), *certificate.flags)
    assert all("CA.pem" in command and "http:" not in command for command in commands(text))
    follow(text, terminal)
