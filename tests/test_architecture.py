"""The layers of docs/architecture.md, private names, light imports, and the vocabulary of code and documents."""

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
    **{
        name: {"serve"}
        for name in (
            "fastapi",
            "starlette",
            "pydantic",
            "anyio",
            "uvicorn",
            "httpx2",
            "prometheus_client",
            "threadpoolctl",
        )
    },
} | {name: {"classifiers"} for name in ("tokenizers", "onnx", "onnxruntime", "skops")}


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


def test_the_base_import_is_light() -> None:
    heavy = {"click", "flint", "jinja2", "matplotlib", "torch", "sklearn", "pandas"}
    code = f"import sys, adaptdel; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("library", "code", "extra"),
    [
        ("flint", "import adaptdel as ad; ad.rigorous_radius(0.9, length=3, noise=ad.NoNoise())", "rigorous"),
        ("matplotlib", "from adaptdel.plots import new_figure; new_figure(1, 1)", "plot"),
        ("jinja2", "from adaptdel.report.write import write_report; write_report(['run'], 'no-such-folder')", "report"),
    ],
)
def test_a_missing_extra_is_named(library: str, code: str, extra: str) -> None:
    blocked = f"import sys; sys.modules[{library!r}] = None; sys.modules['{library}.figure'] = None\n{code}"
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, check=False)
    assert done.stderr.strip().endswith(f"pip install 'adaptdel[{extra}]'")


def test_public_names() -> None:
    import adaptdel

    for name in adaptdel.__all__:
        assert hasattr(adaptdel, name)
    assert adaptdel.__all__ == sorted(adaptdel.__all__)


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


OUTSIDE = {"os._exit"}  # of other libraries, which have no public name for it


def private_names_of_others(tree: ast.AST) -> set[str]:
    """Private attributes and imports that a module uses and does not define."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    fields = [node.target for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)]
    own |= {target.id for target in fields if isinstance(target, ast.Name)}
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    own |= {node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")}
    private = {
        ast.unparse(node)
        for node in attributes
        if node.attr.startswith("_") and not node.attr.endswith("__") and node.attr not in own
    }
    private |= {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("adaptdel")
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.endswith("__")
    }
    return private


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_module_uses_private_names_of_another(path: Path) -> None:
    """A private name is used only in the module that defines it."""
    assert private_names_of_others(ast.parse(path.read_text(encoding="utf-8"))) <= OUTSIDE


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("from adaptdel.core.radius import _table, cached_table", {"adaptdel.core.radius._table"}),
        ("from adaptdel import __version__", set()),
        ("model._votes(certifier)", {"model._votes"}),
        ("sampling._draw = faster", {"sampling._draw"}),
        ("class A:\n    _x: int = 0\n    def f(self, other):\n        self._y = other._x + other._y", set()),
        ("def _helper(): ...\n_helper()", set()),
    ],
)
def test_private_names_of_others_are_noticed(code: str, names: set[str]) -> None:
    assert private_names_of_others(ast.parse(code)) == names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_decorator_or_dataclass_is_bypassed(path: Path) -> None:
    """No access to the function below a decorator, or to the parameters of somebody's dataclass."""
    assert re.findall(r"__wrapped__|__dataclass_\w+__", path.read_text(encoding="utf-8")) == []
