# Volumes in the layout of the Medical Segmentation Decathlon, whatever their source, and the table of who is in them.

from zetadp.mri.index import listed_files

TASK = CONFIG.cohort.folder or f"{COHORT}/Task01_BrainTumour"

if CONFIG.cohort.source == "simulated":

    rule simulate_patients:
        output:
            receipt=f"{COHORT}/receipts/shard-{{shard}}.json",
        log:
            "logs/simulate_patients/{shard}.log",
        conda:
            "../../envs/data.yaml"
        resources:
            mem_mb=2000,
            runtime="2h",
        params:
            folder=TASK,
            shards=len(SHARDS),
            settings=asdict(CONFIG.cohort.simulated),
            sizes=CONFIG.cohort.patients,
            stage="zetadp.phantom.cohort:write_shard",
            code=code_of("scripts/stage.py", "zetadp.phantom.cohort"),
        script:
            "../../scripts/stage.py"

    rule assemble_cohort:
        input:
            receipts=collect(f"{COHORT}/receipts/shard-{{shard}}.json", shard=SHARDS),
        output:
            dataset=f"{TASK}/dataset.json",
        log:
            "logs/assemble_cohort.log",
        localrule: True
        conda:
            "../../envs/data.yaml"
        params:
            settings=asdict(CONFIG.cohort.simulated),
            sizes=CONFIG.cohort.patients,
            stage="zetadp.phantom.cohort:assemble",
            code=code_of("scripts/stage.py", "zetadp.phantom.cohort"),
        script:
            "../../scripts/stage.py"

elif CONFIG.cohort.source == "download":

    rule fetch_cohort:
        output:
            dataset=f"{TASK}/dataset.json",
        log:
            "logs/fetch_cohort.log",
        retries: 3
        localrule: True
        conda:
            "../../envs/data.yaml"
        params:
            stage="zetadp.mri.download:fetch_cohort",
            code=code_of("scripts/stage.py", "zetadp.mri.download"),
        script:
            "../../scripts/stage.py"


if FOLDER is not None and not (FOLDER / "dataset.json").is_file():
    raise WorkflowError(
        f"cohort.folder: expected dataset.json in {FOLDER}, found none. Give the folder of a Decathlon task; "
        "zetadp convert makes one."
    )


# What changes with the volumes and tables that the user brought. A simulation or a download writes its volumes while the
# workflow runs, and has settings or a checksum.
PATIENT_KEY = CONFIG.cohort.patient_key
BROUGHT = (listed_files(FOLDER) if FOLDER is not None else []) + (
    [Path(PATIENT_KEY)] if PATIENT_KEY else []
)


rule index_cohort:
    input:
        dataset=f"{TASK}/dataset.json",
        receipts=(
            collect(f"{COHORT}/receipts/shard-{{shard}}.json", shard=SHARDS)
            if CONFIG.cohort.source == "simulated"
            else []
        ),
    output:
        table=INDEX,
    log:
        "logs/index_cohort.log",
    conda:
        "../../envs/data.yaml"
    threads: 4
    resources:
        mem_mb=2000,
        runtime="1h",
    params:
        train_patients=CONFIG.cohort.train_patients,
        test_patients=CONFIG.cohort.test_patients,
        slices=BRAIN.slices,
        spacing=BRAIN.spacing,
        patient_key=PATIENT_KEY,
        brought=lambda _: fingerprint(BROUGHT),
        code=code_of("scripts/index_cohort.py"),
    script:
        "../../scripts/index_cohort.py"
