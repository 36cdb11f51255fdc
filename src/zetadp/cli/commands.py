"""The command line: all commands of ``zetadp``, and the code of ``predict``, ``convert`` and ``report``."""

from __future__ import annotations

import argparse
import errno
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

from zetadp.base.validation import Share, UserError
from zetadp.cli import federation, privacy, runs
from zetadp.cli.arguments import add_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; a user's mistake ends in one message and exit code 1.

    A reader that has read enough, such as ``head``, ends a command silently, as it ends other programs.
    """
    given = vars(command_line().parse_args(arguments))
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        given.pop("run")(**given)
        sys.stdout.flush()
    except UserError as error:
        print(f"zetadp: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in {"flwr", "cryptography"}:
            raise
        needed = f"A federation needs Flower, and {error.name} is missing. Run: pip install zetadp[federation]"
        print(f"zetadp: {needed}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.filename is not None:
            advice = "Name a file in a folder that exists, which you may read and write."
            print(f"zetadp: Cannot use {error.filename}: {error.strerror}. {advice}", file=sys.stderr)
            return 1
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        # What is left would be written again at the end of Python, and complained of.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:
            return 128 + signal.SIGPIPE
        print(f"zetadp: Cannot write the output: {error.strerror}.", file=sys.stderr)
        return 1
    return 0


def command_line() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="zetadp",
        description="Private federated learning of complex-valued networks on MRI k-space. "
        "Snakemake runs the pipeline. These commands use and explain its results. Every command explains itself: "
        "zetadp COMMAND --help.",
    )
    parser.add_argument("--version", action="version", version=_version())
    parser.set_defaults(run=parser.print_help)
    commands = parser.add_subparsers(metavar="COMMAND")
    for each in COMMANDS:
        add_command(commands, each)
    between = commands.add_parser(
        "federation",
        help="train between hospitals: plan, keys, server, nodes",
        description="Train between hospitals on Flower, over TLS and with keys. The recipe is docs/federation.md. "
        "Needs the extra `federation`.",
    )
    parts = between.add_subparsers(required=True, metavar="COMMAND")
    for each in OF_FEDERATIONS:
        add_command(parts, each)
    return parser


def _version() -> str:
    try:
        return f"zetadp {version('zetadp')}"
    except PackageNotFoundError:
        return f"zetadp, not installed, from {Path(__file__).parents[2]}"


def predict(
    model: Annotated[Path, "model of a finished run (.safetensors)"],
    volume: Annotated[Path, "NIfTI file (.nii or .nii.gz), 3-D or 4-D (x, y, z, channel)"],
    *,
    json_: Annotated[bool, "print JSON instead of a table"] = False,
    anyway: Annotated[bool, "print the most likely sequence even if in doubt"] = False,
) -> None:
    """Classify the pulse sequences of a volume.

    The sequence of every channel of a NIfTI volume is a vote of its centre slices. The volume may have any orientation
    and any number of channels. Their order and names are not used. A note says what the model was trained on.

    A head of domain study on the backbone that comes with zetadp gives no sequence if it is unsure, or if the image is
    unlike the images of its training. Such a head needs two to four different sequences of one patient in the file.
    --anyway prints the most likely sequence in these cases too. The thresholds come from simulated patients. Look at
    the images yourself if much depends on the answer.

    Examples
    --------
    zetadp predict results/default/runs/head/federated/eps-1/seed-0/model.safetensors brain.nii.gz
    zetadp predict model.safetensors brain.nii --json
    zetadp predict model.safetensors brain.nii --anyway
    """
    from zetadp.core.pretrained import load_model
    from zetadp.tasks.brain_sequences.prediction import doubts, origin, predict_volume

    loaded = load_model(model)
    found = predict_volume(loaded, volume)
    print(origin(loaded), *doubts(found), sep="\n", file=sys.stderr)
    table = found.drop(columns="alternative").dropna(axis="columns", how="all")  # a model may have no doubts
    if "doubt" in table and not anyway:
        table["sequence"] = table["sequence"].astype(object).mask(table["doubt"] != "", None)
    if json_:
        print(json.dumps(table.to_dict("records"), indent=2))
    else:
        print(table.fillna("-").to_string(index=False, float_format=lambda value: f"{value:.2f}"))


def convert(
    source: Annotated[Path, "folder to convert"],
    target: Annotated[Path, "new folder; absent or empty"],
    *,
    patients: Annotated[
        Path | None, "table (.tsv or .csv) with the columns record (name of the scan's folder) and patient"
    ] = None,
    patient_pattern: Annotated[
        str | None,
        "rule that tells the patient from the name of a scan's folder: its first group is the patient",
        "REGEX",
    ] = None,
    test_fraction: Annotated[Share, "expected share of test patients"] = 0.35,
    sequence: Annotated[
        Sequence[str],
        "sequence of all files whose names fit the pattern: FLAIR, T1w, T1gd, T2w, or none to leave them out",
        "PATTERN=SEQUENCE",
    ] = (),
) -> None:
    """Convert NIfTI files or a BIDS folder to the Decathlon layout.

    The layout is that of the Medical Segmentation Decathlon. Nothing is written if anything is wrong.

    Recognised are BIDS folders (sub-01/anat/*_FLAIR.nii.gz, *_T1w.nii.gz, *_ce-gadolinium_T1w.nii.gz, *_T2w.nii.gz),
    and one folder per scan with files such as P7_flair.nii.gz, P7_T1.nii.gz, P7_T1_axial_post_gd.nii.gz and
    P7_T2.nii.gz. Two of the four sequences are enough. If a name can be read in two ways, an error asks for --sequence.
    Which scans are of one person is never guessed from names of folders: BIDS tells it, or --patients, or
    --patient-pattern. Otherwise the guarantee protects a scan and not a patient.

    Examples
    --------
    zetadp convert hospital Task01_BrainTumour --test-fraction 0.2 --patient-pattern '(P[0-9]+)_.*'
    zetadp convert hospital Task01_BrainTumour --patients patients.tsv --sequence '*_T1_post.nii.gz=T1gd'
    """
    from zetadp.base.tables import read_table
    from zetadp.mri.convert import convert_folder
    from zetadp.mri.decathlon import read_rules
    from zetadp.mri.index import PATIENT_KEY

    task = convert_folder(
        source,
        target,
        patients=patients,
        patient_pattern=patient_pattern,
        test_fraction=test_fraction,
        sequences=read_rules(sequence),
    )
    key = target / PATIENT_KEY
    person = {file.as_posix(): file.as_posix() for file in (*task.training, *task.test)}
    if key.is_file():
        table = read_table(key, ("file", "patient"))
        person = dict(zip(table["file"], table["patient"], strict=True))
    unit = "patient" if key.is_file() else "record"
    # Scans of one person are one patient: that is what the configuration declares and the guarantee protects.
    train, test = (len({person[file.as_posix()] for file in files}) for files in (task.training, task.test))
    print(f"{target}: {train} training and {test} test {unit}s, with {len(task.training)} and {len(task.test)} scans.")
    if unit == "record":
        print(
            "Nothing says which scans are of one person, so the guarantee protects one scan, and a person with several "
            "is protected less.\nTo protect patients, convert again with --patients TABLE (columns record and patient) "
            "or with --patient-pattern, for example\n--patient-pattern '(P[0-9]+)_.*', or '(.*)' if every folder is a "
            "patient."
        )
    if not (train and test):
        part = f"images: {target}" if train else f"watched: {target}\n  watched_patients: {test}"
        print(f"In the settings of a site of a federation:\n  {part}")
        return
    print(
        "This configuration trains once, with privacy. Change the names, which stand for the results and for these "
        "patients, and the number of hospitals:\n"
        "name: my-hospital\n"
        "cohort:\n  name: my-hospital\n  source: folder\n"
        f"  folder: {target}\n  train_patients: {train}\n  test_patients: {test}\n"
        f"  unit: {unit}\n" + (f"  patient_key: {key}\n" if unit == "patient" else "") + "partition:\n"
        "  nodes: 1\n  validation_patients: 0\n"
        "privacy:\n  noise: os\n"
        "runs:\n  - {networks: [head], arms: [federated], epsilons: [8], seeds: [0]}"
    )


def report(
    results: Annotated[Path | None, "folder of the experiment (default: that of config.yaml)"] = None,
    *,
    configfile: Annotated[Path | None, "scenario (.yaml) of the experiment"] = None,
) -> None:
    """Print the table of an experiment, and the paths of its files.

    The table is that of accuracy against epsilon. The workflow also writes report.html, one page with the result, the
    figures and the cost in privacy. It needs no network and can be printed.

    Examples
    --------
    zetadp report
    zetadp report --configfile workflow/scenarios/smoke.yaml
    zetadp report results/default
    """
    from zetadp.config.load import experiment_name

    folder = results or Path("results") / experiment_name(Path("config.yaml"), configfile)
    table = folder / "tables/table1.txt"
    if not table.is_file():
        raise UserError(f"Expected a finished experiment in {folder}, found no {table.name}. Run snakemake first.")
    print(table.read_text(encoding="utf-8"))
    for kind in ("tables", "figures"):
        print(f"{kind}:")
        for path in sorted((folder / kind).glob("*")):  # an interrupted workflow may have left no figures
            print(f"  {path}")
    print(f"privacy of all runs on the cohort:\n  {folder / 'privacy_total.txt'}")
    page = folder / "report.html"
    if page.is_file():
        print(f"all on one page, for a browser or a printer:\n  {page}")


COMMANDS: tuple[Callable[..., None], ...] = (
    predict,
    convert,
    report,
    privacy.epsilon,
    privacy.noise,
    privacy.rounds,
    privacy.ledger,
    privacy.permit,
    runs.budget,
    runs.release,
    runs.statement,
    runs.risk,
    runs.verify,
)
OF_FEDERATIONS: tuple[Callable[..., None], ...] = (
    federation.demo,
    federation.certificates,
    federation.plan,
    federation.kit,
    federation.roster,
    federation.serve,
    federation.key,
    federation.member,
    federation.approve,
    federation.node,
)
