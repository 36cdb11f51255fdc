"""Spoken commands through the workflow, from a folder of clips to tables per clip and per speaker."""

from __future__ import annotations

import json
import os
import re
import shutil
import wave
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from papers.complex_dp.speech_commands.clips import WORDS, is_tested
from papers.complex_dp.speech_commands.encoder import WordEncoder
from papers.complex_dp.speech_commands.simulated import simulated_words
from papers.experiments import scenario_file
from zetadp.accounting import gaussian

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
SPEAKERS = [f"{number:08x}" for number in range(1, 11)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with one simulated clip of every word of every speaker."""
    place = tmp_path_factory.mktemp("clips")
    waves, labels = simulated_words(8 * len(SPEAKERS), 0)
    by_word = labels.argsort(kind="stable").reshape(8, -1)
    for word, own in zip(WORDS, by_word, strict=True):
        (place / word).mkdir()
        for speaker, clip in zip(SPEAKERS, own, strict=True):
            with wave.open(str(place / f"{word}/{speaker}_nohash_0.wav"), "wb") as file:
                file.setparams((1, 2, 16_000, 0, "NONE", ""))
                file.writeframes(waves[clip].astype("<i2").tobytes())
    return place


def tiny(name: str, folder: Path, units: int) -> dict:
    scenario = yaml.safe_load((ROOT / scenario_file(name)).read_text())
    tested = sum(map(is_tested, SPEAKERS))
    scenario["cohort"] |= {"folder": str(folder), "train_patients": (len(SPEAKERS) - tested) * units}
    scenario["cohort"]["test_patients"] = tested * units
    scenario["task"]["settings"]["clips_of_a_speaker"] = 8
    scenario["networks"]["head"]["training"] |= {"rounds": 5, "images_per_patient": 8 // units}
    return scenario


def test_clips_go_to_tables_per_clip_and_per_speaker(fresh, folder, monkeypatch):
    # In the place of the public encoder, which takes minutes, one that learnt little.
    recipe = {"seed": 0, "words": 640, "passes": 1, "axes_from": 64, "scattering": 4, "learned": 8}
    monkeypatch.setattr(WordEncoder, "recipe", recipe)
    WordEncoder.make(encoder=fresh.root / "resources/public-words/encoder.safetensors")
    scenario = tiny("speech_commands", folder, 8)
    own = scenario["networks"]["cnn"]
    own |= {"widths": [2, 2], "hidden": 2}
    own["training"] = {**own["training"], "rounds": 1, "expected_patients": 4}
    scenario["runs"] = [
        {"networks": ["head"], "arms": ["central"], "epsilons": [8, "inf"], "seeds": [0]},
        {"networks": ["cnn"], "arms": ["central"], "epsilons": [8], "seeds": [0]},
    ]
    fresh.snakemake(configfile=fresh.overlay(yaml.safe_dump(scenario)))
    results = fresh.root / "results/speech_commands"
    table = pd.read_csv(results / "tables/table1.csv", comment="#", dtype={"epsilon": str})
    assert set(table["metric"]) == {"auc"}
    table = table.set_index(["network", "epsilon"])
    assert set(table.index) == {("head", "8"), ("head", "inf"), ("cnn", "8")}
    assert table.loc[("head", "inf"), "mean"] > 65  # a guess reaches fifty
    run = results / "runs/head/central/eps-8/seed-0"
    spoken = pd.read_csv(run / "predictions.csv", dtype={"speaker": str})
    assert {speaker for speaker in SPEAKERS if is_tested(speaker)} == set(spoken["speaker"])
    assert "for each training record" in (run / "privacy.txt").read_text()
    plan = json.loads((run / "plan.json").read_text())
    assert plan["task"]["unit"] == "clip"
    assert len(plan["public"]["backbone"]) == 64
    speakers = pd.read_csv(results / "tables/speakers.csv", dtype={"epsilon": str}).set_index(["network", "epsilon"])
    assert set(speakers["units_of_a_speaker"]) == {8}
    # Eight clips of a speaker, all of whom take part: eight times the mu.
    mu = json.loads((run / "privacy.json").read_text())["mu"]
    expected = gaussian.epsilon(1e-5, 8 * mu)
    assert speakers.loc[("head", "8"), "epsilon_per_speaker"] == pytest.approx(expected, rel=2e-3)
    assert speakers.loc[("head", "inf"), "epsilon_per_speaker"] == np.inf
    assert "AUC is measured on" in (results / "tables/table1.md").read_text()
    assert "test AUC in %" in "".join(re.findall(r"<!-- (.*?) -->", (results / "figures/accuracy.svg").read_text()))

    # The same clips by speaker, in the same folder: the public encoder is made once.
    scenario = tiny("speech_commands_speakers", folder, 1)
    scenario["cohort"]["unit"] = "speaker"
    scenario["networks"]["head"]["start"] = "public"
    scenario["partition"]["nodes"] = 2
    scenario["arms"] = {arm: {"expected_patients": 2, "rounds": 5} for arm in ("central", "federated")}
    scenario["runs"] = [{"networks": ["head"], "arms": ["central", "federated"], "epsilons": [8], "seeds": [0]}]
    file = fresh.overlay(yaml.safe_dump(scenario))
    assert "fit_word_encoder" not in fresh.would_run(configfile=file)
    results = fresh.root / "results/speech_commands_speakers"
    run = results / "runs/head/federated/eps-8/seed-0"
    wanted = [path.relative_to(fresh.root) for path in (results / "tables/speakers.csv", run / "privacy.txt")]
    fresh.snakemake(*map(str, wanted), configfile=file)
    assert "for each training speaker" in (run / "privacy.txt").read_text()
    assert len(json.loads((run / "plan.json").read_text())["public"]["start"]) == 64
    spent = pd.read_csv(results / "tables/speakers.csv")["epsilon_per_speaker"]
    assert spent.to_numpy() == pytest.approx(8, rel=1e-3)

    # A clip that takes another's place is read, also one that is older than what was made of the first.
    os.utime(folder / f"yes/{SPEAKERS[0]}_nohash_0.wav", (0, 0))
    assert "index_clips" in fresh.would_run(*map(str, wanted), configfile=file)
    # Declared numbers are constants: other clips are refused.
    shutil.rmtree(folder / "go")
    said = fresh.snakemake("--forcerun", "index_clips", configfile=file, code=1)
    assert "go: no clip in a folder of this name" in said


def test_clips_in_the_folder_that_the_workflow_writes_to_are_refused(fresh, folder):
    shutil.copytree(folder, fresh.root / "resources/speech-commands")
    scenario = tiny("speech_commands", Path("resources/speech-commands"), 8)
    said = fresh.snakemake("--dry-run", configfile=fresh.overlay(yaml.safe_dump(scenario)), code=1)
    assert "cohort.folder: expected another folder than resources/speech-commands" in said
