#!/usr/bin/python3
"""test_deploy.py - the files of deploy/, each checked by the program that reads it; a missing program is a skip with its name.

    WEFT_BUILD=build python3 tests/deploy/test_deploy.py [-k NAME] [-v]
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEPLOY = os.path.join(ROOT, "deploy")
BUILD = os.path.abspath(os.environ.get("WEFT_BUILD", os.path.join(ROOT, "build")))
WEFT, WEFTD = os.path.join(BUILD, "tools", "weft"), os.path.join(BUILD, "tools", "weftd")
EXPOSURE_MAX = 3.0  # of systemd-analyze security: 0 to 10, and a unit without any hardening has over 8

sys.path.insert(0, os.path.join(DEPLOY, "generate"))
import bash_completion  # noqa: E402
import help_text  # noqa: E402
import man_pages  # noqa: E402


def clean_environment():
    return {name: value for name, value in os.environ.items() if not name.startswith("WEFT_")}


def read(*parts):
    with open(os.path.join(DEPLOY, *parts), encoding="utf-8") as file:
        return file.read()


class DeployTest(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="weft-deploy-")
        self.addCleanup(shutil.rmtree, self.directory)

    def write(self, name, text):
        path = os.path.join(self.directory, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def call(self, *words, expect=0, **environment):
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100,
                              env={**clean_environment(), **environment})
        self.assertEqual(done.returncode, expect, f"{words}: {done.stdout}{done.stderr}")
        return done

    def need(self, program):
        if not shutil.which(program):
            self.skipTest(f"{program} is not installed")


class Documents(DeployTest):
    def test_documents_are_installed(self):
        """All of docs/, the licence and the list of changes, in one folder, so that links between documents work."""
        with open(os.path.join(BUILD, "meson-info", "intro-install_plan.json"), encoding="utf-8") as file:
            plan = json.load(file)
        folder = os.path.join("{datadir}", "doc", "weft")
        for name in ("LICENSE", "CHANGELOG.md"):
            self.assertEqual(plan["data"][os.path.join(ROOT, name)]["destination"], os.path.join(folder, name))
        self.assertEqual(plan["install_subdirs"][os.path.join(ROOT, "docs")]["destination"], folder)
        with open(os.path.join(ROOT, "debian", "weft-tools.install"), encoding="utf-8") as file:
            packed = re.findall(r"^usr/share/doc/weft/(\S+) usr/share/doc/weft-tools$", file.read(), re.M)
        folders = [name for name in os.listdir(os.path.join(ROOT, "docs")) if os.path.isdir(os.path.join(ROOT, "docs", name))]
        self.assertEqual(sorted(packed), sorted(["*.md", "examples", *folders]), "debian/weft-tools.install needs a line for each folder")


class Configuration(DeployTest):
    def test_example_is_that_of_this_weftd(self):
        self.assertEqual(self.call(WEFTD, "--example-config").stdout, read("weft.ini"),
                         "write it again: weftd --example-config >deploy/weft.ini")

    def test_example_changes_nothing(self):
        self.assertEqual(self.call(WEFTD, "--check-config", os.path.join(DEPLOY, "weft.ini")).stdout, "")

    def test_every_line_of_the_example_is_valid(self):
        text, count = re.subn(r"^;(\w+ =)", r"\1", read("weft.ini"), flags=re.M)
        self.assertEqual(count, self.call(WEFTD, "--help-options").stdout.count("    Takes "))
        self.assertEqual(self.call(WEFTD, "--check-config", self.write("weft.ini", text)).stdout, "")

    def test_files_without_an_end_or_space(self):
        self.assertIn("at most 10000 lines", self.call(WEFTD, "--check-config", "/dev/zero", expect=1).stderr)
        for words in ([WEFTD, "--example-config"], [WEFT, "--help"]):
            with open("/dev/full", "w", encoding="ascii") as full:
                done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=100)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, r"^weftd?: cannot write all of the output: No space left on device\n$")


class Manual(DeployTest):
    def page(self, name):
        return "\n".join(man_pages.PAGES[name]("0.0.0", WEFT, WEFTD)) + "\n"

    def test_pages_name_every_command_and_option(self):
        weft, weftd, ini = (self.page(name) for name in ("weft.1", "weftd.8", "weft.ini.5"))
        for words, found in help_text.read_tree(WEFT).items():
            self.assertTrue(found.options or found.commands, words)
            self.assertIn(man_pages.escape(words), weft)
            for option in found.options:
                self.assertTrue(option.help, f"{words} --{option.name}")
                self.assertIn("\\fB" + man_pages.escape("--" + option.name), weft)
        for option in help_text.read([WEFTD]).options:
            self.assertIn("\\fB" + man_pages.escape("--" + option.name), weftd)
        for section, name in re.findall(r"^(\w+)\.(\w+) = ", self.call(WEFTD, "--help-options").stdout, flags=re.M):
            self.assertIn(f"Variable: WEFT_{section.upper()}_{name.upper()}.", ini)

    def test_pages_are_clean(self):
        if not shutil.which("mandoc") and not shutil.which("groff"):
            self.skipTest("neither mandoc nor groff is installed")
        for name in man_pages.PAGES:
            path = self.write(name, self.page(name))
            if shutil.which("mandoc"):
                self.assertEqual(self.call("mandoc", "-Tlint", "-Wwarning", path).stdout, "")
            if shutil.which("groff"):
                self.assertEqual(self.call("groff", "-man", "-ww", "-Tutf8", "-z", path).stderr, "")


class Completion(DeployTest):
    def complete(self, *words):
        """The words that bash proposes for the last of these words."""
        script = ('. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); "_$1"; '
                  'printf "%s\\n" "${COMPREPLY[@]}"')
        path = os.path.join(self.directory, "weft.bash")
        if not os.path.exists(path):
            with open(path, "w", encoding="utf-8") as file:
                file.write(bash_completion.script(WEFT, WEFTD))
        return self.call("bash", "-euc", script, path, *words).stdout.split()

    def test_commands_options_and_files(self):
        self.need("bash")
        self.assertEqual(self.complete("weft", "st"), ["status"])
        self.assertIn("bench", self.complete("weft", ""))
        self.assertEqual(self.complete("weft", "run", "--min"), ["--min-workers"])
        self.assertEqual(self.complete("weft", "bench", "all_r"), ["all_reduce"])
        self.assertEqual(self.complete("weft", "bench", "all_reduce", "--minb"), ["--minbytes"])
        self.assertEqual(self.complete("weftd", "--check"), ["--check-config"])
        ini = self.write("some.ini", "")
        self.assertEqual(self.complete("weftd", "--config", ini[:-2]), [ini])
        self.assertEqual(self.complete("weft", "run", "--", ini[:-2]), [ini])
        self.assertEqual(self.complete("weft", "run", "--", "trainer", "--min"), [])


class Systemd(DeployTest):
    UNIT = os.path.join(DEPLOY, "systemd", "weftd@.service")

    def unit(self):
        """The unit with the programs of this build."""
        return self.write("weftd@job.service", read("systemd", "weftd@.service").replace("/usr/bin/weftd", WEFTD))

    def test_unit_is_valid(self):
        self.need("systemd-analyze")
        # The status is 0 also for a key that systemd does not know.
        self.assertEqual(self.call("systemd-analyze", "verify", "--man=no", self.unit()).stderr, "")

    def test_drop_in_is_valid(self):
        self.need("systemd-analyze")
        unit = self.unit()
        os.mkdir(unit + ".d")
        drop_in = read("systemd", "shared-folder.conf")
        self.write("weftd@job.service.d/shared-folder.conf", drop_in)
        self.assertEqual(self.call("systemd-analyze", "verify", "--man=no", unit).stderr, "")
        self.write("weftd@job.service.d/shared-folder.conf", drop_in.replace("ReadWritePaths", "ReadWritePath"))
        self.assertIn("ReadWritePath", self.call("systemd-analyze", "verify", "--man=no", unit).stderr)

    def test_unit_is_hardened(self):
        self.need("systemd-analyze")
        done = self.call("systemd-analyze", "security", "--offline=true", "--no-pager", self.unit())
        exposure = float(re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)[1])
        self.assertLessEqual(exposure, EXPOSURE_MAX)

    def test_weftd_accepts_the_command_line(self):
        text = read("systemd", "job.env")
        self.check_command_line(dict(re.findall(r"^(\w+)=(.*)$", text, flags=re.M)))
        every = dict(re.findall(r"^#?(\w+)=(.*)$", text, flags=re.M))  # with the lines that are comments
        self.check_command_line({name: value.replace("/shared/mnist", self.directory) for name, value in every.items()})
        for words in re.findall(r"^# +(WEFTD_OPTIONS)=(.*)$", text, flags=re.M):
            self.check_command_line(dict([words]))

    def check_command_line(self, environment):
        secret = self.write("secret." + str(len(os.listdir(self.directory))), "0123456789abcdef0123456789abcdef\n")
        os.chmod(secret, 0o400)
        words = environment.pop("WEFTD_OPTIONS").split()
        for key in ("ExecStart", "ExecStartPre"):
            line = re.search(rf"^{key}=/usr/bin/weftd (.*)$", read("systemd", "weftd@.service"), flags=re.M)[1]
            command = line.replace("%i", "mnist").replace("$WEFTD_OPTIONS", " ".join(words)).split()
            if key == "ExecStart":
                command.insert(0, "--check-config")
            done = self.call(WEFTD, *command, WEFT_SECRET_FILE=secret, **environment)
            self.assertEqual(done.stderr, "")
            self.assertRegex(done.stdout, r"(?m)^job.name +=  *mnist +\(--job\)$")


class Slurm(DeployTest):
    SCRIPTS = [os.path.join(DEPLOY, "slurm", name) for name in ("train.sbatch", "servers.sbatch")]

    def test_scripts_parse(self):
        self.need("bash")
        for path in self.SCRIPTS:
            self.call("bash", "-n", path)

    def test_scripts_pass_shellcheck(self):
        self.need("shellcheck")
        self.call("shellcheck", *self.SCRIPTS)

    def test_weftd_accepts_the_command_lines(self):
        text = read("slurm", "servers.sbatch")
        secret = self.write("secret", "0123456789abcdef0123456789abcdef\n")
        os.chmod(secret, 0o600)
        values = {"index": "1", "workers": "2", "shards": "2", "head": "hosta", "port": "20001", "0": "1", "1": "hosta:20001",
                  "SLURMD_NODENAME": "hostb"}
        lines = re.findall(r"weftd (--index[^&'\n]*)", text)
        self.assertEqual(len(lines), 2)
        for line in lines:
            words = [values[word[1:]] if word.startswith("$") else word for word in line.replace('"', "").split()]
            self.call(WEFTD, "--check-config", *words, WEFT_SECRET_FILE=secret)

    def test_a_missing_trainer_is_refused(self):
        self.need("bash")
        for path in self.SCRIPTS:
            self.assertIn("the trainer is missing", self.call("bash", path, expect=2).stderr)


class Kubernetes(DeployTest):
    FOLDER = os.path.join(DEPLOY, "kubernetes")

    def setUp(self):
        super().setUp()
        self.secret = self.write("secret", "0123456789abcdef0123456789abcdef\n")
        os.chmod(self.secret, 0o440)

    def resources(self):
        return re.findall(r"^  - (\S+\.yaml)$", read("kubernetes", "kustomization.yaml"), flags=re.M)

    def test_every_file_is_a_resource(self):
        self.assertEqual(sorted(self.resources() + ["kustomization.yaml"]), sorted(os.listdir(self.FOLDER)))

    def test_the_overlays_patch_resources_of_the_base(self):
        for folder, count in (("kubernetes-rdma", 2), ("kubernetes-copies", 2)):
            overlay = read(folder, "kustomization.yaml")
            self.assertIn("bases:\n  - ../kubernetes\n", overlay)
            names = re.findall(r"^  - (\S+)$", overlay.partition("patchesStrategicMerge:\n")[2], flags=re.M)
            self.assertEqual(len(names), count)
            for name in names:
                base, patch = read("kubernetes", name), read(folder, name)
                for pattern in (r"^kind: \S+$", r"^  name: \S+$") + ((r"^        - name: \S+$",) if "containers:" in base else ()):
                    self.assertEqual(re.search(pattern, base, flags=re.M)[0], re.search(pattern, patch, flags=re.M)[0], name)

    def command(self, *texts):
        """The words of the first text's container, and the variables of all of them, as Kubernetes sets both."""
        values = {}
        for text in texts:
            values.update(re.findall(r"- \{name: (\w+), value: \"?([^\"}]*)\"?\}", text))
        values.update(WEFT_SECRET_FILE=self.secret, POD_IP="10.0.0.1", KUBERNETES_SERVICE_HOST="10.0.0.1")
        for name in ("WEFT_SERVER_STORE", "WEFT_SNAPSHOT_FOLDER"):
            if name in values:
                values[name] = self.directory + values[name].replace("/shared", "")
        words = [word.strip().strip('"') for word in re.search(r"command: \[weftd, (.*)\]", texts[0])[1].split(",")]
        return [re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], word) for word in words], values

    def test_weftd_accepts_the_command_of_a_shard_that_joins(self):
        """The number at the end of its pod's name has no meaning."""
        words, values = self.command(read("kubernetes-copies", "more.yaml"))
        done = self.call(WEFTD, "--check-config", *words, HOSTNAME="weftd-more-24567", **values)
        self.assertRegex(done.stdout, r"(?m)^server.store +=  *\S+/train.store +\(WEFT_SERVER_STORE\)$")

    def test_weftd_accepts_the_command_of_each_shard(self):
        """Runs the container's command with a weftd that only checks."""
        words, values = self.command(read("kubernetes", "shards.yaml"))
        copies_words, copies = self.command(read("kubernetes", "shards.yaml"), read("kubernetes-copies", "shards.yaml"))
        for ordinal in ("0", "1"):
            self.assertIn("server.copies", self.call(WEFTD, "--check-config", *copies_words, HOSTNAME="weftd-" + ordinal, **copies).stdout)
            done = self.call(WEFTD, "--check-config", *words, HOSTNAME="weftd-" + ordinal, **values)
            self.assertRegex(done.stdout, r"(?m)^job.name +=  *train +\(WEFT_JOB\)$")
            self.assertRegex(done.stdout, r"(?m)^server.listen +=  *10.0.0.1 +\(--listen\)$")

    def test_numbers_agree(self):
        shards, workers = read("kubernetes", "shards.yaml"), read("kubernetes", "workers.yaml")
        self.assertEqual(re.search(r"replicas: (\d+)", shards)[1], re.search(r'SHARDS, value: "(\d+)"', shards)[1])
        number = re.search(r'WORKERS, value: "(\d+)"', shards)[1]
        self.assertEqual(re.findall(r"(?:completions|parallelism): (\d+)", workers), [number, number])


if __name__ == "__main__":
    unittest.main()
