"""netns.py - a small network of its own for every job: namespaces, a bridge, links with a rate.

One network namespace per process and one for the bridge that joins them; both ends of each link carry a token
bucket (tc tbf), so every process sends and receives at most `rate` (None: what the machine can). Needs root. Used by tools/quickstart and
by the system tests.

    with Network(["shard0", "worker0"], "100mbit") as network:
        subprocess.Popen(network.command("worker0", ["ping", network.address("shard0")]))
"""

import contextlib
import os
import subprocess
import time

DEVICE = "weft0"  # of every process's end; what transport.devices must name


def run(*words):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise OSError(f"'{' '.join(words)}' failed: {done.stdout.strip()}")


def allowed():
    """Can this process make namespaces and shaped links? A sentence why not, or None."""
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
    """Each IPv4 route of the namespace names it, for those who connect and those who accept; a namespace may do that also where its own
    setting may not name what the host does not allow to everybody. False: there is none, or one was refused (those before it have it)."""
    told = 0
    for table in ("local", "main"):
        shown = subprocess.run([*inside, "ip", "-4", "route", "show", "table", table], stdout=subprocess.PIPE, text=True).stdout
        for route in shown.splitlines():
            if route.startswith("broadcast "):
                continue
            words = [*inside, "ip", "-4", "route", "replace", *route.split(), "table", table, "congctl", name]
            if subprocess.run(words, capture_output=True).returncode != 0:
                return False
            told += 1
    return told > 0


def choose_congestion_control(inside):
    """bbr, the default of some kernels, halves traffic that goes both ways at once: cubic, by the namespace's setting or else by its routes, or
    reno where neither is allowed; none is no failure. Call it when the addresses are there. `inside`: words that run a command there. The name of
    what is in force for IPv4."""
    for name in ("cubic", "reno"):
        if subprocess.run([*inside, "sysctl", "-qw", f"net.ipv4.tcp_congestion_control={name}"], capture_output=True).returncode == 0:
            break
    default = subprocess.run([*inside, "sysctl", "-n", "net.ipv4.tcp_congestion_control"], capture_output=True, text=True).stdout.strip()
    if default == "cubic" or _by_routes(inside, "cubic"):
        return "cubic"
    _by_routes(inside, default)  # those that took the other one
    return default


@contextlib.contextmanager
def private_loopback():
    """A namespace with nothing but a loopback: yields the words that run a command in it, and what congestion control it has."""
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

    def _add_namespace(self, node):
        run("ip", "netns", "add", self.namespace(node))
        self.made.append(node)
        run(*self.command(node, ["ip", "link", "set", "lo", "up"]))

    def _shape(self, node, device):
        run(*self.command(node, ["tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", self.rate, "burst", "256kb",
                                 "latency", "50ms"]))

    def _join(self, node, port):
        """A veth pair: DEVICE in the process's namespace, `port` on the bridge."""
        outside = self.namespace(node)
        run(*self.command("bridge", ["ip", "link", "add", port, "type", "veth", "peer", "name", DEVICE, "netns", outside]))
        run(*self.command("bridge", ["ip", "link", "set", port, "master", "bridge0", "up"]))
        run(*self.command(node, ["ip", "address", "add", self.address(node) + "/24", "dev", DEVICE]))
        run(*self.command(node, ["ip", "link", "set", DEVICE, "up"]))
        choose_congestion_control(self.command(node, []))
        if self.rate:
            self._shape("bridge", port)
            self._shape(node, DEVICE)

    def _await_running(self, node):
        """The kernel tells up to a second later that a link runs, and some libraries take no device that does not."""
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
