"""The MiniLM sentence encoder at 128 tokens: our recording beside torch eager, in a CUDA graph, and compiled."""

from __future__ import annotations

import numpy as np

import nbxtensor as nbx
from bench.gpu.card import Contender, Lines, example, race, short, spent, spills
from nbxtensor.dtype.convert import convert

CONFIG = {
    "num_attention_heads": 12, "layer_norm_eps": 1e-12, "num_hidden_layers": 6, "hidden_size": 384,
    "intermediate_size": 1536, "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2,
}  # fmt: skip
TOKENS = 128
BATCHES = (1, 8, 32)
DTYPES = ("float32", "bfloat16")
_APART = {"float32": 1e-5, "bfloat16": 2e-3}  # 1 - cosine of the embeddings


def weights() -> dict[str, np.ndarray]:
    """Return random weights of the model's shapes, by the names of its file."""
    rng = np.random.default_rng(0)
    hidden, wide = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (CONFIG["vocab_size"], hidden),
        "embeddings.position_embeddings.weight": (CONFIG["max_position_embeddings"], hidden),
        "embeddings.token_type_embeddings.weight": (CONFIG["type_vocab_size"], hidden),
        "embeddings.LayerNorm.weight": (hidden,),
        "embeddings.LayerNorm.bias": (hidden,),
    }
    for layer in range(CONFIG["num_hidden_layers"]):
        at = f"encoder.layer.{layer}"
        linears = {f"attention.self.{part}": (hidden, hidden) for part in ("query", "key", "value")}
        linears |= {"attention.output.dense": (hidden, hidden), "intermediate.dense": (wide, hidden)}
        linears |= {"output.dense": (hidden, wide)}
        for name, shape in linears.items():
            shapes |= {f"{at}.{name}.weight": shape, f"{at}.{name}.bias": shape[:1]}
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{at}.{name}.weight": (hidden,), f"{at}.{name}.bias": (hidden,)}
    return {
        name: (rng.standard_normal(shape, np.float32) * 0.05 + ("LayerNorm.weight" in name)).astype(np.float32)
        for name, shape in shapes.items()
    }


def graph(batch: int, dtype: str, given: dict[str, np.ndarray]) -> nbx.Graph:
    """Return the model's graph for weights of those shapes."""
    specs = {name: nbx.Spec(value.shape, dtype) for name, value in given.items()}
    inputs = (nbx.Spec((batch, TOKENS), "int64"), nbx.Spec((batch, TOKENS), "bool"))
    return nbx.trace(example("minilm").encoder(CONFIG), *inputs, weights=specs, name="minilm")


def build(batch: int, dtype: str, given: dict[str, np.ndarray], device: str = "cuda") -> tuple[nbx.Plan, nbx.Program]:
    """Return the plan and the program of the model."""
    plan = nbx.plan(graph(batch, dtype, given), device=device)
    return plan, plan.load({name: convert(value, "float32", dtype) for name, value in given.items()})


def run(lines: Lines, *, compiled: bool = True) -> None:
    """Time the model at each batch and dtype; embeddings have to agree with torch's first."""
    given = weights()
    for dtype in DTYPES:
        for batch in BATCHES:
            rng = np.random.default_rng(batch)
            ids = rng.integers(0, CONFIG["vocab_size"], (batch, TOKENS))
            mask = np.ones((batch, TOKENS), bool)
            mask[:, TOKENS - 16 :] = rng.random((batch, 16)) < 0.5
            _one(lines, batch, dtype, given, ids, mask, compiled=compiled)


def _one(
    lines: Lines, batch: int, dtype: str, given: dict[str, np.ndarray], ids: np.ndarray, mask: np.ndarray,
    *, compiled: bool,
) -> None:  # fmt: skip
    plan, program = build(batch, dtype, given)
    recording = program.capture(ids, mask)
    mine = recording(ids, mask).numpy().astype(np.float64)
    others, values = _torch(dtype, given, ids, mask, compiled=compiled)
    apart = 0.0
    for name, value in values.items():
        norms = np.linalg.norm(mine, axis=-1) * np.linalg.norm(value, axis=-1)
        worst = float((1 - (mine * value).sum(-1) / norms).max())
        if not worst <= _APART[dtype]:
            raise ValueError(f"{name}: its embeddings are not ours: 1 - cosine is {worst:.2e}.")
        apart = max(apart, worst)
    took = race([Contender("ours", recording.replay), *others])
    figures = {name: 1e3 * seconds for name, seconds in took.items()}
    ours, price = figures.pop("ours"), plan.price().total
    lines.add(
        "minilm", f"batch {batch}, {TOKENS} tokens, {dtype}", "ms", ours, peers=figures,
        tokens_per_second=round(batch * TOKENS / (ours * 1e-3)), priced=short(1e3 * price.seconds),
        priced_over_measured=short(1e3 * price.seconds / ours), limit=price.limit, launches=len(recording),
        verified=recording.verified, apart=apart, notes={c.name: c.note for c in others},
        planned_nbytes=plan.nbytes, spilling=spills([program]), microseconds=spent(program, recording),
        goal="faster than torch eager and torch.compile" if batch == 32 else None,
    )  # fmt: skip


def _torch(
    dtype: str, given: dict[str, np.ndarray], ids: np.ndarray, mask: np.ndarray, *, compiled: bool
) -> tuple[list[Contender], dict[str, np.ndarray]]:
    try:
        import torch
    except ImportError:
        return [], {}
    from bench.peers import bert, cuda_torch

    made = {name: torch.from_numpy(value) for name, value in given.items()}
    model = bert.Encoder(CONFIG, made).to("cuda", getattr(torch, dtype))
    inputs = torch.from_numpy(ids).cuda(), torch.from_numpy(mask.astype(np.int64)).cuda()
    found = cuda_torch.contenders(model, inputs, compiled=compiled)
    values = {c.name: value.double().cpu().numpy() for c, value in found}
    return [c for c, _ in found], values
