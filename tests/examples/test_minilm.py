"""The example's model against a forward pass in float64 written here, from the weights' file alone."""

from __future__ import annotations

import importlib.util
import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent.parent
SENTENCES = ["A man is eating food.", "Someone is having a meal.", "Quantum chromodynamics describes quarks."]


@pytest.fixture(scope="module")
def minilm():
    spec = importlib.util.spec_from_file_location("minilm", ROOT / "examples" / "minilm.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["minilm"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def weights(minilm):
    """Read the file by its published layout: a length, a JSON header, the elements."""
    data = (minilm.model_folder() / "model.safetensors").read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    found = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            start, stop = entry["data_offsets"]
            values = np.frombuffer(data[8 + length + start : 8 + length + stop], "<f4")
            found[name] = values.reshape(entry["shape"]).astype(np.float64)
    return found


def erf(x):
    """Return the error function in float64, as the C library has it."""
    from math import erf as scalar

    return np.vectorize(scalar)(x)


def forward(w, ids, mask, config):
    heads, eps = config["num_attention_heads"], config["layer_norm_eps"]

    def norm(name, x):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(name, x):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    batch, tokens = ids.shape
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][:tokens]
    x = norm("embeddings.LayerNorm", x + w["embeddings.token_type_embeddings.weight"][0])
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}"
        q, k, v = (
            linear(f"{at}.attention.self.{p}", x).reshape(batch, tokens, heads, -1).transpose(0, 2, 1, 3)
            for p in ("query", "key", "value")
        )
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
        scores = np.where(mask[:, None, None, :], scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = (weights @ v).transpose(0, 2, 1, 3).reshape(batch, tokens, -1)
        x = norm(f"{at}.attention.output.LayerNorm", linear(f"{at}.attention.output.dense", mixed) + x)
        wide = linear(f"{at}.intermediate.dense", x)
        wide = wide * 0.5 * (1 + erf(wide / np.sqrt(2)))
        x = norm(f"{at}.output.LayerNorm", linear(f"{at}.output.dense", wide) + x)
    mean = (x * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return mean / np.linalg.norm(mean, axis=-1, keepdims=True)


def test_embeddings_agree_with_float64(minilm, weights):
    ids, mask = minilm.tokenize(SENTENCES)
    config = json.loads((minilm.model_folder() / "config.json").read_text())
    want = forward(weights, ids, mask, config)
    plan, program = minilm.load(*ids.shape)
    got = program(ids, mask).numpy().astype(np.float64)
    cosine = (got * want).sum(-1) / np.linalg.norm(got, axis=-1) / np.linalg.norm(want, axis=-1)
    assert (cosine >= 1 - 1e-5).all()
    np.testing.assert_allclose(got, want, atol=1e-5)
    recording = program.capture(ids, mask)
    assert recording.verified
    assert recording(ids, mask).numpy().tobytes() == program(ids, mask).numpy().tobytes()
    assert plan.peak >= plan.lower_bound > 0
    assert plan.price().total.seconds > 0


def test_the_command_prints_what_was_known_beforehand():
    done = subprocess.run(
        [sys.executable, "examples/minilm.py", "--text", "one sentence|another|a third"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for words in ("cosine similarity", "planned arena", "lower bound", "launches recorded", "replay byte-equal: yes"):
        assert words in done.stdout


def test_an_empty_text_is_refused():
    done = subprocess.run(
        [sys.executable, "examples/minilm.py", "--text", " | "], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "at least one sentence" in done.stderr


@pytest.mark.parametrize("place", ["", "nowhere/plan.svg", "."])
def test_a_picture_that_has_no_place_is_refused_before_the_work(minilm, monkeypatch, capsys, place):
    monkeypatch.setattr(sys, "argv", ["minilm.py", "--picture", place])
    with pytest.raises(SystemExit) as ended:
        minilm.main()
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "--picture: a file, in a folder that is there" in said.err
