"""The command line: all commands of ``zetadp``, and the code of ``predict``, ``convert`` and ``report``."""

from __future__ import annotations

import argparse
import errno
import json
import logging
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from zetadp.base.logs import JsonLines, PlainLines
from zetadp.base.usercode import package_code
from zetadp.base.validation import Count, Positive, Share, UserError, counted, shown_lines
from zetadp.cli import federation, privacy, runs
from zetadp.cli.arguments import Alone, ListOfCommands, add_command
from zetadp.mri.slicing import PLANES, SPACING, PlaneCount

if TYPE_CHECKING:
    from zetadp.cli.configuration import ConvertedCohort


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; a user's mistake, or one of a package with a task or a law, ends in one message and exit code 1.

    If the reader of the output ends early, like ``head``, the command ends silently, as other programs do.
    """
    options = vars(command_line().parse_args(arguments))
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainLines("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    try:
        with package_code():
            options.pop("run")(**options)
        sys.stdout.flush()
    except UserError as error:
        if options.get("log_json"):  # a collector of logs reads why the process ended as well
            end = logging.makeLogRecord({"msg": str(error), "levelno": logging.ERROR, "levelname": "ERROR"})
            print(JsonLines("zetadp").format(end), file=sys.stderr)
        else:
            print(f"zetadp: {shown_lines(str(error))}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in {"flwr", "cryptography"}:
            raise
        message = f"A federation needs Flower, and {error.name} is missing. Run: pip install zetadp[federation]"
        print(f"zetadp: {message}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.filename is not None:
            advice = "Name a file in a folder that exists, which you may read and write."
            print(f"zetadp: Cannot use {error.filename}: {error.strerror}. {advice}", file=sys.stderr)
            return 1
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        # Python would try to write the rest of the output again at its end, and print another error.
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
        formatter_class=ListOfCommands,
        description="Private federated learning of complex-valued networks on MRI k-space. "
        "Snakemake runs the pipeline. These commands use and explain its results. zetadp COMMAND --help explains one "
        "command, with examples.",
    )
    parser.add_argument("--version", action="version", version=_version())
    parser.set_defaults(run=parser.print_help)
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    for command in COMMANDS:
        add_command(commands, command)
    federation_parser = commands.add_parser(
        "federation",
        formatter_class=ListOfCommands,
        help="train across hospitals: plan, keys, server, nodes",
        description="Train across hospitals with Flower, over TLS, with a key for each site. The steps are in "
        "docs/federation.md for the coordinator, and in docs/hospital.md. Needs zetadp[federation].",
    )
    federation_commands = federation_parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    for command in FEDERATION_COMMANDS:
        add_command(federation_commands, command)
    return parser


def _version() -> str:
    try:
        return f"zetadp {version('zetadp')}"
    except PackageNotFoundError:
        return f"zetadp, not installed, from {Path(__file__).parents[2]}"


def predict(
    model: Annotated[Path, "model of a finished run (.safetensors)"],
    volume: Annotated[
        Sequence[Path],
        "NIfTI file, 3-D or 4-D (x, y, z, channel); several 3-D files of one scan; or the folder of one scan, as for "
        "zetadp convert",
    ],
    *,
    resample: Annotated[
        str | None,
        "if files have different grids, resample them by their headers onto the grid of the file whose name fits this "
        "pattern; without a pattern, onto that of the first file",
        "PATTERN",
        Alone("*"),
    ] = None,
    json_: Annotated[bool, "print JSON instead of a table"] = False,
    anyway: Annotated[bool, "print the most likely sequence even in case of doubt"] = False,
) -> None:
    """Classify the pulse sequences of a volume.

    The centre slices of each channel of a NIfTI volume vote on its sequence. The volume may have any orientation. The
    order and the names of channels and files are not used. A note says what the model was trained on.

    Models of the default experiment compare the sequences of one patient, so they need two to four different ones: in
    one 4-D file, in one file each, or in the folder of a scan. Other models take any number of channels.

    A head of domain study on the backbone that comes with zetadp names no sequence if it is unsure, or if an image is
    unlike its training images. --anyway prints the most likely sequence in these cases too. The thresholds come from
    simulated patients, so look at the images yourself if much depends on the answer.

    Examples
    --------
    zetadp predict results/default/runs/head/federated/eps-1/seed-0/model.safetensors brain.nii.gz
    zetadp predict model.safetensors P7_flair.nii.gz P7_t1.nii.gz P7_t1gd.nii.gz P7_t2.nii.gz
    zetadp predict model.safetensors hospital/P7 --resample
    zetadp predict model.safetensors brain.nii --json
    zetadp predict model.safetensors brain.nii --anyway
    """
    from zetadp.brain.prediction import describe_doubts, describe_origin, predict_volume
    from zetadp.mri.joining import join_files
    from zetadp.training.pretrained import load_model

    loaded = load_model(model)
    with join_files(volume, resample) as (path, files):
        table = predict_volume(loaded, path)
    if files:
        table.insert(1, "file", [file.name for file in files])
    print(describe_origin(loaded), *describe_doubts(table), sep="\n", file=sys.stderr)
    table = table.drop(columns="alternative").dropna(axis="columns", how="all")  # a model may have no doubts
    if "doubt" in table and not anyway:
        table["sequence"] = table["sequence"].astype(object).mask(table["doubt"] != "", None)
    if json_:
        print(json.dumps(table.to_dict("records"), indent=2))
    else:
        print(table.fillna("-").to_string(index=False, float_format=lambda value: f"{value:.2f}"))


def convert(
    source: Annotated[Path, "folder to convert"],
    target: Annotated[Path, "new or empty folder to write"],
    *,
    patients: Annotated[
        Path | None, "table (.tsv or .csv) with the columns record (name of the scan's folder) and patient"
    ] = None,
    patient_pattern: Annotated[
        str | None,
        "regular expression for the names of scan folders; its first group is the patient",
        "REGEX",
    ] = None,
    test_fraction: Annotated[Share, "expected share of test patients"] = 0.35,
    exact_test_fraction: Annotated[
        bool, "use exactly this share of the patients for testing; each patient's part then depends on all others"
    ] = False,
    sequence: Annotated[
        Sequence[str],
        "sequence of all files whose names fit the pattern, or whose paths if it holds a /: FLAIR, T1w, T1gd or T2w; "
        "none leaves them out",
        "PATTERN=SEQUENCE",
    ] = (),
    resample: Annotated[
        str | None,
        "if the sequences of a scan have different grids, resample them by their headers onto the grid of this one; "
        "without a value, onto that of T1w",
        "SEQUENCE",
        Alone("T1w"),
    ] = None,
    leave_out_incomplete: Annotated[
        Count | None,
        "leave out scans with fewer sequences than this number; without a value, those that lack one of the four",
        "NUMBER",
        Alone("4"),
    ] = None,
    slices: Annotated[
        PlaneCount | None,
        f"number of planes that every volume must reach, task.settings.slices of the configuration (default: {PLANES})",
    ] = None,
    spacing: Annotated[
        Positive | None, f"distance of these planes in mm, task.settings.spacing (default: {SPACING:g})"
    ] = None,
    configuration: Annotated[Path | None, "new file (.yaml) for the configuration of a training run", "FILE"] = None,
) -> None:
    """Convert NIfTI files or a BIDS folder to the Decathlon layout.

    The layout is that of the Medical Segmentation Decathlon. Nothing is written if anything is wrong.

    The command recognises BIDS folders (sub-01/anat/*_FLAIR.nii.gz, *_T1w.nii.gz, *_ce-gadolinium_T1w.nii.gz,
    *_T2w.nii.gz), and folders of one scan each, with files such as P7_flair.nii.gz, P7_T1.nii.gz,
    P7_T1_axial_post_gd.nii.gz and P7_T2.nii.gz, side by side or in subfolders. Two of the four sequences are enough. If
    a name can be read in two ways, an error asks for --sequence. The name of a scan is the path of its folder, with _
    for /. The command never guesses from these names which scans belong to one person: BIDS, --patients or
    --patient-pattern must say so. Otherwise the guarantee protects a scan and not a patient.

    With --configuration, --slices or --spacing, volumes that end before their outermost planes are refused; otherwise a
    warning names them.

    The output ends with the files that were used, those that were left out, and why. conversion.tsv in the new folder
    lists every file.

    Examples
    --------
    zetadp convert hospital Task01_BrainTumour --test-fraction 0.2 --patient-pattern '(P[0-9]+)_.*'
    zetadp convert hospital Task01_BrainTumour --patients patients.tsv --sequence '*_T1_post.nii.gz=T1gd'
    zetadp convert hospital Task01_BrainTumour --resample --leave-out-incomplete --configuration hospital.yaml
    """
    from zetadp.base.storage import check_writable
    from zetadp.base.tables import read_table
    from zetadp.cli.configuration import ConvertedCohort
    from zetadp.mri.convert import CONVERSION, convert_folder, summary
    from zetadp.mri.decathlon import canonical_sequence
    from zetadp.mri.filenames import read_rules
    from zetadp.mri.persons import Division
    from zetadp.training.promise import Noise

    target_sequence = None if resample is None else canonical_sequence(resample)
    if resample is not None and target_sequence is None:
        raise UserError(
            f"--resample: Expected FLAIR, T1w, T1gd or T2w, found {resample!r}. Name the folders before the options."
        )
    if configuration is not None:
        if configuration.exists():
            raise UserError(f"--configuration: Expected a new file, found {configuration}. Name another one.")
        check_writable(configuration)
    division = Division(test_fraction, exact=exact_test_fraction)
    settings = {"slices": slices, "spacing": spacing}
    if slices is None and (spacing is not None or configuration is not None):
        slices = PLANES
    task = convert_folder(
        source,
        target,
        patients=patients,
        patient_pattern=patient_pattern,
        division=division,
        sequences=read_rules(sequence),
        resample_onto=target_sequence,
        fewest_sequences=leave_out_incomplete,
        slices=slices,
        spacing=SPACING if spacing is None else spacing,
    )
    changed = {key: value for key, value in settings.items() if value is not None}
    cohort = ConvertedCohort.of_task(task, source, division, changed)
    print(cohort.described())
    mark = _give_configuration(cohort, configuration)
    print(f"{mark}Files of {source} ({target / CONVERSION} lists every file):")
    for line in summary(read_table(target / CONVERSION)):
        print(f"{mark}{line}")
    if cohort.trains and (outlook := Noise.of_head(cohort.patients[0]).outlook):
        print(
            f"With {counted(cohort.patients[0], f'training {cohort.unit}')} at one hospital: {outlook}", file=sys.stderr
        )


def _give_configuration(cohort: ConvertedCohort, file: Path | None) -> str:
    """Write or print the configuration for a converted cohort; return the beginning of all lines that follow it."""
    from zetadp.base.storage import write_text

    text = cohort.configuration()
    if not cohort.trains:
        print(f"In the settings of a site of a federation:\n{text}")
        if file is not None:
            print(f"{file} was not written: an experiment needs training and test patients.", file=sys.stderr)
        return ""
    if file is None:
        print(f"The configuration of one private training run. Save it as a .yaml file, and check its names:\n{text}")
        return "# "  # the lines after the configuration are comments, so the whole output is YAML
    write_text(file, text)
    print(f"The configuration of one private training run is in {file}. Check its names, then run:")
    print(f"snakemake --cores 8 --configfile {shlex.quote(str(file.resolve()))}")
    return ""


def report(
    results: Annotated[Path | None, "folder of the experiment (default: that of config.yaml)"] = None,
    *,
    configfile: Annotated[Path | None, "scenario (.yaml) that changes config.yaml"] = None,
) -> None:
    """Print the table of an experiment, and the paths of its files.

    The table shows accuracy against epsilon. The workflow also writes report.html, one page with the result, the
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
FEDERATION_COMMANDS: tuple[Callable[..., None], ...] = (
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
