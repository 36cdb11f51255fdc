"""Everything the rules share: the checked configuration, the grid of runs, paths, and what makes a job run again."""

import argparse
import hashlib
import json
import os
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path

# The library of this repository, and the papers' tasks, work without being installed, also under --use-conda. They go
# before those that are installed, here and in the jobs: their code is hashed from these files, so these files must be
# what they run.
SOURCE = f"{HOME}/src"
sys.path[:0] = [SOURCE, HOME]
paths = [SOURCE, HOME, *os.getenv("PYTHONPATH", "").split(os.pathsep)]
os.environ.update(PYTHONPATH=os.pathsep.join(dict.fromkeys(filter(None, paths))))

from snakemake.cli import get_profile_dir
from snakemake.exceptions import WorkflowError

from zetadp.training.task import module_of
from zetadp.accounting.laws import installed_laws, modules_of, recorded_laws
from zetadp.config.experiment import runs_of
from zetadp.config.finished import check_partition, check_trainings
from zetadp.config.load import load_config
from zetadp.base.console import summarise_jobs
from zetadp.base.runfolder import RUN_PATH, RunFolder, RunName
from zetadp.base.strict_yaml import check_yaml
from zetadp.base.tables import fingerprint, visible
from zetadp.nn.settings import MIXED_ROWS
from zetadp.report.provenance import COMMAND, cohort_shown, workflow_command
from zetadp.base.validation import UserError
from zetadp.base.warm import start_python
from zetadp.base.workflow import code_of

# Jobs on other machines do not know the command that started the workflow, but what it changed of the configuration.
CHANGED = [
    word
    for file in workflow.overwrite_configfiles
    for word in ("--configfile", str(file))
]
CHANGED += [
    word
    for key in sorted(workflow.config_settings.config)
    for word in ("--config", f"{key}=")
]
ARGUMENTS = sys.argv[1:] if workflow.is_main_process else CHANGED
os.environ.setdefault(COMMAND, workflow_command(ARGUMENTS))


# The terminal of another workflow that uses this one as a module is not this one's affair.
if workflow.is_main_process and workflow.basedir == HOME:
    summarise_jobs(workflow.output_settings)


def profiles():
    """Return the files of the profiles that this call of Snakemake has read."""
    parser = argparse.ArgumentParser(add_help=False)
    default = os.getenv("SNAKEMAKE_PROFILE", "").split(",")
    parser.add_argument("--profile", nargs="*", default=default)
    parser.add_argument("--workflow-profile", default="default")
    options, _ = parser.parse_known_args()
    folders = [*options.profile, options.workflow_profile]
    folders += [
        f"{home}/{options.workflow_profile}"
        for home in ("profiles", f"{HOME}/profiles")
    ]
    profiles = [get_profile_dir(folder) for folder in folders if folder]
    return {file.resolve() for _, file in filter(None, profiles)}


def check_sources():
    """Refuse what Snakemake itself reads without complaint, such as a key that is written twice in a file."""
    for file in [*map(Path, workflow.configfiles), *sorted(profiles())]:
        check_yaml(file.read_text(encoding="utf-8"), str(file))
    for word in sys.argv[1:]:
        key, _, value = word.partition("=")
        if value.startswith(("{", "[")):
            check_yaml(value, f"--config {key}")


try:
    check_sources()
    CONFIG = load_config(config)
    # The modules that jobs find by name: of the task, of the laws of noise of all plans, and of any law that another
    # experiment's ledger may name.
    TASK_CODE = module_of(CONFIG.task.name)
    LAW_CODE = modules_of(
        CONFIG.plan(run).training.mechanism for run in CONFIG.run_names
    )
    ALL_LAWS_CODE = modules_of(installed_laws())
except UserError as error:
    raise WorkflowError(str(error)) from None

# The user's own data, which other stages would not miss once they have finished.
FOLDER = Path(CONFIG.cohort.folder) if CONFIG.cohort.source == "folder" else None
if FOLDER is not None and not FOLDER.is_dir():
    raise WorkflowError(
        f"cohort.folder: expected a folder, found none at {FOLDER}. Bring the data there, or correct the path."
    )


def brought(*patterns):
    """Return a parameter of a rule that changes with the files that the user brought and that match a pattern."""
    if FOLDER is None:
        return None
    return lambda _: fingerprint(
        file for pattern in patterns for file in visible(FOLDER, pattern)
    )


