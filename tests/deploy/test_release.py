#!/usr/bin/python3
"""test_release.py - the ABI of the headers against the last release; deploy/release/release in a clone: what makes it refuse, and the
tarball, which has its revision.

    WEFT_BUILD=build python3 tests/deploy/test_release.py [-k NAME] [-v]
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RELEASE = os.path.join(ROOT, "deploy", "release")
LAST = os.path.join(RELEASE, "abi-0.1.0.txt")
IDENTITY = ["-c", "user.name=test", "-c", "user.email=test@localhost"]


def run(words, *, expect=0, **more):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=800, **more)
    if done.returncode != expect:
        raise AssertionError(f"{words}: status {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


class ReleaseTest(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="weft-release-")
        self.addCleanup(shutil.rmtree, self.directory)

    def replace_in(self, path, pattern, replacement, flags):
        with open(path, encoding="utf-8") as file:
            text, count = re.subn(pattern, replacement, file.read(), count=1, flags=flags)
        self.assertEqual(count, 1, f"{path}: {pattern}")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def path(self, *parts):
        return os.path.join(self.directory, *parts)


class Abi(ReleaseTest):
    def describe(self, *folders):
        return run([os.path.join(RELEASE, "abi.py"), "describe", *folders])

    def headers(self):
        """A copy of the headers of the last release."""
        folder = self.path("include")
        if not os.path.exists(folder):
            shutil.copytree(os.path.join(ROOT, "tests", "client", "abi", "weft-0.1"), folder)
        return folder

    def compare(self, text, expect):
        path = self.path("new.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return run([os.path.join(RELEASE, "abi.py"), "compare", LAST, path], expect=expect)

    def edit(self, pattern, replacement, name="weft.h"):
        self.replace_in(os.path.join(self.headers(), "weft", name), pattern, replacement, re.S)

    def test_the_list_is_that_of_the_released_headers(self):
        with open(LAST, encoding="utf-8") as file:
            lines = [line for line in file if line[0] != "#"]
        self.assertEqual("".join(lines), self.describe(self.headers()))

    def test_this_tree_is_compatible(self):
        self.compare(self.describe(os.path.join(ROOT, "client", "include"), os.path.join(ROOT, "base", "include")), 0)

    def test_breaks_are_named(self):
        options = r"(struct weft_options \{\n    size_t size;)"
        cases = [("weft.h", r"WEFT_API uint32_t weft_rank\(", "WEFT_API uint32_t weft_rank2(", "function weft_rank is missing"),
                 ("weft.h", r"(WEFT_API enum weft_status weft_barrier\(struct weft_session \*session)", r"\1, int how", "function weft_barrier was: "),
                 ("weft.h", options, r"\1 uint64_t new;", r"member weft_options\.\w+ was: 8 8; it is: 16 8"),
                 ("weft.h", r"(struct weft_step \{)", r"\1 uint64_t new;", "struct weft_step was: "),
                 ("status.h", r"WEFT_ERR_INVALID *=", "WEFT_ERR_NEW = -1, WEFT_ERR_INVALID = -99 +", "value WEFT_ERR_INVALID was: -1")]
        for name, pattern, replacement, expected in cases:
            with self.subTest(expected=expected):
                shutil.rmtree(self.path("include"), ignore_errors=True)
                self.edit(pattern, replacement, name)
                self.assertRegex(self.compare(self.describe(self.headers()), 1), expected)

    def test_a_sized_struct_may_grow(self):
        self.edit(r"(struct weft_stats \{.*?)(\n\};)", r"\1\n    uint64_t new;\2")
        self.assertIn("1 added, 0 incompatible", self.compare(self.describe(self.headers()), 0))


class Tarball(ReleaseTest):
    """A clone of the last commit, in which a release of version 9.0.0 is made."""

    def clone(self):
        if not os.path.exists(os.path.join(ROOT, ".git")) or not shutil.which("git"):
            self.skipTest("the sources are not in a git repository")
        tree = self.path("weft")
        # The tests may run as another user than the owner of the sources.
        run(["git", "-c", "safe.directory=*", "clone", "--quiet", "--shared", "--no-tags", ROOT, tree])
        return tree

    def git(self, *words):
        return run(["git", "-c", "safe.directory=*", *IDENTITY, "-C", self.path("weft"), *words])

    def replace(self, name, pattern, replacement):
        self.replace_in(self.path("weft", name), pattern, replacement, re.M)

    def test_a_release(self):
        tree = self.clone()
        build = self.path("build")
        run(["meson", "setup", build, tree, "-Dtests=disabled", "-Dexamples=disabled", "-Dcuda=disabled"])
        release = [os.path.join(tree, "deploy", "release", "release")]
        refused = run([*release, "--check", build], expect=1)
        for reason in ("is not above the last release 0.1.0", "CHANGELOG.md begins with 'Unreleased'"):
            self.assertIn(reason, refused)
        self.replace("meson.build", r"version: '0\.1\.0'", "version: '9.0.0'")
        self.replace("CHANGELOG.md", r"^## Unreleased$", "## 9.0.0 (2030-01-01)")
        self.replace("debian/changelog", r"^weft \(.*?\)", "weft (9.0.0-1)")
        refused = run([*release, "--check", build], expect=1)
        self.assertIn("tracked files differ from the last commit", refused)
        for folder in ("kubernetes", "kubernetes-copies"):
            self.assertIn(f"deploy/{folder}/kustomization.yaml names the image 0.1.0: expected 9.0.0", refused)
            self.replace(f"deploy/{folder}/kustomization.yaml", r"newTag: .*", "newTag: 9.0.0")
        self.git("commit", "--quiet", "-a", "-m", "release")
        self.assertIn("ready for 9.0.0", run([*release, "--check", build]))
        self.assertIn("git tag -s v9.0.0", run([*release, build]))

        revision = self.git("rev-parse", "--short=12", "HEAD").strip()
        run(["tar", "-C", self.directory, "-xf", os.path.join(build, "meson-dist", "weft-9.0.0.tar.gz")])
        unpacked = self.path("weft-9.0.0")
        self.assertFalse(os.path.exists(os.path.join(unpacked, ".git")))
        self.assertEqual(run([os.path.join(unpacked, "tools", "dev", "revision"), unpacked]).strip(), revision)
        again = self.path("again")
        run(["meson", "setup", again, unpacked, "-Dtests=disabled", "-Dexamples=disabled", "-Dcuda=disabled"])
        run(["ninja", "-C", again, "tools/revision.h"])
        with open(os.path.join(again, "tools", "revision.h"), encoding="utf-8") as file:
            self.assertIn(f'#define WEFT_REVISION "{revision}"', file.read())

    def test_wrong_command_lines(self):
        release = os.path.join(RELEASE, "release")
        self.assertIn("usage:", run([release, "--help"]))
        self.assertIn("expected a build directory", run([release], expect=2))
        self.assertIn("is not a build directory", run([release, self.directory], expect=2))


if __name__ == "__main__":
    program = unittest.main(verbosity=2, exit=False)
    sys.exit(0 if program.result.wasSuccessful() else 1)
