"""The four data sets: Yelp and IMDB from the Hugging Face hub, SpamAssassin and LUN from Advbench; or local files."""

from __future__ import annotations

import gzip
import json
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import copyfileobj
from urllib.request import urlopen

from adaptdel.files import replacing
from adaptdel.text.data import read_rows

HUB = {"yelp": "Yelp/yelp_review_full", "imdb": "stanfordnlp/imdb"}
ADVBENCH = {"spamassassin": "assassin", "lun": "LUN"}
SPLITS = {"train": "train", "test": "dev"}  # and their names in Advbench
# The file that the authors' code downloads: https://github.com/thunlp/Advbench keeps its data on Google Drive.
ADVBENCH_ZIP = (
    "https://drive.usercontent.google.com/download?id=1BOyyblqrBAZ4qgGbZOuBe85sxn8rX6Xg&export=download&confirm=t"
)


def data_file(folder: Path, name: str, split: str) -> Path:
    """The file of a data set in a folder, NAME.SPLIT.*; the one that `fetch` writes if there is none."""
    files = sorted(folder.glob(f"{name}.{split}.*"))
    if len(files) > 1:
        raise ValueError(f"{folder}: must hold one file {name}.{split}.*, got {', '.join(file.name for file in files)}")
    return files[0] if files else folder / f"{name}.{split}{'.jsonl.gz' if name in HUB else '.csv'}"


def missing(folder: Path, names: Sequence[str]) -> list[Path]:
    """The files that a folder lacks."""
    files = [data_file(folder, name, split) for name in names for split in SPLITS]
    return [file for file in files if not file.exists()]


def fetch(folder: Path, names: Sequence[str], note: Callable[[str], None], advbench: str = ADVBENCH_ZIP) -> None:
    """Write what a folder lacks of the data sets."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        for split in SPLITS:
            file = data_file(folder, name, split)
            if not file.exists() and name in HUB:
                note(f"{file.name}: from the hub, {HUB[name]}:{split}")
                _from_hub(f"{HUB[name]}:{split}", file)
    wanted = [name for name in names if name in ADVBENCH and missing(folder, [name])]
    if wanted:
        note(f"{' and '.join(wanted)}: from Advbench, {advbench}")
        _from_advbench(advbench, folder, wanted)


def _from_hub(source: str, file: Path) -> None:
    with replacing(file) as stream, gzip.open(stream, "wt", encoding="utf-8") as lines:
        for row in read_rows(source):
            lines.write(json.dumps({"text": row.text, "label": row.label}) + "\n")


def _from_advbench(address: str, folder: Path, names: Sequence[str]) -> None:
    by_hand = "download the data by hand (https://github.com/thunlp/Advbench) and name the ZIP file: --advbench FILE"
    try:
        with tempfile.TemporaryFile() as copy:
            with Path(address).open("rb") if Path(address).exists() else urlopen(address) as stream:
                copyfileobj(stream, copy)
            with zipfile.ZipFile(copy) as archive:
                for name in names:
                    for split, own in SPLITS.items():
                        ending = f"{ADVBENCH[name]}/{own}.csv"
                        member = next(each for each in archive.namelist() if f"/{each}".endswith(f"/{ending}"))
                        with archive.open(member) as table, replacing(data_file(folder, name, split)) as file:
                            copyfileobj(table, file)
    except StopIteration:
        raise ValueError(f"{address}: holds no {ending}: {by_hand}") from None
    except (OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{address}: {error}: {by_hand}") from None
