"""netns.py - a private network for each job: namespaces, a bridge, links with a rate.

One network namespace per process and one for the bridge that connects them. Both ends of each link have a token
bucket (tc tbf), so every process sends and receives at most `rate` (None: no limit). Requires root. Used by
tools/quickstart and by the system tests.

    with Network(["shard0", "worker0"], "100mbit") as network:
        subprocess.Popen(network.command("worker0", ["ping", network.address("shard0")]))
"""

import contextlib
import os
import subprocess
import time

DEVICE = "weft0"  # device in the namespace of a process; the value for transport.devices


def run(*words):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise OSError(f"'{' '.join(words)}' failed: {done.stdout.strip()}")


def allowed():
    """None if this process can create namespaces and shaped links; otherwise a sentence with the reason."""
    if os.geteuid() != 0:
        return "not root"
    name = f"weft-try-{os.getpid()}"
    try:
        run("ip", "netns", "add", name)
        try:
            inside = ("ip", "netns", "exec", name)
            run(*inside, "ip", "link", "add", "try0", "type", "veth", "peer", "name", "try1")
            run(*inside, "tc", "qdisc", "add", "dev", "try0", "root", "tbf", "rate", "1gbit", "burst", "256kb", "latency", "50ms")
        finally:
            run("ip", "netns", "del", name)
    except OSError as error:
        return str(error).replace("\n", " ")
    return None


def _by_routes(inside, name):
    """Sets the congestion control of each IPv4 route of the namespace, for connecting and accepting sockets. Routes
    may name an algorithm that the sysctl of the namespace may not. False: there is no route, or one was refused
    (the routes before it are set)."""
    changed = 0
    for table in ("local", "main"):
        shown = subprocess.run([*inside, "ip", "-4", "route", "show", "table", table], stdout=subprocess.PIPE, text=True).stdout
        for route in shown.splitlines():
            if route.startswith("broadcast "):
                continue
            words = [*inside, "ip", "-4", "route", "replace", *route.split(), "table", table, "congctl", name]
            if subprocess.run(words, capture_output=True).returncode != 0:
                return False
            changed += 1
    return changed > 0


def choose_congestion_control(inside):
    """Sets cubic by the sysctl of the namespace or by its routes, or reno if neither is allowed; failure is ignored.
    bbr, the default of some kernels, halves traffic in both directions at once. The addresses must exist. `inside`:
    words that run a command in the namespace. Returns the name in force for IPv4."""
    for name in ("cubic", "reno"):
        if subprocess.run([*inside, "sysctl", "-qw", f"net.ipv4.tcp_congestion_control={name}"], capture_output=True).returncode == 0:
            break
    default = subprocess.run([*inside, "sysctl", "-n", "net.ipv4.tcp_congestion_control"], capture_output=True, text=True).stdout.strip()
    if default == "cubic" or _by_routes(inside, "cubic"):
        return "cubic"
    _by_routes(inside, default)  # routes that were set to cubic before one was refused
    return default


@contextlib.contextmanager
def private_loopback():
    """A namespace with only a loopback device: yields the words that run a command in it, and its congestion control."""
    name = f"weft-loopback-{os.getpid()}"
    run("ip", "netns", "add", name)
    inside = ["ip", "netns", "exec", name]
    try:
        run(*inside, "ip", "link", "set", "lo", "up")
        yield inside, choose_congestion_control(inside)
    finally:
        run("ip", "netns", "del", name)


class Network:
    def __init__(self, nodes, rate):
        self.nodes, self.rate = list(nodes), rate
        self.prefix = f"weft-{os.getpid()}-{id(self) & 0xffff:x}"
        self.made = []

    def namespace(self, node):
        return f"{self.prefix}-{node}"

    def address(self, node):
        return f"10.77.0.{self.nodes.index(node) + 1}"

    def command(self, node, words):
        return ["ip", "netns", "exec", self.namespace(node)] + list(words)

    def connect(self, node, connected):
        """Cuts the link of a node, or mends it. Its device and addresses stay, so its packets are lost silently."""
        port = f"port{self.nodes.index(node)}"
        run(*self.command("bridge", ["ip", "link", "set", port, "up" if connected else "down"]))

    def _add_namespace(self, node):
        run("ip", "netns", "add", self.namespace(node))
        self.made.append(node)
        run(*self.command(node, ["ip", "link", "set", "lo", "up"]))

    def limit(self, node, rate):
        """Changes the rate of the link of a node, in both directions."""
        burst = "256kb" if rate == self.rate else "64kb"
        for end, device in (("bridge", f"port{self.nodes.index(node)}"), (node, DEVICE)):
            run(*self.command(end, ["tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, "burst", burst,
                                    "latency", "50ms"]))

    def _join(self, node, port):
        """Creates a veth pair: DEVICE in the namespace of the process, `port` on the bridge."""
        outside = self.namespace(node)
        run(*self.command("bridge", ["ip", "link", "add", port, "type", "veth", "peer", "name", DEVICE, "netns", outside]))
        run(*self.command("bridge", ["ip", "link", "set", port, "master", "bridge0", "up"]))
        run(*self.command(node, ["ip", "address", "add", self.address(node) + "/24", "dev", DEVICE]))
        run(*self.command(node, ["ip", "link", "set", DEVICE, "up"]))
        choose_congestion_control(self.command(node, []))
        if self.rate:
            self.limit(node, self.rate)

    def _await_running(self, node):
        """Waits until the device is up: the kernel reports that up to a second late, and some libraries ignore a device that is down."""
        limit = time.monotonic() + 10
        while time.monotonic() < limit:
            shown = subprocess.run(self.command(node, ["ip", "-o", "link", "show", DEVICE]), stdout=subprocess.PIPE, text=True)
            if "state UP" in shown.stdout:
                return
            time.sleep(0.01)
        raise OSError(f"{DEVICE} of {node} does not run after 10 s")

    def __enter__(self):
        try:
            self._add_namespace("bridge")
            run(*self.command("bridge", ["ip", "link", "add", "bridge0", "type", "bridge"]))
            run(*self.command("bridge", ["ip", "link", "set", "bridge0", "up"]))
            for index, node in enumerate(self.nodes):
                self._add_namespace(node)
                self._join(node, f"port{index}")
            for node in self.nodes:
                self._await_running(node)
        except OSError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for node in reversed(self.made):
            subprocess.run(["ip", "netns", "del", self.namespace(node)], stderr=subprocess.DEVNULL)
        self.made = []


class Placement:
    """Processes by the node that they run on: {"shard0": "a", "worker0": "a", "worker1": "b"}. For the functions that
    take a Network with one node for each process."""

    def __init__(self, network, node_of):
        self.network, self.node_of = network, node_of

    def address(self, process):
        return self.network.address(self.node_of[process])

    def command(self, process, words):
        return self.network.command(self.node_of[process], words)
