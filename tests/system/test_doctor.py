"""test_doctor.py - weft doctor as processes: tries on this host, to a listener, and between two network namespaces; messages
without a listener, with different secrets, and with unauthenticated clients; its file and its exit status."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import unittest

import harness

import netns  # noqa: E402


class Doctor(unittest.TestCase):
    def setUp(self):
        if not os.path.exists(harness.PROGRAMS.weft):
            self.skipTest(f"{harness.PROGRAMS.weft} is not built")
        self.directory = tempfile.mkdtemp(prefix="weft-doctor-")
        self.addCleanup(shutil.rmtree, self.directory)
        self.cache = os.path.join(self.directory, "links")

    def path(self, name, text=None):
        path = os.path.join(self.directory, name)
        if text is not None:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                file.write(text)
        return path

    def doctor(self, *words, expect=None, prefix=()):
        command = [*prefix, harness.PROGRAMS.weft, "doctor", "--json", "--cache", self.cache, *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=90)
        if expect is not None:
            self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        self.assertIn(done.returncode, (0, 1, 2, 3))
        report = json.loads(done.stdout) if done.stdout else None
        if report:
            self.assertEqual(report["exit"], done.returncode)
            self.assertTrue(all(finding["advice"] for finding in report["findings"] if finding["level"] != "ok"), report)
        return report, done.stderr

    def listen(self, address, *words, prefix=()):
        port_file = self.path("port")
        process = subprocess.Popen([*prefix, harness.PROGRAMS.weft, "doctor", "--listen", f"{address}:0", "--port-file", port_file, *words],
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.end, process)
        limit = time.monotonic() + 20
        while not os.path.exists(port_file) and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.02)
        self.assertTrue(os.path.exists(port_file))
        with open(port_file, encoding="utf-8") as file:
            return process, int(file.read())

    def test_gpus_by_a_fake_nvml(self):
        nvml = os.path.join(harness.BUILD, "tests", "lib", "libfake_nvml.so")
        environment = {**os.environ, "WEFT_NVML": nvml, "FAKE_NVML": "failed"}
        command = [harness.PROGRAMS.weft, "doctor"]
        done = subprocess.run([*command, "--json", "--no-tries"], env=environment, stdout=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(done.returncode, 3)
        found = {(finding["id"], finding["subject"]) for finding in json.loads(done.stdout)["findings"]}
        self.assertLessEqual({("gpu-ecc", "GPU 0"), ("gpu-remap", "GPU 1"), ("gpu-lost", "GPU 2")}, found)
        done = subprocess.run([*command, "--gpu-metrics"], env=environment, stdout=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(done.returncode, 0)
        self.assertIn('weft_gpu_row_remap_failed{gpu="1",pci="0000:3b:00.0"} 1\n', done.stdout)
        if shutil.which("promtool"):
            subprocess.run(["promtool", "check", "metrics"], input=done.stdout, check=True, text=True, timeout=60)

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=20)

    def links(self, report, lane):
        return {(link["from"], link["to"]): link for link in report["links"] if link["transport"] == lane}

    def test_this_host(self):
        report, _ = self.doctor()
        works = [link for link in report["links"] if link["works"]]
        self.assertTrue(works)
        for link in works:
            self.assertGreater(link["latency_ns"], 0)
            self.assertGreater(link["bytes_per_second"], 1000000)
        again, _ = self.doctor("--links", expect=0)
        self.assertEqual(again["links"], report["links"])
        self.path("links", "weft-links 1\nhost 1 a\n")  # truncated: created again, with a message
        report, error = self.doctor()
        self.assertIn("probe again", error)
        self.assertTrue(report["links"])

    def test_files_that_it_writes(self):
        """Only the link table of tries, and nothing with --no-cache, --no-tries or --links."""
        home = self.path("home")
        os.mkdir(home)
        environment = {**{name: value for name, value in os.environ.items() if name != "XDG_CACHE_HOME"}, "HOME": home}
        for words, files in ((["--no-tries"], []), (["--links"], []), (["--no-cache", "--transport", "shm"], []), (["--transport", "shm"], ["links"])):
            done = subprocess.run([harness.PROGRAMS.weft, "doctor", *words], env=environment, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
            self.assertNotIn("Permission", done.stdout)
            found = [name for _, folders, names in os.walk(home) for name in names + folders if name not in (".cache", "weft") or not files]
            self.assertEqual(found, files, done.stdout)
        text = subprocess.run([harness.PROGRAMS.weft, "doctor", "--help"], stdout=subprocess.PIPE, text=True, timeout=60).stdout
        self.assertIn("Keeps the measured links in the file of --cache", text)

    def test_a_transport_that_was_asked_for_must_work(self):
        report, _ = self.doctor("--transport", "nonsense", expect=3)
        self.assertEqual([finding["id"] for finding in report["findings"] if finding["level"] == "broken"], ["transport"])

    def test_a_loopback_that_is_down(self):
        alone = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]  # its lo is down
        tried = subprocess.run([*alone, "true"], stderr=subprocess.PIPE, text=True)
        if tried.returncode != 0:
            self.skipTest(f"cannot make a network namespace: {tried.stderr.strip()}")
        report, _ = self.doctor("--no-tries", expect=3, prefix=alone)
        finding = self.only(report, "loopback")
        self.assertEqual((finding["level"], finding["subject"]), ("broken", "lo"))
        self.assertIn("ip link set lo up", finding["advice"])
        report, _ = self.doctor("--no-tries", "--all", prefix=[*alone, "sh", "-c", 'ip link set lo up && exec "$0" "$@"'])
        self.assertEqual(self.only(report, "loopback")["level"], "ok")

    def test_usage(self):
        for words in (["--listen", "x:y"], ["--listen", "1", "host"], ["--listen", "--port", "70000"], ["--port", "1"], ["--once"], ["--deadline", "0"], ["--root", "/x", "host"], ["--no-tries", "host"], ["--bogus"],
                      ["--transport", "sim"]):
            with self.subTest(words=words):
                self.doctor(*words, expect=2)
        _, error = self.doctor("--listen", "0.0.0.0:0", expect=2)
        self.assertIn("--secret-file", error)

    def test_over_loopback(self):
        process, port = self.listen("127.0.0.1", "--once")
        report, _ = self.doctor(f"127.0.0.1:{port}")
        self.assertTrue(any(finding["id"] == "clock-offset" for finding in report["findings"]))
        self.assertTrue(any(finding["id"] == "transport" and finding["subject"] == f"127.0.0.1:{port}" and finding["level"] == "ok"
                            for finding in report["findings"]), report)
        self.assertEqual(process.wait(timeout=20), 0)

    def test_nobody_or_somebody_else_there(self):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            port = other.getsockname()[1]
            report, _ = self.doctor(f"127.0.0.1:{port}", expect=3)  # bound, not listening: refused
            self.assertIn("--listen", self.only(report, "reach")["advice"])
            other.listen(1)
            report, _ = self.doctor(f"127.0.0.1:{port}", "--deadline", "1", expect=3)  # accepts the connection and sends nothing
            self.assertIn("something else", self.only(report, "reach")["text"])

    def only(self, report, name):
        found = [finding for finding in report["findings"] if finding["id"] == name]
        self.assertEqual(len(found), 1)
        return found[0]

    def test_secrets_must_agree_and_clients_stop_nobody(self):
        right, wrong = self.path("right", "the secret of this job\n"), self.path("wrong", "another secret altogether\n")
        _, port = self.listen("127.0.0.1", "--secret-file", right)
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]  # send nothing
        clients[0].sendall(os.urandom(300))
        report, _ = self.doctor("--secret-file", wrong, f"127.0.0.1:{port}", expect=3)
        self.assertIn("secret", self.only(report, "reach")["text"])
        report, _ = self.doctor("--secret-file", right, f"127.0.0.1:{port}")
        self.assertFalse([finding for finding in report["findings"] if finding["id"] == "reach"])
        for client in clients:
            client.close()

    def test_more_clients_than_places_and_one_that_trickles(self):
        """Unauthenticated clients use all slots, further ones connect, and one sends a byte from time to time; none of them ends --once."""
        secret = self.path("secret", "the secret of this job\n")
        process, port = self.listen("127.0.0.1", "--secret-file", secret, "--once", "--deadline", "20")
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        clients[-1].sendall(b"d")
        report, _ = self.doctor("--secret-file", secret, f"127.0.0.1:{port}", "--transport", "shm")
        self.assertFalse([finding for finding in report["findings"] if finding["id"] == "reach"], report)
        self.assertTrue(any(finding["id"] == "transport" and finding["subject"] == f"127.0.0.1:{port}" for finding in report["findings"]))
        self.assertEqual(process.wait(timeout=10), 0)
        for client in clients:
            client.close()

    def test_a_listener_that_trickles_has_one_deadline(self):
        """A listener sends a valid challenge, then its proof one byte at a time without end."""
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen(1)

            def trickle():
                client, _ = other.accept()
                with client:
                    client.sendall(b"doc2" + os.urandom(32))
                    try:
                        while True:
                            client.sendall(b"x")
                            time.sleep(0.2)
                    except OSError:
                        pass

            thread = threading.Thread(target=trickle, daemon=True)
            thread.start()
            report, _ = self.doctor("--deadline", "1", f"127.0.0.1:{other.getsockname()[1]}", expect=3)
            self.assertEqual(self.only(report, "reach")["level"], "broken")
            thread.join(timeout=20)
            self.assertFalse(thread.is_alive())

    def test_the_report_needs_room(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            for words in ([], ["--json"], ["--links"]):
                done = subprocess.run([harness.PROGRAMS.weft, "doctor", "--cache", self.cache, "--transport", "shm", *words], stdout=full,
                                      stderr=subprocess.PIPE, text=True, timeout=90)
                self.assertEqual(done.returncode, 3)
                self.assertIn("No space left on device", done.stderr)

    def test_what_the_other_machine_is_like(self):
        _, port = self.listen("127.0.0.1")
        report, _ = self.doctor("--all", f"127.0.0.1:{port}")
        for name in ("memlock", "open-files", "clock-source", "rdma-device"):
            subjects = {finding["subject"] for finding in report["findings"] if finding["id"] == name}
            self.assertTrue(any(subject.startswith(f"127.0.0.1:{port}: ") for subject in subjects), (name, subjects))
        self.assertTrue(any(finding["id"] == "path-mtu" for finding in report["findings"]))

    def test_in_two_network_namespaces(self):
        reason = netns.allowed()
        if reason:
            self.skipTest(f"cannot make namespaces: {reason}")
        secret = self.path("secret", "the secret of this job\n")
        with netns.Network(["here", "there"], "1gbit") as network:
            address = network.address("there")
            _, port = self.listen(address, "--once", "--secret-file", secret, prefix=network.command("there", []))
            report, _ = self.doctor("--secret-file", secret, f"{address}:{port}", prefix=network.command("here", []))
            rows = [link for pair, link in self.links(report, "ucx:tcp").items() if address in pair]
            self.assertEqual(len(rows), 2, report["links"])
            for link in rows:
                self.assertTrue(link["works"])
                self.assertLess(link["bytes_per_second"], 1e9)  # the rate of the shaped link is 0.125e9; loopback has more
            self.assertEqual(self.only(report, "path-mtu")["level"], "ok")
            report, _ = self.doctor("--deadline", "1", "10.77.0.99:4747", prefix=network.command("here", []), expect=3)
            self.assertEqual(self.only(report, "reach")["level"], "broken")


    def test_a_shorter_mtu_there_and_a_firewall(self):
        reason = netns.allowed()
        if reason:
            self.skipTest(f"cannot make namespaces: {reason}")
        secret = self.path("secret", "the secret of this job\n")
        with netns.Network(["here", "there"], "1gbit") as network:
            address = network.address("there")
            words = ("--secret-file", secret, "--deadline", "2", "--transport", "ucx:tcp")
            netns.run(*network.command("there", ["ip", "link", "set", netns.DEVICE, "mtu", "1400"]))
            _, port = self.listen(address, "--secret-file", secret, prefix=network.command("there", []))
            report, _ = self.doctor(*words, f"{address}:{port}", prefix=network.command("here", []))
            finding = self.only(report, "path-mtu")
            self.assertEqual(finding["level"], "warn")
            self.assertIn("MTU 1500 on weft0 here, 1400 on weft0 there", finding["text"])
            rule = ["iptables", "-A", "INPUT", "-i", netns.DEVICE, "-p", "tcp", "--syn", "!", "--dport", str(port), "-j", "DROP"]
            if not shutil.which("iptables") or subprocess.run(network.command("there", rule), stderr=subprocess.DEVNULL).returncode != 0:
                return  # no firewall is possible here; the other checks have passed
            subprocess.run(network.command("here", rule), check=True)  # the transport may connect in either direction
            report, _ = self.doctor(*words, f"{address}:{port}", prefix=network.command("here", []), expect=3)
            found = [finding for finding in report["findings"] if finding["id"] == "transport" and finding["subject"] == f"{address}:{port}"]
            self.assertEqual([finding["level"] for finding in found], ["broken"])
            self.assertIn("open the ports", found[0]["advice"])


if __name__ == "__main__":
    harness.main()
