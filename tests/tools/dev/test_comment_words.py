"""test_comment_words.py - the word counts of comments (tools/dev/comment_words.py), over sources made for the test."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(HERE, "..", "..", "..", "tools", "dev", "comment_words.py")
sys.path.insert(0, os.path.dirname(PROGRAM))
import comment_words  # noqa: E402


class Words(unittest.TestCase):
    def count(self, text):
        return comment_words.count_text(text)

    def test_code_and_strings_are_not_comments(self):
        words, counts = self.count('const char *who = "who /* says who */"; /* two words */ char c = \'"\'; // nobody here\n')
        self.assertEqual(words, 4)
        self.assertEqual((counts["who"], counts["say"], counts["nobody"]), (0, 0, 1))

    def test_an_expression_over_two_lines_is_found(self):
        _, counts = self.count("/* If it is late, the call falls\n * back. The slow\n * path is taken; Whoever waits, waits. */")
        self.assertEqual((counts["fast path"], counts["who"]), (2, 1))

    def test_parts_of_identifiers_are_not_words(self):
        words, counts = self.count("/* who_am_i say3 a_room the whole is done; rooms */")
        self.assertEqual((counts["who"], counts["say"], counts["private"]), (0, 0, 1))
        self.assertEqual(words, 5)

    def test_folders_and_totals(self):
        with tempfile.TemporaryDirectory() as root:
            for path, text in {"base/a.c": "/* who says */", "base/loop/b.h": "// one two three", "tests/t.c": "/* who who who */",
                               "base/notes.md": "who", "build/x.c": "/* who */", "k.cu": "/* told */"}.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            found = comment_words.count_tree(root)
            self.assertEqual(sorted(found), [".", "base", "total"])
            self.assertEqual((found["base"]["words"], found["base"]["counts"]["who"], found["total"]["words"]), (5, 1, 6))
            self.assertEqual(found["base"]["per_10000"]["who"], 2000.0)
            self.assertEqual(comment_words.count_tree(root, depth=2, tests=True)["base/loop"]["words"], 3)
            self.assertEqual(comment_words.count_tree(root, tests=True)["tests"]["counts"]["who"], 3)
            done = subprocess.run([sys.executable, PROGRAM, root, "--json"], stdout=subprocess.PIPE, text=True, check=True)
            self.assertEqual(json.loads(done.stdout), found)
            done = subprocess.run([sys.executable, PROGRAM, root, "--list", "tell"], stdout=subprocess.PIPE, text=True, check=True)
            self.assertEqual(done.stdout, "k.cu:1: /* told */\n")

    def test_a_tree_without_sources_is_wrong_usage(self):
        with tempfile.TemporaryDirectory() as root:
            done = subprocess.run([sys.executable, PROGRAM, root], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn("no .c, .h or .cu file", done.stderr)


if __name__ == "__main__":
    unittest.main()
