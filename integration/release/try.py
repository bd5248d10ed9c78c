"""Build everything twice, and install it where nothing of a builder is.

    python3 integration/release/try.py

The second build, of a copy of the checkout in another folder, has to give the same bytes. Then the wheel goes into a
new environment whose PATH has neither Go nor a compiler, the image's files into a folder that becomes the root of a
process, and the packages' files into others; the demo runs from wheel and image. What needs root, or a program that is
not there, is left out, and a line says so.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MACHINES = {"amd64": ("x86_64", 62), "arm64": ("aarch64", 183)}  # the names of wheels and RPM, and ELF's


def run(*args: str | Path, env: dict[str, str] | None = None) -> str:
    """Run a command that has to succeed, and return what it prints."""
    done = subprocess.run(list(map(str, args)), env=env, text=True, capture_output=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, args))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def build(checkout: Path, out: Path, *options: str) -> None:
    """Build from a checkout."""
    print(f"build {out.name} ...", flush=True)
    run("go", "-C", checkout / "integration/release", "run", ".", "--out", out, "--python", sys.executable, *options)


def copy_checkout(to: Path) -> Path:
    """Clone the checkout's commit, with the changes that are not committed."""
    run("git", "clone", "--quiet", "--no-hardlinks", ROOT, to)
    run("git", "-C", to, "checkout", "--quiet", run("git", "-C", ROOT, "rev-parse", "HEAD").strip())
    changes = subprocess.run(["git", "-C", ROOT, "diff", "--binary", "HEAD"], check=True, capture_output=True).stdout
    if changes:
        subprocess.run(["git", "-C", to, "apply", "--whitespace=nowarn"], check=True, input=changes)
    for name in run("git", "-C", ROOT, "ls-files", "--others", "--exclude-standard", "-z").split("\0"):
        if name:
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    return to


def check_list(file: Path, version: str, *, gpu: bool) -> None:
    """Look at the list of what is linked: the image's program has no part of the GPU's library, none has a test's."""
    found = json.loads(file.read_text())
    names = {c["name"] for c in found["components"]}
    if found["metadata"]["component"]["version"] != version or "github.com/alecthomas/kong" not in names:
        sys.exit(f"{file.name} is no list of kvconnd {version}")
    if ("github.com/ebitengine/purego" in names) != gpu or names & {"github.com/go-zeromq/zmq4", "pgregory.net/rapid"}:
        sys.exit(f"{file.name} lists {sorted(names)}")


def check_sums(out: Path) -> dict[str, str]:
    """Compare the files with their checksums, which are returned by name."""
    sums = dict(reversed(line.split("  ")) for line in (out / "SHA256SUMS").read_text().splitlines())
    there = {f.name for f in out.iterdir()} - {"SHA256SUMS"}
    if there != set(sums):
        sys.exit(f"SHA256SUMS has {sorted(sums)}, the folder {sorted(there)}")
    for name, want in sums.items():
        if hashlib.sha256((out / name).read_bytes()).hexdigest() != want:
            sys.exit(f"{name} is not what SHA256SUMS says")
    return sums


def check_machine(name: str, program: bytes, arch: str) -> None:
    """Check that a program is for an architecture: what is built for the other one does not run here."""
    if program[:4] != b"\x7fELF" or int.from_bytes(program[18:20], "little") != MACHINES[arch][1]:
        sys.exit(f"{name} has a program that is not for {arch}")


def check_version(what: str, printed: str, version: str, *, gpu: bool) -> None:
    """Check what `kvconnd version --json` says."""
    told = json.loads(printed)
    commit = run("git", "-C", ROOT, "rev-parse", "HEAD").strip()
    if (told["version"], told.get("commit"), told["gpu"]) != (version, commit, gpu):
        sys.exit(f"{what}: kvconnd says {told}, want {version} of {commit} with gpu {gpu}")
    print(f"{what}: {json.dumps(told)}")


def try_wheel(wheel: Path, tmp: Path, version: str) -> None:
    """Install the wheel into a new environment, and run the demo with nothing else on the PATH."""
    venv = tmp / "venv"
    run(sys.executable, "-m", "venv", venv)
    run(venv / "bin/pip", "--disable-pip-version-check", "install", "--quiet", wheel)
    clean = {"PATH": str(venv / "bin"), "HOME": str(tmp), "TMPDIR": str(tmp)}
    if shutil.which("go", path=clean["PATH"]) or shutil.which("gcc", path=clean["PATH"]):
        sys.exit("the environment for the wheel has a compiler")
    check_version("wheel", run("kvconnd", "version", "--json", env=clean), version, gpu=True)
    plugin = run(
        venv / "bin/python", "-c", "import kvconn, kvconn.client; print(kvconn.__version__)", env=clean
    ).strip()
    if plugin != version:
        sys.exit(f"the plugin says that it is {plugin}, want {version}")
    config = run("kvconnd", "config", "vllm", "--socket", "/run/kvconn/kvconnd.sock", env=clean)
    if json.loads(config)["kv_connector_module_path"] != "kvconn.vllm":
        sys.exit(f"kvconnd config vllm says {config}")
    print(run("kvconnd", "demo", env=clean))
    run(venv / "bin/pip", "--disable-pip-version-check", "uninstall", "--quiet", "--yes", "kvconn")
    if (venv / "bin/kvconnd").exists():
        sys.exit("kvconnd is still there after its wheel was uninstalled")


def try_tarball(archive: Path, tmp: Path, version: str) -> None:
    """Unpack the archive and run what is in it."""
    with tarfile.open(archive) as tar:
        tar.extractall(tmp / "tarball", filter="tar")
    program = next((tmp / "tarball").glob("*/kvconnd"))
    check_version("tarball", run(program, "version", "--json"), version, gpu=True)


