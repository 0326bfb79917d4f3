"""Linear models and transformers behind the server: the certificates of the library, whoever else asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import adaptdel as ad
from adaptdel.certification.certificate import Certificate
from adaptdel.classifiers.linear import LinearClassifier
from adaptdel.serve import create_app
from adaptdel.serve.configuration import ServeSettings
from adaptdel.serve.service import ModelToServe, Service
from tests.models.test_smoothed import by_words, texts
from tests.serve.serving import SEED, calling

NOISE = ad.Deletion(ad.LengthRate(0.7, 6))
INPUTS = [*texts(20, seed=5), "", "good"]
TRAINING = texts(120, seed=6)


def linear() -> ad.SmoothedClassifier:
    return ad.SmoothedClassifier(LinearClassifier(bits=12), NOISE).fit(TRAINING, by_words(TRAINING))


def transformer() -> ad.SmoothedClassifier:
    pytest.importorskip("transformers")
    from tests.classifiers.test_transformers import classifier

    return ad.SmoothedClassifier(classifier("bert"), NOISE)


MAKERS: list[Callable[[], ad.SmoothedClassifier]] = [linear, transformer]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models of every kind in folders, as `adaptdel train` writes them."""
    place = tmp_path_factory.mktemp("models")
    for make in MAKERS:
        make().set_params(n_select=60, n_estimate=200, progress=False).save(place / make.__name__)
    return {make.__name__: place / make.__name__ for make in MAKERS}


@pytest.fixture(scope="module")
def expected(folders: dict[str, Path]) -> dict[str, list[Certificate]]:
    """The certificates of the library."""
    certificates = {}
    for name, folder in folders.items():
        library = ad.SmoothedClassifier.load(folder).set_params(seed=SEED, progress=False)
        certificates[name] = [replace(certificate, seed=None) for certificate in library.certify(INPUTS)]
    return certificates


def test_callers_of_all_models_at_once(folders: dict[str, Path], expected: dict[str, list[Certificate]]) -> None:
    """Every text is a request of its own, to every model, half of them streams."""
    running = Service([ModelToServe.load(folder) for folder in folders.values()], ServeSettings(), seed=SEED)

    async def run() -> dict[tuple[str, int], Any]:
        async with calling(running) as caller:
            asked = {
                (name, number): asyncio.ensure_future(caller.certify(sample, model=name, stream=bool(number % 2)))
                for number, sample in enumerate(INPUTS)
                for name in folders
            }
            return {key: await task for key, task in asked.items()}

    for (name, number), answer in asyncio.run(run()).items():
        result = dict(answer.events())["result"] if number % 2 else answer.result
        assert Certificate.from_dict(result["certificate"]) == expected[name][number], (name, number)


def test_matrices_are_multiplied_in_one_thread_while_the_server_runs() -> None:
    """Small products in several threads take many times the processor time."""

    def most_threads() -> int:
        return max(library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas")

    async def run() -> int:
        app = create_app(Service([ModelToServe("linear", linear())]))
        async with app.router.lifespan_context(app):
            return most_threads()

    with threadpool_limits(2, user_api="blas"):
        assert most_threads() == 2
        assert asyncio.run(run()) == 1
        assert most_threads() == 2
