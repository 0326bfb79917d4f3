"""Ray Serve as in docs/how-to/deploy.md: replicas on this machine answer as a single server does."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from adaptdel import Deletion, LengthRate, SmoothedClassifier
from adaptdel.classifiers import LinearClassifier
from adaptdel.serve.service import read_shared_seed
from tests.models.test_smoothed import by_words, texts
from tests.serve.serving import check_problem, send

pytest.importorskip("ray.serve", reason="the extra ray-serve is not installed", exc_type=ImportError)
ROOT = Path(__file__).parents[2]
TOKEN = "only-for-this-test"
# Runs Ray Serve until its standard input ends. Nothing is sent to Ray's developers, and no port is open to a network.
SCRIPT = """
import sys
from pathlib import Path
port, temporary, code = sys.argv[1:]
exec(code)
import ray
ray.init(address="local", num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", _temp_dir=temporary)
serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
serve.run(application)
print("ready", flush=True)
sys.stdin.read()
serve.shutdown()
ray.shutdown()
"""


def documented(model: Path, token: Path, seed: Path) -> str:
    """The code of the page, with other paths and hosts."""
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
    [code] = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "from ray" in block]
    places = {"reviews=/srv/models/reviews": model, "/run/secrets/token": token, "/run/secrets/seed": seed}
    for place, path in {**places, "filter.example.org": "127.0.0.1"}.items():
        assert place in code
        code = code.replace(place, str(path))
    return str(code).replace("num_replicas=2", 'num_replicas=2, ray_actor_options={"num_cpus": 0.5}')


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    inputs = texts(60)
    model = SmoothedClassifier(
        LinearClassifier(), Deletion(LengthRate(p_min=0.5, k=3)), n_select=50, n_estimate=300, progress=False
    )
    place = tmp_path_factory.mktemp("ray") / "words"
    model.fit(inputs, by_words(inputs)).save(place)
    return place


def secret(path: Path, text: str = "0123456789abcdef" * 4) -> Path:
    path.write_text(text + "\n", encoding="ascii")
    return path


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


@pytest.mark.slow
def test_two_replicas_answer_as_a_single_server(folder: Path, tmp_path: Path) -> None:
    seed_file, port = secret(tmp_path / "seed"), free_port()
    token = secret(tmp_path / "token", TOKEN)
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    temporary = Path("/tmp") / f"adaptdel-ray-{os.getpid()}"  # paths of sockets are short
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(port), str(temporary), documented(folder, token, seed_file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    ) as running:
        try:
            assert running.stdout is not None
            lines: list[str] = []
            while not lines or lines[-1] != "ready\n":
                lines.append(running.stdout.readline())
                assert lines[-1], "".join(lines)
            compare(folder, seed_file, f"http://127.0.0.1:{port}")
            output, _ = running.communicate(timeout=120)
            assert running.returncode == 0, "".join([*lines, output])
            logged = [output, *(path.read_text(errors="replace") for path in temporary.rglob("logs/**/*.*"))]
            assert not [text for text in logged if "0123456789abcdef" * 2 in text]
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
            shutil.rmtree(temporary, ignore_errors=True)


def compare(folder: Path, seed_file: Path, address: str) -> None:
    """Certificates are those of the model with the same seed, whichever replica answers."""
    model, inputs = SmoothedClassifier.load(folder), texts(12, seed=1)
    certifier = model.certifier(model.plan.requested(seed=read_shared_seed(seed_file)))
    prepared = [certifier.prepare(text, "") for text in inputs]
    evidence = dict(certifier.observed(prepared))
    expected = [certifier.certificate(each, evidence[number]).to_dict() for number, each in enumerate(prepared)]
    for _ in range(6):  # requests go to replicas at random
        answer = send(address, "/v1/certify", {"texts": inputs}, TOKEN)
        assert [result["certificate"] for result in answer.json()["results"]] == expected
    check_problem(send(address, "/v1/certify", {"texts": inputs}), 401, "a token is needed")
    events = send(address, "/v1/certify", {"text": "good film bad plot good fine", "stream": True}, TOKEN).events()
    assert [name for name, _ in events][-2:] == ["result", "done"]
