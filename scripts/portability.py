#!/usr/bin/env python3
"""Runs the compilers that scripts/portability fetched on the shaders that crates/lab/tests/portability wrote, and makes a table of what they say.

    python3 scripts/portability.py FOLDER [--sample N] [--of NAMES] [--kept | --results] [--write]
"""

import argparse
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

from spirv_layouts import without_idle_layouts

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "portability.md"
# Columns: (language of the index, compiler, heading). A language may be read by several compilers.
COLUMNS = [
    ("hlsl-6.2", "dxc-1.7", "DXC 1.7, 6.2"),
    ("hlsl-6.4", "dxc-1.7", "DXC 1.7, 6.4"),
    ("hlsl-6.2", "dxc-1.9", "DXC 1.9, 6.2"),
    ("hlsl-6.4", "dxc-1.9", "DXC 1.9, 6.4"),
    ("spirv-1.3", "spirv-val", "Vulkan 1.1"),
    ("spirv-1.6", "spirv-val", "Vulkan 1.3"),
    ("wgsl", "tint", "Tint"),
    ("msl", "naga", "Metal"),
]


def read_index(shaders):
    """(kernel, tier, devices, language, file, reason) of each line."""
    lines = (shaders / "index.tsv").read_text().splitlines()
    return [tuple(line.split("\t")) for line in lines]


def sampled(index, every):
    """The files to read: all, or of each kernel, tier, devices and language every so manieth and at least one."""
    groups = defaultdict(dict)
    for kernel, tier, devices, language, file, _ in index:
        if file:
            groups[kernel, tier, devices, language][file] = tier
    return {file: tier for files in groups.values() for file, tier in list(files.items())[::every]}


def listed(command, lines, **options):
    """Runs a program that reads a list and prints a line for each file that is refused, then `done N`."""
    done = subprocess.run(command, input="".join(f"{line}\n" for line in lines), stdout=subprocess.PIPE, text=True, **options)
    printed = [line for line in done.stdout.splitlines() if line]
    if done.returncode or not printed or printed[-1] != f"done {len(lines)}":
        sys.exit(f"{command[0]} ended with {done.returncode} after {printed[-1:]}, not with \"done {len(lines)}\"")
    return [line.split("\t") for line in printed[:-1]]


def with_casts(shaders, file):
    """The file with a type for a literal that DXC 1.7 takes for 64 bits wide (docs/portability.md), elsewhere; or itself."""
    text = (shaders / file).read_text()
    lines = text.split("\n")
    cast = "\n".join(line.replace(", 0)", ", (int)0)") if "dot4add_" in line else line for line in lines)
    if cast == text:
        return file
    other = pathlib.Path("with-casts") / file
    (shaders / other).parent.mkdir(parents=True, exist_ok=True)
    (shaders / other).write_text(cast)
    return str(other)


def run_dxc(command, shaders, files, rename=lambda file: file):
    """What DXC refuses: {file: what it says}. `files` are of all languages, with their tiers."""
    names, lines = {}, []
    for file, tier in files.items():
        if file.startswith("hlsl-"):
            name = rename(file)
            names[name] = file
            profile = "cs_" + file.split("/")[0].removeprefix("hlsl-").replace(".", "_")
            # Tier `plain` asks for no f16, so wgpu does not allow types of 16 bits there.
            lines.append(f"{profile}\t{int(tier != 'plain')}\t{name}")
    environment = {**os.environ, "WINEDEBUG": "-all"}
    refused = listed([*command, str(os.cpu_count() or 2)], lines, cwd=shaders, env=environment)
    return {names[file]: said for file, _, said in refused}


def run_tint(tools, shaders, files):
    """What Tint refuses."""
    lines = [f"{int(tier != 'plain')}\t{file}" for file, tier in files.items() if file.startswith("wgsl/")]
    command = ["node", str(ROOT / "crates/lab/tests/portability/tint.mjs"), str(tools / "node_modules/webgpu")]
    return dict(listed(command, lines, cwd=shaders))


def run_spirv_val(tools, shaders, files):
    """What spirv-val refuses."""
    program = str(tools / "python/bin/spirv-val")

    def read(file):
        environment = "vulkan1.1" if file.startswith("spirv-1.3/") else "vulkan1.3"
        module = without_idle_layouts((shaders / file).read_bytes())
        done = subprocess.run([program, "--target-env", environment, "-"], input=module, capture_output=True)
        return file, " ".join((done.stdout + done.stderr).decode().split()) if done.returncode else ""

    with ThreadPoolExecutor() as pool:
        return {file: said for file, said in pool.map(read, [f for f in files if f.startswith("spirv-")]) if said}