RUNS = CONFIG.run_names
RELEASES = [run for run in RUNS if CONFIG.networks[run.network].estimator == MIXED_ROWS]
# The headline: the first block of the grid, with enough seeds for a spread. Its other seeds are made with everything else.
HEADLINE_SEEDS = 3
FIRST_BLOCK = CONFIG.runs[0]
FIRST_RUNS = runs_of([replace(FIRST_BLOCK, seeds=FIRST_BLOCK.seeds[:HEADLINE_SEEDS])])
SHARDS = [f"{number:02d}" for number in range(CONFIG.shards)]
COHORT = f"resources/{CONFIG.cohort.name}"
INDEX = f"{COHORT}/index.csv"
RESULTS = f"results/{CONFIG.name}"
# The guarantee hides which patients trained where, so this file stays with the cohort, outside of the results.
PARTITION = f"{COHORT}/partitions/{CONFIG.name}.csv"
# Ledgers outlive results: releases remain releases, also when results are deleted or computed again.
LEDGERS = f"ledgers/{CONFIG.cohort.name}"
if workflow.is_main_process:
    try:
        check_partition(CONFIG, Path(RESULTS), Path(LEDGERS))
        check_trainings(CONFIG, Path(LEDGERS))
    except UserError as error:
        raise WorkflowError(str(error)) from None
# The files of a run: by wildcards in its own rules, and by its name where all runs are collected.
RUN = RunFolder(Path(RESULTS) / RUN_PATH)
EVERY_RUN = RunFolder(Path(RESULTS) / "{run.folder}")
LOG_WILDCARDS = "{network}-{arm}-eps-{epsilon}-seed-{seed}"
TABLES = [f"{RESULTS}/tables/table1.{kind}" for kind in ("csv", "md", "txt")]
# Not every experiment has several networks, or patients who watch its training. Tasks add and remove figures of theirs.
FIGURES = [f"{RESULTS}/figures/{name}.svg" for name in ("accuracy", "confusion")]
if len({run.network for run in RUNS}) > 1:
    FIGURES.append(f"{RESULTS}/figures/networks.svg")
if CONFIG.partition.validation_patients:
    FIGURES.append(f"{RESULTS}/figures/curves.svg")

# What a rule that names a function as its `stage` runs; tasks of other packages name it too.
STAGE = f"{HOME}/scripts/stage.py"

# The public backbones of a task's domains, where they have one of their own; its rules name that of all others BACKBONE.
BACKBONES = {}

# A task's rules may also say how tables call a cohort that is downloaded, and what else is made with tables and figures.
PUBLIC_COHORT = "cohort"
# What a task checks before anything is spent.
CHECKED = []
OF_TASK = []


def rules_of_task():
    """Return the file with the rules of the task: one of this workflow, or the one that the task names."""
    file = Path(HOME, "workflow/rules/tasks", f"{CONFIG.task.name}.smk")
    if not file.is_file():
        file = getattr(CONFIG.task.chosen, "rules", file)
    if not Path(file).is_file():
        raise WorkflowError(
            f"task.name: expected a task with a file of rules for the workflow, found none for {CONFIG.task.name} at "
            f"{file}. docs/tasks.md shows how a task names its rules."
        )
    return str(file)


def images_for(wildcards):
    """Return what a network sees: the files that the task's rules make for its domain."""
    domain = CONFIG.networks[wildcards.network].domain
    if domain not in INPUTS:
        raise WorkflowError(
            f"networks.{wildcards.network}.domain: expected one of {', '.join(INPUTS)} "
            f"for task {CONFIG.task.name}; found {domain}."
        )
    return INPUTS[domain]


def backbone_for(wildcards):
    """Return the public backbone in a list where a network starts from it or takes its features."""
    if not CONFIG.networks[wildcards.network].needs_backbone:
        return []
    domain = CONFIG.networks[wildcards.network].domain
    return [BACKBONES.get(domain, BACKBONE)]


def run_of(wildcards):
    """Return the name of a run, which its wildcards hold."""
    if isinstance(wildcards, RunName):
        return wildcards
    return RunName.of_texts(**dict(wildcards.items()))


def plan_of(wildcards):
    """Return the plan of a run, without its noise and the hashes of public files."""
    return CONFIG.plan(run_of(wildcards))


def plan_json(wildcards):
    """Return the same as JSON."""
    return plan_of(wildcards).to_json()


def law_code(wildcards):
    """Return the modules of the law of noise by which a run releases."""
    return modules_of([plan_of(wildcards).training.mechanism])


def recorded_law_code(*runs):
    """Return the modules of the laws in the ledgers of runs: of their plans, and of earlier attempts."""
    laws = recorded_laws(
        Path(LEDGERS, f"{CONFIG.name}-{run.label}.jsonl") for run in runs
    )
    installed = laws & installed_laws()  # the job itself says which law is missing
    return sorted(
        {*modules_of(installed), *(file for run in runs for file in law_code(run))}
    )


