"""Makes libraries that stand for CUDA's, so that PyPI's torch runs on the CPU without them.

    python3 stubs.py SITE_PACKAGES FOLDER

PyPI's torch for x86-64 is linked with some gigabytes of CUDA, which the CPU never calls. Each library of FOLDER has the names that torch's
libraries look for, as functions that fail: no card is found. LD_LIBRARY_PATH names FOLDER afterwards. It needs nm and readelf (binutils) and cc.
"""

import pathlib
import re
import subprocess
import sys

# Names that torch's libraries look for without saying in which library, by how CUDA's begin.
UNVERSIONED = re.compile(r"^(_{0,2}nv|_{0,2}cu[A-Zdrfsb]|nccl|pnccl|cupti)")


def lines(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def main(site_packages, folder):
    libraries = sorted(pathlib.Path(site_packages, "torch", "lib").glob("*.so"))
    wanted, defined, absent = set(), set(), set()
    present = {path.name for path in libraries}
    for path in libraries:
        for line in lines("readelf", "-d", str(path)):
            if name := re.search(r"\(NEEDED\).*\[(lib(?:cu|nv|nccl)[^\]]*)\]", line):
                absent.add(name[1])
        wanted |= {line.split()[-1] for line in lines("nm", "-D", "--undefined-only", str(path))}
        defined |= {line.split()[-1].split("@")[0] for line in lines("nm", "-D", "--defined-only", str(path))}
    absent -= present
    # A name has the version of its library, which is the file's name except in NVSHMEM.
    functions = {library: {} for library in absent}
    for name in wanted:
        name, _, version = name.replace("@@", "@").partition("@")
        if version in absent:
            functions[version][name] = version
        elif version == "NVSHMEM":
            functions["libnvshmem_host.so.3"][name] = version
        elif not version and name not in defined and UNVERSIONED.match(name):
            functions["libcudart.so.13"].setdefault(name, "")
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for library, names in functions.items():
        build(folder, library, names)


def build(folder, library, names):
    """Compiles a library whose functions return 100, which is cudaErrorNoDevice; what starts with __ is for registering kernels and returns 0."""
    source, script = folder / "stub.c", folder / "stub.map"
    source.write_text("".join(f"long {name}(void) {{ return {0 if name.startswith('__') else 100}; }}\n" for name in sorted(names)))
    command = ["cc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{library}", "-o", str(folder / library), str(source)]
    if versions := sorted({version for version in names.values() if version}):
        script.write_text("".join(
            version + " { global: " + " ".join(f"{name};" for name in sorted(names) if names[name] == version) + " };\n" for version in versions))
        command.insert(1, f"-Wl,--version-script,{script}")
    subprocess.run(command, check=True)
    source.unlink()
    script.unlink(missing_ok=True)


main(*sys.argv[1:])
