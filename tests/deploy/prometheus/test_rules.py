"""test_rules.py - promtool accepts the alerts and their cases; each alert has a section in the docs."""

import os
import re
import shutil
import subprocess
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
FOLDER = os.path.join(ROOT, "deploy", "prometheus")
HAS_PROMTOOL = shutil.which("promtool") is not None


def read(*parts):
    with open(os.path.join(ROOT, *parts), encoding="utf-8") as file:
        return file.read()


def alert_blocks():
    """{name: text of its rule}."""
    parts = re.split(r"^ +- alert: (\w+)\n", read("deploy", "prometheus", "alerts.yml"), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


class Rules(unittest.TestCase):
    def promtool(self, *words):
        if not HAS_PROMTOOL:
            self.skipTest("promtool is not installed (package prometheus)")
        done = subprocess.run(["promtool", *words], cwd=FOLDER, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=250)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_configuration_and_rules(self):
        self.promtool("check", "config", "prometheus.yml")

    def test_alertmanager_configuration(self):
        if not shutil.which("amtool"):
            self.skipTest("amtool is not installed (package prometheus-alertmanager)")
        done = subprocess.run(["amtool", "check-config", "alertmanager.yml"], cwd=FOLDER, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=250)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_cases(self):
        self.promtool("test", "rules", "alerts_test.yml")

    def test_every_alert_has_a_case_that_fires_and_one_that_does_not(self):
        cases = read("deploy", "prometheus", "alerts_test.yml")
        for name in alert_blocks():
            self.assertRegex(cases, rf"alertname: {name}\n +eval_time: \w+\n +exp_alerts:\n")
            self.assertRegex(cases, rf"alertname: {name}, eval_time: \w+, exp_alerts: \[\]")

    def test_every_alert_has_a_section(self):
        titles = re.findall(r"^## (.*)$", read("docs", "operations.md"), flags=re.M)
        sections = {title.strip().lower() for title in titles}
        self.assertGreater(len(alert_blocks()), 5)
        for name, text in alert_blocks().items():
            for field in ("summary", "description", "severity"):
                self.assertRegex(text, rf"\b{field}: \w", f"{name} has no {field}")
            anchor = re.search(r"runbook_url: docs/operations\.md#(\S+)", text)
            self.assertIsNotNone(anchor, f"{name} has no runbook_url")
            self.assertEqual(anchor.group(1), name.lower())
            self.assertIn(anchor.group(1), sections)


if __name__ == "__main__":
    program = unittest.main(verbosity=2, exit=False)
    sys.exit(0 if program.result.wasSuccessful() else 1)
