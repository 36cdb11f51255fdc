"""What every task promises: to load what a partition names, to describe itself, and to draw by its seed alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch

from papers.complex_dp.ecg.collection import write_collection
from papers.complex_dp.ecg.encoder import BATCH, BeatEncoder
from papers.complex_dp.ecg.simulated import simulated_recordings
from papers.complex_dp.phase_mnist.encoder import DigitEncoder, simulated_digits
from papers.complex_dp.reconstruction.settings import Examinations
from papers.complex_dp.reconstruction.simulated import examination, simulate_volumes
from papers.complex_dp.reconstruction.volumes import undersample
from papers.complex_dp.speech_commands.encoder import WordEncoder
from papers.complex_dp.speech_commands.simulated import simulated_words
from zetadp.base.storage import Items
from zetadp.base.tables import read_table
from zetadp.base.tensors import save_tensors, tensors_digest
from zetadp.base.validation import UserError
from zetadp.mri.decathlon import AXES
from zetadp.training.task import PipelineTask, pipeline_task_of, site_task_of

CPU = torch.device("cpu")
SIZES = {"train": 4, "test": 3}
EXAMINATIONS = {"population": "procedural", "size": 32, "slices": 2}


def index_of(names: list[str]) -> pd.DataFrame:
    """Return the table of a cohort whose every record is a patient."""
    parts = ["train"] * SIZES["train"] + ["test"] * SIZES["test"]
    return pd.DataFrame({"patient": names, "record": names, "part": parts})


def brains(folder: Path) -> tuple[Path, pd.DataFrame]:
    names = [f"BRATS_{n:03d}" for n in range(7)]
    values = np.random.default_rng(0).normal(size=(7, 4, 2, 8, 8)).astype(np.complex64)
    Items({"values": values}, pd.DataFrame({"record": names})).write(folder / "shard.h5", AXES, "1")
    return folder / "shard.h5", index_of(names)


def hearts(folder: Path) -> tuple[Path, pd.DataFrame]:
    files = {f"{name}_file": folder / f"{name}.h5" for name in ("spectrum", "signal", "beats")}
    sizes = {"train": 12, "test": 12}  # so many that both parts have both labels
    write_collection(**files, table=folder / "index.csv", folder=None, seed=0, sizes=sizes)
    return files["spectrum_file"], read_table(folder / "index.csv", ("patient", "record", "part"))


def digits(folder: Path) -> tuple[Path, pd.DataFrame]:
    names = [f"digit-{n}" for n in range(7)]
    images, labels = simulated_digits(10, 0)
    arrays = {"images": (255 * images).numpy().astype(np.uint8), "real": np.arange(7), "imaginary": np.arange(7)[::-1]}
    Items({**arrays, "labels": labels.numpy()[:7]}, pd.DataFrame({"record": names})).write(
        folder / "examples.h5", ("image", "row", "column"), "grey"
    )
    return folder / "examples.h5", index_of(names)


def examinations(folder: Path) -> tuple[Path, pd.DataFrame]:
    simulate_volumes(volumes=folder / "volumes", examinations=EXAMINATIONS, seed=0, sizes=SIZES)
    made = {"slices": folder / "slices.h5", "table": folder / "index.csv"}
    undersample(volumes=folder / "volumes", **made, mask={}, size=32, sizes=SIZES)
    return made["slices"], read_table(made["table"], ("patient", "record", "part"))


def clips(folder: Path, unit: str = "clip") -> tuple[Path, pd.DataFrame]:
    table = pd.DataFrame({"clip": [f"clip-{n:02d}" for n in range(14)], "speaker": [f"s{n // 2}" for n in range(14)]})
    table["record"] = table[unit]
    values = np.random.default_rng(0).normal(size=(14, 1, 3, 5)).astype(np.complex64)
    items = Items({"values": values, "labels": np.arange(14) % 8}, table)
    items.write(folder / "spectra.h5", ("clip", "channel", "row", "value"), "1")
    return folder / "spectra.h5", index_of(list(table["record"].unique()[:7]))


def speakers(folder: Path) -> tuple[Path, pd.DataFrame]:
    return clips(folder, "speaker")


@dataclass(frozen=True)
class Case:
    """A task, with a function that writes the items of a small cohort.

    Attributes
    ----------
    made
        Function from a folder to a file of items and the table of the cohort.
    each
        Items of a record.
    inputs
        Shape of an item.
    wrong
        Settings that the task refuses, each by its name.
    """

    made: Callable[[Path], tuple[Path, pd.DataFrame]]
    each: int
    inputs: tuple[int, ...]
    wrong: tuple[dict[str, Any], ...]
    settings: dict[str, Any] | None = None


PUBLIC = ({"families": ["vnet"]}, {"families": []}, {"patients": 1, "batch": 5})
CASES = {
    "brain_sequences": Case(
        brains,
        8,
        (1, 8, 8),
        ({"decision": "mine"}, {"slices": 10**9}, {"size": 10**6}),  # a model's file may ask for what no memory holds
        {"slices": 2, "size": 8, "decision": "image"},
    ),
    "ecg": Case(hearts, 1, (1, 1, 512), ({"fold": 11},)),
    "phase_mnist": Case(digits, 1, (1, 28, 28), ({"composite": "twice"},)),
    "reconstruction": Case(
        examinations, 2, (1, 32, 32), ({"mask": {"centre": -1}}, *({"public": own} for own in PUBLIC)), {"size": 32}
    ),
    "speech_commands": Case(clips, 1, (1, 3, 5), ({"unit": "word"},)),
    "speech_commands of speakers": Case(speakers, 2, (1, 3, 5), ({"unit": ""},), {"unit": "speaker"}),
}


@pytest.fixture(params=CASES)
def name(request) -> str:
    return request.param


def task_named(case: str) -> PipelineTask:
    return pipeline_task_of({"name": case.split()[0], **(CASES[case].settings or {})})


@pytest.fixture(scope="module")
def cohorts(tmp_path_factory) -> dict[str, tuple[Path, pd.DataFrame]]:
    return {name: case.made(tmp_path_factory.mktemp(name)) for name, case in CASES.items()}


def partition_of(index: pd.DataFrame) -> pd.DataFrame:
    """Return a partition in another order than the file's."""
    return index[["patient", "record"]].assign(role=index["part"], node="node-01")[::-1]


