"""Makes torch importable without the 2 GB of GPU libraries that its wheel is linked against.

Every such library that is absent gets a stand-in: the functions torch binds at load time, each
returning an error. Only the CUDA runtime is real; without a device it says so and torch stays on
the CPU. Needs the C compiler that the build needs anyway.
"""

import collections
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile

LIB = pathlib.Path(sysconfig.get_path("purelib")) / "torch/lib"
FOREIGN = re.compile(r"lib(cu|nccl|nvrtc|nvshmem_)")
REAL = {"libcudart.so.13"}
# Symbols carry their library's name as version, but for these.
VERSIONS = {"NVSHMEM": "libnvshmem_host.so.3", "": "libnccl.so.2"}


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


libraries, symbols = set(), collections.defaultdict(set)
for file in LIB.glob("lib*.so"):
    needed = re.findall(r"NEEDED.*\[(.+)\]", output("readelf", "-d", file))
    libraries |= {name for name in needed if FOREIGN.match(name)}
    for line in output("nm", "-D", "--undefined-only", file).splitlines():
        name, _, version = line.split()[-1].partition("@")
        if re.match("cu|nccl|nv", name):
            symbols[VERSIONS.get(version, version)].add(name)

with tempfile.TemporaryDirectory() as scratch:
    source, versions = pathlib.Path(scratch, "stub.c"), pathlib.Path(scratch, "stub.map")
    for library in sorted(libraries - REAL):
        names = sorted(symbols[library])
        source.write_text("".join(f"int {name}(void) {{ return 1; }}\n" for name in names))
        node = {name: version for version, name in VERSIONS.items()}.get(library, library)
        versions.write_text(f"{node} {{ global: *; }};\n")
        script = [f"-Wl,--version-script={versions}"] if node else []
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{library}", *script,
             str(source), "-o", str(LIB / library)],
            check=True,
        )

output(sys.executable, "-c", "import torch; assert torch.ones(2).sum() == 2")
