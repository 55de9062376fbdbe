#!/usr/bin/env python3
"""gpt.py - a byte-level GPT in PyTorch, data parallel by weft.

    weft run -n 2 -- python examples/python/gpt.py
    weft run -n 2 -- python examples/python/gpt.py --text FILE --codec powersgd:rank=4 --checkpoint gpt.pt
    weft run -n 2 -- python examples/python/gpt.py --text FILE --outer 100 --codec int8
    torchrun --nproc-per-node 2 examples/python/gpt.py

Gradients travel while the backward pass runs. With --outer N each rank trains alone, and the ranks exchange their
weights every N steps (docs/outer-steps.md). The text is any file, or that of the Debian package dict-gcide or
anarchism; each rank reads other pieces of it, and the loss is that of a held-out part. With --checkpoint the program
saves at the end and continues from the file at the start, also on another number of ranks.
"""

import argparse
import math
import os
import time

import data
import torch
from torch import nn
from torch.nn import functional

import weft
from weft.torch.optim import DistributedOptimizer


class Block(nn.Module):
    """A transformer block: causal attention and a perceptron, each behind a layer norm."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden):
        rows, length, width = hidden.shape
        parts = self.query_key_value(self.norm1(hidden)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.project(mixed.transpose(1, 2).reshape(rows, length, width))
        return hidden + self.down(functional.gelu(self.up(self.norm2(hidden))))


class GPT(nn.Module):
    """Bytes (rows, length) to logits (rows, length, 256)."""

    def __init__(self, layers, width, heads, length):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.apply(self._begin)

    @staticmethod
    def _begin(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def forward(self, text):
        hidden = self.bytes(text) + self.places(torch.arange(text.shape[1], device=text.device))
        for block in self.blocks:
            hidden = block(hidden)
        return self.norm(hidden) @ self.bytes.weight.T


def loss_of(model, text, starts, length):
    """Mean cross-entropy of the bytes behind each start, in nats."""
    rows = torch.stack([text[start : start + length + 1] for start in starts]).long()
    return functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def batch_starts(step, rows, limit):
    """The starts of one step's samples over all ranks: equal on all ranks, whatever their number."""
    generator = torch.Generator().manual_seed(7919 * step + 1)
    return torch.randint(limit, (rows,), generator=generator).tolist()


def learning_rate(step, options):
    """Warm-up over a tenth of the steps, then half a cosine."""
    warm = max(1, options.steps // 10)
    if step < warm:
        return options.lr * (step + 1) / warm
    return options.lr * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, options.steps - warm)))


class OuterTraining:
    """The inner optimizer on each rank's own gradients, and outer steps: what `train` uses of DistributedOptimizer."""

    def __init__(self, session, inner, model, options):
        self._inner, self._session, self._model, self._options = inner, session, model, options
        self.zero_grad = inner.zero_grad

    def begin(self, saved=None):
        weights = ((name, parameter.data) for name, parameter in self._model.named_parameters())
        options = self._options
        self._outer = self._session.outer_steps(
            weights, every=options.outer, fragments=options.fragments, overlap=options.overlap, codec=options.codec, saved=saved
        )

    def synchronize(self):
        pass  # gradients stay on their rank

    def step(self):
        self._inner.step()
        self._outer.step()

    def end(self):
        self._outer.sync()

    def state_dict(self):
        return {"inner": self._inner.state_dict(), "outer": self._outer.state()}

    def load_state_dict(self, state):
        self._inner.load_state_dict(state["inner"])
        self.begin(state["outer"] if self._session.rank == 0 else None)


def train(session, options):
    text = data.text(options.text)
    held_out = max(options.length + 2, len(text) // 20)
    if len(text) < 4 * held_out or options.batch % session.ranks:
        raise SystemExit(f"gpt.py: the text is too short, or --batch {options.batch} is no multiple of {session.ranks} ranks")
    train_text, test_text = text[:-held_out], text[-held_out:]

    torch.manual_seed(1)
    model = GPT(options.layers, options.width, options.heads, options.length)
    inner = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.1, betas=(0.9, 0.95))
    saved = torch.load(options.checkpoint) if options.checkpoint and os.path.exists(options.checkpoint) else None
    if saved:
        model.load_state_dict(saved["model"])
    if options.outer:
        optimizer = OuterTraining(session, inner, model, options)
        if not saved:
            optimizer.begin()
    else:
        optimizer = DistributedOptimizer(inner, model.named_parameters(), codec=options.codec)
    first = 0
    if saved:
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]

    def test_loss():
        model.eval()
        with torch.no_grad():
            starts = range(0, len(test_text) - options.length - 1, options.length)[:64]
            loss = loss_of(model, test_text, starts, options.length).item()
        model.train()
        return loss

    began = time.perf_counter()
    for step in range(first, first + options.steps):
        for group in inner.param_groups:
            group["lr"] = learning_rate(step - first, options)
        starts = batch_starts(step, options.batch, len(train_text) - options.length - 1)[session.rank :: session.ranks]
        optimizer.zero_grad()
        loss_of(model, train_text, starts, options.length).backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if session.rank == 0 and (step + 1) % options.every == 0:
            print(f"step {step + 1:5}: held-out loss {test_loss():.4f}, {(time.perf_counter() - began):.1f} s", flush=True)
    if options.outer:
        optimizer.end()
    stats = session.stats()
    if session.rank == 0:
        exposed = stats["exposed_network_ns"] / max(1, stats["step_ns"])
        print(f"{session.ranks} ranks, {stats['sent_bytes'] / 1e6:.1f} MB sent by rank 0, network time exposed {exposed:.1%} of the steps")
        if options.checkpoint:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, options.checkpoint)
    return test_loss()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", help="training text, plain or gzip; default: that of a Debian package")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--length", type=int, default=64, help="bytes of a sample (default 64)")
    parser.add_argument("--batch", type=int, default=16, help="samples of a step over all ranks (default 16)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--codec", help='such as "powersgd:rank=4" or "auto"; default: dense')
    parser.add_argument("--outer", type=int, default=0, help="steps between two exchanges of the weights; default 0: gradients, each step")
    parser.add_argument("--fragments", type=int, default=1, help="with --outer: parts of the model, exchanged one after the other")
    parser.add_argument("--overlap", type=int, default=0, help="with --outer: steps during which an exchange runs")
    parser.add_argument("--every", type=int, default=50, help="steps between two lines (default 50)")
    parser.add_argument("--checkpoint", help="file to continue from, and to save to at the end")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with weft.init() as session:
        loss = train(session, options)
        if session.rank == 0:
            print(f"held-out loss {loss:.6f}")


if __name__ == "__main__":
    main()
