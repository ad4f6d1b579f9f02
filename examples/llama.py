"""Llama-architecture language models: prefill and decode over one cache, planned, priced, recorded and replayed.

python examples/llama.py --shape tiny
python examples/llama.py --shape 1b --device cuda --tokens 256
python examples/llama.py --shape FOLDER --ids 128000,9906   # config.json and *.safetensors of Hugging Face
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import nbxtensor as nbx
from nbxtensor.dtype.convert import convert
from nbxtensor.errors import NbxError
from nbxtensor.io import safetensors

NUMBERS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "rms_norm_eps")
LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
SCALINGS = {"default": (), "linear": ("factor",), "llama3": LLAMA3}
BLOCK = (1 << 22) - 3  # random numbers that weights are repetitions of: a prime, so that no two rows are alike


@dataclass(frozen=True)
class Config:
    """The shape of a model.

    Attributes:
        hidden: Width of the residual stream.
        intermediate: Width inside a feed-forward layer.
        layers: Number of layers.
        heads: Query heads.
        groups: Key and value heads.
        width: Width of a head.
        vocabulary: Number of tokens.
        eps: What RMSNorm adds to the mean square.
        theta: Base of the rotary frequencies.
        scaling: Arguments of `rope_frequencies` for longer contexts.
        tied: Whether the head is the embedding.
        dtype: Dtype of weights, activations and cache.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    groups: int
    width: int
    vocabulary: int
    eps: float = 1e-5
    theta: float = 500000.0
    scaling: Mapping[str, float] | None = None
    tied: bool = False
    dtype: str = "bfloat16"

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(spec.numel for spec in weight_specs(self).values())


def _llama3(factor: float) -> dict[str, float]:
    return {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_context": 8192}


# The published configurations of Llama-3.2-1B and Llama-3.1-8B, and one for tests.
SHAPES = {
    "tiny": Config(64, 96, 2, 4, 2, 16, 256, scaling=_llama3(8.0), dtype="float32"),
    "1b": Config(2048, 8192, 16, 32, 8, 64, 128256, scaling=_llama3(32.0), tied=True),
    "8b": Config(4096, 14336, 32, 32, 8, 128, 128256, scaling=_llama3(8.0)),
}


def read_config(folder: Path) -> Config:
    """Return the configuration in ``folder``/config.json; SystemExit where it asks for what is not built here."""
    try:
        given = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise SystemExit(f"{folder}: config.json is JSON. {error}.") from None
    if not isinstance(given, dict):
        raise SystemExit(f"{folder}: config.json is a JSON object. Got {type(given).__name__}.")
    odd = [key for key in ("attention_bias", "mlp_bias") if given.get(key)]
    activation = given.get("hidden_act", "silu")
    if activation != "silu" or odd or given.get("model_type") != "llama":
        told = ", ".join([str(given.get("model_type")), str(activation), *odd])
        raise SystemExit(f"{folder}: a Llama without biases, activation silu. Got {told}.")
    lacking = [key for key in NUMBERS if not isinstance(given.get(key), int | float) or given[key] <= 0]
    if lacking:
        raise SystemExit(f"{folder}: config.json has {', '.join(NUMBERS)}, above 0. Got none for {lacking}.")
    rope = given.get("rope_parameters") or given.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, dict) else rope
    needed = SCALINGS.get(str(kind))
    if needed is None or not all(isinstance(rope.get(key), int | float) for key in needed):
        raise SystemExit(f"{folder}: rotary scaling {' or '.join(SCALINGS)}, with its numbers. Got {kind}: {rope}.")
    scaling = {key.replace("max_position_embeddings", "context"): rope[key] for key in needed} or None
    heads = given["num_attention_heads"]
    return Config(
        hidden=given["hidden_size"],
        intermediate=given["intermediate_size"],
        layers=given["num_hidden_layers"],
        heads=heads,
        groups=given.get("num_key_value_heads") or heads,
        width=given.get("head_dim") or given["hidden_size"] // heads,
        vocabulary=given["vocab_size"],
        eps=given["rms_norm_eps"],
        theta=rope.get("rope_theta", given.get("rope_theta", 10000.0)),
        scaling=scaling,
        tied=given.get("tie_word_embeddings", False),
        dtype=read_weights(folder).dtype("model.embed_tokens.weight"),
    )


