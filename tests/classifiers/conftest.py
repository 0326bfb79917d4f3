"""Shared by the tests of transformers."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("transformers")
    from tests.classifiers.test_transformers import fixed, tiny

    folder = tmp_path_factory.mktemp("encoder")
    tokenizer = fixed("bert")
    tiny("bert", tokenizer, spread=0.1).bert.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
