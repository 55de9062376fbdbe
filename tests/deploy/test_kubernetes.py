#!/usr/bin/python3
"""test_kubernetes.py - the manifests of deploy/kubernetes and deploy/kubeflow: rendered by kubectl, checked against the schemas of
Kubernetes, and the container of the training runtime as a job of two nodes.

    WEFT_BUILD=build python3 tests/deploy/test_kubernetes.py [-k NAME] [-v]
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(os.environ.get("WEFT_BUILD", os.path.join(ROOT, "build")))
KUBERNETES, RDMA, COPIES, KUBEFLOW = (os.path.join(ROOT, "deploy", name)
                                       for name in ("kubernetes", "kubernetes-rdma", "kubernetes-copies", "kubeflow"))
LOAD = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(sys.stdin))))"


def environment_folder():
    """bin/ of tools/lib/python-env --kubernetes."""
    directory = subprocess.run([os.path.join(ROOT, "tools", "lib", "python-env"), "--print"], stdout=subprocess.PIPE, text=True, check=True)
    return os.path.join(directory.stdout.strip(), "bin")


class KubernetesTest(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="weft-kubernetes-")
        self.addCleanup(shutil.rmtree, self.directory)

    def documents(self, text):
        """The YAML documents of a text, read by the yaml module of the environment."""
        self.validator()
        done = subprocess.run([os.path.join(environment_folder(), "python"), "-c", LOAD], input=text, stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout)

    def validator(self):
        path = os.path.join(environment_folder(), "kubernetes-validate")
        if not os.path.exists(path):
            self.skipTest("kubernetes-validate is not installed (tools/lib/python-env --kubernetes)")
        return path

    def validate(self, document, expect=0):
        path = os.path.join(self.directory, "document.yaml")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(document, file)
        done = subprocess.run([self.validator(), "--strict", path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=500)
        self.assertEqual(done.returncode, expect, f"{document.get('kind')}: {done.stdout}")
        return done.stdout

    def read(self, folder, name):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            return file.read()


class Base(KubernetesTest):
    def render(self, folder):
        if not shutil.which("kubectl"):
            self.skipTest("kubectl is not installed")
        done = subprocess.run(["kubectl", "kustomize", folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=500)
        self.assertEqual(done.returncode, 0, done.stderr)
        return self.documents(done.stdout)

    def test_rendered_resources_fit_the_schemas(self):
        rendered = {document["kind"]: document for document in self.render(KUBERNETES)}
        self.assertEqual(set(rendered), {"Service", "StatefulSet", "Job", "PodDisruptionBudget"})
        for document in rendered.values():
            self.validate(document)
        image = rendered["StatefulSet"]["spec"]["template"]["spec"]["containers"][0]["image"]
        self.assertRegex(image, r"^weft:\d+\.\d+\.\d+$")

    def test_rdma(self):
        """The overlay changes the container of each pod, and keeps the rest."""
        rendered = {document["kind"]: document for document in self.render(RDMA)}
        for kind in ("StatefulSet", "Job"):
            self.validate(rendered[kind])
            containers = rendered[kind]["spec"]["template"]["spec"]["containers"]
            self.assertEqual(len(containers), 1)
            devices = [entry["value"] for entry in containers[0]["env"] if entry["name"] == "WEFT_TRANSPORT_DEVICES"]
            self.assertEqual(devices, ["mlx5_0:1,eth0"])
            self.assertIn("rdma/hca_shared_devices_a", containers[0]["resources"]["limits"])
            self.assertEqual(containers[0]["securityContext"]["capabilities"], {"add": ["IPC_LOCK"], "drop": ["ALL"]})
        self.assertEqual(set(rendered), {"Service", "StatefulSet", "Job", "PodDisruptionBudget"})

    def test_copies(self):
        """Shards have an hour to drain, on nodes of their own; one may be evicted, a worker may not."""
        rendered = {(document["kind"], document["metadata"]["name"]): document for document in self.render(COPIES)}
        self.assertEqual({kind for kind, _ in rendered}, {"Service", "StatefulSet", "Deployment", "Job", "PodDisruptionBudget"})
        budgets = {name: document["spec"] for (kind, name), document in rendered.items() if kind == "PodDisruptionBudget"}
        self.assertEqual({name: spec["maxUnavailable"] for name, spec in budgets.items()}, {"weft": 0, "weft-shards": 1})
        for kind, name in (("StatefulSet", "weftd"), ("Deployment", "weftd-more")):
            document = rendered[kind, name]
            self.validate(document)
            template = document["spec"]["template"]
            self.assertEqual(template["spec"]["terminationGracePeriodSeconds"], 3600)
            term, = template["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            for labels in (term["labelSelector"]["matchLabels"], budgets["weft-shards"]["selector"]["matchLabels"]):
                self.assertLessEqual(labels.items(), template["metadata"]["labels"].items())
            container, = template["spec"]["containers"]
            self.assertRegex(container["image"], r"^weft:\d+\.\d+\.\d+$")
            self.assertEqual({mount["name"] for mount in container["volumeMounts"]}, {"secret", "shared"})
            self.assertEqual({volume["name"] for volume in template["spec"]["volumes"]}, {"secret", "shared"})
        worker = rendered["Job", "weft-workers"]["spec"]["template"]["metadata"]["labels"]
        self.assertLessEqual(budgets["weft"]["selector"]["matchLabels"].items(), worker.items())
        for key in ("weft", "weft-shards"):
            self.validate(rendered["PodDisruptionBudget", key])

    def test_a_misspelt_key_is_refused(self):
        document = self.documents(self.read(KUBERNETES, "shards.yaml"))[0]
        document["spec"]["podManagmentPolicy"] = "Parallel"
        self.assertIn("podManagmentPolicy", self.validate(document, expect=1))


class TrainingRuntime(KubernetesTest):
    def runtime(self):
        document, = self.documents(self.read(KUBEFLOW, "runtime.yaml"))
        return document

    def test_jobs_of_the_runtime_fit_the_schema(self):
        """The runtime is a resource of Kubeflow, which has no schema here; its jobs and pods are those of Kubernetes."""
        runtime = self.runtime()
        self.assertEqual((runtime["apiVersion"], runtime["kind"]), ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"))
        jobs = runtime["spec"]["template"]["spec"]["replicatedJobs"]
        self.assertEqual([job["name"] for job in jobs], ["node"])
        job = jobs[0]["template"]
        self.assertEqual(job["metadata"]["labels"], {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"})
        self.validate({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "node", **job["metadata"]}, "spec": job["spec"]})
        self.assertEqual(job["spec"]["template"]["spec"]["containers"][0]["name"], "node")

    def test_the_job_names_the_runtime(self):
        job, = self.documents(self.read(KUBEFLOW, "trainjob.yaml"))
        runtime = self.runtime()
        self.assertEqual(job["apiVersion"], runtime["apiVersion"])
        self.assertEqual(job["spec"]["runtimeRef"], {"kind": runtime["kind"], "name": runtime["metadata"]["name"]})

    def test_two_nodes(self):
        """The script of the container with the variables that the operator sets; the trainer is an example."""
        container = self.runtime()["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
        example = os.path.join(BUILD, "examples", "01_all_reduce")
        if not os.path.exists(example):
            self.skipTest("the examples are not built")
        os.symlink(example, os.path.join(self.directory, "trainer"))
        secret = os.path.join(self.directory, "secret")
        with open(secret, "w", encoding="ascii") as file:
            file.write("0123456789abcdef0123456789abcdef\n")
        os.chmod(secret, 0o400)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        script = container["args"][0].replace(":7000", f":{port}")
        self.assertNotEqual(script, container["args"][0])
        values = {entry["name"]: entry["value"] for entry in container["env"]}
        values.update(WEFT_SECRET_FILE=secret, WEFT_TRANSPORT_DEVICES="lo", PET_NNODES="2", PET_MASTER_ADDR="127.0.0.1", PET_MASTER_PORT="29500",
                      PATH=self.directory + ":" + os.environ["PATH"])
        kept = {name: value for name, value in os.environ.items() if not name.startswith("WEFT_")}
        nodes = [subprocess.Popen([*container["command"], script], env={**kept, **values, "PET_NODE_RANK": str(rank)}, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True) for rank in range(2)]
        outputs = [node.communicate(timeout=500)[0] for node in nodes]
        self.assertEqual([node.returncode for node in nodes], [0, 0], outputs)
        self.assertIn("of 2", outputs[0])


if __name__ == "__main__":
    program = unittest.main(verbosity=2, exit=False)
    result = program.result
    sys.exit(1 if not result.wasSuccessful() else 77 if result.testsRun and len(result.skipped) == result.testsRun else 0)
