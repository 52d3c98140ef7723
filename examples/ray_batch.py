#!/usr/bin/env python3
"""Answers a file of requests in OpenAI's batch format on many machines, with Ray Data.

    pip install 'ray[data]'
    python examples/ray_batch.py requests.jsonl answers.jsonl --folder /shared/run1 --workers 8 --gpus 1 -- \\
        -m /shared/GLM-4.7-Flash-Q4_K_M.gguf -c 8192

The requests are cut into shards, which are files in a folder that all machines see. Ray Data places one worker per GPU, and each answers
its shard with `glimt batch`. What follows -- goes to that command. When all shards are answered, the answers are joined in the order of the
requests.

The same command again goes on where a run ended: a shard keeps the answers that it has. That is also how Ray does a shard again whose
machine was lost.
"""

import argparse
import hashlib
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import ray

# What glimt batch says while the process of a lost worker still writes to the shard.
HELD = "being written by another process"
LOOK_AGAIN = 2.0


def arguments():
    own = sys.argv[1:]
    cut = own.index("--") if "--" in own else len(own)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("input", type=Path, help="requests, a line of JSON each")
    parser.add_argument("output", type=Path, help="answers, written when all are there")
    parser.add_argument("--folder", type=Path, required=True, help="for the shards; all machines see it under this path")
    parser.add_argument("--shard-lines", type=int, default=1000, help="requests of a shard")
    parser.add_argument("--workers", type=int, default=1, help="shards that are answered at the same time")
    parser.add_argument("--gpus", type=float, default=0, help="GPUs of a worker, as Ray counts them; 0 leaves the device to glimt")
    parser.add_argument("--cpus", type=float, default=1, help="CPUs of a worker, as Ray counts them")
    parser.add_argument("--glimt", default="glimt", help="the program, as it is called on all machines")
    options = parser.parse_args(own[:cut])
    if options.shard_lines < 1 or options.workers < 1:
        parser.error("--shard-lines and --workers must be 1 or more")
    options.folder = options.folder.absolute()
    return options, own[cut + 1 :]


def replace(path, content):
    """Writes a file whole or not at all."""
    part = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    part.write_bytes(content)
    os.replace(part, path)


def cut(options):
    """Cuts the requests into shards, unless an earlier run has; how many there are."""
    options.folder.mkdir(parents=True, exist_ok=True)
    about = options.folder / "shards.json"
    digest = hashlib.sha256()
    with open(options.input, "rb") as lines:
        for block in iter(lambda: lines.read(1 << 20), b""):
            digest.update(block)
    asked = {"sha256": digest.hexdigest(), "shard_lines": options.shard_lines}
    if about.exists():
        known = json.loads(about.read_text())
        if {name: known.get(name) for name in asked} != asked:
            sys.exit(f"{options.folder} has the shards of other requests, or of another --shard-lines; name another --folder")
        return known["shards"]
    shards, seen, lines = 0, {}, []

    def finish():
        nonlocal shards, lines
        if lines:
            replace(options.folder / f"{shards:06}.in.jsonl", b"".join(lines))
            shards, lines = shards + 1, []

    with open(options.input, "rb") as requests:
        for number, line in enumerate(requests, 1):
            if not line.strip():
                continue
            # A shard knows only its own requests.
            try:
                custom_id = json.loads(line)["custom_id"]
            except (ValueError, KeyError, TypeError):
                sys.exit(f"{options.input}, line {number}: expected an object with a custom_id")
            if custom_id in seen:
                sys.exit(f"{options.input}, line {number} has the custom_id of line {seen[custom_id]}; expected one of its own")
            seen[custom_id] = number
            lines.append(line if line.endswith(b"\n") else line + b"\n")
            if len(lines) == options.shard_lines:
                finish()
    finish()
    replace(about, json.dumps({**asked, "shards": shards}).encode())
    return shards


def device_of(glimt, gpu):
    """What glimt calls the GPU with this CUDA number or UUID. Vulkan has an order of its own and does not know CUDA_VISIBLE_DEVICES, so
    the two are brought together by their places on the PCI bus."""
    listed = subprocess.run([glimt, "devices", "--json"], capture_output=True, text=True, check=True)
    query = ["nvidia-smi", "--query-gpu=index,uuid,pci.bus_id", "--format=csv,noheader"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    except OSError:
        # No GPU of NVIDIA: there is nothing but the order.
        return gpu
    place = next((fields[2] for fields in (line.split(", ") for line in lines) if gpu in fields[:2]), None)
    for adapter in json.loads(listed.stdout)["adapters"]:
        if place and adapter["bus"] and same_place(adapter["bus"], place):
            return str(adapter["index"])
    raise RuntimeError(f"glimt devices lists no adapter for the GPU {gpu} at {place}; is its Vulkan driver installed?")


def same_place(one, other):
    """Whether two names of a place on the PCI bus mean the same. Programs differ in case and in the length of the domain."""
    domain, rest = one.lower().split(":", 1)
    other_domain, other_rest = other.lower().split(":", 1)
    return (int(domain, 16), rest) == (int(other_domain, 16), other_rest)


class Shards:
    """A worker: answers one shard after the other."""

    def __init__(self, folder, glimt, flags, on_gpu):
        self.folder = Path(folder)
        self.command = [glimt, "batch", "--quiet", "--ordered", *flags]
        if on_gpu:
            ids = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
            self.command += ["--device", device_of(glimt, ids[0])] if ids else []

    def __call__(self, row):
        name = self.folder / f"{row['shard']:06}"
        files = [f"{name}.in.jsonl", f"{name}.out.jsonl"]
        while True:
            ended = subprocess.run([*self.command, *files], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            if ended.returncode == 0:
                return {"shard": row["shard"], "node": ray.get_runtime_context().get_node_id()}
            if HELD not in ended.stderr:
                raise RuntimeError(f"shard {row['shard']}, exit code {ended.returncode}: {ended.stderr[-2000:]}")
            time.sleep(LOOK_AGAIN)


def join(options, shards):
    """Joins the answers of all shards."""
    part = options.output.with_name(f"{options.output.name}.{os.getpid()}.tmp")
    with open(part, "wb") as joined:
        for shard in range(shards):
            joined.write((options.folder / f"{shard:06}.out.jsonl").read_bytes())
    os.replace(part, options.output)


def main():
    options, flags = arguments()
    shards = cut(options)
    if shards == 0:
        sys.exit(f"{options.input} has no requests")
    ray.init(logging_level=logging.WARNING)
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    # A row is a shard, and each is a task of its own.
    rows = ray.data.from_items([{"shard": shard} for shard in range(shards)], override_num_blocks=shards)
    answered = rows.map(
        Shards,
        fn_constructor_args=(str(options.folder), options.glimt, flags, options.gpus > 0),
        concurrency=min(options.workers, shards),
        num_gpus=options.gpus or None,
        num_cpus=options.cpus,
    )
    for done, row in enumerate(answered.iter_rows(), 1):
        print(f"{done} of {shards} shards answered: {row['shard']} on node {row['node'][:8]}", file=sys.stderr, flush=True)
    join(options, shards)


if __name__ == "__main__":
    main()
