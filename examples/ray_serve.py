"""One `glimt serve` for each GPU of a cluster, as a deployment of Ray Serve.

    pip install 'ray[serve]'
    serve run --app-dir examples --working-dir examples ray_serve:app model=/models/GLM-4.7-Flash-Q4_K_M.gguf

The cluster then answers at port 8000 of the node, with OpenAI's API. A replica starts glimt on a free loopback port with the GPU that Ray
has given it, and passes requests and streams on. Replicas come and go with the number of requests, and those of a lost node are started
elsewhere. glimt and the model's file must be on every node. The options are the fields of `Options`.
"""

import asyncio
import ctypes
import json
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import aiohttp
import pydantic
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse


class Options(pydantic.BaseModel):
    """What `serve run ray_serve:app NAME=VALUE ...` takes."""

    model_config = pydantic.ConfigDict(extra="forbid")

    # The program, as it is found on every node.
    glimt: str = "glimt"
    # A GGUF file; nothing is the built-in model.
    model: str = ""
    # A tier of kernels; nothing leaves it to glimt.
    tier: str = ""
    # GPUs of a replica. 0 runs on the CPU reference.
    gpus: float = 1
    # CPUs of a replica, as Ray counts them.
    cpus: float = 1
    # What glimt calls the device; nothing is the GPU that Ray gives.
    device: str = ""
    # Requests that a replica answers at once. Further ones wait in Ray Serve, where the first free replica takes them.
    parallel: int = 16
    # So many replicas at least and at most.
    min_replicas: int = 1
    max_replicas: int = 8
    # Requests of a replica, on average, above which there are to be more of them; nothing is three quarters of `parallel`.
    target: float = 0
    # Seconds for which this has to last.
    upscale_delay: float = 15
    downscale_delay: float = 600
    # Seconds that loading the model may take.
    load: float = 900
    # Seconds that answers may take after a replica was asked to end.
    drain: float = 60
    # More flags of `glimt serve`.
    flags: str = ""


# What is about one connection and not about a request.
HOP = {"connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}


def end_with_parent():
    """Has the system end the child when the thread that started it is gone, however that came about."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


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


def failure(status, message):
    """An error in the form of OpenAI's API."""
    error = {"message": message, "type": "server_error", "param": None, "code": "unavailable"}
    return Response(json.dumps({"error": error}), status, media_type="application/json")


class Glimt:
    """A replica: a server and what passes requests on to it."""

    def __init__(self, options: Options):
        self.options = options
        self.session = None
        self.process = None
        told = queue.Queue()
        # The thread that starts the server lives as long as that, since the system watches the thread.
        threading.Thread(target=self.watch, args=(told,), daemon=True).start()
        end = time.monotonic() + options.load
        self.url = told.get()
        if isinstance(self.url, Exception):
            raise self.url
        while not self.healthy():
            if self.process.poll() is not None:
                raise RuntimeError(f"glimt has ended with status {self.process.returncode}; the log of the replica says why")
            if time.monotonic() > end:
                self.process.kill()
                raise RuntimeError(f"the model was not loaded within {options.load} s (load)")
            time.sleep(0.2)

    def command(self):
        """How the server is started."""
        options = self.options
        command = [options.glimt, "serve", "--port", "0", "--device", self.device()]
        command += ["--parallel", str(options.parallel), "--drain", str(int(options.drain))]
        if options.model:
            command += ["-m", options.model]
        if options.tier:
            command += ["--tier", options.tier]
        return command + shlex.split(options.flags)

    def device(self):
        """The device of this replica, as glimt names it."""
        if self.options.device:
            return self.options.device
        if self.options.gpus == 0:
            return "cpu"
        return device_of(self.options.glimt, str(ray.get_gpu_ids()[0]))

    def watch(self, told):
        """Starts the server, tells its address, and passes on what it prints until it ends."""
        try:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                text=True, errors="replace", preexec_fn=end_with_parent,
            )
        except OSError as error:
            told.put(RuntimeError(f"cannot start {self.options.glimt}: {error}"))
            return
        address = None
        for line in self.process.stderr:
            print(line, end="", file=sys.stderr)
            if address is None and "listening on http://" in line:
                address = line.split("listening on ")[1].split()[0]
                told.put(address)
        if address is None:
            told.put(RuntimeError(f"glimt has ended with status {self.process.wait()}; the log of the replica says why"))

    def healthy(self):
        """Whether the server answers requests."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"{self.url}/health", timeout=10) as response:
                return response.status == 200
        except (urllib.error.URLError, OSError):
            return False

    async def check_health(self):
        """Ray Serve asks this again and again, and starts another replica where it fails."""
        if not await asyncio.to_thread(self.healthy):
            raise RuntimeError("glimt does not answer")

    async def __call__(self, request: Request):
        if self.session is None:
            # The limit of an answer is the server's own.
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
            self.session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        target = self.url + request.url.path
        if request.url.query:
            target += "?" + request.url.query
        headers = [(name, value) for name, value in request.headers.items() if name not in HOP]
        body = await request.body()
        try:
            answer = await self.session.request(request.method, target, headers=headers, data=body)
        except aiohttp.ClientError as error:
            return failure(503, f"the server of this replica does not answer: {error}")
        headers = {name: value for name, value in answer.headers.items() if name.lower() not in HOP}
        if answer.content_type == "text/event-stream":
            return StreamingResponse(self.events(answer), answer.status, headers)
        try:
            async with answer:
                return Response(await answer.read(), answer.status, headers)
        except aiohttp.ClientError as error:
            return failure(502, f"the server of this replica broke off: {error}")

    async def events(self, answer):
        """The events of a stream as they come. Where the client goes away, the connection is closed, which frees the place."""
        try:
            async for piece in answer.content.iter_any():
                yield piece
        finally:
            answer.close()

    def __del__(self):
        """Ray Serve calls this when no request is left. The server ends in order."""
        process = getattr(self, "process", None)
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(self.options.drain + 5)
            except subprocess.TimeoutExpired:
                process.kill()


def app(options: Options) -> serve.Application:
    """The application, which `serve run` builds."""
    deployment = serve.deployment(
        Glimt,
        name="glimt",
        ray_actor_options={"num_gpus": options.gpus, "num_cpus": options.cpus},
        max_ongoing_requests=options.parallel,
        autoscaling_config={
            "min_replicas": options.min_replicas,
            "max_replicas": options.max_replicas,
            "target_ongoing_requests": options.target or 0.75 * options.parallel,
            "upscale_delay_s": options.upscale_delay,
            "downscale_delay_s": options.downscale_delay,
        },
        health_check_period_s=5,
        health_check_timeout_s=15,
        graceful_shutdown_timeout_s=options.drain + 10,
    )
    return deployment.bind(options)