def try_deb(package: Path, tmp: Path, version: str) -> None:
    """Unpack the package; its program takes the settings that it has, and systemd its unit."""
    if not shutil.which("dpkg-deb"):
        print("deb: left out, there is no dpkg-deb")
        return
    if run("dpkg-deb", "--field", package, "Version").strip() != f"{version}-1":
        sys.exit(f"{package.name} has another version")
    there = tmp / "deb"
    run("dpkg-deb", "--extract", package, there)
    check_version("deb", run(there / "usr/bin/kvconnd", "version", "--json"), version, gpu=True)
    run(there / "usr/bin/kvconnd", "config", "show", "--config", there / "etc/kvconn/kvconnd.yaml")
    if not shutil.which("systemd-analyze"):
        print("unit: not verified, there is no systemd-analyze")
        return
    unit = tmp / "kvconnd.service"  # systemd wants the program to be where the unit says
    text = (there / "usr/lib/systemd/system/kvconnd.service").read_text()
    unit.write_text(text.replace("/usr/bin/kvconnd", str(there / "usr/bin/kvconnd")))
    run("systemd-analyze", "verify", "--man=no", unit)


def try_rpm(package: Path, version: str) -> None:
    """Let rpm look at the package. The Go tests read it, too."""
    if not shutil.which("rpm"):
        print("rpm: read by the Go tests alone, there is no rpm here")
        return
    run("rpm", "--checksig", package)
    if run("rpm", "--query", "--package", "--queryformat", "%{VERSION}-%{RELEASE}", package) != f"{version}-1":
        sys.exit(f"{package.name} has another version")
    if "/usr/bin/kvconnd" not in run("rpm", "--query", "--package", "--list", package).split():
        sys.exit(f"{package.name} has no kvconnd")


def unpack_image(archive: Path, there: Path) -> dict:
    """Unpack the layers of an image and return its configuration."""
    with tarfile.open(archive) as tar:

        def blob(digest: str) -> tarfile.ExFileObject:
            return tar.extractfile("blobs/" + digest.replace(":", "/"))

        index = json.load(tar.extractfile("index.json"))
        manifest = json.load(blob(index["manifests"][0]["digest"]))
        for layer in manifest["layers"]:
            with tarfile.open(fileobj=blob(layer["digest"])) as files:
                files.extractall(there, filter="tar")
        return json.load(blob(manifest["config"]["digest"]))["config"]


def try_image(archive: Path, tmp: Path, version: str) -> None:
    """Run the image's command in its own files, with /proc and /dev/null, which every runtime gives."""
    if os.geteuid() != 0:
        print("image: left out, this is not root")
        return
    there = tmp / "image"
    config = unpack_image(archive, there)
    (there / "proc").mkdir()
    (there / "dev").mkdir()
    os.mknod(there / "dev/null", 0o20666, os.makedev(1, 3))
    isolated = [
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        f"--root={there}",
        "--mount-proc",
        "--",
        *config["Entrypoint"],
    ]
    env = dict(line.split("=", 1) for line in config["Env"]) | {"PATH": os.environ["PATH"]}
    if subprocess.run([*isolated, "--version"], env=env, capture_output=True).returncode != 0:
        print("image: no namespaces here, so it runs in a chroot alone")
        shutil.rmtree(there / "proc")
        isolated = ["chroot", str(there), *config["Entrypoint"]]
        check_version("image", run(*isolated, "version", "--json", env=env), version, gpu=False)
        return
    check_version("image", run(*isolated, "version", "--json", env=env), version, gpu=False)
    print(run(*isolated, "demo", env=env))


def main() -> None:
    """Build, compare, install."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--once", action="store_true", help="build once, without the comparison")
    args = parser.parse_args()
    version = (ROOT / "internal/version/number.txt").read_text().strip()
    arch = {machine: arch for arch, (machine, _) in MACHINES.items()}[platform.machine()]
    with tempfile.TemporaryDirectory(prefix="kvconn-") as folder:
        tmp = Path(folder)
        out = tmp / "first"
        build(ROOT, out)
        sums = check_sums(out)
        if not args.once:
            # One architecture will do: what differs by accident differs in both.
            build(copy_checkout(tmp / "elsewhere"), tmp / "second", "--arch", arch)
            second = check_sums(tmp / "second")
            if differ := [name for name in second if sums[name] != second[name]]:
                sys.exit(f"two builds differ: {differ}")
            print(f"the same bytes twice: {len(second)} files")
        for a, (machine, _) in MACHINES.items():
            with zipfile.ZipFile(out / f"kvconn-{version}-py3-none-manylinux_2_17_{machine}.whl") as wheel:
                check_machine("the wheel", wheel.read(f"kvconn-{version}.data/scripts/kvconnd"), a)
            with tarfile.open(out / f"kvconnd-{version}-linux-{a}.tar.gz") as tar:
                check_machine("the tarball", tar.extractfile(f"kvconnd-{version}-linux-{a}/kvconnd").read(), a)
            for kind, linked in (("linux", True), ("image", False)):
                check_list(out / f"kvconnd-{version}-{kind}-{a}.cdx.json", version, gpu=linked)
        machine = MACHINES[arch][0]
        try_wheel(out / f"kvconn-{version}-py3-none-manylinux_2_17_{machine}.whl", tmp, version)
        try_tarball(out / f"kvconnd-{version}-linux-{arch}.tar.gz", tmp, version)
        try_deb(out / f"kvconnd_{version}-1_{arch}.deb", tmp, version)
        try_rpm(out / f"kvconnd-{version}-1.{machine}.rpm", version)
        try_image(out / f"kvconnd-{version}-image-{arch}.tar", tmp, version)
    print("all of it installs and runs")


if __name__ == "__main__":
    main()
