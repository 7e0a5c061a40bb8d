"""A server that is started anew has the modules that were allowed, and compiles nothing that it compiled before."""

import urllib.request

import pytest

from execution import Refused, block

pytestmark = pytest.mark.timeout(600)


def made(place):
    """How often the server found a module compiled by a former process, and how often it compiled one itself."""
    with urllib.request.urlopen(f"http://{place.server.console}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    told = dict(line.rsplit(" ", 1) for line in lines if line.startswith("forebay_exec_modules_"))
    return tuple(int(told[f"forebay_exec_modules_{what}_total"]) for what in ("restored", "compiled"))


def test_what_was_compiled_outlives_the_server(place, c):
    module = place.allow(c("longest", block("c")))
    place.put("lines", b"a\nbbb\ncc")
    for _ in range(2):
        assert place.by_cli(module, ["lines"]) == b"3\n"
    assert made(place) == (0, 1)
    kept = place.server.directory / "modules"
    # An interpreter keeps nothing.
    again = (1, 0) if kept.exists() else (0, 1)
    for end in (place.server.stop, place.server.kill):
        end()
        place.server.start()
        for _ in range(2):
            assert place.by_cli(module, ["lines"]) == b"3\n"
        assert made(place) == again
    place.admin("module", "rm", module.name)
    with pytest.raises(Refused):
        place.by_cli(module, ["lines"])
