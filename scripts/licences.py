#!/usr/bin/env python3
"""Prints the licences of all libraries that are linked into glimt for a target: scripts/licences.py TARGET

Each licence text stands once, after the names of all libraries that have it.
"""

import json
import pathlib
import subprocess
import sys
from collections import defaultdict

NAMES = ("licen", "copying", "notice", "copyright", "unlicense")


def linked(metadata):
    """The packages that the program is linked with, without those for building and testing."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]
    found, open_ = set(), [root]
    while open_:
        for dependency in nodes[open_.pop()]["deps"]:
            normal = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            if normal and dependency["pkg"] not in found:
                found.add(dependency["pkg"])
                open_.append(dependency["pkg"])
    # Packages without a source are glimt's own.
    return sorted((packages[id_] for id_ in found if packages[id_]["source"]), key=lambda package: (package["name"], package["version"]))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", sys.argv[1]]
    metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    packages = linked(metadata)
    if len(packages) < 50:
        sys.exit(f"only {len(packages)} libraries were found for {sys.argv[1]}")
    texts = defaultdict(list)
    out = sys.stdout.buffer
    out.write(b"glimt is linked with these libraries. Their licences follow.\n\n")
    for package in packages:
        name = f"{package['name']} {package['version']}"
        out.write(f"{name}: {package['license'] or 'see its licence file'}\n".encode())
        folder = pathlib.Path(package["manifest_path"]).parent
        for path in sorted(folder.iterdir()):
            if path.is_file() and path.name.lower().startswith(NAMES):
                texts[path.read_bytes().replace(b"\r\n", b"\n").strip()].append(name)
    for text, names in texts.items():
        out.write(b"\n" + b"=" * 80 + b"\n" + ", ".join(names).encode() + b":\n\n" + text + b"\n")


main()
