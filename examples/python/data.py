"""Data of the examples, from Debian packages: dataset-fashion-mnist, and text of dict-gcide or anarchism."""

import gzip
from pathlib import Path

import torch

FASHION = Path("/usr/share/datasets/fashion-mnist")
CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
GCIDE = Path("/usr/share/dictd/gcide.dict.dz")
ANARCHISM = Path("/usr/share/doc/anarchism/markdown")


def _idx(name, dims):
    path = FASHION / f"{name}.gz"
    if not path.exists():
        raise SystemExit(f"{path} does not exist; install the Debian package dataset-fashion-mnist")
    with gzip.open(path) as file:
        data = bytearray(file.read())
    shape = [int.from_bytes(data[4 + 4 * at : 8 + 4 * at], "big") for at in range(dims)]
    return torch.frombuffer(data, dtype=torch.uint8, offset=4 + 4 * dims).view(shape)


def fashion_mnist(part):
    """Images (n, 1, 28, 28) around 0 and classes (n,); part: "train" (60,000) or "t10k" (10,000)."""
    images = _idx(f"{part}-images-idx3-ubyte", 3).unsqueeze(1).float() / 255
    return (images - 0.286) / 0.353, _idx(f"{part}-labels-idx1-ubyte", 1).long()


def batches(count, size, steps, session, seed=0):
    """Yield this rank's sample indices of each step: `size` samples over all ranks, whatever their number."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        yield torch.randint(count, (size,), generator=generator)[session.rank :: session.ranks]


def text(path=None):
    """The bytes of a text (n,): a file, plain or gzip, or the package dict-gcide, or the package anarchism."""
    if path is None and not GCIDE.exists():
        pages = sorted(ANARCHISM.glob("*.md"))
        if not pages:
            raise SystemExit("no text: install the Debian package dict-gcide or anarchism, or name a file with --text")
        return torch.frombuffer(bytearray(b"".join(page.read_bytes() for page in pages)), dtype=torch.uint8)
    data = Path(path or GCIDE).read_bytes()
    return torch.frombuffer(bytearray(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data), dtype=torch.uint8)