def weight_specs(config: Config) -> dict[str, nbx.Spec]:
    """Return shape and dtype of every weight, by its name in the Hugging Face layout."""
    query, keys = config.heads * config.width, config.groups * config.width
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocabulary, config.hidden)}
    for layer in range(config.layers):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm.weight": (config.hidden,),
            f"{at}.self_attn.q_proj.weight": (query, config.hidden),
            f"{at}.self_attn.k_proj.weight": (keys, config.hidden),
            f"{at}.self_attn.v_proj.weight": (keys, config.hidden),
            f"{at}.self_attn.o_proj.weight": (config.hidden, query),
            f"{at}.post_attention_layernorm.weight": (config.hidden,),
            f"{at}.mlp.gate_proj.weight": (config.intermediate, config.hidden),
            f"{at}.mlp.up_proj.weight": (config.intermediate, config.hidden),
            f"{at}.mlp.down_proj.weight": (config.hidden, config.intermediate),
        }
    shapes["model.norm.weight"] = (config.hidden,)
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocabulary, config.hidden)
    return {name: nbx.Spec(shape, config.dtype) for name, shape in shapes.items()}


def state_specs(config: Config, context: int) -> dict[str, nbx.Spec]:
    """Return shape and dtype of what outlives a step: the next token, its position, keys and values of each layer."""
    cache = nbx.Spec((1, config.groups, context, config.width), config.dtype)
    state = {"token": nbx.Spec((1,), "int64"), "position": nbx.Spec((1,), "int32")}
    return state | {f"{part}.{layer}": cache for layer in range(config.layers) for part in ("keys", "values")}


Weights = Mapping[str, nbx.Tensor]
State = Mapping[str, nbx.Tensor]


def _forward(config: Config, weights: Weights, state: State, ids: nbx.Tensor) -> tuple[nbx.Tensor, dict[str, Any]]:
    """Return the residual stream of ``ids [1, tokens]``, and the caches with their keys and values."""
    tokens = ids.shape[1]
    frequencies = nbx.rope_frequencies(config.width, base=config.theta, **(config.scaling or {}))
    length = state["position"] + tokens
    caches: dict[str, Any] = {}
    x = nbx.embedding(weights["model.embed_tokens.weight"], ids)
    for layer in range(config.layers):
        at = f"model.layers.{layer}"

        def weight(name: str, at: str = at) -> nbx.Tensor:
            return weights[f"{at}.{name}.weight"]

        normal = nbx.rms_norm(x, config.hidden, weight("input_layernorm"), config.eps)
        parts = nbx.concat([weight(f"self_attn.{name}_proj") for name in "qkv"])  # once, when weights are loaded
        q, keys, values = nbx.rope_update(
            nbx.linear(normal, parts), state[f"keys.{layer}"], state[f"values.{layer}"], state["position"],
            frequencies, heads=config.heads,
        )  # fmt: skip
        caches |= {f"keys.{layer}": keys, f"values.{layer}": values}
        mixed = nbx.attention(q, keys, values, is_causal=True, kv_length=length)
        mixed = mixed.permute(0, 2, 1, 3).reshape(1, tokens, -1)
        x = nbx.linear(mixed, weight("self_attn.o_proj")) + x
        normal = nbx.rms_norm(x, config.hidden, weight("post_attention_layernorm"), config.eps)
        gate = nbx.silu(nbx.linear(normal, weight("mlp.gate_proj")))
        x = nbx.linear(gate * nbx.linear(normal, weight("mlp.up_proj")), weight("mlp.down_proj")) + x
    return x, caches


def _head(config: Config, weights: Weights, x: nbx.Tensor) -> nbx.Tensor:
    """Return the logits of rows of the residual stream."""
    normal = nbx.rms_norm(x, config.hidden, weights["model.norm.weight"], config.eps)
    return nbx.linear(normal, weights["model.embed_tokens.weight" if config.tied else "lm_head.weight"])


