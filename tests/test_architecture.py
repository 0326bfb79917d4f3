"""The layers of docs/architecture.md, the extras that modules need, and names that are there once."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "adaptdel"
BASE = {"numpy", "scipy", "adaptdel", *sys.stdlib_module_names}
# Heavy or optional libraries, and the only layers that may import them.
ALLOWED = {
    "flint": {"core"},
    "matplotlib": {"plots", "calibration"},
    "jinja2": {"report"},
    "markupsafe": {"report"},
    "click": {"cli"},
    "sklearn": {"classifiers", "models"},
    "huggingface_hub": {"classifiers", "models"},
    "torch": {"classifiers", "attacks"},
    "transformers": {"classifiers", "attacks"},
    "safetensors": {"classifiers", "files", "models"},
    "pyarrow": {"text", "runs", "report"},
    "datasets": {"text"},
    "fsspec": {"text"},
    "ray": {"runs"},
    "yaml": {"training"},
    "tqdm": {"progress"},
    **{name: {"attacks"} for name in ("textattack", "nltk", "gensim", "tensorflow_hub", "flair")},
    **{name: {"serve"} for name in ("fastapi", "starlette", "pydantic", "anyio", "uvicorn", "prometheus_client")},
    **{name: {"classifiers"} for name in ("tokenizers", "onnx", "onnxruntime", "skops", "joblib")},
    "threadpoolctl": {"serve"},
}


def layers() -> list[str]:
    """The layers as the page lists them, from the top."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = re.search(r"<!-- layers -->\n(.*?)<!-- /layers -->", page, re.DOTALL)
    assert block
    return re.findall(r"^\| `(\w+)` \|", block[1], re.MULTILINE)


def layer_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[tuple[str, str]]:
    """(library, layer of ours or "") for every import, also those inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            module = str(node.module)
            private = [alias.name for alias in node.names if re.match("_[^_]", alias.name)]
            assert not private or not module.startswith("adaptdel"), f"{path}: {private} of another module"
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "adaptdel" else [module]
            names = [name for name in names if name != "adaptdel.__version__"]
        else:
            continue
        for name in names:
            library, _, rest = name.partition(".")
            found.add((library, rest.split(".")[0] if library == "adaptdel" else ""))
    return found


MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def test_every_module_has_a_layer() -> None:
    assert {layer_of(path) for path in MODULES} == set(layers())
    assert len(layers()) == len(set(layers()))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_layers_import_only_from_above(path: Path) -> None:
    order = layers()
    here = layer_of(path)
    for library, layer in imports(path):
        if library == "adaptdel":
            assert layer == here or order.index(layer) < order.index(here), f"{here} imports {layer}"
        else:
            assert library in BASE or here in ALLOWED.get(library, set()), f"{here} imports {library}"


@pytest.mark.parametrize(
    ("library", "code", "extra"),
    [
        ("flint", "import adaptdel as ad; ad.rigorous_radius(0.9, length=3, noise=ad.NoNoise())", "rigorous"),
        ("matplotlib", "from adaptdel.plots import new_figure; new_figure(1, 1)", "plot"),
        ("jinja2", "from adaptdel.report.write import write_report; write_report(['run'], 'no-such-folder')", "report"),
        ("fastapi", "from adaptdel.cli import main; main(['serve', '.'])", "serve"),
    ],
)
def test_a_missing_extra_is_named(library: str, code: str, extra: str) -> None:
    blocked = f"import sys; sys.modules[{library!r}] = None; sys.modules['{library}.figure'] = None\n{code}"
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, check=False)
    assert done.stderr.strip().endswith(f"pip install 'adaptdel[{extra}]'")


def test_no_class_and_no_module_has_a_name_twice() -> None:
    """The commands in ``cli`` aside, which are called like what they call."""
    names = Counter(path.stem for path in MODULES if path.stem != "__init__" and layer_of(path) != "cli")
    classes = Counter(
        node.name
        for path in MODULES
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in [*names.items(), *classes.items()] if count > 1] == []
