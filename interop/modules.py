"""The modules that come with the source, as `cargo xtask modules` builds them."""

import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
TRIPLE = "wasm32-unknown-unknown"
MODULES = pathlib.Path(os.environ.get("FOREBAY_MODULES", ROOT / "target" / TRIPLE / "release"))


def built(name):
    """The file of the module of this name. The test that asks is skipped where it is not there."""
    wasm = MODULES / f"{name}.wasm"
    return wasm if wasm.exists() else pytest.skip(f"{wasm} is not built: `cargo xtask modules` builds it")
