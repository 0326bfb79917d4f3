"""A calibration that is interrupted: checkpoints, damaged and foreign ones."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from adaptdel.calibration.folders import CHECKPOINT, calibrate_folder
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.store import Store, read_records
from adaptdel.text.data import read_examples
from tests.calibration.documents import (
    ARGUMENTS,
    DATA,
    MONOTONE,
    TURNED,
    Stop,
    data_file,
    fitted,
    folder_settings,
    quick,
    saved,
    whole,
)

# Resuming


def kept(path: Path) -> list[dict[str, Any]]:
    """The evaluations in a checkpoint."""
    return [values for _, values in read_records(path)] if path.exists() else []


def stored_job(path: Path) -> dict[str, Any]:
    """The job of a checkpoint."""
    with closing(sqlite3.connect(path)) as connection:
        job: dict[str, Any] = json.loads(connection.execute("SELECT value FROM job").fetchone()[0])
    return job


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_stopped_within_an_evaluation(tmp_path: Path, share: float) -> None:
    stop, checkpoint = int(len(whole().trace) * share), tmp_path / "checkpoint"

    def progress(done: int, total: int) -> None:
        assert done <= total
        if done >= 24 * stop + 7:
            raise Stop

    with pytest.raises(Stop):
        quick(TURNED, **MONOTONE, checkpoint=checkpoint, progress=progress)
    assert len(kept(checkpoint)) == stop
    asked: list[int] = []
    assert quick(TURNED, **MONOTONE, checkpoint=checkpoint, progress=lambda done, total: asked.append(done)) == whole()
    assert len(kept(checkpoint)) == len(whole().trace)
    assert asked[: stop + 1] == [*range(24, 24 * stop + 1, 24), 24 * stop + 1]  # replayed, then one by one


def test_stopped_again_and_again(tmp_path: Path) -> None:
    """Every call gets one evaluation further, and the last one ends as if nothing had happened."""
    checkpoint = tmp_path / "checkpoint"
    for count in range(len(whole().trace) - 1):
        assert len(kept(checkpoint)) == count

        def progress(done: int, total: int, limit: int = 24 * (count + 1) + 1) -> None:
            if done >= limit:
                raise Stop

        with pytest.raises(Stop):
            quick(TURNED, **MONOTONE, checkpoint=checkpoint, progress=progress)
        assert len(kept(checkpoint)) == count + 1
    assert quick(TURNED, **MONOTONE, checkpoint=checkpoint) == whole()


def killed_at(checkpoint: Path, done: int) -> None:
    """Calibrate in a process that is killed after so many certificates."""

    def progress(number: int, total: int) -> None:
        if number >= done:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        quick(TURNED, **MONOTONE, checkpoint=checkpoint, progress=progress)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_killed_and_resumed(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    total, rng = 24 * len(whole().trace), random.Random(3)
    for number in range(8):
        done = rng.randrange(total * number // 8, total * (number + 1) // 8) + 1
        killed_at(checkpoint, done)
        assert len(kept(checkpoint)) == (done - (done % 24 == 0)) // 24  # all that were finished before
    assert quick(TURNED, **MONOTONE, checkpoint=checkpoint) == whole()


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    model, examples = saved(tmp_path / "model"), read_examples(str(data_file(tmp_path)))
    errors: list[str] = []

    def progress(done: int, total: int) -> None:
        if not errors:
            again = [sys.executable, "-c", "from adaptdel.cli import main; main()", "calibrate", str(model)]
            again += [
                "--in-place",
                "--data",
                str(tmp_path / "data.jsonl"),
                *ARGUMENTS,
                "--monotone",
                "--objective",
                "mean",
                "--min-accuracy",
                "0.9",
            ]
            ran = subprocess.run(again, capture_output=True, text=True, check=False)
            assert ran.returncode == 2
            errors.append(ran.stderr)

    done = calibrate_folder(model, examples, folder_settings(), progress=progress)
    assert done.calibration == whole()
    assert errors == [f"adaptdel: {model / CHECKPOINT}: another process is using it: wait until that has ended\n"]


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_a_damaged_checkpoint(tmp_path: Path, suffix: str) -> None:
    """It resumes with what is intact, or says in one sentence which file to delete."""
    source = tmp_path / "source" / "checkpoint"
    source.parent.mkdir()
    killed_at(source, 24 * 5)
    Store(source, stored_job(source)).close()  # moves the log into the database
    killed_at(source, 24 * 9)
    data = source.with_name(source.name + suffix).read_bytes()
    assert len(data) > 4096
    damages = [data[: len(data) // 2], data[:-1], b"", data[:100], bytes(len(data)), data[:5000] + bytes(3000)]
    for number, damaged in enumerate([*damages, data[:4200] + b"?" * 900 + data[5100:]]):
        checkpoint = Path(shutil.copytree(source.parent, tmp_path / str(number))) / "checkpoint"
        checkpoint.with_name(checkpoint.name + suffix).write_bytes(damaged)
        sentence = f"{checkpoint}: resumed: delete it and run the same command again"
        try:
            result = quick(TURNED, **MONOTONE, checkpoint=checkpoint)
        except ValueError as error:
            sentence = str(error)
            checkpoint.unlink()
            result = quick(TURNED, **MONOTONE, checkpoint=checkpoint)
        assert sentence.startswith(f"{checkpoint}: ")
        assert sentence.endswith(": delete it and run the same command again")
        assert result == whole()


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, examples = saved(tmp_path / "model"), read_examples(str(data_file(tmp_path)))
    real, left = Store.flush, [5]

    def flush(store: Store) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(store)

    monkeypatch.setattr(Store, "flush", flush)
    with pytest.raises(ValueError) as error:
        calibrate_folder(model, examples, folder_settings(), progress=False)
    expected = "the disk is full: the evaluations so far are kept: run the same command again once there is space"
    assert str(error.value) == f"{model}: {expected}"
    monkeypatch.undo()
    assert kept(model / CHECKPOINT)
    assert calibrate_folder(model, examples, folder_settings(), progress=False).calibration == whole()


def test_what_is_replayed_is_believed(tmp_path: Path) -> None:
    """A checkpoint is read, not only written: another score in it leads elsewhere."""
    checkpoint = tmp_path / "checkpoint"
    quick(TURNED, **MONOTONE, checkpoint=checkpoint)
    first = kept(checkpoint)[0]
    with Store(checkpoint, stored_job(checkpoint)) as store:
        store.put(1, first | {"clean": 1.0, "mean_radius": 99.0})
    result = quick(TURNED, **MONOTONE, checkpoint=checkpoint)
    assert result.bins[0].searched == first["keep"]
    with Store(checkpoint, stored_job(checkpoint)) as store:
        store.put(2, {"bin": 0})
    with pytest.raises(ValueError, match=r"checkpoint, record 2: not an evaluation: .*keep is missing: delete it"):
        quick(TURNED, **MONOTONE, checkpoint=checkpoint)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"threshold": 0.8}, "threshold was 0.75, now 0.8"),
        ({"n_estimate": 65, "seed": 3}, "n_estimate was 64, now 65; seed was 0, now 3"),
        ({"bins": [0, 60]}, "bins was [0, 40, 80], now [0, 60]"),
    ],
)
def test_a_checkpoint_of_another_calibration_is_refused(tmp_path: Path, changed: dict[str, Any], sentence: str) -> None:
    checkpoint = tmp_path / "checkpoint"
    quick(DATA, checkpoint=checkpoint)
    earlier = checkpoint.read_bytes()
    with pytest.raises(ValueError) as error:
        quick(DATA, **changed, checkpoint=checkpoint)
    assert f"{checkpoint}: belongs to another job: {sentence}: delete it" in str(error.value)
    assert checkpoint.read_bytes() == earlier


def test_a_checkpoint_knows_its_data_and_model(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    quick(DATA, checkpoint=checkpoint)
    with pytest.raises(ValueError, match=r"data was \w+\.\.\., now \w+"):
        quick((DATA[0], [1 - DATA[1][0], *DATA[1][1:]]), checkpoint=checkpoint)
    with pytest.raises(ValueError, match=r"data was \w+\.\.\., now \w+"):
        quick(([DATA[0][0].replace("w", "v"), *DATA[0][1:]], DATA[1]), checkpoint=checkpoint)
    other = SmoothedClassifier(fitted(3).base, fitted().noise)
    with pytest.raises(ValueError, match=r"model was \w+\.\.\., now \w+"):
        quick(DATA, other, checkpoint=checkpoint)
    checkpoint.write_text("something else\n")
    with pytest.raises(ValueError, match="a damaged store"):
        quick(DATA, checkpoint=checkpoint)
    assert checkpoint.read_text() == "something else\n"
    nameless = SmoothedClassifier(lambda batch: [0 for _ in batch], classes=[0, 1])
    with pytest.raises(ValueError, match="checkpoint must be None for a base classifier without a fingerprint"):
        quick(DATA, nameless, checkpoint=tmp_path / "new")
