#!/usr/bin/env python3
"""contrastive.py - a small CLIP: images and captions are embedded in one space, with the embeddings of all ranks as negatives.

    weft run -n 2 -- python examples/python/contrastive.py

Each rank encodes its images and captions. An all_gather with gradients gives every rank the embeddings of all ranks,
so the batch of the contrastive loss is that of the job: two ranks train as one with the whole batch. The images are
Fashion-MNIST and the captions name their class in several words. Rank 0 prints the zero-shot accuracy: the share of
test images whose own class has the nearest caption.
"""

import argparse
import time

import torch
from data import CLASSES, batches, fashion_mnist
from fashion_cnn import ConvNet
from torch import nn
from torch.nn import functional

import weft
import weft.torch

TEMPLATES = ("a photo of a {}", "one {} on a black ground", "{}", "the picture shows a {}")
LENGTH, WIDTH = 40, 64  # bytes of a caption, dimensions of the space


class AllGather(torch.autograd.Function):
    """Rows (n, width) of each rank to rows (ranks*n, width) of all; the backward pass sums their gradients."""

    @staticmethod
    def forward(context, session, rows):
        context.session, context.shape = session, rows.shape
        gathered = rows.new_empty(session.ranks * rows.shape[0], rows.shape[1])
        session.all_gather(rows.contiguous(), gathered).wait()
        return gathered

    @staticmethod
    def backward(context, gradient):
        own = gradient.new_empty(context.shape)
        context.session.reduce_scatter(gradient.contiguous(), own).wait()
        return None, own


class TextEncoder(nn.Module):
    """Captions as bytes (n, LENGTH) to vectors (n, WIDTH)."""

    def __init__(self):
        super().__init__()
        self.bytes, self.mix = nn.Embedding(256, 32), nn.Conv1d(32, 64, 5, padding=2)
        self.out = nn.Linear(64, WIDTH)

    def forward(self, captions):
        hidden = functional.relu(self.mix(self.bytes(captions).transpose(1, 2)))
        return self.out(hidden.amax(2))


class Clip(nn.Module):
    """Two encoders and the temperature of their similarities."""

    def __init__(self):
        super().__init__()
        self.images, self.texts = ConvNet(), TextEncoder()
        self.images.out = nn.Linear(128, WIDTH)
        self.scale = nn.Parameter(torch.tensor(2.5))

    def forward(self, images, captions):
        return functional.normalize(self.images(images)), functional.normalize(self.texts(captions))


def caption(template, kind):
    data = TEMPLATES[template].format(CLASSES[kind]).encode()[:LENGTH]
    return torch.tensor(list(data.ljust(LENGTH)), dtype=torch.long)


def loss_of(session, model, images, kinds, templates):
    """This rank's share of the symmetric contrastive loss over the batch of all ranks.

    Captions of one class are positives of each other.
    """
    captions = torch.stack([caption(template, kind) for template, kind in zip(templates.tolist(), kinds.tolist())])
    own_images, own_texts = model(images, captions)
    all_kinds = torch.empty(session.ranks * len(kinds), dtype=kinds.dtype)
    session.all_gather(kinds, all_kinds).wait()
    positives = (kinds[:, None] == all_kinds[None, :]).float()
    positives /= positives.sum(1, keepdim=True)
    scale = model.scale.exp()
    loss = 0
    for own, others in ((own_images, own_texts), (own_texts, own_images)):
        logits = scale * own @ AllGather.apply(session, others).T
        loss = loss - (positives * functional.log_softmax(logits, 1)).sum(1).mean() / 2
    return loss


def zero_shot(model):
    images, kinds = fashion_mnist("t10k")
    with torch.no_grad():
        texts = torch.stack([functional.normalize(model.texts(torch.stack([caption(template, kind) for kind in range(10)])))
                             for template in range(len(TEMPLATES))]).mean(0)  # fmt: skip
        nearest = torch.cat([(functional.normalize(model.images(rows)) @ texts.T).argmax(1) for rows in images.split(1000)])
    return (nearest == kinds).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="(default %(default)s)")
    parser.add_argument("--batch", type=int, default=128, help="samples of a step over all ranks (default %(default)s)")
    parser.add_argument("--lr", type=float, default=2e-3, help="(default %(default)s)")
    parser.add_argument("--codec", help='such as "bf16"; default: dense')
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with weft.init() as session:
        images, kinds = fashion_mnist("train")
        torch.manual_seed(options.seed)
        model = Clip()
        optimizer = weft.torch.DistributedOptimizer(
            torch.optim.AdamW(model.parameters(), lr=options.lr), model.named_parameters(), codec=options.codec
        )
        began = time.perf_counter()
        for rows in batches(len(images), options.batch, options.steps, session, options.seed):
            optimizer.zero_grad()
            loss = loss_of(session, model, images[rows], kinds[rows], rows % len(TEMPLATES))
            loss.backward()
            optimizer.step()
        seconds = time.perf_counter() - began
        if session.rank == 0:
            print(f"{options.steps} steps on {session.ranks} ranks in {seconds:.1f} s, last loss {loss.item():.5f}")
            print(f"norm of the parameters {sum(p.detach().square().sum() for p in model.parameters()).sqrt():.5f}")
            print(f"zero-shot accuracy {zero_shot(model):.4f}", flush=True)
        session.barrier().wait()


if __name__ == "__main__":
    main()
