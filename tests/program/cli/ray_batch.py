"""Runs examples/ray_batch.py on a local Ray cluster of several nodes: its driver is killed, and then a node is lost.

Arguments: the example, the program, the requests, the answers, a folder for the shards. Prints what the last run told.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from ray.cluster_utils import Cluster

example, glimt, requests, answers, folder = sys.argv[1:]


def start(cluster):
    command = [sys.executable, example, requests, answers, "--folder", folder, "--glimt", glimt, "--shard-lines", "6"]
    command += ["--workers", "2", "--", "--device", "cpu", "-c", "256"]
    return subprocess.Popen(command, env={**os.environ, "RAY_ADDRESS": cluster.address}, stderr=subprocess.PIPE, text=True)


def answered():
    """How many answers there are."""
    return sum(path.read_bytes().count(b"\n") for path in Path(folder).glob("*.out.jsonl"))


def until(more, run):
    """Waits for so many answers more."""
    wanted = answered() + more
    end = time.monotonic() + 240
    while answered() < wanted:
        assert run.poll() is None, run.stderr.read()
        assert time.monotonic() < end, "nothing is answered"
        time.sleep(0.05)


cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
cluster.wait_for_nodes()
first = start(cluster)
until(3, first)
first.send_signal(signal.SIGKILL)
first.wait()
kept = answered()
second = start(cluster)
until(4, second)
cluster.remove_node(nodes[0], allow_graceful=False)
told = second.communicate(timeout=400)[1]
assert second.returncode == 0, told
print(kept)
print(told)
cluster.shutdown()