def decode(config: Config) -> Callable[..., Any]:
    """Return one step as a function of weights and state alone: the token in the state, its logits, the next token.

    It returns the next token ``[1]`` and the logits ``[1, vocabulary]``; the token goes into the state, so that the
    next step needs nothing from the host.
    """

    def step(weights: Weights, state: State) -> Any:
        x, caches = _forward(config, weights, state, state["token"].reshape(1, 1))
        logits = _head(config, weights, x[0])
        token = nbx.argmax(logits, axis=-1)
        return (token, logits), {"token": token, "position": state["position"] + 1, **caches}

    return step


def prefill(config: Config) -> Callable[..., Any]:
    """Return a chunk of a prompt as a function of weights, state, ids ``[1, chunk]`` and how many count ``[1]``.

    Padding behind the ids that count is written into the cache past the position, where nothing reads it before the
    next tokens take its place.
    """

    def chunk(weights: Weights, state: State, ids: nbx.Tensor, count: nbx.Tensor) -> Any:
        x, caches = _forward(config, weights, state, ids)
        logits = _head(config, weights, nbx.take(x[0], count - 1, axis=0))
        token = nbx.argmax(logits, axis=-1)
        return (token, logits), {"token": token, "position": state["position"] + count, **caches}

    return chunk


def trace_decode(config: Config, context: int) -> nbx.Graph:
    """Return the graph of a step over a cache of ``context`` tokens."""
    weights, state = weight_specs(config), state_specs(config, context)
    return nbx.trace(decode(config), weights=weights, state=state, name="llama.decode")


def trace_prefill(config: Config, context: int, chunk: int) -> nbx.Graph:
    """Return the graph of ``chunk`` tokens of a prompt over a cache of ``context`` tokens."""
    inputs = nbx.Spec((1, chunk), "int64"), nbx.Spec((1,), "int32")
    weights, state = weight_specs(config), state_specs(config, context)
    return nbx.trace(prefill(config), *inputs, weights=weights, state=state, name="llama.prefill")


def plan_decode(config: Config, device: str = "cpu", context: int = 1024) -> nbx.Plan:
    """Return the plan of a step over a cache of ``context`` tokens."""
    return nbx.plan(trace_decode(config, context), device=device)


def plan_prefill(config: Config, device: str = "cpu", context: int = 1024, chunk: int = 128) -> nbx.Plan:
    """Return the plan of ``chunk`` tokens of a prompt over a cache of ``context`` tokens."""
    return nbx.plan(trace_prefill(config, context, chunk), device=device)


def load(
    config: Config, device: str = "cpu", context: int = 1024, weights: Mapping[str, Any] | None = None, **more: Any
) -> nbx.Program:
    """Return the program of a decode step; without weights, with random ones."""
    return plan_decode(config, device, context).load(weights or RandomWeights(config, device), **more)


def build(shape: str = "tiny", step: str = "decode", context: int = 1024, chunk: int = 128) -> tuple[Any, Any, Any]:
    """Return graph, weights and inputs of a step, for `nbxtensor plan`, `price` and `run`.

    Args:
        shape: A name of `SHAPES` (random weights), or a folder.
        step: "decode" or "prefill".
        context: Tokens that the cache holds.
        chunk: Tokens of a prompt that are read at once.

    Raises:
        ValueError: There is no such shape or step.
    """
    if shape not in SHAPES and not (Path(shape) / "config.json").exists():
        raise ValueError(f"shape is {', '.join(SHAPES)}, or a folder with config.json. Got {shape!r}.")
    config = SHAPES.get(shape) or read_config(Path(shape))

    def weights(device: nbx.Device) -> Mapping[str, Any]:
        return RandomWeights(config, device.name) if shape in SHAPES else read_weights(Path(shape))

    if step == "decode":
        return trace_decode(config, context), weights, ()
    if step != "prefill":
        raise ValueError(f"step is decode or prefill. Got {step!r}.")
    ids = np.random.default_rng(0).integers(config.vocabulary, size=(1, chunk))
    return trace_prefill(config, context, chunk), weights, (ids, np.array([chunk], np.int32))


