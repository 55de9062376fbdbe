"""test_two_jobs.py - two jobs share a host: ports are free, names do not collide, results equal those of a job alone."""

import threading

import harness


class TwoJobs(harness.JobTest):
    def test_at_once(self):
        def one(name):
            path = self.path(name + "-hashes")
            outcome[name] = self.run_job(1, 2, [harness.PROGRAMS.trainer, "--hidden", "128", "--steps", "30", "--hash-steps", path], name)
            with open(path + ".0") as file:
                hashes[name] = file.read()

        outcome, hashes = {}, {}
        threads = [threading.Thread(target=one, args=(name,)) for name in ("a", "b")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name in ("a", "b"):
            self.assertEqual(outcome[name].returncode, 0, outcome[name].stdout)
        self.assertEqual(hashes["a"], hashes["b"])
        self.assertEqual(hashes["a"].count("\n"), 30)

    def test_another_job_is_refused(self):
        """The coordinator refuses a worker of another job with a sentence, and its job continues."""
        import jobs

        group = self.group("mine")
        csv = self.path("report.csv")
        jobs.start_by_hand(harness.PROGRAMS, group, 1, 2, [harness.PROGRAMS.trainer, "--hidden", "64", "--steps", "400", "--eval-every",
                                                          "5", "--csv", csv])
        self.wait_for_steps(group, csv)
        coordinator = jobs.wait_for_port_file(self.path("mine", "ports"), group)
        stray = self.group("stray")
        process = stray.start("stray", [harness.PROGRAMS.trainer], {"WEFT_COORDINATOR": coordinator, "WEFT_JOB": "other"})
        process.wait(timeout=30)
        self.assertGreater(process.returncode, 0)
        self.assertIn("job", self.log(stray, "stray"))
        group.wait(60)


if __name__ == "__main__":
    harness.main()
