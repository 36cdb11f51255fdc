from __future__ import annotations

import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import yaml
from commanded import ended, mistake
from decathlon_builder import volume, write_volume
from training_builder import TINY, network

from zetadp.base.epsilon import Target
from zetadp.base.tensors import load_tensors, save_tensors
from zetadp.cli import main
from zetadp.cli.commands import command_line
from zetadp.config.load import load_config, overlay
from zetadp.mri.decathlon import SEQUENCES
from zetadp.mri.index import index_cohort
from zetadp.training.pretrained import model_content
from zetadp.training.promise import HEAD_WEIGHTS, Noise, make_plan

FILES = {"FLAIR": "flair", "T1w": "t1n", "T1gd": "t1c", "T2w": "t2w"}


@pytest.fixture
def model(tmp_path):
    """Return the file of a model with weights that nobody trained."""
    weights = {key: value.detach() for key, value in network(TINY).named_parameters()}
    path = tmp_path / "model.safetensors"
    save_tensors(
        path, weights, model_content(TINY, {"name": "brain_sequences", "slices": 3, "size": 8, "decision": "image"}, 8)
    )
    return path


@pytest.fixture
def brain(tmp_path):
    return write_volume(tmp_path / "brain.nii.gz", volume((12, 14, 9), 4, np.random.default_rng(0)), "LPS")


def commands(parser=None):
    """Yield the parsers of all commands that have none of their own."""
    parser = command_line() if parser is None else parser
    (below,) = [action for action in parser._actions if action.nargs == "A..."] or [None]
    if below is None:
        yield parser
    else:
        for each in below.choices.values():
            yield from commands(each)


def test_without_a_command_there_is_help_and_the_version_is_that_of_the_package(capsys):
    assert main([]) == 0
    assert "predict" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    declared = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["version"]
    assert capsys.readouterr().out == f"zetadp {declared}\n"


def parsed(command: str):
    return command_line().parse_args(shlex.split(command)[1:])


@pytest.mark.parametrize("parser", list(commands()), ids=lambda parser: parser.prog)
def test_a_command_takes_the_examples_of_its_help(parser):
    title, *examples = parser.epilog.splitlines()
    assert (title, examples != []) == ("examples:", True)
    for example in examples:
        assert "run" in parsed(example.strip())


@pytest.mark.parametrize("parser", list(commands()), ids=lambda parser: parser.prog)
def test_help_shows_what_every_option_is_without_it(parser):
    for action in parser._actions:
        if action.option_strings and action.nargs != 0:
            assert re.search(r" \((default: .+|required)\)$", action.help), action.option_strings