class RandomWeights(Mapping[str, nbx.Tensor]):
    """Random weights of a shape, made on the device when asked for: one block of random numbers, repeated.

    Args:
        config: The shape.
        device: Where.
        seed: Of the block.
    """

    def __init__(self, config: Config, device: str = "cpu", seed: int = 0) -> None:
        self._specs = weight_specs(config)
        count = min(BLOCK, max(spec.numel for spec in self._specs.values()))
        block = np.random.default_rng(seed).standard_normal(count, np.float32) * np.float32(0.02)
        values = convert(block, "float32", config.dtype)
        self._block = nbx.from_numpy_array(values, config.dtype, device=device)
        self._ones = nbx.ones((config.hidden,), dtype=config.dtype, device=device)

    def __getitem__(self, name: str) -> nbx.Tensor:
        """Return a weight; one name gives the same numbers every time."""
        spec, count = self._specs[name], self._block.size
        if spec.ndim == 1:
            return self._ones
        start = 7919 * list(self._specs).index(name) % count
        times = -(-(spec.numel + start) // count)
        return self._block.expand(times, count).copy().reshape(-1)[start : start + spec.numel].reshape(spec.shape)

    def __contains__(self, name: object) -> bool:
        """Say whether there is such a weight; it is not made for that."""
        return name in self._specs

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(self._specs)

    def __len__(self) -> int:
        """Return the number of weights."""
        return len(self._specs)


class FileWeights(Mapping[str, np.ndarray]):
    """The tensors of one safetensors file, or of several with an index, mapped and not read before they are used."""

    def __init__(self, files: list[Any]) -> None:
        self._file = {name: file for file in files for name in file.names}

    def dtype(self, name: str) -> str:
        """Return the dtype of a tensor; ValueError where no file has it."""
        if name not in self._file:
            raise ValueError(f"{name}: no file of weights has it. They have {', '.join(self._file) or 'none'}.")
        return self._file[name].spec(name)[0]

    def __getitem__(self, name: str) -> np.ndarray:
        """Return a tensor as the numpy carrier of its dtype."""
        return self._file[name].array(name)

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(self._file)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self._file)


def read_weights(folder: Path) -> FileWeights:
    """Return the weights in ``folder``: model.safetensors, or the files that model.safetensors.index.json names.

    Raises:
        ValueError: The index is no JSON that has names of files under "weight_map".
        OSError: A file is not there.
        FormatError: A file is no safetensors file.
    """
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.exists():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            names = []
        if not names or not all(isinstance(name, str) for name in names):
            raise ValueError(f'{index}: JSON with the file of each weight by its name under "weight_map".')
    return FileWeights([safetensors.open_file(folder / name) for name in names])


