"""Modules as users write them, and modules that do harm, through every door."""

import threading

import grpc
import pytest

from execution import NAMESPACE, NVME, Refused, block
from modules import built

pytestmark = pytest.mark.timeout(600)

TABLE = b"name,amount\napples,3\npears,4.5\nnuts,x\n"


def test_the_example_in_rust(place, rust):
    module = place.allow(rust("total", block("rust")))
    place.put("table", TABLE)
    for door, run in place.doors.items():
        assert run(module, ["table"], ["1"]) == b"7.5\n", door
    place.put("more", b"beans,10")
    for door in ("cli", "grpc", "s3"):
        assert place.doors[door](module, ["table", "more"], ["1"]) == b"17.5\n", door
    for door, run in place.doors.items():
        with pytest.raises(Refused) as refused:
            run(module, ["table"], ["x"])
        assert door in NVME or "x is no column" in str(refused.value), refused.value


@pytest.fixture(scope="module")
def longest(place, c):
    """The length of an object's longest line."""
    return place.allow(c("longest", block("c")))


def test_the_example_in_c(place, longest):
    place.put("lines", b"a\n" + b"b" * 70_000 + b"\nccc")
    for door, run in place.doors.items():
        assert run(longest, ["lines"]) == b"70000\n", door


def test_a_module_in_cpp(place, c):
    """It also calls by name what compilers call by themselves."""
    source = """
#include "forebay.h"

template <typename T>
struct Piece {
    T bytes[8];
};

static volatile size_t six = 6;

FOREBAY_EXPORT(run)
{
    Piece<char> piece;
    forebay_read(0, 0, piece.bytes, sizeof piece.bytes);
    __builtin_memmove(piece.bytes + 2, piece.bytes, six);
    if (__builtin_memcmp(piece.bytes, "010123", six) != 0)
        forebay_fail(1, "backwards", 9);
    __builtin_memmove(piece.bytes, piece.bytes + 1, six);
    if (__builtin_memcmp(piece.bytes, "101240", six) >= 0)
        forebay_fail(1, "order", 5);
    forebay_write(piece.bytes, sizeof piece.bytes);
    return 0;
}
"""
    module = place.allow(c("pieces", source, suffix="cc"))
    place.put("digits", b"01234567")
    for door, run in place.doors.items():
        assert run(module, ["digits"]) == b"10123445", door


def test_the_examples_with_their_argument_in_the_command(place, rust, longest):
    """NVMe's Execute-inline has room for four bytes of it: a word of three, and its end."""
    module = place.allow(rust("column", block("rust")))
    place.put("columns", TABLE)
    assert place.by_vfio_user(module, ["columns"], ["inline", int.from_bytes(b"001\0", "little")]) == b"7.5\n"
    with pytest.raises(Refused):
        place.by_vfio_user(module, ["columns"], ["inline", int.from_bytes(b"one\0", "little")])
    place.put("rows", b"a\n" + b"b" * 70_000 + b"\nccc")
    assert place.by_vfio_user(longest, ["rows"], ["inline", 0]) == b"70000\n"


def test_a_panic_reaches_its_caller_in_words(place, rust):
    source = """
use forebay_module::{export, log};
export!(run);
fn run() -> Result<(), &'static str> {
    log("before it happened");
    let nothing: Option<u8> = std::hint::black_box(None);
    nothing.expect("there was nothing");
    Ok(())
}
"""
    module = place.allow(rust("panics", source))
    place.put("any", b"")
    for door in ("cli", "grpc", "s3"):
        with pytest.raises(Refused) as refused:
            place.doors[door](module, ["any"])
        assert "there was nothing" in str(refused.value), door
    with pytest.raises(Refused) as refused:
        place.by_cli(module, ["any"])
    assert "before it happened" in str(refused.value)


def test_a_module_without_std(place, rust):
    source = """
#![no_std]
use forebay_module::{Input, export, fail, write};
export!(run);
fn run() -> Result<(), &'static str> {
    let input = Input::first().ok_or("no input")?;
    let mut piece = [0; 64];
    let len = input.read(1, &mut piece);
    write(&piece[..len]);
    Ok(())
}
#[cfg(not(test))]
#[panic_handler]
fn panicked(_: &core::panic::PanicInfo<'_>) -> ! {
    fail(2, "panicked")
}
"""
    wasm = rust("bare", source, features=False)
    assert wasm.stat().st_size < 4096
    module = place.allow(wasm)
    place.put("short", b"0123")
    for door, run in place.doors.items():
        assert run(module, ["short"]) == b"123", door


