"""A torch module of your own: trained on noisy copies, certified, verified and reported."""

import random
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import adaptdel as ad

WORDS = ["see", "the", "notes", "of", "a", "meeting", "at", "noon", "cheap", "pills", "win", "cash", "now", "click"]
rng = random.Random(0)
labels = ["ham", "spam"] * 150
texts = [" ".join(rng.choices(WORDS[:8] if label == "ham" else WORDS[4:], k=40)) for label in labels]


def encode(copies: list[str]) -> torch.Tensor:
    """How often each word occurs in each copy: a row of the copy alone."""
    return torch.tensor([[float(copy.split().count(word)) for word in WORDS] for copy in copies])


torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(len(WORDS), 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
noise = ad.Deletion(ad.LengthRate(p_min=0.9, k=6))
base = ad.train_on_noise(network, texts[:200], labels[:200], noise=noise, encode=encode)

with TemporaryDirectory() as folder:
    run = Path(folder) / "run"
    ad.evaluate(ad.SmoothedClassifier(base, noise), texts[200:], labels=labels[200:], out=run, progress=False)
    for command in (["verify", run], ["report", run, "--out", Path(folder) / "report"]):
        program = [sys.executable, "-m", "adaptdel", *map(str, command)]
        print(subprocess.run(program, check=True, capture_output=True, text=True).stdout)
