"""`forebay cp` by each path: identical bytes, the path told, and the same object for everybody else."""

import os
import pathlib
import subprocess
import sys

import pytest

MIB = 1 << 20
GIB = 1 << 30
SIZE = 150 * MIB + 7


@pytest.fixture
def big(scratch, data):
    file = scratch / "big.bin"
    with open(file, "wb") as out:
        for seed in range(SIZE // MIB):
            out.write(data(MIB, seed))
        out.write(data(SIZE % MIB))
    return file


@pytest.fixture
def aws(scratch):
    """The AWS CLI reads an object of a server whole."""

    def read(server, address, within=()):
        access_key, secret_key = server.keys
        env = {**os.environ, "AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret_key}
        program = pathlib.Path(sys.executable).parent / "aws"
        command = [*within, str(program), "--endpoint-url", server.endpoint, "s3", "cp", address, str(scratch / "aws")]
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
        return (scratch / "aws").read_bytes()

    return read


def there_and_back(forebay, aws, server, big, path, within=()):
    back = big.with_name("back.bin")
    command = forebay(server, within)
    assert command.copy(big, "fb://things/big", "--path", path) == path
    assert command.copy("fb://things/big", back, "--path", path) == path
    assert back.read_bytes() == big.read_bytes()
    assert aws(server, "s3://things/big", within) == big.read_bytes()


@pytest.mark.parametrize("path", ["shm", "iwarp", "http"])
def test_on_one_host(serve, namespace, forebay, aws, big, path):
    server = serve()
    namespace(server, "things")
    there_and_back(forebay, aws, server, big, path)


def test_between_two_network_namespaces(link, serve, namespace, forebay, aws, big):
    clean = link()
    server = serve("--insecure", host=clean.address, within=clean.within("a"))
    namespace(server, "things")
    there_and_back(forebay, aws, server, big, "iwarp", clean.within("b"))


def test_more_than_a_gibibyte_goes_in_parts(serve, namespace, forebay, scratch, data):
    server = serve()
    namespace(server, "things")
    large, back = scratch / "large", scratch / "back"
    with open(large, "wb") as out:
        for at in (0, 300 * MIB - 1, GIB - MIB + 1):
            out.seek(at)
            out.write(data(MIB, seed=at))
    assert large.stat().st_size == GIB + 1
    assert forebay(server).copy(large, "fb://things/large", "--path", "iwarp") == "iwarp"
    assert forebay(server).copy("fb://things/large", back, "--path", "shm") == "shm"
    assert subprocess.run(["cmp", str(large), str(back)]).returncode == 0


def test_the_best_path_is_taken_and_told(serve, namespace, forebay, scratch, data):
    server = serve()
    namespace(server, "things")
    file = scratch / "file"
    file.write_bytes(data(5000))
    assert "path shm" in forebay(server)("cp", file, "fb://things/file")
    assert forebay(server).copy("fb://things/file", scratch / "again") == "shm"
    assert (scratch / "again").read_bytes() == data(5000)


def test_with_the_direct_door_closed_bodies_carry_it(serve, namespace, forebay, scratch, data):
    server = serve("--no-direct")
    namespace(server, "things")
    file = scratch / "file"
    file.write_bytes(data(MIB + 1))
    command = forebay(server)
    assert command.copy(file, "fb://things/file") == "http"
    assert "path http" in command("cp", "fb://things/file", scratch / "again")
    assert (scratch / "again").read_bytes() == data(MIB + 1)
