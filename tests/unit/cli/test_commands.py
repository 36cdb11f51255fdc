from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import yaml
from decathlon_builder import volume, write_volume
from training_builder import TINY, network

from zetadp.base.tensors import load_tensors, save_tensors
from zetadp.cli import main
from zetadp.cli.commands import command_line
from zetadp.config.load import load_config, overlay
from zetadp.core.pretrained import model_content
from zetadp.mri.decathlon import SEQUENCES
from zetadp.mri.index import index_cohort

FILES = {"FLAIR": "flair", "T1w": "t1n", "T1gd": "t1c", "T2w": "t2w"}


@pytest.fixture
def model(tmp_path):
    """Return the file of a model with weights that nobody trained."""
    weights = {key: value.detach() for key, value in network(TINY).named_parameters()}
    path = tmp_path / "model.safetensors"
    save_tensors(path, weights, model_content(TINY, {"name": "brain_sequences", "slices": 3, "size": 8}, 8))
    return path


@pytest.fixture
def brain(tmp_path):
    return write_volume(tmp_path / "brain.nii.gz", volume((12, 14, 9), 4, np.random.default_rng(0)), "LPS")


def ended(arguments, capsys) -> tuple[int, str, str]:
    """Run a command; return its exit code and what it printed."""
    code = main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def mistake(arguments, capsys) -> str:
    """Run a command that must end in one message; return it."""
    code, out, err = ended(arguments, capsys)
    assert code == 1
    assert out == ""
    assert err.startswith("zetadp: ")
    assert "Traceback" not in err
    return err


def commands(parser=None):
    """Yield the parsers of all commands that have none of their own."""
    parser = command_line() if parser is None else parser
    (below,) = [action for action in parser._actions if action.nargs == "A..."] or [None]
    if below is None:
        yield parser
    else:
        for each in below.choices.values():
            yield from commands(each)


@pytest.mark.parametrize(
    "command", [each for each in commands() if "federation" not in each.prog], ids=lambda c: c.prog
)
def test_every_command_has_two_examples_that_it_takes_and_names_its_files(command):
    examples = re.findall(r"^  zetadp (.*)$", command.format_help(), flags=re.MULTILINE)
    assert len(examples) >= 2
    for example in examples:
        assert command.prog == f"zetadp {example.split()[0]}"
        command_line().parse_args(shlex.split(example))
    for action in command._actions:
        if action.type is Path:
            assert re.search(r"folder|\.(safetensors|nii|tsv|yaml|json|jsonl|h5|npz|html|pem)\b", action.help), (
                action.dest
            )