# What each does, and what is said of that.
STOPPED, TRAPPED = "was stopped", "trapped"
TOLD = {
    "loops": f"{STOPPED}: its time", "takes all memory": f"{STOPPED}: it may not have", "reads out of bounds": TRAPPED,
    "gives the host what is out of bounds": TRAPPED, "recurses": TRAPPED, "writes for ever": STOPPED,
    "logs for ever": f"{STOPPED}: its time", "fails": "failed with code 7: on purpose",
}
HARM = {
    "loops": "volatile int on = 1; FOREBAY_EXPORT(run) { while (on) {} return 0; }",
    "takes all memory": """
        FOREBAY_EXPORT(run) { while (__builtin_wasm_memory_grow(0, 64) != (size_t)-1) {} __builtin_trap(); }""",
    "reads out of bounds": """
        static volatile size_t behind = 0xfffffff0u;
        FOREBAY_EXPORT(run) { return *(volatile char *)behind; }""",
    "gives the host what is out of bounds": """
        FOREBAY_EXPORT(run) { forebay_write((void *)0xfffffff0u, 4096); return 0; }""",
    "recurses": """
        static int deeper(int n) { volatile int here[64]; here[n & 63] = n; return deeper(n + 1) + here[n & 63]; }
        FOREBAY_EXPORT(run) { return deeper(0); }""",
    "writes for ever": """
        static char page[65536];
        FOREBAY_EXPORT(run) { for (;;) forebay_write(page, sizeof page); }""",
    "logs for ever": """
        FOREBAY_EXPORT(run) { for (;;) forebay_log("again", 5); }""",
    "fails": """FOREBAY_EXPORT(run) { forebay_fail(7, "on purpose", 10); }""",
}


def assert_told(door, refused, told):
    """What a door says of a function that was stopped, or failed."""
    code, words = refused.args
    stopped = STOPPED in told
    if door in NVME:
        status = "Command Abort Requested" if stopped else "Internal Error"
        assert code == 1 and status in words, refused
        return
    assert told in words, refused
    expected = {"cli": (1, 5), "grpc": (grpc.StatusCode.ABORTED, grpc.StatusCode.DEADLINE_EXCEEDED), "s3": (400, 400)}
    assert code == expected[door][stopped], refused


@pytest.fixture(scope="module")
def unharmed(place, longest):
    """A module that does what it should, called beside those that do not."""
    place.put("short", b"a\nbb\n")
    return lambda door: place.doors[door](longest, ["short"]) == b"2\n"


@pytest.mark.parametrize("harm", HARM)
def test_harm_is_stopped_and_its_neighbours_go_on(place, c, unharmed, harm):
    source = '#include "forebay.h"\n' + HARM[harm]
    if harm == "recurses":
        source = '#pragma clang diagnostic ignored "-Winfinite-recursion"\n' + source
    module = place.allow(c(harm.replace(" ", "_"), source))
    place.put("any", b"any")
    wrong = []

    def call(door):
        given = {} if door in NVME else {"deadline": 1000}
        try:
            with pytest.raises(Refused) as refused:
                place.doors[door](module, ["any"], **given)
            assert_told(door, refused.value, TOLD[harm])
        except BaseException as error:
            wrong.append((door, error))

    calls = [threading.Thread(target=call, args=(door,)) for door in place.doors]
    for one in calls:
        one.start()
    while any(one.is_alive() for one in calls):
        assert all(unharmed(door) for door in ("s3", "grpc"))
    for one in calls:
        one.join()
    assert not wrong
    assert all(unharmed(door) for door in place.doors)


def test_another_tenants_objects_and_modules_are_out_of_reach(place, rust):
    module = place.allow(built("digest"))
    place.put("secret", b"secret")
    place.admin("tenant", "create", "others")
    [key] = place.admin("key", "create", "others")
    theirs = (key["access_key"], key["secret_key"])
    place.admin("namespace", "create", "elsewhere", "--tenant", "others")
    for door in ("cli", "grpc", "s3"):
        # Neither with a module of another tenant's nor with one of their own.
        with pytest.raises(Refused):
            place.doors[door](module, ["secret"], keys_of=theirs)
    own = place.allow(built("lines"), tenant="others")
    for door in ("cli", "grpc", "s3"):
        with pytest.raises(Refused) as refused:
            place.doors[door](own, ["secret"], keys_of=theirs)
        assert "NoSuchBucket" in str(refused.value) or NAMESPACE in str(refused.value), refused.value


def test_nothing_runs_unless_it_is_allowed(place):
    wasm = built("blocks")
    place.put("any", b"any")
    with pytest.raises(Refused) as refused:
        place.forebay("exec", wasm, f"fb://{NAMESPACE}/any", "--function", "int8")
    assert refused.value.args[0] == 4
    module = place.allow(wasm, "int8", namespace=NAMESPACE)
    place.put("halves", bytes(4))
    for door, run in place.doors.items():
        assert run(module, ["halves"]) == bytes(4 + 2), door
    place.admin("module", "rm", module.name, "--namespace", NAMESPACE)
    for door, run in place.doors.items():
        with pytest.raises(Refused):
            run(module, ["halves"])


def test_output_becomes_an_object(place):
    module = place.allow(built("zstd"), "compress")
    place.put("text", b"forebay " * 5000)
    place.forebay("exec", module.name, f"fb://{NAMESPACE}/text", "--into", f"fb://{NAMESPACE}/by-cli")
    more = "<Output><Key>by-s3</Key><ContentType>application/zstd</ContentType></Output>"
    answer = place.by_s3(module, ["text"], more=more)
    assert b"<Key>by-s3</Key>" in answer
    assert place.get("by-s3") == place.get("by-cli")
    assert len(place.get("by-cli")) < 1000
    head = place.s3.head_object(Bucket=NAMESPACE, Key="by-s3")
    assert head["ContentType"] == "application/zstd"
    with pytest.raises(Refused) as refused:
        place.by_s3(module, ["text"], more=more, headers={"If-None-Match": "*"})
    assert refused.value.args[0] == 412
