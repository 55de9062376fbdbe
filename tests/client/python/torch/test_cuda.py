"""CUDA tensors over a CUDA runtime without a device: results in stream order, without a host thread that waits.

A real device: tests/gpu/run.sh torch-cuda.
"""

import jobs
import pytest

PROGRAM = "cuda_programs.py"
LIBRARIES = {"WEFT_CUDA_RUNTIME": jobs.BUILD / "tests/lib/libfake_cudart.so",
             "WEFT_CUDA_KERNELS": jobs.BUILD / "tests/lib/libfake_cuda_kernels.so"}  # fmt: skip
pytestmark = pytest.mark.skipif(not LIBRARIES["WEFT_CUDA_RUNTIME"].exists(), reason="the build has no fake CUDA runtime")
ENVIRONMENT = {name: str(path) for name, path in LIBRARIES.items()}


def test_results_in_stream_order(run):
    run(PROGRAM, "chain,collectives,sends,host_is_free,hook,gradients,tensors,interface", environment=ENVIRONMENT)


def test_a_failure_releases_the_stream(run_failing):
    job = run_failing(PROGRAM, "fails", environment=ENVIRONMENT)
    assert "named:" in job.logs["rank0.log"] and "the stream continues" in job.logs["rank0.log"], job.text()
