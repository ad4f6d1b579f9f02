"""The MiniLM sentence encoder in torch, and the same exported for onnxruntime."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

from bench.race import Contender


class _Layer(nn.Module):
    def __init__(self, hidden: int, wide: int, heads: int, eps: float) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.mix = (nn.Linear(hidden, hidden) for _ in range(4))
        self.mixed = nn.LayerNorm(hidden, eps)
        self.up, self.down = nn.Linear(hidden, wide), nn.Linear(wide, hidden)
        self.out = nn.LayerNorm(hidden, eps)

    def forward(self, x: torch.Tensor, bias: torch.Tensor, *, fused: bool) -> torch.Tensor:
        batch, tokens, hidden = x.shape

        def split(y: torch.Tensor) -> torch.Tensor:
            return y.view(batch, tokens, self.heads, hidden // self.heads).transpose(1, 2)

        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        if fused:
            seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:  # the form that onnxruntime's optimizer knows
            scores = q @ k.transpose(-1, -2) / (hidden // self.heads) ** 0.5 + bias
            seen = torch.softmax(scores, -1) @ v
        x = self.mixed(self.mix(seen.transpose(1, 2).reshape(batch, tokens, hidden)) + x)
        return self.out(self.down(functional.gelu(self.up(x))) + x)


class Encoder(nn.Module):
    """BERT with mean pooling and unit length, from its configuration and weights as their files have them."""

    def __init__(self, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
        super().__init__()
        hidden, eps = config["hidden_size"], config["layer_norm_eps"]
        self.fused = True
        self.words = nn.Embedding(config["vocab_size"], hidden)
        self.places = nn.Embedding(config["max_position_embeddings"], hidden)
        self.kinds = nn.Embedding(config["type_vocab_size"], hidden)
        self.norm = nn.LayerNorm(hidden, eps)
        shape = (hidden, config["intermediate_size"], config["num_attention_heads"], eps)
        self.layers = nn.ModuleList(_Layer(*shape) for _ in range(config["num_hidden_layers"]))
        self.load_state_dict(_renamed(weights))
        self.eval()

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return ``[batch, hidden]`` for ``ids [batch, tokens]`` and a mask of real tokens, 1 or 0, int64."""
        place = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
        x = self.norm(self.words(ids) + self.kinds(torch.zeros_like(ids)) + self.places(place))
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * -10000.0
        for layer in self.layers:
            x = layer(x, bias, fused=self.fused)
        counted = mask.to(x.dtype).unsqueeze(-1)
        mean = (x * counted).sum(1) / counted.sum(1)
        return mean / mean.norm(dim=-1, keepdim=True)


def encoder(folder: Path) -> Encoder:
    """Return the encoder in a folder with config.json and model.safetensors."""
    return Encoder(json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors"))


_NAMES = {
    "embeddings.word_embeddings": "words", "embeddings.position_embeddings": "places",
    "embeddings.token_type_embeddings": "kinds", "embeddings.LayerNorm": "norm", "encoder.layer": "layers",
    "attention.self.query": "query", "attention.self.key": "key", "attention.self.value": "value",
    "attention.output.dense": "mix", "attention.output.LayerNorm": "mixed", "intermediate.dense": "up",
    "output.dense": "down", "output.LayerNorm": "out",
}  # fmt: skip


def _renamed(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    renamed: dict[str, torch.Tensor] = {}
    for name, value in weights.items():
        if name.startswith("pooler") or name.endswith("position_ids"):
            continue
        short = name
        for theirs, ours in _NAMES.items():
            short = short.replace(theirs, ours)
        renamed[short] = value
    return renamed


def torch_contenders(folder: Path, ids: np.ndarray, mask: np.ndarray) -> list[Contender]:
    """Return torch's contender: inference mode, fused attention, the fastest that it has without a compiler."""
    model = encoder(folder)
    given = torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64))

    def run() -> torch.Tensor:
        with torch.inference_mode():
            return model(*given)

    return [Contender("torch", run, lambda value: value.numpy(), "inference mode, memory kept by malloc")]


def exported(folder: Path, cache: Path) -> dict[str, Path]:
    """Return ONNX files of the encoder, made if they are not in ``cache``: as exported, and with BERT's fusions."""
    cache.mkdir(parents=True, exist_ok=True)
    files = {"": cache / f"minilm-{torch.__version__}.onnx"}
    if not files[""].exists():
        model = encoder(folder)
        model.fused = False
        example = torch.ones((2, 16), dtype=torch.int64), torch.ones((2, 16), dtype=torch.int64)
        axes = {0: "batch", 1: "tokens"}
        partial = files[""].with_suffix(".partial")
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                model, example, str(partial), dynamo=False, opset_version=17, input_names=["ids", "mask"],
                output_names=["embedding"], dynamic_axes={"ids": axes, "mask": axes, "embedding": {0: "batch"}},
            )  # fmt: skip
        partial.rename(files[""])
    optimizer = _optimizer()
    if optimizer is not None:
        files["fused"] = cache / f"minilm-{torch.__version__}-fused.onnx"
        if not files["fused"].exists():
            config = json.loads((folder / "config.json").read_text())
            made = optimizer(
                str(files[""]), model_type="bert", num_heads=config["num_attention_heads"],
                hidden_size=config["hidden_size"], opt_level=1, use_gpu=False,
            )  # fmt: skip
            partial = files["fused"].with_suffix(".partial")
            made.save_model_to_file(str(partial))
            partial.rename(files["fused"])
    return files


def _optimizer() -> Callable[..., Any] | None:
    with contextlib.suppress(ImportError):
        from onnxruntime.transformers.optimizer import optimize_model

        return optimize_model
    return None


def onnxruntime_contenders(
    folder: Path, cache: Path, ids: np.ndarray, mask: np.ndarray, threads: int
) -> list[Contender]:
    """Return onnxruntime's contenders: the exported graph, and the one with BERT's fusions."""
    from bench.peers.onnxruntime_ops import bound_run, open_session

    found: list[Contender] = []
    for name, path in exported(folder, cache).items():
        run, out = bound_run(open_session(str(path), threads), {"ids": ids, "mask": mask.astype(np.int64)})
        title = f"onnxruntime {name}".strip()
        found.append(Contender(title, run, lambda _, out=out: out[0], "every graph optimisation, outputs bound"))
    return found
