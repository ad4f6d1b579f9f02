"""A Llama decoding step in torch with a static cache, eager or compiled, as one CUDA graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class _Layer(nn.Module):
    def __init__(self, config: Any, context: int) -> None:
        super().__init__()
        self.heads, self.groups, self.width = config.heads, config.groups, config.width
        self.query, self.both = config.heads * config.width, config.groups * config.width
        self.before, self.after = (nn.RMSNorm(config.hidden, config.eps) for _ in range(2))
        self.parts = nn.Linear(config.hidden, self.query + 2 * self.both, bias=False)
        self.out = nn.Linear(self.query, config.hidden, bias=False)
        self.wide = nn.Linear(config.hidden, 2 * config.intermediate, bias=False)
        self.down = nn.Linear(config.intermediate, config.hidden, bias=False)
        shape = (1, config.groups, context, config.width)
        self.register_buffer("keys", torch.zeros(shape), persistent=False)
        self.register_buffer("values", torch.zeros(shape), persistent=False)

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, position: torch.Tensor, seen: torch.Tensor
    ) -> torch.Tensor:
        q, k, v = self.parts(self.before(x)).split([self.query, self.both, self.both], -1)
        q, k = (
            _turned(q.view(1, self.heads, self.width), cos, sin),
            _turned(k.view(1, self.groups, self.width), cos, sin),
        )
        self.keys.index_copy_(2, position, k.view(1, self.groups, 1, self.width))
        self.values.index_copy_(2, position, v.view(1, self.groups, 1, self.width))
        q = q.view(1, self.groups, self.heads // self.groups, self.width)
        scores = q @ self.keys.transpose(-1, -2) / math.sqrt(self.width) + seen
        mixed = torch.softmax(scores.float(), -1).to(x.dtype) @ self.values
        x = x + self.out(mixed.reshape(1, self.query))
        gate, up = self.wide(self.after(x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat((-high, low), -1) * sin


class Step(nn.Module):
    """One token after another: the position and the token are buffers that a step moves on.

    Args:
        config: The shape, as examples/llama.py has it.
        context: Tokens that the cache holds.
    """

    def __init__(self, config: Any, context: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(config.vocabulary, config.hidden)
        self.layers = nn.ModuleList(_Layer(config, context) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden, config.eps)
        self.head = nn.Linear(config.hidden, config.vocabulary, bias=False)
        if config.tied:
            self.head.weight = self.embed.weight
        self.register_buffer("turns", _frequencies(config), persistent=False)
        self.register_buffer("places", torch.arange(context), persistent=False)
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64), persistent=False)
        self.register_buffer("token", torch.zeros(1, dtype=torch.int64), persistent=False)

    def forward(self) -> torch.Tensor:
        """Return the logits of the next token ``[1, vocabulary]``."""
        x = self.embed(self.token)
        angles = torch.cat((self.turns, self.turns)) * self.position
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        seen = torch.where(self.places <= self.position, 0.0, -math.inf).to(x.dtype)[None, None, None]
        for layer in self.layers:
            x = layer(x, cos, sin, self.position, seen)
        logits = self.head(self.norm(x))
        self.token.copy_(logits.argmax(-1))
        self.position.copy_(torch.clamp(self.position + 1, max=self.places.shape[0] - 1))
        return logits


def _frequencies(config: Any) -> torch.Tensor:
    """Return the turns per position, float32, with the scaling of Llama 3 where the shape has it."""
    exponents = torch.arange(0, config.width, 2, dtype=torch.float64) / config.width
    turns = config.theta**-exponents
    scaling = config.scaling
    if scaling and "low_freq_factor" in scaling:
        low, high, original = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["original_context"]
        share = (original * turns / (2 * math.pi) - low) / (high - low)
        share = share.clamp(0.0, 1.0)
        turns = (1 - share) * turns / scaling["factor"] + share * turns
    elif scaling:
        turns = turns / scaling["factor"]
    return turns.float()


def load(config: Any, context: int, weights: Callable[[str], torch.Tensor], device: str = "cuda") -> Step:
    """Return the step on a device with the weights of a model, by their names in the Hugging Face layout."""
    dtype = getattr(torch, config.dtype)
    with torch.device("meta"):
        step = Step(config, context)
    step = step.to(dtype).to_empty(device=device)
    with torch.no_grad():
        step.turns = _frequencies(config).to(device)
        step.places = torch.arange(context, device=device)
        step.position = torch.zeros(1, dtype=torch.int64, device=device)
        step.token = torch.zeros(1, dtype=torch.int64, device=device)
        step.embed.weight.copy_(weights("model.embed_tokens.weight"))
        if config.tied:
            step.head.weight = step.embed.weight
        else:
            step.head.weight.copy_(weights("lm_head.weight"))
        step.norm.weight.copy_(weights("model.norm.weight"))
        for number, layer in enumerate(step.layers):
            at = f"model.layers.{number}"
            parts = [weights(f"{at}.self_attn.{name}_proj.weight") for name in "qkv"]
            layer.parts.weight.copy_(torch.cat(parts))
            layer.out.weight.copy_(weights(f"{at}.self_attn.o_proj.weight"))
            wide = [weights(f"{at}.mlp.{name}_proj.weight") for name in ("gate", "up")]
            layer.wide.weight.copy_(torch.cat(wide))
            layer.down.weight.copy_(weights(f"{at}.mlp.down_proj.weight"))
            layer.before.weight.copy_(weights(f"{at}.input_layernorm.weight"))
            layer.after.weight.copy_(weights(f"{at}.post_attention_layernorm.weight"))
            layer.keys.zero_()
            layer.values.zero_()
    return step.eval()