def test_every_role_gets_the_items_of_its_records_in_the_order_of_the_partition(name, cohorts):
    case, task, (file, index) = CASES[name], task_named(name), cohorts[name]
    table = partition_of(index)
    for role in ("train", "test"):
        held = task.load([file], table, role, CPU)
        expected = table[table["role"] == role]
        assert held.items["record"].tolist() == expected["record"].repeat(case.each).tolist()
        assert held.items["patient"].tolist() == expected["patient"].repeat(case.each).tolist()
        assert held.inputs.shape == (len(held.items), *case.inputs)
        assert len(held.units()) == expected["patient"].nunique()
        # An item is the same whoever else is loaded.
        alone = task.load([file], expected[:1], role, CPU)
        assert torch.equal(alone.inputs, held.inputs[: case.each])
        assert torch.equal(alone.targets, held.targets[: case.each])


def test_a_missing_record_and_a_damaged_file_are_errors_that_name_the_file(name, cohorts, tmp_path):
    task, (file, index) = task_named(name), cohorts[name]
    more = pd.concat([partition_of(index), pd.DataFrame([("x", "x", "test", "n")], columns=list(partition_of(index)))])
    with pytest.raises(UserError):
        task.load([file], more, "test", CPU)
    (tmp_path / file.name).write_bytes(file.read_bytes()[:1000])
    with pytest.raises(UserError, match=file.name):
        task.load([tmp_path / file.name], partition_of(index), "test", CPU)


def test_losses_scores_and_measures_are_of_single_items_and_have_a_summary(name, cohorts):
    task, (file, index) = task_named(name), cohorts[name]
    held = task.load([file], partition_of(index), "test", CPU)
    targets, count = held.targets, len(held.items)
    shape = tuple(targets.shape[1:]) or (task.outputs,)
    outputs = torch.rand(count, *shape, generator=torch.Generator().manual_seed(0))
    assert task.losses(outputs, targets).shape == task.scores(outputs, targets).shape == (count,)
    measured = task.measure(outputs, targets)
    assert {len(values) for values in measured.values()} == {count}
    summary = task.summarise(held.items.assign(**measured))
    interval = summary[f"{summary['metric']}_interval"]
    assert interval["low"] <= summary[summary["metric"]] <= interval["high"]
    assert sum(summary["per_patient_images"].values()) == summary["images"]
    with pytest.raises(UserError):
        task.summarise(held.items.assign(**measured)[:0])
    assert all(text.strip() for text in (*task.words[:4], *task.words.limits, task.words.usage))