@pytest.mark.parametrize("words", ["", " federation"])
def test_lists_of_commands_have_one_line_for_each(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        parsed(f"zetadp{words} --help")
    listed = re.findall(r"^    (\S+) +\S", capsys.readouterr().out, re.MULTILINE)
    assert set(listed) >= ({"demo", "certificates"} if words else {"predict", "statement", "federation"})


def test_options_are_read_as_their_types_and_defaults_say():
    given = parsed("zetadp federation plan a.yaml b.yaml --network x --epsilon 8")
    assert given.configuration == [Path("a.yaml"), Path("b.yaml")]
    assert (given.seed, given.epsilon, given.backbone, given.output) == (0, "8", None, Path("plan.json"))
    given = parsed("zetadp federation certificates keys --hosts a --hosts b c")
    assert given.hosts == ["a", "b", "c"]
    given = parsed("zetadp convert a b --sequence x=T1w --sequence y=none")
    assert (given.sequence, given.source, given.target) == (["x=T1w", "y=none"], Path("a"), Path("b"))
    resampled = [parsed(f"zetadp convert a b {option}").resample for option in ("", "--resample", "--resample FLAIR")]
    assert resampled == [None, "T1w", "FLAIR"]
    given = parsed("zetadp rounds --epsilon 1 --delta 1e-3 --noise-multiplier 4 --sampling-probability 1/4")
    assert (given.sampling_probability, given.json_) == (0.25, False)


def test_help_shows_no_underscore_that_only_python_needs():
    for parser in commands():
        assert not re.search(r"_(?!\w)", parser.format_usage())


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


@pytest.mark.parametrize(
    ("changed", "said", "warned"),
    [
        ({}, "484 patients of the cohort phantom, ε = 1 per patient at δ = 0.001.", ("simulated", "from a seed")),
        ({"cohort": "hospital", "simulated": False}, "of the cohort hospital, ε = 1", ("from a seed",)),
        ({"noise": "os"}, "of the cohort phantom, ε = 1", ("simulated",)),
        (
            {"noise": "os", "simulated": False, "attempts": 2, "spent": 12.7612},
            "ε = 12.77 per patient at δ = 0.001 for its 2 trainings together, the last one alone ε = 1.",
            (),
        ),
        (
            {"noise": "os", "simulated": False, "threat": "masked_sums"},
            "ε = 1 per patient at δ = 0.001, as long as masks hide single messages.",
            (),
        ),
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
    _, out, err = ended(capsys, "predict", model, brain)
    assert "Trained" not in out
    assert said in err
    assert ("says of itself" in err) == (changed is not None)
    assert ("Warning: this training was a simulation" in err) == bool(warned)
    for words in ("simulated", "from a seed"):
        assert (words in err) == (words in warned)


@pytest.mark.parametrize(
    "changed",
    [
        {"cohort": "\x1b[2Jgood\n"},
        {"unit": "\x1b[31mpatient"},
        {"units": "9999 consenting"},
        {"units": -1},
        {"epsilon": "0.001\n"},
        {"epsilon": [8]},
        {"delta": 2},
        {"noise": "none"},
        {"threat": "nobody"},
        {"simulated": "no"},
        {"more": "ε = 0.001"},
    ],
)
def test_what_a_model_says_of_itself_has_its_types_and_no_control_characters(changed, model, brain, capsys):
    weights, content = load_tensors(model)
    about = {"cohort": "phantom", "unit": "patient", "units": 484, "epsilon": "1", "delta": 1e-3, "noise": "os"}
    content["trained_on"] = {**about, "simulated": False, **changed}
    save_tensors(model, weights, content)
    message = mistake(capsys, "predict", model, brain)
    assert "to describe its training: " in message
    assert message.rstrip("\n").isprintable()


def test_predict_names_what_it_cannot_read(model, brain, tmp_path, capsys):
    assert "absent.safetensors" in mistake(capsys, "predict", tmp_path / "absent.safetensors", brain)
    assert "brain.nii.gz" in mistake(capsys, "predict", brain, brain)
    assert "absent.nii.gz" in mistake(capsys, "predict", model, tmp_path / "absent.nii.gz")
    content = bytearray(model.read_bytes())
    content[-100] ^= 0x40  # one bit of a weight
    (tmp_path / "flipped.safetensors").write_bytes(content)
    assert "flipped.safetensors" in mistake(capsys, "predict", tmp_path / "flipped.safetensors", brain)
    brain.write_bytes(brain.read_bytes()[:-500])
    assert "brain.nii.gz" in mistake(capsys, "predict", model, brain)


def write_scans(root, *names):
    """Write one folder a scan, with one file a sequence."""
    for number, name in enumerate(names):
        channels = volume((6, 7, 5), 4, np.random.default_rng(number))
        for channel, sequence in enumerate(SEQUENCES):
            write_volume(root / name / f"{name}-{FILES[sequence]}.nii.gz", channels[..., channel])
    return root


def test_convert_says_what_to_declare_in_patients(tmp_path, capsys):
    """Two scans of one person are one patient: declared as two, the cohort would be refused."""
    scans = [f"BraTS-GLI-{scan}" for scan in ("00001-000", "00001-001", "00002-000", "00004-000", "00004-001")]
    source = write_scans(tmp_path / "scans", *scans)
    target, rule = tmp_path / "task", r"(BraTS-GLI-\d+)-\d+"
    code, out, err = ended(capsys, "convert", source, target, "--test-fraction", 0.42, "--patient-pattern", rule)
    assert code == 0
    assert "With 2 training patients at one hospital: Expect nothing from this training" in err
    assert "2 training and 1 test patient, with 3 and 2 scans" in out
    said = yaml.safe_load(out[out.index("name: ") :])
    config = yaml.safe_load((Path(__file__).parents[3] / "config.yaml").read_text())
    overlay(config, said)
    config = load_config(config)
    assert config.cohort.unit == "patient"
    assert [run.target for run in config.run_names] == [Target(8)]  # one run, and it is private
    plan = make_plan(config.plan(config.run_names[0]))
    assert Noise.of(plan, HEAD_WEIGHTS) == pytest.approx(Noise.of_head(2))  # what the sentence above is about
    declared = said["cohort"]
    assert declared["source"] == "folder"
    assert declared["folder"] == str(target)
    numbers = {key: declared[key] for key in ("train_patients", "test_patients")}
    assert len(index_cohort(target, **numbers, slices=5)) == 5


@pytest.mark.parametrize(("fraction", "protected"), [(0, True), (1, False)])
def test_convert_speaks_of_a_guarantee_of_training_patients_alone(fraction, protected, tmp_path, capsys):
    source = write_scans(tmp_path / "scans", "P1", "P2")
    code, out, _ = ended(capsys, "convert", source, tmp_path / "task", "--test-fraction", fraction)
    assert code == 0
    assert ("the guarantee protects one scan" in out) is protected


@pytest.mark.parametrize("exact", [False, True])
def test_convert_writes_a_configuration_that_loads(exact, tmp_path, capsys):
    """Names come from the folder, paths are absolute, and the parts are as many as the user asked for."""
    source = write_scans(tmp_path / "St. Mary's", *(f"P{number:02d}" for number in range(13)))
    (source / "P03/P03-t1c.nii.gz").unlink()
    file = tmp_path / "mine.yaml"
    options = ["--patient-pattern", "(.*)", "--leave-out-incomplete", "--slices", "5", "--configuration", file]
    options += ["--exact-test-fraction"] if exact else []
    code, out, _ = ended(capsys, "convert", source, tmp_path / "task", *options)
    assert code == 0
    config = yaml.safe_load((Path(__file__).parents[3] / "config.yaml").read_text())
    overlay(config, yaml.safe_load(file.read_text()))
    cohort = load_config(config).cohort
    assert cohort.name == "St.-Mary-s"
    assert Path(cohort.folder) == (tmp_path / "task").resolve()
    assert cohort.train_patients + cohort.test_patients == 12
    assert not exact or cohort.test_patients == round(0.35 * 12)
    said = "can move" if exact else "no patient changes groups"
    assert said in out
    assert said in file.read_text()
    assert "taken       12 scans  48 files" in out
    assert re.search(r"left out +1 scan +lacks T1gd: P03\n", out)
    assert str(file) in mistake(capsys, "convert", source, tmp_path / "other", "--configuration", file)
    assert not (tmp_path / "other").exists()


def test_the_configuration_on_the_page_on_own_data_loads():
    root = Path(__file__).parents[3]
    config = yaml.safe_load((root / "config.yaml").read_text())
    (block,) = re.findall(r"```yaml\n(.*?)```", (root / "docs/own_data.md").read_text(), flags=re.S)
    overlay(config, yaml.safe_load(block))
    assert [run.target for run in load_config(config).run_names] == [Target(8)]


def test_convert_refuses_volumes_that_end_before_the_planes_of_the_configuration(tmp_path, capsys, caplog):
    """The volumes have 5 slices, 1 mm apart; what is accepted is what the configuration asks for."""
    source, file = write_scans(tmp_path / "scans", "P1", "P2", "P3", "P4"), tmp_path / "mine.yaml"
    call = ("convert", source, tmp_path / "task", "--exact-test-fraction")
    for options, planes in (
        (["--configuration", file], "20 planes 1 mm"),
        (["--slices", 6], "6 planes 1 mm"),
        (["--slices", 3, "--spacing", 2.5], "3 planes 2.5 mm"),
        (["--spacing", 0.5], "20 planes 0.5 mm"),
    ):
        message = mistake(capsys, *call, *options)
        assert f"for {planes} apart" in message
        assert message.count("--slices and --spacing") == 4
    assert ended(capsys, *call)[0] == 0
    assert "that end before the 20 planes 1 mm apart that training runs take by default: 4 of 4" in caplog.text
    caplog.clear()
    shutil.rmtree(tmp_path / "task")
    assert ended(capsys, *call, "--slices", 3, "--spacing", 2, "--configuration", file)[0] == 0
    assert "planes" not in caplog.text
    config = yaml.safe_load((Path(__file__).parents[3] / "config.yaml").read_text())
    overlay(config, yaml.safe_load(file.read_text()))
    task = load_config(config).task.chosen
    assert (task.slices, task.spacing) == (3, 2)


def test_predict_takes_a_file_for_each_sequence_or_the_folder_of_a_scan(model, tmp_path, capsys):
    source = write_scans(tmp_path / "hospital", "P1")
    files = [source / f"P1/P1-{FILES[sequence]}.nii.gz" for sequence in SEQUENCES]
    write_volume(source / "P1/P1-t1n_mask.nii.gz", np.ones((6, 7, 5), np.uint8))
    whole = write_volume(tmp_path / "whole.nii.gz", volume((6, 7, 5), 4, np.random.default_rng(0)))
    _, expected, _ = ended(capsys, "predict", model, whole, "--json")
    for given in (files, [source / "P1"], [source]):
        _, out, _ = ended(capsys, "predict", model, *given, "--json")
        rows = json.loads(out)
        assert [row.pop("file") for row in rows] == [file.name for file in files]
        assert rows == json.loads(expected)
    image = nib.load(files[0])
    nib.save(nib.Nifti1Image(np.asarray(image.dataobj)[..., ::2], image.affine @ np.diag([1, 1, 2, 1])), files[0])
    assert "--resample" in mistake(capsys, "predict", model, *files)
    assert ended(capsys, "predict", model, source / "P1", "--resample", "*t1n*")[0] == 0
    write_scans(source, "P2")
    assert "P1, " in mistake(capsys, "predict", model, source)
    assert "twice" in mistake(capsys, "predict", model, files[1], files[1])


def test_report_prints_the_table_and_where_everything_is(tmp_path, monkeypatch, capsys):
    """Also of a workflow that was interrupted before its figures."""
    names = ("tables/table1.txt", "tables/table1.csv", "privacy_total.txt")
    for name in names:
        path = tmp_path / "results/mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content of {name}\n")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("name: other\n")
    (tmp_path / "scenario.yaml").write_text("name: mine\n")
    for arguments in (["results/mine"], ["--configfile", "scenario.yaml"]):
        code, out, _ = ended(capsys, "report", *arguments)
        assert code == 0
        assert out.startswith("content of tables/table1.txt")
        assert all(f"results/mine/{name}" in out for name in names)
    assert "results/other" in mistake(capsys, "report")
    assert "gone.yaml" in mistake(capsys, "report", "--configfile", "gone.yaml")
