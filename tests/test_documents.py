"""The documents: every code block is executed, printed output is compared, links and figures are checked."""

from __future__ import annotations

import argparse
import doctest
import random
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.request import Request, urlopen

import pytest
from click import Context

from adaptdel.cli import commands, main
from adaptdel.settings import SERVE
from adaptdel.text.data import read_examples

pytestmark = pytest.mark.usefixtures("nothing_registered")

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(DOCS.rglob("*.md")),
]
FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))

# Commands that are not run, because they change the environment or take minutes to hours. `check_not_run` checks that
# what they name exists.
NOT_RUN = ("make", "pip", "pre-commit", "python3", ". .venv/bin/activate", "docker", "systemctl", "ssh-keygen", "umask")
# Options that are added to a command to make it quick on small data.
QUICKER = {
    "calibrate": ["--set", "n_select=16", "--set", "n_estimate=64"],
    "certify": ["--limit", "12"],
    "attack": ["--inputs", "4", "--set", "queries=200"],
    "audit": ["--certificates", "5", "--set", "queries=100"],
    "train --model": ["--set", "epochs=1", "--set", "warmup=0", "--set", "batch_size=16"],
}


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}, line {self.line} ({self.language})"


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = [Block(page, text[: m.start()].count("\n") + 1, m[1], m[2]) for m in FENCE.finditer(text)]
    assert text.count("```") == 2 * len(found), f"{page}: a fence is not closed, or not at the start of a line"
    return found


# What the pages read: small data and models in the folder that they run in.


def write_data(folder: Path) -> None:
    """Texts of two classes and many lengths, as CSV; bytes with a pattern in them."""
    rng = random.Random(0)
    kinds = {"spam": ["buy", "cheap", "pills", "offer", "now"], "ham": ["lunch", "noon", "friday", "see", "you"]}
    sizes = {"train.csv": 240, "test.csv": 12, "held-out.csv": 640, "emails.csv": 1600, "prompts.csv": 1600}
    for name, count in sizes.items():
        lines = ["text,label"]
        for number in range(count):
            label = ("spam", "ham")[number % 2]
            words = rng.choices(kinds[label], k=rng.choice([6, 20, 40, 80])) + rng.choices(["the", "a", "at"], k=4)
            written = {"spam": "attack", "ham": "normal"}[label] if name == "prompts.csv" else label
            lines.append(f"{' '.join(words)} {number},{written}")
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "glove.6B.50d.txt").write_text("cheap 0.5 -0.1\nlunch -0.4 0.2\n", encoding="utf-8")
    (folder / "sample.bin").write_bytes(rng.randbytes(300) + b"\x90\x90")


def write_transformer(folder: Path) -> None:
    """A tiny BERT with random weights, in the folder that a page names."""
    from tests.classifiers.test_transformers import fixed, tiny

    tokenizer = fixed("bert", max_length=40)
    tokenizer.save_pretrained(folder)
    tiny("bert", tokenizer, labels=2).save_pretrained(folder)


def write_onnx(path: Path) -> None:
    """An ONNX model, and its tokenizer in my-tokenizer."""
    from tests.golden.make import onnx_graph, word_tokenizer

    tokenizer = word_tokenizer()
    tokenizer.model_max_length = 130
    tokenizer.save_pretrained(path.with_name("my-tokenizer"))
    path.write_bytes(onnx_graph(len(tokenizer)).SerializeToString())


MODELS: dict[str, Callable[[Path], Any]] = {
    "my-model": write_transformer,
    "roberta-base": write_transformer,
    "model.onnx": write_onnx,
    "own_noise": lambda path: shutil.copy(ROOT / "examples" / "own_noise.py", path.with_suffix(".py")),
}


# How a block is executed.


def adaptdel(arguments: list[str]) -> str:
    command = arguments[0]
    extra = QUICKER.get(command, [])
    if command == "train" and "--model" in arguments:
        extra = QUICKER["train --model"]
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err, pytest.raises(SystemExit) as stop:
        main([*arguments, *extra])
    assert not stop.value.code, f"adaptdel {shlex.join(arguments)}\n{out.getvalue()}{err.getvalue()}"
    return out.getvalue()