def test_without_a_command_there_is_help_and_the_version_is_that_of_the_package(capsys):
    assert main([]) == 0
    assert "predict" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    declared = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["version"]
    assert capsys.readouterr().out == f"zetadp {declared}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["predcit"],
        ["predict", "model"],
        ["convert", "a", "b", "--parst", "c"],
        *(["convert", "a", "b", f"--test-fraction={share}"] for share in ("35", "-0.1", "1.01", "nan")),
    ],
)
def test_what_no_command_takes_ends_with_code_2_and_the_usage(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("usage: zetadp")


def test_a_command_of_a_federation_names_what_is_not_installed(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for name in [name for name in sys.modules if name.startswith("zetadp.federation.flower")]:
        monkeypatch.delitem(sys.modules, name)
    assert "cryptography is missing" in mistake(["federation", "key", "a.pem", "a.key"], capsys)


def test_predict_prints_a_line_for_each_channel(model, brain, capsys):
    code, out, _ = ended(["predict", model, brain], capsys)
    assert code == 0
    heading, *lines = out.splitlines()
    assert heading.split() == ["channel", "sequence", "votes", "probability"]
    assert [line.split()[0] for line in lines] == ["0", "1", "2", "3"]
    code, out, _ = ended(["predict", model, brain, "--json"], capsys)
    rows = json.loads(out)
    assert [row["sequence"] for row in rows] == [line.split()[1] for line in lines]
    for row in rows:
        assert row["sequence"] in SEQUENCES
        assert 0.25 <= row["votes"] <= 1


@pytest.mark.parametrize(
    ("changed", "said", "warned"),
    [
        ({}, "484 patients of the cohort phantom, ε = 1 per patient at δ = 0.001.", ("simulated", "from a seed")),
        ({"cohort": "hospital", "simulated": False}, "of the cohort hospital, ε = 1", ("from a seed",)),
        ({"noise": "os"}, "of the cohort phantom, ε = 1", ("simulated",)),
        ({"epsilon": "inf"}, "without noise, and so without a privacy guarantee.", ("simulated",)),
        ({"cohort": "hospital", "noise": "os", "simulated": True}, "of the cohort hospital, ε = 1", ("simulated",)),
        ({"cohort": "phantom-hand", "noise": "os", "simulated": False}, "of the cohort phantom-hand, ε = 1", ()),
        (None, "does not say what it was trained on", ()),
    ],
)
def test_predict_says_what_the_model_was_trained_on(changed, said, warned, model, brain, capsys):
    weights, content = load_tensors(model)
    if changed is not None:
        about = {"cohort": "phantom", "unit": "patient", "units": 484, "epsilon": "1", "delta": 1e-3, "noise": "seeded"}
        about["simulated"] = True
        content["trained_on"] = about | changed
    save_tensors(model, weights, content)
    _, out, err = ended(["predict", model, brain], capsys)
    assert "Trained" not in out
    assert said in err
    assert ("Warning: this training was a simulation" in err) == bool(warned)
    for words in ("simulated", "from a seed"):
        assert (words in err) == (words in warned)


def test_predict_names_what_it_cannot_read(model, brain, tmp_path, capsys):
    assert "absent.safetensors" in mistake(["predict", tmp_path / "absent.safetensors", brain], capsys)
    assert "brain.nii.gz" in mistake(["predict", brain, brain], capsys)
    assert "absent.nii.gz" in mistake(["predict", model, tmp_path / "absent.nii.gz"], capsys)
    brain.write_bytes(brain.read_bytes()[:-500])
    assert "brain.nii.gz" in mistake(["predict", model, brain], capsys)


def write_scans(root, *names):
    """Write one folder a scan, with one file a sequence."""
    for number, name in enumerate(names):
        channels = volume((6, 7, 5), 4, np.random.default_rng(number))
        for channel, sequence in enumerate(SEQUENCES):
            write_volume(root / name / f"{name}-{FILES[sequence]}.nii.gz", channels[..., channel])
    return root


def test_convert_says_what_to_declare_in_patients(tmp_path, capsys):
    """Two scans of one person are one patient: declared as two, the cohort would be refused."""
    scans = [f"BraTS-GLI-{scan}" for scan in ("00001-000", "00001-001", "00002-000", "00003-000", "00003-001")]
    source = write_scans(tmp_path / "scans", *scans)
    parts = tmp_path / "parts.tsv"
    rows = ["patient\tpart", "BraTS-GLI-00001\ttrain", "BraTS-GLI-00002\ttrain", "BraTS-GLI-00003\ttest"]
    parts.write_text("\n".join(rows))
    target, rule = tmp_path / "task", r"(BraTS-GLI-\d+)-\d+"
    code, out, _ = ended(["convert", source, target, "--patients", parts, "--patient-pattern", rule], capsys)
    assert code == 0
    assert "2 training and 1 test patients, with 3 and 2 scans" in out
    said = yaml.safe_load(out[out.index("name: ") :])
    config = yaml.safe_load((Path(__file__).parents[3] / "config.yaml").read_text())
    overlay(config, said)
    config = load_config(config)
    assert config.cohort.unit == "patient"
    assert [run.epsilon for run in config.run_names] == ["8"]  # one run, and it is private
    declared = said["cohort"]
    assert declared["source"] == "folder"
    assert declared["folder"] == str(target)
    numbers = {key: declared[key] for key in ("train_patients", "test_patients")}
    assert len(index_cohort(target, **numbers, slices=5)) == 5


def test_convert_of_nothing_writes_nothing(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    said = mistake(["convert", tmp_path / "empty", tmp_path / "task"], capsys)
    assert "Expected one folder per patient" in said
    assert str(tmp_path / "empty") in said
    assert not (tmp_path / "task").exists()
    assert "absent" in mistake(["convert", tmp_path / "absent", tmp_path / "task"], capsys)


def write_results(root):
    """Write what a finished experiment leaves, as far as the report shows it."""
    names = ("tables/table1.txt", "tables/table1.csv", "figures/accuracy.svg", "privacy_total.txt")
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"content of {name}\n")
    return [str(root / name) for name in names]


def test_report_prints_the_table_and_where_everything_is(tmp_path, monkeypatch, capsys):
    paths = write_results(tmp_path / "results" / "mine")
    code, out, _ = ended(["report", tmp_path / "results" / "mine"], capsys)
    assert code == 0
    assert out.startswith("content of tables/table1.txt")
    for path in paths:
        assert path in out
    # A workflow that was interrupted before its figures has a table to show.
    paths = write_results(tmp_path / "results" / "broken")
    shutil.rmtree(tmp_path / "results" / "broken" / "figures")
    assert [path in ended(["report", tmp_path / "results" / "broken"], capsys)[1] for path in paths] == [1, 1, 0, 1]
    # Without a folder it is the experiment of config.yaml, or of the scenario laid over it.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("name: other\n")
    (tmp_path / "scenario.yaml").write_text("name: mine\n")
    assert "results/other" in mistake(["report"], capsys)
    assert ended(["report", "--configfile", "scenario.yaml"], capsys)[1].startswith("content of tables/table1.txt")
    assert "gone.yaml" in mistake(["report", "--configfile", "gone.yaml"], capsys)


def test_report_prints_the_headline_until_the_experiment_is_finished(tmp_path, capsys):
    folder = tmp_path / "mine"
    assert "found no table1.txt" in mistake(["report", folder, "--headline"], capsys)
    paths = write_results(folder / "headline")
    out = ended(["report", folder, "--headline"], capsys)[1]
    assert [path in out for path in paths] == [True] * len(paths)
    write_results(folder)
    times = {folder / "headline/tables/table1.txt": 2_000, folder / "tables/table1.txt": 1_000}
    for path, time in times.items():
        os.utime(path, (time, time))
    # The finished table is of an experiment before.
    assert ended(["report", folder, "--headline"], capsys)[1] == out
    os.utime(folder / "tables/table1.txt", (3_000, 3_000))
    assert ended(["report", folder, "--headline"], capsys)[1] == ""


def test_the_module_runs_as_a_program(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "zetadp.cli", "report", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("zetadp: Expected a finished experiment")
    assert "Run snakemake first" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("target", ["/dev/full", "a reader that has read enough"])
def test_an_output_that_takes_no_more_ends_a_command_without_a_traceback(target):
    command = [sys.executable, "-m", "zetadp.cli", "rounds", "--noise-multiplier", "4", "--sampling-probability", "1"]
    if target == "/dev/full":
        output = os.open(target, os.O_WRONLY)
    else:
        read, output = os.pipe()
        os.close(read)
    done = subprocess.run(
        [*command, "--epsilon", "1", "--delta", "1e-3"], stdout=output, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(output)
    message = "zetadp: Cannot write the output: No space left on device.\n"
    expected = (1, message) if target == "/dev/full" else (128 + signal.SIGPIPE, "")
    assert (done.returncode, done.stderr) == expected
