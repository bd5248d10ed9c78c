"""Build the libraries that a CUDA build of torch loads, without NVIDIA's: fakes of the driver, the runtime and NVML,
and stand-ins for the others.

    export LD_LIBRARY_PATH=$(python3 integration/gpu/fakecudart/build.py --torch DIR --headers DIR --out DIR)

A stand-in has the names and versions that torch's libraries ask the loader for. Its functions refuse whatever they are
asked: they answer 801, or a text where the name says that they answer one.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
DRIVER = HERE.parent / "fakecuda"
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-Wmissing-prototypes", "-fPIC", "-shared")

# Libraries that every machine with glibc and GNU C++ has.
SYSTEM = re.compile(r"(lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|gomp)|ld-linux.*)\.so\.\d+")
# Names without a version, by how they begin. The driver's own are looked for in what libcaffe2_nvrtc.so links, and
# those that the fake driver lacks come from that one's other library.
PREFIXES = {
    "nccl": "libnccl.so.2",
    "cusparseLt": "libcusparseLt.so.0",
    "cuFile": "libcufile.so.0",
    "nvshmem": "libnvshmem_host.so.3",
    "cu": "libnvrtc.so.13",
}
UNVERSIONED = re.compile(r"(nccl|cusparseLt|cuFile|nvshmem|cu)[A-Z_]\w*")
TEXT = re.compile(r"String|ErrorName|LastError$")


class Exports:
    """What a library has for others, what it wants of others, and the libraries that it asks for."""

    def __init__(self, library: Path) -> None:
        done = subprocess.run(
            ["readelf", "--wide", "--dynamic", "--dyn-syms", "--version-info", str(library)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "LC_ALL": "C"},
        )
        self.needed = re.findall(r"\(NEEDED\).*\[(.+)\]", done.stdout)
        self.defined: set[str] = set()
        self.wanted: set[tuple[str, str]] = set()
        self.versions: dict[str, str] = {}  # to which library each belongs
        soname = ""
        for line in done.stdout.splitlines():
            if found := re.search(r" File: (\S+)  Cnt: ", line):
                soname = found[1]
            elif found := re.search(r"  Name: (\S+)  Flags: .*  Version: ", line):
                self.versions[found[1]] = soname
            fields = line.split()
            if len(fields) < 8 or not fields[0].endswith(":") or fields[4] == "LOCAL":
                continue
            name, _, version = fields[7].partition("@")
            if fields[6] != "UND":
                self.defined.add(name)
            elif fields[4] == "GLOBAL":
                self.wanted.add((name, version.lstrip("@")))


def compile_library(out: Path, soname: str, sources: Iterable[Path], *more: str) -> Path:
    """Compile a shared library."""
    target = out / soname
    command = ["gcc", *FLAGS, f"-Wl,-soname,{soname}", "-o", str(target), *(str(s) for s in sources), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    if done.returncode:
        raise RuntimeError(f"{soname}: {done.stderr}")
    return target


def wishes(libraries: Iterable[Path], driver: Path) -> dict[str, dict[str, set[str]]]:
    """The names that each missing library should have, by its soname and the version of the name."""
    read = [Exports(library) for library in libraries]
    present = {library.name for library in libraries} | {driver.name}
    defined = Exports(driver).defined.union(*(r.defined for r in read))
    names: dict[str, dict[str, set[str]]] = {}
    for library in read:
        # An entry that is never looked up by name must exist, too.
        names.update({soname: defaultdict(set) for soname in library.needed if soname not in names})
    for library in read:
        for name, version in library.wanted:
            if version:
                names[library.versions[version]][version].add(name)
            elif name not in defined and UNVERSIONED.fullmatch(name):
                soname = next(soname for prefix, soname in PREFIXES.items() if name.startswith(prefix))
                names[soname][""].add(name)
    return {soname: wanted for soname, wanted in names.items() if not (soname in present or SYSTEM.fullmatch(soname))}


def version_script(out: Path, soname: str, names: dict[str, set[str]]) -> list[str]:
    """The option for the linker that gives names the versions that they have in NVIDIA's library."""
    lines = [
        f"{version} {{ global: {' '.join(f'{n};' for n in sorted(names[version]))} }};" for version in names if version
    ]
    script = out / f"{soname}.version"
    script.write_text("\n".join(lines) + "\n")
    return [f"-Wl,--version-script={script}"] if lines else []


def stand_in(out: Path, soname: str, names: Iterable[str]) -> Path:
    """A source with names that refuse."""
    lines = ['#include "standin.h"']
    lines += [f"{'TEXT' if TEXT.search(name) else 'REFUSES'}({name})" for name in sorted(names)]
    source = out / f"{soname}.c"
    source.write_text("\n".join(lines) + "\n")
    return source


def build(torch: Path, headers: Iterable[Path], out: Path) -> Path:
    """Build all libraries for the torch that lies in a folder, with NVIDIA's headers, and return their folder."""
    sources = out / "sources"
    sources.mkdir(parents=True, exist_ok=True)
    include = [f"-I{folder}" for folder in headers]
    driver = compile_library(out, "libcuda.so.1", sorted(DRIVER.glob("*.c")), "-lpthread")
    wanted = wishes(sorted((torch / "torch" / "lib").glob("*.so")), driver)
    runtime = sorted(HERE.glob("*.c"))
    for soname, names in wanted.items():
        mine, more = [], [*version_script(sources, soname, names), f"-I{HERE}"]
        bodies = set().union(*names.values())
        if soname.startswith("libcudart."):
            mine = runtime
            more += [*include, str(driver), "-lpthread"]
            bare = compile_library(sources, soname, mine, *more)
            bodies -= Exports(bare).defined
        compile_library(out, soname, [*mine, stand_in(sources, soname, bodies)], *more)
    compile_library(out, "libnvidia-ml.so.1", [HERE / "nvml" / "nvml.c"])
    return out


def main() -> None:
    """Build and print the folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--torch", type=Path, required=True, help="the folder that has the package torch")
    parser.add_argument("--headers", required=True, help="folders with cuda_runtime_api.h, separated by colons")
    parser.add_argument("--out", type=Path, required=True, help="where the libraries go")
    args = parser.parse_args()
    print(build(args.torch, [Path(folder) for folder in args.headers.split(":")], args.out))


if __name__ == "__main__":
    main()
