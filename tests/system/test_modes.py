"""test_modes.py - every way of training runs 20 steps on the real data, and the loss falls."""

import harness
import jobs


class Modes(harness.JobTest):
    def check(self, mode, codec, shards=2, workers=2, backend="auto"):
        report = self.path("report")
        self.train(shards, workers, ["--mode", mode, "--codec", codec, "--steps", "20", "--warmup", "0", "--eval-every", "10",
                                     "--hidden", "256", "--csv", report + ".csv", "--json", report + ".json"],
                   environment={"WEFT_TRANSPORT_BACKEND": backend})
        result = jobs.read_result(report + ".json")
        self.assertIsNotNone(result)
        rows = result["evaluations"]
        self.assertEqual([row["step"] for row in rows], [0, 10, 20])
        self.assertLess(rows[-1]["test_loss"], 0.7 * rows[0]["test_loss"])
        self.assertGreater(rows[-1]["accuracy"], 0.5)
        self.assertGreater(result["sent_bytes"], 0)
        self.assertGreater(result["received_bytes"], 0)
        self.assertTrue(0 <= result["exposed_share"] <= 1)
        return result

    def test_server_dense(self):
        self.check("server", "dense")

    def test_all_reduce_dense(self):
        self.check("all_reduce", "dense")

    def test_all_reduce_without_shards(self):
        self.check("all_reduce", "dense", shards=0, workers=3)

    def test_server_bf16(self):
        self.check("server", "bf16")

    def test_compressed_modes_send_less(self):
        dense = self.check("server", "dense")["sent_bytes"]
        for mode in ("server", "all_reduce"):
            for codec in ("powersgd:rank=4", "topk:ratio=0.01"):
                with self.subTest(mode=mode, codec=codec):
                    self.assertLess(self.check(mode, codec)["sent_bytes"], dense / 4)

    def test_sockets_make_the_same_losses(self):
        ways = (("server", "dense", 2, 2), ("server", "powersgd:rank=4", 2, 2), ("server", "topk:ratio=0.01", 1, 2), ("all_reduce", "dense", 0, 3),
                ("all_reduce", "powersgd:rank=4", 2, 2))
        for mode, codec, shards, workers in ways:
            with self.subTest(mode=mode, codec=codec):
                rows = [self.check(mode, codec, shards, workers, backend)["evaluations"] for backend in ("auto", "ucx", "tcp")]
                losses = [[(row["step"], row["test_loss"], row["accuracy"]) for row in each] for each in rows]
                self.assertEqual(losses[0], losses[1])

    def test_one_worker(self):
        self.check("server", "dense", shards=1, workers=1)


if __name__ == "__main__":
    harness.main()