def run_command(line: str) -> str:
    """The standard output of a line of a shell; nothing for a comment or a command that is not run."""
    arguments = shlex.split(line, comments=True)
    if not arguments:
        return ""
    if arguments[:2] == ["adaptdel", "serve"]:
        start_server(arguments)
        return ""
    if arguments[0] == "adaptdel":
        return adaptdel(arguments[1:])
    if arguments[0] == "curl":
        return curl(arguments[1:])
    if line.startswith(NOT_RUN):
        check_not_run(arguments)
        return ""
    assert arguments[0] == "openssl", f"{line}: a document may use adaptdel, curl, openssl and {', '.join(NOT_RUN)}"
    return subprocess.run(arguments, capture_output=True, text=True, check=True).stdout


class PageServer:
    """The server that a page starts. It runs until the end of the page, at a free port in place of the usual one."""

    process: subprocess.Popen[str] | None = None
    port = SERVE.port


def start_server(arguments: list[str]) -> None:
    assert PageServer.process is None
    command = [sys.executable, "-c", "from adaptdel.cli import main; main()", *arguments[1:], "--port", "0"]
    PageServer.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert PageServer.process.stdout is not None
    address = PageServer.process.stdout.readline()
    assert "http://127.0.0.1:" in address, address
    PageServer.port = int(address.strip().rstrip("/").rpartition(":")[2])


def stop_server() -> None:
    """End the server, if there is one; it must end in order."""
    process, PageServer.process, PageServer.port = PageServer.process, None, SERVE.port
    if process is not None:
        process.terminate()
        _, log = process.communicate(timeout=60)
        assert process.returncode == 0, log


def curl(arguments: list[str]) -> str:
    """What the address of the page's server answers; the options -s, -N, -H and -d of curl."""
    parser = argparse.ArgumentParser()
    for quiet in ("-s", "-N"):
        parser.add_argument(quiet, action="store_true")
    parser.add_argument("-H", action="append", default=[])
    parser.add_argument("-d", type=str.encode)
    parser.add_argument("url")
    options = parser.parse_args(arguments)
    assert options.url.startswith(f"http://127.0.0.1:{PageServer.port}/"), options.url
    headers = dict(header.split(": ", 1) for header in options.H)
    with urlopen(Request(options.url, options.d, headers), timeout=60) as response:
        return str(response.read().decode())


def check_not_run(arguments: list[str]) -> None:
    """What a command that is not run names must exist: targets, extras, files of deploy/, arguments on Ray Serve."""
    if arguments[0] == "make":
        targets = re.findall(r"^([a-z- ]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert arguments[1] in {target for names in targets for target in names.split()}, arguments
    elif arguments[0] == "pip":
        (package,) = arguments[2:]
        name, _, extras = package.partition("[")
        assert name in (".", "pre-commit"), f"{package}: adaptdel is not on PyPI"
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert set(extras.rstrip("]").split(",")) <= {"", *project["optional-dependencies"]}
    elif arguments[0] == "systemctl":
        assert (ROOT / "deploy" / f"{arguments[-1]}.service").is_file(), arguments


def same_output(shown: str, printed: str) -> bool:
    """Whether the output is the shown one; a line "..." stands for any lines."""
    parts = [re.escape(part.strip("\n")) for part in re.split(r"^\.\.\.$", shown, flags=re.MULTILINE)]
    return re.fullmatch(r"\n(?:.*\n)*?".join(parts), printed.strip("\n")) is not None


def run_console(block: Block) -> None:
    for part in re.split(r"^\$ ", block.code, flags=re.MULTILINE)[1:]:
        line, _, shown = part.partition("\n")
        printed = run_command(line)
        assert same_output(shown, printed), f"{block}: {line}\nshown:\n{shown}\nprinted:\n{printed}"


def run_doctest(block: Block, names: dict[str, Any]) -> None:
    test = doctest.DocTestParser().get_doctest(block.code, names, str(block), str(block.page), block.line)
    test.globs = names  # shared with the other blocks of the page
    assert test.examples
    output = StringIO()
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=output.write, clear_globs=False)
    assert result.failed == 0, output.getvalue()


