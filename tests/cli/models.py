"""Model files for tests of the command."""

SMALL = """
import numpy as np
import nbxtensor as nbx

HIDDEN = 16


def build(batch=2, depth: int = 2, name="small", scale=1.0, deep=False, extra=None):
    def net(weights, x):
        for layer in range(depth + 2 * deep):
            x = nbx.relu(nbx.linear(x, weights[f"w{layer}"], weights[f"b{layer}"])) + x
        return nbx.softmax(x, axis=-1)

    rng = np.random.default_rng(0)
    weights = {}
    for layer in range(depth + 2 * deep):
        weights[f"w{layer}"] = (scale * rng.standard_normal((HIDDEN, HIDDEN))).astype("float32")
        weights[f"b{layer}"] = np.zeros(HIDDEN, "float32")
    specs = {key: nbx.Spec(value.shape, "float32") for key, value in weights.items()}
    graph = nbx.trace(net, nbx.Spec((batch, HIDDEN), "float32"), weights=specs, name=name)
    return graph, weights, (rng.standard_normal((batch, HIDDEN)).astype("float32"),)
"""


def write(folder, text=SMALL, name="model.py"):
    path = folder / name
    path.write_text(text)
    return str(path)
