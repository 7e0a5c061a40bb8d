"""A server, and modules as users write them."""

import os
import shutil

import pytest

from conftest import binary, folder
from execution import NAMESPACE, NSID, Place, run
from modules import ROOT, TRIPLE, built
from server import SPARE_FILES, Server


@pytest.fixture(scope="module")
def scratch():
    with folder() as one:
        yield one


@pytest.fixture(scope="module")
def place(request, scratch, backends):
    # More threads than doors: a tenant whose own functions have all of its threads waits for them.
    vfio_user = scratch / "vu"
    flags = [*backends(scratch.name), "--nvme-namespace", f"{NAMESPACE}={NSID}", "--vfio-user", str(vfio_user),
             "--exec-threads", "8", *getattr(request.module, "FLAGS", [])]
    server = Server(binary(), scratch / "data", flags=flags).start()
    one = Place(server, vfio_user / "cntrl")
    one.put("warm", b"")
    before = server.open_files()
    yield one
    one.close()
    after = server.open_files()
    server.stop()
    assert after <= before + SPARE_FILES, f"{after} open files, {before} before the tests"


@pytest.fixture(scope="module")
def rust(scratch):
    """`rust(name, source)`: a module made of one file of Rust, as a user makes it."""
    built("lines")

    def make(name, source, features=True):
        folder = scratch / name
        (folder / "src").mkdir(parents=True)
        (folder / "Cargo.toml").write_text(f"""
[package]
name = "{name}"
version = "0.0.0"
edition = "2024"
[workspace]
[lib]
crate-type = ["cdylib"]
[dependencies]
forebay-module = {{ path = "{ROOT / 'modules' / 'sdk'}", default-features = {str(features).lower()} }}
[profile.release]
panic = "abort"
lto = true
strip = true
""")
        (folder / "src" / "lib.rs").write_text(source)
        run(os.environ.get("CARGO", "cargo"), "build", "--quiet", "--offline", "--release", "--target", TRIPLE,
            "--target-dir", folder / "target", "--manifest-path", folder / "Cargo.toml")
        return folder / "target" / TRIPLE / "release" / f"{name}.wasm"

    return make


@pytest.fixture(scope="module")
def c(scratch):
    """`c(name, source)`: a module made of one file of C, or with `suffix="cc"` of C++."""
    compilers = [name for name in ("clang", "clang-14", "clang-16", "clang-19") if shutil.which(name)]
    if not compilers or not any(shutil.which(name) for name in ("wasm-ld", "wasm-ld-14", "wasm-ld-16", "wasm-ld-19")):
        pytest.skip("clang and lld are not installed and cannot be")

    def make(name, source, suffix="c"):
        file = scratch / f"{name}.{suffix}"
        file.write_text(source)
        wasm = scratch / f"{name}.wasm"
        run(compilers[0], "--target=wasm32", "-O2", "-ffreestanding", "-nostdlib", "-Wall", "-Wextra", "-Werror",
            "-I", ROOT / "modules" / "sdk", "-Wl,--no-entry", "-o", wasm, file)
        return wasm

    return make