def test_settings_that_cannot_be_are_refused_by_name(name):
    for wrong in CASES[name].wrong:
        with pytest.raises(UserError, match=next(iter(wrong))):
            pipeline_task_of({"name": name.split()[0], **wrong})


def test_hospitals_train_what_reads_the_folder_of_one_site_and_modules_that_tasks_share_are_no_task():
    assert site_task_of({"name": "brain_sequences"})
    for other in {name.split()[0] for name in CASES} - {"brain_sequences"}:
        with pytest.raises(UserError, match=other):
            site_task_of({"name": other})
    with pytest.raises(UserError, match="encoder"):
        pipeline_task_of({"name": "encoder"})


def volume(seed: int, number: int) -> np.ndarray:
    return examination(Examinations(**EXAMINATIONS), seed, number).kspace


SIMULATED: dict[str, Callable[[int, int], list[np.ndarray]]] = {
    "digits": lambda seed, place: list(simulated_digits(10, seed, place)[0].numpy()),
    "words": lambda seed, place: list(simulated_words(8, seed, place)[0]),
    "hearts": lambda seed, place: [
        recording.signal for recording, _ in simulated_recordings(4, seed=seed, first=4 * place, several=0, rate=100)
    ],
    "examinations": lambda seed, place: [volume(seed, 3 * place + number) for number in range(3)],
}


@pytest.mark.parametrize("simulate", SIMULATED.values(), ids=SIMULATED)
def test_simulated_items_are_a_function_of_seed_and_place_and_all_differ(simulate):
    first, again, seed, place = (simulate(*each) for each in ((3, 1), (3, 1), (4, 1), (3, 2)))
    assert [each.tobytes() for each in first] == [each.tobytes() for each in again]
    assert len({each.tobytes() for each in (*first, *seed, *place)}) == 3 * len(first)


class Beats(BeatEncoder):
    """An encoder so small that it learns in a second, like the two below."""

    recipe: ClassVar = {"seed": 0, "patients": BATCH, "epochs": 1, "components": 3}


class Thinned:
    def maps(self):
        scattering, hidden = super().maps()
        return (lambda items: scattering(items)[:, ::50]), hidden  # axes of thousands of coefficients take long


class Words(Thinned, WordEncoder):
    recipe: ClassVar = {"seed": 0, "words": 640, "passes": 1, "axes_from": 64, "scattering": 6, "learned": 4}


class Digits(Thinned, DigitEncoder):
    recipe: ClassVar = {"seed": 0, "digits": 1600, "axes_from": 100, "scattering": 5, "learned": 3}


ENCODERS = {
    "beats": (Beats, lambda: np.random.default_rng(0).normal(size=(5, 12, 70)).astype(np.float32)),
    "words": (Words, lambda: simulated_words(35, 5)[0]),
    "digits": (Digits, lambda: np.random.default_rng(0).integers(0, 256, (5, 28, 28), dtype=np.uint8)),
}


@pytest.mark.parametrize(("kind", "items"), ENCODERS.values(), ids=ENCODERS)
def test_an_encoder_follows_from_its_recipe_survives_a_file_and_sees_each_item_alone(kind, items, tmp_path):
    encoder, given = kind.fit(), items()
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    kind.make(encoder=tmp_path / "encoder.safetensors")
    again = kind.load(tmp_path / "encoder.safetensors")
    assert tensors_digest(encoder.tensors()) == tensors_digest(again.tensors())
    found = np.asarray(encoder.features(given))
    np.testing.assert_array_equal(again.features(given), found)
    np.testing.assert_allclose(np.linalg.norm(found, axis=-1), 1, rtol=1e-5)
    others = given[::-1].copy()
    others[0] = given[0]
    np.testing.assert_allclose(encoder.features(others)[0], found[0], atol=1e-6)
    np.testing.assert_allclose(encoder.features(given[3:4])[0], found[3], atol=1e-4)
    save_tensors(tmp_path / "other.safetensors", {"a": torch.zeros(1)}, {})
    with pytest.raises(UserError, match=f"encoder of {kind.of}"):
        kind.load(tmp_path / "other.safetensors")
