#!/usr/bin/python3
"""guest.py - Debian's kernel in a virtual machine under pure emulation, with the host's files for its root.

Soft-RoCE (rdma_rxe) is a kernel module, so RDMA verbs run only where it may be loaded. Nothing is installed and no
image is built: the kernel's package is unpacked into a cache ($XDG_CACHE_HOME/weft/vm), an
initramfs of busybox, the modules and `init` boots in seconds, and the guest sees the host's / read-only over 9p
(its own writes go to memory), shared directories read-write, each at its own path.

    guest = Guest("pair", shares=["/some/out"])
    status = guest.run(["/build/tests/transport/test_x"], seconds=60, write=print)

One guest runs at a time (a lock in the cache), because two would slow each other down. Emulation is slow and uneven:
times in a guest mean nothing. Messages and waits are bounded by `seconds`.
"""

import ctypes
import fcntl
import glob
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = {  # program: its Debian package
    "qemu-system-x86_64": "qemu-system-x86", "cpio": "cpio", "depmod": "kmod", "xz": "xz-utils", "ip": "iproute2", "busybox": "busybox-static",
}
# In the order of loading; dependencies are added. crc32: rxe requests it from the crypto API by name.
MODULES = ["virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay", "crc32_generic", "dummy", "veth", "sch_netem",
           "rdma_rxe", "ib_uverbs", "rdma_ucm"]
MEMORY_MIB = 2048
SPARE_MIB = 1024  # left to the host
SETUPS = ("one", "pair")


class Unavailable(Exception):
    """One sentence: why no guest can run here."""


class GuestFailed(Exception):
    """One sentence: the guest gave no exit status."""


def cache_directory():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "weft", "vm")


def find(program):
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def unavailable():
    """A sentence why no guest can run here, or None. Cheap; the kernel may still be missing (Unavailable)."""
    if os.uname().machine != "x86_64":
        return f"the guest is an x86_64 machine and this is {os.uname().machine}"
    absent = [PROGRAMS[name] for name in PROGRAMS if not find(name)]
    if absent:
        return f"{', '.join(absent)} not installed (tools/install-packages --full)"
    with open("/proc/meminfo", encoding="ascii") as file:
        free = next(int(line.split()[1]) // 1024 for line in file if line.startswith("MemAvailable:"))
    if free < MEMORY_MIB + SPARE_MIB:
        return f"{free} MiB of memory are free, a guest needs {MEMORY_MIB + SPARE_MIB}"
    return None


def output_of(words, **more):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, **more)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no words").splitlines()[-1]
        raise Unavailable(f"'{' '.join(words[:3])}' failed: {last}")
    return done.stdout


def unpack_kernel(cache):
    """Fetches the current kernel of Debian's linux-image-amd64 and unpacks the files for a guest."""
    depends = output_of(["apt-cache", "depends", "linux-image-amd64"]) if find("apt-cache") else ""
    package = next((line.split()[-1] for line in depends.splitlines() if "Depends: linux-image-" in line), None)
    if not package:
        raise Unavailable("apt-get does not know linux-image-amd64 (apt-get update)")
    version = package.removeprefix("linux-image-")
    with tempfile.TemporaryDirectory(dir=cache) as work:
        os.chmod(work, 0o755)
        try:
            output_of(["apt-get", "-qq", "download", package], cwd=work, timeout=300)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"downloading {package} took longer than 300 s") from None
        archive = glob.glob(os.path.join(work, package + "_*.deb"))
        wanted = ["./boot/vmlinuz*", "./lib/modules/*/modules.*"]
        wanted += [f"./lib/modules/*/kernel/{part}/*" for part in ("drivers", "net", "fs", "lib", "crypto")]
        tree = os.path.join(work, "tree")
        os.mkdir(tree)
        output_of(["sh", "-c", 'archive=$1 tree=$2; shift 2; dpkg-deb --fsys-tarfile "$archive" | tar -xf - -C "$tree" --wildcards "$@"',
                   "sh", archive[0], tree] + wanted)
        output_of([find("depmod"), "-b", tree, version])
        plain_kernel(os.path.join(tree, "boot", "vmlinuz-" + version), os.path.join(tree, "kernel"))
        with open(os.path.join(tree, "version"), "w", encoding="ascii") as file:
            file.write(version)
        shutil.rmtree(os.path.join(cache, "tree"), ignore_errors=True)
        os.rename(tree, os.path.join(cache, "tree"))
    return version