def performance(wildcards):
    """Return what changes the speed of a training and not its result."""
    return asdict(CONFIG.performance(wildcards.network))


def calibration(plan):
    """Return the name of a calibration, which runs of the same constants and target share."""
    return f"eps-{plan.target}-{plan.for_calibration().digest[:8]}"


CALIBRATIONS = {
    calibration(plan): plan.for_calibration().to_json() for plan in CONFIG.private_plans
}


def noise_for(wildcards):
    """Return the file that says how much noise a run needs, in a list; none for a run without noise."""
    plan = plan_of(wildcards)
    return [f"{RESULTS}/noise/{calibration(plan)}.json"] if plan.target.private else []


def unique(lists):
    """Return the elements of lists, without repetitions."""
    return list(dict.fromkeys(item for items in lists for item in items))


def preserve(output):
    """Return an output of a training, marked to survive a job that may not train again.

    Snakemake deletes the outputs of a job that runs again. Where noise protects real patients, a job that may not train
    again ends in an error, and the results of the finished run must still be there.
    """
    return output if CONFIG.privacy.seeded else update(output)


def paths_of(wildcards):
    """Return where a run is recorded and written, and where a federation of it has its processes."""
    run = run_of(wildcards)
    return {
        "folder": f"{RESULTS}/{run.folder}",
        "ledger": f"{LEDGERS}/{CONFIG.name}-{run.label}.jsonl",
        "checkpoint": f"{RESULTS}/checkpoints/{run.label}.safetensors",
        "processes": f"{RESULTS}/federation/{run.label}",
    }


def as_object(settings):
    """Return settings as a JSON object, or None."""
    return None if settings is None else asdict(settings)


# What all runs promise together, as JSON: the cap of all of them, the series that they are, and when a run may end. How
# long a training takes tells how many patients were drawn, which must not show where they are real
# (zetadp.training.progress). This is a resource, which is a text, and not a parameter: another cap, or a new run in the
# grid, must not make the finished ones run again.
LIMITS = json.dumps(
    {
        "cap": as_object(CONFIG.privacy.limit),
        "series": as_object(CONFIG.series),
        "finish_seconds": (
            CONFIG.privacy.finish_seconds
            if CONFIG.cohort.real and not CONFIG.privacy.seeded
            else 0
        ),
    }
)


# What jobs take longest to import.
PACKAGES = (
    "dp_accounting",
    "h5py",
    "matplotlib.backends.backend_svg",
    "matplotlib.figure",
    "nibabel",
    "pandas",
    "safetensors.torch",
    "scipy.optimize",
    "snakemake.script",
    "torch",
)


def start_warm_python():
    """Let the jobs of this machine start as forks of one process that has imported their packages.

    Most jobs would import for longer than they work. Snakemake runs a script with its own interpreter, except in
    conda environments and containers. Where other machines run the jobs, it names them this interpreter too, so
    there nothing changes.
    """
    if workflow.local_exec and not workflow.touch:
        sys.executable = start_python(PACKAGES)


def ledgers_of_others():
    """Return a hash of the releases outside of this grid, also those about the same patients in other cohorts."""
    names = {f"{CONFIG.name}-{run.label}.jsonl" for run in RUNS}
    digest = hashlib.sha256()
    for file in sorted(Path(LEDGERS).parent.glob("*/*.jsonl")):
        if file.parent != Path(LEDGERS) or file.name not in names:
            digest.update(f"{file} ".encode() + file.read_bytes())
    return digest.hexdigest()


def gpus():
    """Return how many GPUs a training job asks for: none where there is none to be had."""
    uses_gpu = CONFIG.device == "cuda" or (
        CONFIG.device == "auto" and shutil.which("nvidia-smi")
    )
    return 1 if uses_gpu else 0


def described_cohort():
    """Return how tables, figures and cards describe the cohort (zetadp.report.provenance.Cohort)."""
    cohort = CONFIG.cohort
    kind = PUBLIC_COHORT if cohort.source == "download" else "cohort"
    size = f"{cohort.train_patients} + {cohort.test_patients} {cohort.unit}s"
    return {
        "label": f"{kind} {cohort.name}, {size}",
        "simulated": CONFIG.simulated,
    }


def figure_output(name, result, category="Results"):
    """Return an output of make_figures by its name, if the experiment has this figure."""
    file = f"{RESULTS}/figures/{name}.svg"
    caption = f"../report/{name}.rst"
    labels = {"result": result}
    reported = report(file, caption=caption, category=category, labels=labels)
    return {name: reported} if file in FIGURES else {}
