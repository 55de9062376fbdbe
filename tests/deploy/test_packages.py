#!/usr/bin/python3
"""test_packages.py - the Debian packages of debian/, built from a finished build directory: contents, symbols, lintian; installed and
removed in a Debian of their own; the container image made of them. A missing program is a skip with its name.

    WEFT_BUILD=build python3 tests/deploy/test_packages.py [-k NAME] [-v]
"""

import glob
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(os.environ.get("WEFT_BUILD", os.path.join(ROOT, "build")))
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "weft")
sys.path.insert(0, os.path.join(ROOT, "tools", "dev"))
import netns  # noqa: E402

# Lintian tags for uploads to the Debian archive. These packages are not uploaded: their address is a placeholder.
SUPPRESSED = "bogus-mail-host,bogus-mail-host-in-debian-changelog,initial-upload-closes-no-bugs"
NAMES = ["libweft-dev", "libweft0", "weft-server", "weft-tools"]


SECONDS = 1500  # of one command: only one that hangs needs so long, also on a machine with ten times its load


def run(words, *, expect=0, **more):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=SECONDS, **more)
    if done.returncode != expect:
        raise AssertionError(f"{words}: status {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


class PackagesTest(unittest.TestCase):
    """Builds the packages once for all tests of this file."""
    folder = None

    def need(self, *programs):
        for program in programs:
            if not shutil.which(program):
                self.skipTest(f"{program} is not installed")

    def packages(self):
        self.need("dpkg-buildpackage", "dh", "fakeroot")
        with open(os.path.join(BUILD, "meson-info", "intro-buildoptions.json"), encoding="utf-8") as file:
            options = {option["name"]: option["value"] for option in json.load(file)}
        if options["b_sanitize"] != "none":
            self.skipTest("a build with a sanitizer has no manual pages")
        if not PackagesTest.folder:
            folder = tempfile.mkdtemp(prefix="weft-packages-")
            unittest.addModuleCleanup(shutil.rmtree, folder)
            for name in ("debian", "deploy"):
                shutil.copytree(os.path.join(ROOT, name), os.path.join(folder, "weft", name))
            # most of the time of a package is its compression, of which no test depends on the level
            environment = {**os.environ, "WEFT_BUILD": BUILD, "DEB_BUILD_OPTIONS": "noautodbgsym", "DPKG_DEB_COMPRESSOR_LEVEL": "1"}
            # -d: Meson's build is finished, so the libraries for it may be absent.
            run(["dpkg-buildpackage", "-d", "-b", "-us", "-uc"], cwd=os.path.join(folder, "weft"), env=environment)
            PackagesTest.folder = folder
        return PackagesTest.folder

    def package(self, name):
        found = glob.glob(os.path.join(self.packages(), name + "_*.deb"))
        self.assertEqual(len(found), 1, found)
        return found[0]


class Debian(PackagesTest):
    def files(self, name):
        lines = run(["dpkg-deb", "-c", self.package(name)]).splitlines()
        return {line.split()[5].removeprefix("./") for line in lines if not line.startswith("d")}

    def test_contents(self):
        files = {name: self.files(name) for name in NAMES}
        library = f"usr/lib/{run(['dpkg-architecture', '-qDEB_HOST_MULTIARCH']).strip()}"
        expected = {"libweft0": {f"{library}/libweft.so.0", f"{library}/weft/libweft_core.so"},
                    "libweft-dev": {f"{library}/libweft.so", f"{library}/libweft.a", f"{library}/pkgconfig/weft.pc", "usr/include/weft/weft.h",
                                    "usr/include/weft/status.h", "usr/include/weft/types.h"},
                    "weft-server": {"usr/bin/weftd", "lib/systemd/system/weftd@.service", "usr/share/man/man8/weftd.8.gz",
                                    "usr/share/man/man5/weft.ini.5.gz", "usr/share/bash-completion/completions/weftd"},
                    "weft-tools": {"usr/bin/weft", "usr/share/man/man1/weft.1.gz", "usr/share/bash-completion/completions/weft",
                                   "usr/share/doc/weft-tools/examples/kubernetes/shards.yaml",
                                   "usr/share/doc/weft-tools/operations.md", "usr/share/doc/weft-tools/decisions/0029-metric-names.md"}}
        for name, some in expected.items():
            self.assertLessEqual(some, files[name])
        every = [path for name in NAMES for path in files[name]]
        self.assertEqual(len(every), len(set(every)), "a file is in two packages")

    def test_dependencies(self):
        version = run(["dpkg-deb", "-f", self.package("libweft0"), "Version"]).strip()
        for name in ("libweft-dev", "weft-server", "weft-tools"):
            self.assertIn(f"libweft0 (= {version})", run(["dpkg-deb", "-f", self.package(name), "Depends"]))
        for library in ("libibverbs1", "libucx0", "libssl3"):
            self.assertIn(library, run(["dpkg-deb", "-f", self.package("libweft0"), "Depends"]))

    def test_a_program_builds_against_the_packages(self):
        self.need("cc", "pkg-config")
        root = tempfile.mkdtemp(prefix="weft-dev-")
        self.addCleanup(shutil.rmtree, root)
        for name in ("libweft0", "libweft-dev"):
            run(["dpkg-deb", "-x", self.package(name), root])
        library = os.path.dirname(glob.glob(os.path.join(root, "usr", "lib", "*", "libweft.so"))[0])
        environment = {**os.environ, "PKG_CONFIG_LIBDIR": os.path.join(library, "pkgconfig"), "PKG_CONFIG_SYSROOT_DIR": root}
        flags = run(["pkg-config", "--cflags", "--libs", "weft"], env=environment).split()
        self.assertIn(f"-I{root}/usr/include", flags)
        source, program = os.path.join(root, "program.c"), os.path.join(root, "program")
        with open(source, "w", encoding="ascii") as file:
            file.write('#include <stdio.h>\n#include <weft/weft.h>\nint main(void) { return puts(weft_version()) < 0; }\n')
        run(["cc", "-std=c11", "-Werror", "-o", program, source, *flags])
        version = run([os.path.join(BUILD, "tools", "weft"), "--version"]).split()[1]
        self.assertEqual(run([program], env={**os.environ, "LD_LIBRARY_PATH": library}).strip(), version)

    def test_versions_agree(self):
        upstream = run([os.path.join(BUILD, "tools", "weft"), "--version"]).split()[1]
        with open(os.path.join(ROOT, "debian", "changelog"), encoding="utf-8") as file:
            self.assertRegex(file.readline(), rf"^weft \({re.escape(upstream)}-\d+\) ")

    def test_symbols_are_those_of_the_map(self):
        with open(os.path.join(ROOT, "client", "libweft.map"), encoding="utf-8") as file:
            text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
        symbols = {f"{node}@{node}" for node in re.findall(r"(\w+) \{", text)}
        for node, body in re.findall(r"(\w+) \{\s*global:(.*?)(?:local:|\})", text, flags=re.S):
            symbols |= {f"{name}@{node}" for name in re.findall(r"weft_\w+", body)}
        with open(os.path.join(ROOT, "debian", "libweft0.symbols"), encoding="utf-8") as file:
            lines = file.read().splitlines()
        self.assertEqual(lines[0], "libweft.so.0 libweft0 #MINVER#")
        self.assertEqual({line.split()[0] for line in lines[1:]}, symbols, "a new symbol needs a line in debian/libweft0.symbols")

    def test_lintian(self):
        self.need("lintian")
        changes = glob.glob(os.path.join(self.packages(), "*.changes"))
        output = run(["lintian", "--allow-root", "--fail-on", "error,warning", "--suppress-tags", SUPPRESSED, *changes])
        self.assertNotIn("E: ", output)


def unpacked(test, archive):
    folder = tempfile.mkdtemp(prefix="weft-chroot-")
    test.addCleanup(shutil.rmtree, folder)
    run(["tar", "-C", folder, "-xf", archive])
    return folder


class Installed(PackagesTest):
    """A Debian with the libraries of weft is made once and kept in the cache (120 MB)."""

    def base(self):
        if os.geteuid() != 0:
            self.skipTest("not root")
        self.need("mmdebstrap", "buildah")
        libraries = "".join(run(["dpkg-deb", "-f", self.package(name), "Depends"]) for name in NAMES)
        return os.path.join(CACHE, f"debian-{hashlib.sha256(libraries.encode()).hexdigest()[:16]}.tar")

    def image(self):
        """The image as an archive; also makes the base."""
        base = self.base()
        if not os.path.exists(base) and subprocess.run(["apt-get", "-qq", "--print-uris", "download", "base-files"], stdout=subprocess.DEVNULL,
                                                       stderr=subprocess.DEVNULL, timeout=SECONDS).returncode != 0:
            self.skipTest("no mirror of Debian is known to apt-get")
        os.makedirs(CACHE, exist_ok=True)
        out = os.path.join(self.packages(), "weft.oci.tar")
        if not os.path.exists(out):
            done = subprocess.run([os.path.join(ROOT, "deploy", "container", "build"), "--base", base, self.packages(), out], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=SECONDS)
            if done.returncode != 0 and not os.path.exists(base):
                self.skipTest("mmdebstrap cannot fetch Debian: " + done.stdout[-300:])
            self.assertEqual(done.returncode, 0, done.stdout)
        return out

    def test_install_run_remove(self):
        if reason := netns.allowed():
            self.skipTest(reason)
        self.image()
        root = unpacked(self, self.base())
        self.assertEqual(run(["find", root, "-mindepth", "1", "-name", "*weft*"]), "")
        names = ["libweft0", "weft-server", "weft-tools"]
        for name in names:
            shutil.copy(self.package(name), os.path.join(root, "tmp"))
        with netns.private_loopback() as (network, _):
            inside = [*network, "unshare", "--mount", "--pid", "--fork", f"--mount-proc={root}/proc", "chroot", root]
            run([*inside, "sh", "-c", "dpkg --install /tmp/*.deb && rm /tmp/*.deb"])
            output = run([*inside, "sh", "-c", "cd /tmp && weft bench push_pull -n 2 -s 1 -b 64K -e 64K --iters 3 --json"])
            row = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
            self.assertEqual((row["ranks"], row["shards"], row["wrong"]), (2, 1, 0))
            run([*inside, "dpkg", "--purge", *reversed(names)])
        self.assertEqual(run(["find", root, "-mindepth", "1", "-name", "*weft*", "-not", "-path", f"{root}/tmp/*", "-not", "-path", f"{root}/var/log/*"]), "")

    # --- the image ---

    def bundle(self, args, name, namespace):
        """A folder for runc: the image with a root that cannot be written, an ordinary user, and the network of the namespace."""
        with open(os.path.join(self.unpacked_image, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        config["process"].update(terminal=False, args=args)
        config["root"] = {"path": os.path.join(self.unpacked_image, "rootfs"), "readonly": True}
        config["process"]["capabilities"] = {}
        config["mounts"].append({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev"]})
        config["linux"]["namespaces"] = [entry for entry in config["linux"]["namespaces"] if entry["type"] != "network"]
        config["linux"]["namespaces"].append({"type": "network", "path": namespace})
        folder = os.path.join(self.directory, name)
        os.makedirs(folder)
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        return ["runc", "--root", os.path.join(self.directory, "runc"), "run", "--bundle", folder, f"weft-{os.getpid()}-{name}"]

    def unpack_image(self):
        self.need("umoci", "runc")
        layout = unpacked(self, self.image())
        with open(os.path.join(layout, "index.json"), encoding="utf-8") as file:
            tag = json.load(file)["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"]
        self.directory = tempfile.mkdtemp(prefix="weft-image-")
        self.addCleanup(shutil.rmtree, self.directory)
        self.unpacked_image = os.path.join(self.directory, "image")
        run(["umoci", "unpack", "--image", f"{layout}:{tag}", self.unpacked_image])

    def test_image(self):
        """A shard and a worker, each in a container of its own, as an ordinary user, with nothing to write to but /tmp."""
        if reason := netns.allowed():
            self.skipTest(reason)
        self.unpack_image()
        with open(os.path.join(self.unpacked_image, "config.json"), encoding="utf-8") as file:
            process = json.load(file)["process"]
        self.assertEqual((process["user"]["uid"], process["user"]["gid"], process["args"]), (65534, 65534, ["/usr/bin/weftd", "--help"]))
        with netns.private_loopback() as (inside, _):
            namespace = os.path.join("/run/netns", inside[-1])
            version = self.bundle(["/bin/sh", "-c", "id -u; touch /usr/x 2>&1; weftd --version"], "version", namespace)
            try:
                output = run(version)
            except AssertionError as error:
                if "cgroup" in str(error):
                    self.skipTest("runc cannot use the cgroups of this machine: " + str(error)[-300:])
                raise
            self.assertRegex(output, r"^65534\n.*Read-only file system\nweftd \d")
            shard = self.bundle(["weftd", "--index", "0", "--workers", "1", "--shards", "1", "--port", "7000"], "shard", namespace)
            worker = self.bundle(["env", "WEFT_COORDINATOR=127.0.0.1:7000", "WEFT_RANK=0", "weft", "bench", "push_pull", "-b", "64K", "-e", "64K",
                                  "--iters", "3", "--json"], "worker", namespace)
            with subprocess.Popen(shard, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
                try:
                    row = json.loads(run(worker).splitlines()[-1])
                    self.assertEqual((row["ranks"], row["shards"], row["wrong"]), (1, 1, 0))
                    _, errors = server.communicate(timeout=SECONDS)
                    self.assertEqual(server.returncode, 0, errors)
                finally:
                    if server.poll() is None:
                        server.send_signal(signal.SIGTERM)

    def test_wrong_command_lines(self):
        build = os.path.join(ROOT, "deploy", "container", "build")
        self.assertIn("usage:", run([build, "--help"]))
        for words in ([], ["--base"], ["--nothing", "a", "b"], ["a", "b", "c"]):
            self.assertIn("see --help", run([build, *words], expect=2))


if __name__ == "__main__":
    program = unittest.main(verbosity=2, exit=False)
    result = program.result
    sys.exit(1 if not result.wasSuccessful() else 77 if result.testsRun and len(result.skipped) == result.testsRun else 0)
