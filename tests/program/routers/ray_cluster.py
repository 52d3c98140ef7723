"""A cluster of Ray with several nodes on one machine, on which examples/ray_serve.py runs.

It is given the path of glimt, a port, and the key that the servers ask for. It tells `ready` when the cluster answers. After `remove` on
standard input it removes a node that has a replica, and tells `removing` and `removed`. `replicas` has it tell how many there are. What it
tells stands behind `cluster: `, since Ray prints there, too.
"""

import os
import sys

import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.util.state import list_actors

root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(root, "examples"))
import ray_serve  # noqa: E402


def tell(what):
    print(f"cluster: {what}", flush=True)


def running():
    deployment = serve.status().applications["default"].deployments["glimt"]
    return sum(count for state, count in deployment.replica_states.items() if str(getattr(state, "value", state)) == "RUNNING")


def node_with_a_replica(nodes):
    actors = list_actors(filters=[("state", "=", "ALIVE")], limit=1000)
    busy = {actor.node_id for actor in actors if actor.class_name.startswith("ServeReplica")}
    return next(node for node in nodes if node.node_id in busy)


def main():
    glimt, port, key = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    # Replicas find the module of the example as the driver does.
    os.environ["PYTHONPATH"] = os.path.join(root, "examples")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": True})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(3)]
    ray.init(address=cluster.address, log_to_driver=False)
    # One proxy: those of several nodes on one machine would share the port, and clients would lose theirs with its node.
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    options = ray_serve.Options(
        glimt=glimt, gpus=0, parallel=4, target=2, min_replicas=1, max_replicas=3, upscale_delay=1, load=60, drain=20,
        flags=f"--api-key {key}",
    )
    serve.run(ray_serve.app(options), name="default", route_prefix="/")
    tell("ready")
    for line in sys.stdin:
        if line.strip() == "replicas":
            tell(running())
        elif line.strip() == "remove":
            node = node_with_a_replica(nodes)
            tell("removing")
            cluster.remove_node(node, allow_graceful=False)
            tell("removed")
    serve.shutdown()
    ray.shutdown()
    cluster.shutdown()


main()
