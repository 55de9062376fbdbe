"""The larger examples train on real data from Debian packages. Thresholds lie well below what three seeds reach."""

import re
from pathlib import Path

import jobs
import pytest

torch = pytest.importorskip("torch")
try:
    from torch.distributed.fsdp import fully_shard  # noqa: F401
except ImportError:
    pytest.skip("torch is older than 2.6", allow_module_level=True)

EXAMPLES = jobs.ROOT / "examples/python"
FASHION = Path("/usr/share/datasets/fashion-mnist")
TEXTS = [Path("/usr/share/dictd/gcide.dict.dz"), Path("/usr/share/doc/anarchism/markdown")]
needs_images = pytest.mark.skipif(not FASHION.is_dir(), reason="the Debian package dataset-fashion-mnist is not installed")


@pytest.fixture
def run(tmp_path, forks):
    """run(ranks, name, *arguments, options=(), forked=True): run an example and return rank 0's log."""

    def finished(ranks, name, *arguments, options=(), forked=True):
        job = jobs.run(tmp_path / "logs", ranks, EXAMPLES / name, *arguments, options=options, timeout=240,
                       forks=forks if forked else None)  # fmt: skip
        assert job.status == 0, job.text()
        return job.logs["rank0.log"]

    return finished


def number(output, words):
    return float(re.search(re.escape(words) + r" ([\d.]+)", output).group(1))


@needs_images
@pytest.mark.parametrize("way, codec, shards", [("hook", "powersgd:rank=2", 0), ("optimizer", "bf16", 0), ("library", None, 2)])
def test_a_convolutional_net_recognises_clothes(run, way, codec, shards):
    more = ["--codec", codec] if codec else []
    output = run(2, "fashion_cnn.py", "--way", way, "--steps", "150", *more, options=["-s", shards])
    assert number(output, "accuracy") > 0.72, output


@needs_images
def test_images_and_captions_meet(run):
    output = run(2, "contrastive.py", "--steps", "120")
    assert number(output, "accuracy") > 0.6, output  # 0.1 by chance


@needs_images
def test_negatives_of_all_ranks_make_two_ranks_one(run):
    norms = [number(run(ranks, "contrastive.py", "--steps", "4"), "norm of the parameters") for ranks in (1, 2)]
    assert abs(norms[0] - norms[1]) < 2e-3, norms


@needs_images
def test_data_and_tensor_parallel_on_a_mesh(run):
    output = run(4, "mesh_parallel.py", "--layers", "1", "--steps", "50")
    assert "dp=2 x tp=2" in output and number(output, "accuracy") > 0.45, output


@pytest.mark.skipif(not any(path.exists() for path in TEXTS), reason="neither dict-gcide nor anarchism is installed")
def test_a_gpt_learns_the_text_of_a_package(run):
    output = run(2, "gpt.py", "--layers", "2", "--width", "64", "--steps", "100", "--lr", "0.004")
    assert number(output.splitlines()[-1], "held-out loss") < 3.1, output  # 5.5 at the start


def test_a_compiled_model_trains_as_an_eager_one(run):
    """The backend traces both passes and generates no code, which would take a compiler and its time."""
    output = run(2, "with_compile.py", "--backend", "aot_eager", "--steps", "60")
    assert int(re.search(r"(\d+) graphs", output).group(1)) > 0, output
    assert number(output, "difference") < 1e-4 and number(output, "accuracy") > 0.85, output


def test_accelerate_trains_with_the_hook(run):
    pytest.importorskip("accelerate", reason="accelerate is not installed; tools/lib/python-env --trainers installs it")
    output = run(2, "with_accelerate.py", "--codec", "powersgd:rank=2", forked=False)
    assert number(output, "accuracy") > 0.85 and "on 2 ranks" in output, output