def run_block(block: Block, names: dict[str, Any], folder: Path) -> None:
    """Execute a block; Python blocks of a page share their names."""
    block = replace(block, code=block.code.replace(f"127.0.0.1:{SERVE.port}", f"127.0.0.1:{PageServer.port}"))
    for model, write in MODELS.items():
        if model in block.code and not (folder / model).exists():
            write(folder / model)
    if block.language == "python":
        with redirect_stdout(StringIO()):
            exec(compile("\n" * block.line + block.code, str(block.page), "exec"), names)
    elif block.language == "pycon":
        run_doctest(block, names)
    elif block.language == "console":
        run_console(block)
    elif block.language == "sh":
        for line in block.code.splitlines():
            run_command(line)
    elif block.language == "csv":
        (folder / "shown.csv").write_text(block.code, encoding="utf-8")
        assert read_examples(folder / "shown.csv").texts
    else:
        assert block.language in ("bibtex", "text"), f"{block}: another language than tests can run"


@each_page
def test_every_code_block_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    write_data(tmp_path)
    module = ModuleType("document")  # dataclasses look up the module of a class
    monkeypatch.setitem(sys.modules, "document", module)
    names: dict[str, Any] = vars(module)
    try:
        for block in blocks(page):
            run_block(block, names, tmp_path)
    finally:
        stop_server()


def test_the_extras_are_those_of_the_package() -> None:
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    internal = {"all", "docs", "bench", "dev"}
    table = page.split("| extra | adds |")[1].split("\n\n")[0]
    assert (
        set(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)) == set(project["optional-dependencies"]) - internal
    )


@each_page
def test_commands_in_the_text_exist(page: Path) -> None:
    """`adaptdel COMMAND --option` and `make TARGET` in running text name real commands, options and targets."""

    for code in re.findall(r"`((?:adaptdel|make) [^`]+)`", FENCE.sub("", page.read_text(encoding="utf-8"))):
        name, *arguments = code.split()
        if name == "make":
            check_not_run([name, *arguments])
        elif arguments[0].islower():
            command = commands.get_command(Context(commands), arguments[0])
            known = {
                option for parameter in (command.params if command else commands.params) for option in parameter.opts
            }
            assert command or arguments[0] in known, code
            assert {a for a in arguments[1:] if a.startswith("--")} <= {*known, "--help"}, code


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in target:
            continue
        name = target.partition("#")[0]  # mkdocs checks the anchors
        linked = (page.parent / name).resolve() if name else page
        assert linked.is_file(), f"{page}: {target}"


def test_the_paper_s_elements_are_where_the_page_says() -> None:
    """Names in its table are those of modules and what they define; files exist."""
    page = (DOCS / "explanation" / "paper.md").read_text(encoding="utf-8")
    table = page.split("## Where everything is")[1].split("\n## ")[0].splitlines()[6:]
    places = [place for line in table if line for place in re.findall(r"`([^`]+)`", line.split("|")[2])]
    assert len(places) > 30
    for place in places:
        if "/" in place:
            assert (ROOT / place).exists(), place
        else:
            module, _, name = place.rpartition(".")
            assert hasattr(import_module(f"adaptdel.{module}"), name), place


EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.name != "check_by_hand.py"]  # takes a run


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_run(path: Path) -> None:
    with redirect_stdout(StringIO()):
        runpy.run_path(str(path), run_name="__main__")


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_run_and_hold_no_output(path: Path, tmp_path: Path) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output.get("data", {}) for cell in code for output in cell.outputs]
    assert sum("text/html" in data for data in shown) >= 3  # two certificates and a run
    assert sum("image/png" in data for data in shown) == 2