class Generator:
    """Prefill and decode over one set of weights and one cache.

    Attributes:
        step: The program of a decode step.
        chunk: The program of a chunk of a prompt.
        recording: The recorded step.
        context: Tokens that the cache holds.
        vocabulary: Number of tokens there are.
    """

    def __init__(
        self,
        config: Config,
        device: str = "cpu",
        context: int = 1024,
        chunk: int = 128,
        weights: Mapping[str, Any] | None = None,
        progress: Any = None,
    ) -> None:
        self.context = context
        self.vocabulary = config.vocabulary
        self.step = load(config, device, context, weights, progress=progress)
        self.chunk = plan_prefill(config, device, context, chunk).load(share=self.step, progress=progress)
        self.recording = self.step.capture()
        self._prefill = self.chunk.capture()

    def read(self, ids: list[int]) -> int:
        """Read a prompt into the cache, behind what is there; return the token that follows.

        Raises:
            ValueError: There is no token, or one that the model lacks, or no room for the last chunk.
        """
        size = self.chunk.inputs[0].shape[1]
        start = self.step.state["position"].numpy().item()
        if not ids or start + -(-len(ids) // size) * size > self.context:
            raise ValueError(f"read: 1 to {self.context - start} tokens, in chunks of {size}. Got {len(ids)}.")
        unknown = [token for token in ids if not 0 <= token < self.vocabulary]
        if unknown:
            raise ValueError(f"read: tokens from 0 to {self.vocabulary - 1}. Got {unknown[0]}.")
        for at in range(0, len(ids), size):
            part = ids[at : at + size]
            padded = np.zeros((1, size), np.int64)
            padded[0, : len(part)] = part
            self._prefill(padded, np.array([len(part)], np.int32), borrow=True)
        return self.step.state["token"].numpy().item()

    def tokens(self, ids: list[int], count: int) -> list[int]:
        """Return ``count`` tokens after a prompt, each the likeliest; the cache begins anew.

        Raises:
            ValueError: The cache does not hold them.
        """
        if len(ids) + count - 1 > self.context:
            raise ValueError(f"tokens: prompt and answer within {self.context}. Got {len(ids)} and {count}.")
        self.step.state.reset()
        found = [self.read(ids)]
        while len(found) < count:
            self.recording.replay()
            found.append(self.step.state["token"].numpy().item())
        return found


def main() -> None:
    """Generate tokens, and print what was known beforehand beside what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="tiny", help="tiny, 1b, 8b (random weights), or a folder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=32, help="tokens to generate")
    parser.add_argument("--context", type=int, default=1024, help="tokens that the cache holds")
    parser.add_argument("--chunk", type=int, default=128, help="tokens of a prompt that are read at once")
    parser.add_argument("--ids", default="1,2,3,4,5", help="the prompt, as token numbers")
    given = parser.parse_args()
    for name in ("tokens", "context", "chunk"):
        if getattr(given, name) < 1:
            parser.error(f"--{name}: 1 or more. Got {getattr(given, name)}.")
    words = given.ids.split(",")
    if not all(word.strip().isdecimal() for word in words):
        parser.error(f"--ids: numbers of tokens with commas between. Got {given.ids!r}.")
    try:
        generate(parser, given, [int(word) for word in words])
    except (NbxError, OSError, ValueError) as error:
        parser.exit(1, f"llama.py: {error}\n")


def generate(parser: argparse.ArgumentParser, given: argparse.Namespace, prompt: list[int]) -> None:
    """Load what the command line names, and generate."""
    folder = Path(given.shape)
    if given.shape not in SHAPES and not (folder / "config.json").exists():
        parser.error(f"--shape: {', '.join(SHAPES)}, or a folder with config.json. Got {given.shape}.")
    config = SHAPES.get(given.shape) or read_config(folder)
    weights = None if given.shape in SHAPES else read_weights(folder)
    if given.device == "cpu":
        nbx.device("cpu").measure()
    begun = time.perf_counter()
    generator = Generator(config, given.device, given.context, min(given.chunk, given.context), weights)
    print(f"planned, loaded, verified in {time.perf_counter() - begun:.1f} s: {config.parameters:,} weights")
    plan = generator.step.plan
    print(plan)
    found = generator.tokens(prompt, min(given.tokens, given.context - len(prompt) + 1))
    print("tokens:", *found[:16], "..." if len(found) > 16 else "")
    report(generator, plan, given.tokens)


def report(generator: Generator, plan: nbx.Plan, count: int) -> None:
    """Print bytes, the price and the measured time of a step with the cache full."""
    step = generator.step
    step.state["position"] = np.array([generator.context - 1], np.int32)  # later writes stay at the cache's end
    took = math.inf
    for _ in range(3):
        begun = time.perf_counter()
        generator.recording.replay(count)
        took = min(took, (time.perf_counter() - begun) / count)
    price = plan.price()
    print(price.table())
    print(f"planned: {plan.nbytes:,} bytes (arena {plan.peak:,}, weights {plan.weights_nbytes:,}, state "
          f"{plan.state_nbytes:,})")  # fmt: skip
    print(f"launches recorded: {len(generator.recording)}")
    print(f"replay byte-equal, state too: {'yes' if generator.recording.verified else 'no'}")
    print(f"step: {took * 1e3:.3f} ms, priced {price.total.seconds * 1e3:.3f} ms; {1 / took:.1f} tok/s at context "
          f"{generator.context}")  # fmt: skip


if __name__ == "__main__":
    main()