def compiled(folder, files):
    """{compiler: {file: what it says}} of every compiler that there is."""
    tools, shaders = folder / "tools", folder / "shaders"
    backends = tools / "compushady-0.17.5/compushady/backends"
    library = backends / f"libdxcompiler_{platform.machine()}.so.3.7"
    found = {"naga": {}}
    found["spirv-val"] = run_spirv_val(tools, shaders, files)
    print("spirv-val has read all", file=sys.stderr)
    found["tint"] = run_tint(tools, shaders, files)
    print("Tint has read all", file=sys.stderr)
    dxc = [str(tools / "dxc"), str(library)]
    found["dxc-1.7"] = run_dxc(dxc, shaders, files, lambda file: with_casts(shaders, file))
    print("DXC 1.7 has read all", file=sys.stderr)
    wine = shutil.which("wine64") or "/usr/lib/wine/wine64"
    driver = tools / "windows/dxc.exe"
    if pathlib.Path(wine).exists() and driver.exists():
        dll = "Z:" + str(tools / "node_modules/webgpu/dist/win32-x64/dxcompiler.dll").replace("/", "\\")
        found["dxc-1.9"] = run_dxc([wine, str(driver), dll], shaders, files)
        print("DXC 1.9 has read all", file=sys.stderr)
    return found


def notes_of_document():
    """The numbers of the reasons that the document has."""
    noted = re.findall(r"^\((\d+)\) Not applicable: (.*?)\.\\?$", DOCUMENT.read_text(), re.M)
    return {reason: int(n) for n, reason in noted}


def table(index, files, results, notes):
    """The table in Markdown, its notes, and the refusals. `notes` has the numbers of known reasons, and gets those of others."""
    cells, refusals = defaultdict(lambda: [set(), set(), set()]), defaultdict(list)
    columns = [column for column in COLUMNS if column[1] in results]
    for kernel, tier, devices, language, file, reason in index:
        for column in columns:
            if column[0] != language:
                continue
            read, refused, reasons = cells[kernel, column]
            if file and file in files:
                read.add(file)
                if file in results[column[1]]:
                    refused.add(file)
            elif reason:
                reasons.add(notes.setdefault(reason, len(notes) + 1))
    for compiler, said in results.items():
        for file, text in said.items():
            refusals[compiler, file.split("/")[1].rsplit("-", 1)[0], text[:300]].append(file)

    def cell(kernel, column):
        read, refused, reasons = cells[kernel, column]
        if not read:
            return "not applicable " + " ".join(f"({n})" for n in sorted(reasons))
        count = f"{len(read)}" if not refused else f"**{len(refused)} of {len(read)} refused**"
        return " ".join([count, *(f"({n})" for n in sorted(reasons))])

    kernels = sorted({line[0] for line in index})
    head = ["kernel", *(heading for *_, heading in columns)]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for kernel in kernels:
        lines.append("| " + " | ".join([f"`{kernel}`", *(cell(kernel, column) for column in columns)]) + " |")
    lines.append("")
    lines += [f"({n}) Not applicable: {reason}." + ("" if n == len(notes) else "\\") for reason, n in notes.items()]
    return "\n".join(lines), refusals


def write_rows(rows):
    """Puts these rows into the table, in the place of those of the same kernels. Their columns must be those of the document."""
    kernel = lambda line: line.split("`")[1] if line.startswith("| `") else None
    before, lines, behind = [], [], []
    for line in DOCUMENT.read_text().split("\n"):
        (lines if kernel(line) else behind if lines else before).append(line)
    if len({line.count("|") for line in [*lines, *rows]}) > 1:
        sys.exit("the rows have other columns than the document, because other compilers are installed here")
    table = {kernel(line): line for line in [*lines, *rows]}
    DOCUMENT.write_text("\n".join([*before, *(table[name] for name in sorted(table)), *behind]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--sample", type=int, default=1)
    parser.add_argument("--of")
    parser.add_argument("--kept", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--results", action="store_true")
    options = parser.parse_args()
    folder, kept = options.folder.resolve(), options.folder / "results.json"
    index = read_index(folder / "shaders")
    if options.results:
        saved = json.loads(kept.read_text())
        files, results = saved["files"], saved["results"]
    else:
        files = sampled(index, options.sample)
        results = compiled(folder, files)
        kept.write_text(json.dumps({"files": files, "results": results}))
    # Rows that are put into the document refer to its notes.
    noted = notes_of_document() if options.of else {}
    notes = dict(noted)
    text, refusals = table(index, files, results, notes)
    of_all = len({line[4] for line in index if line[4]})
    text = f"{len(files)} of {of_all} shaders were read.\n\n{text}"
    print(text)
    for (compiler, kernel, said), refused in refusals.items():
        print(f"\n{compiler} refuses {len(refused)} of {kernel}, as {refused[0]}: {said}")
    refused = sum(map(len, refusals.values()))
    print(f"\n{len(files)} of {of_all} shaders were read, and there were {refused} refusals")
    if options.of and notes != noted:
        sys.exit("the rows have reasons that the document lacks: write the whole table")
    if options.of:
        words = tuple(f"| `{word}" for word in options.of.split(","))
        write_rows([line for line in text.splitlines() if line.startswith(words)])
    elif options.write or len(files) == of_all:
        document = DOCUMENT.read_text()
        begin, end = "<!-- written by scripts/portability -->\n", "<!-- end -->"
        before, rest = document.split(begin)
        DOCUMENT.write_text(before + begin + text + "\n" + end + rest.split(end)[1])
    sys.exit(bool(refusals))


main()