def plain_kernel(compressed, plain):
    """The ELF inside a vmlinuz, which boots directly: unpacking it under emulation would take seconds of every boot."""
    with open(compressed, "rb") as file:
        image = file.read()
    start = image.find(b"\xfd7zXZ\x00")
    if start >= 0:
        done = subprocess.run(["xz", "-dc", "--single-stream"], input=image[start:], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        if done.stdout[:4] == b"\x7fELF":
            with open(plain, "wb") as file:
                file.write(done.stdout)
            return
    shutil.copyfile(compressed, plain)


def kernel(cache):
    """(version, path of the kernel); fetched once."""
    tree = os.path.join(cache, "tree")
    try:
        with open(os.path.join(tree, "version"), encoding="ascii") as file:
            version = file.read()
    except OSError:
        version = unpack_kernel(cache)
    return version, os.path.join(tree, "kernel")


def initramfs(cache, version):
    """busybox, init and the modules in the order to load them; made again when one of them has changed."""
    with open(os.path.join(HERE, "init"), "rb") as file:
        key = hashlib.sha256(file.read() + " ".join(MODULES + [version]).encode()).hexdigest()[:16]
    image = os.path.join(cache, "initramfs-" + key)
    if os.path.exists(image):
        return image
    tree = os.path.join(cache, "tree")
    paths = []
    for module in MODULES:
        shown = output_of([find("modprobe"), "-d", tree, "-S", version, "-C", "/dev/null", "--show-depends", module])
        paths += [line.split()[1] for line in shown.splitlines() if line.startswith("insmod")]
    paths = list(dict.fromkeys(paths))
    with tempfile.TemporaryDirectory(dir=cache) as work:
        for folder in ("bin", "modules"):
            os.mkdir(os.path.join(work, folder))
        shutil.copy(find("busybox"), os.path.join(work, "bin", "busybox"))
        shutil.copy(os.path.join(HERE, "init"), os.path.join(work, "init"))
        os.chmod(os.path.join(work, "init"), 0o755)
        for path in paths:
            shutil.copy(path, os.path.join(work, "modules"))
        with open(os.path.join(work, "modules", "order"), "w", encoding="ascii") as file:
            file.writelines(os.path.basename(path) + "\n" for path in paths)
        with open(image + ".new", "wb") as file:
            subprocess.run("find . | cpio -o -H newc --quiet", shell=True, cwd=work, stdout=file, check=True)
    os.rename(image + ".new", image)
    return image


def die_with_parent():
    """In the child: the guest ends when this program ends, also by a time limit of its caller."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Guest:
    """One boot for each run(). `setup` names the file that makes the RDMA devices: "one" or "pair"."""

    def __init__(self, setup, shares=(), cpus=2):
        assert setup in SETUPS, setup
        self.setup, self.cpus = setup, cpus
        self.shares = [os.path.realpath(path) for path in shares]

    def run(self, command, seconds, write, directory="/"):
        """Exit status of `command` (a list of words) in a fresh guest; its output goes to write(text) at once. Unavailable,
        GuestFailed (with the end of the kernel's log), or subprocess.TimeoutExpired after `seconds`."""
        cache = cache_directory()
        os.makedirs(cache, exist_ok=True)
        with open(os.path.join(cache, "lock"), "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            version, image = kernel(cache)
            files = (image, initramfs(cache, version))
            job = tempfile.mkdtemp(prefix="weft-vm-")
            try:
                return self.boot(files, job, command, seconds, write, directory)
            finally:
                shutil.rmtree(job, ignore_errors=True)

    def boot(self, files, job, command, seconds, write, directory):
        shutil.copy(os.path.join(HERE, "stage2"), job)
        shutil.copy(os.path.join(HERE, "setup-" + self.setup), os.path.join(job, "setup"))
        shutil.copy(os.path.join(HERE, "repair-pair"), os.path.join(job, "repair"))
        for name, text in (("directory", directory), ("command", shlex.join(command))):
            with open(os.path.join(job, name), "w", encoding="utf-8") as file:
                file.write(text + "\n")
        with open(os.path.join(job, "qemu.log"), "wb") as errors:
            process = subprocess.Popen(self.words(files, job), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
                                       preexec_fn=die_with_parent)
            try:
                pour(process, time.monotonic() + seconds, write, seconds)
            finally:
                process.kill()
                process.wait()
        try:
            with open(os.path.join(job, "status"), encoding="ascii") as file:
                return int(file.read())
        except (OSError, ValueError):
            raise GuestFailed("the guest gave no exit status; the end of its kernel's log:\n" + last_lines(job)) from None

    def words(self, files, job):
        words = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-M", "q35", "-cpu", "max", "-smp", str(self.cpus),
                 "-m", f"{MEMORY_MIB}M", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
                 "-kernel", files[0], "-initrd", files[1], "-serial", f"file:{job}/kernel.log",
                 "-device", "virtio-serial-pci", "-chardev", "stdio,id=out,signal=off", "-device", "virtconsole,chardev=out",
                 "-device", "isa-debug-exit,iobase=0xf4,iosize=1",
                 "-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
                 "-device", "virtio-9p-pci,fsdev=root,mount_tag=root"]
        shares = [job] + self.shares
        for index, path in enumerate(shares):
            words += ["-fsdev", f"local,id=share{index},path={path},security_model=none,multidevs=remap",
                      "-device", f"virtio-9p-pci,fsdev=share{index},mount_tag=share{index}"]
        return words + ["-append", "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off tsc=reliable no_timer_check nokaslr "
                                   "rdinit=/init vm.shares=" + ",".join(shares)]


def pour(process, deadline, write, seconds):
    """Copy the guest's console until qemu ends."""
    descriptor = process.stdout.fileno()
    os.set_blocking(descriptor, False)
    import select

    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise subprocess.TimeoutExpired("the guest", seconds)
        if not select.select([descriptor], [], [], min(left, 1.0))[0]:
            continue
        data = os.read(descriptor, 65536)
        if not data:
            return
        write(data.decode("utf-8", errors="replace").replace("\r\n", "\n"))


def last_lines(job):
    lines = []
    for name in ("qemu.log", "setup.log", "kernel.log"):
        try:
            with open(os.path.join(job, name), encoding="utf-8", errors="replace") as file:
                lines += file.readlines()[-15:]
        except OSError:
            pass
    return "".join(lines).rstrip()


def main(words):
    """guest.py [--setup one|pair] [--share DIRECTORY]... [--seconds N] -- COMMAND..."""
    import argparse

    parser = argparse.ArgumentParser(prog="tests/vm/guest.py", description="Runs a command of this machine in the guest, as root.")
    parser.add_argument("--setup", choices=SETUPS, default="one", help="RDMA devices: one, or a pair joined by a wire (default one)")
    parser.add_argument("--share", action="append", default=[], metavar="DIRECTORY", help="read-write in the guest as well")
    parser.add_argument("--seconds", type=float, default=300, help="end it after so long (default 300)")
    parser.add_argument("command", nargs="+", help="after --; one word is taken as a line of shell")
    options = parser.parse_args(words)
    command = ["sh", "-c", options.command[0]] if len(options.command) == 1 else options.command

    def write(text):
        sys.stdout.write(text)
        sys.stdout.flush()

    reason = unavailable()
    try:
        if reason:
            raise Unavailable(reason)
        return Guest(options.setup, options.share).run(command, options.seconds, write, os.getcwd())
    except Unavailable as error:
        print(f"no guest can run: {error}", file=sys.stderr)
        return 77
    except GuestFailed as error:
        print(error, file=sys.stderr)
        return 125
    except subprocess.TimeoutExpired:
        print(f"the guest was ended after {options.seconds:.0f} s", file=sys.stderr)
        return 124


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
