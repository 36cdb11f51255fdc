# Volumes in the layout of the Medical Segmentation Decathlon, whatever their source, and the table of who is in them.

from zetadp.mri.index import brought_files

TASK = config["cohort"]["folder"] or f"{COHORT}/Task01_BrainTumour"
PHANTOM = {
    "train_patients": config["cohort"]["train_patients"],
    "test_patients": config["cohort"]["test_patients"],
    **config["cohort"]["simulated"],
}

if config["cohort"]["source"] == "simulated":

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
            settings=PHANTOM,
            code=code_of("scripts/simulate_patients.py"),
        script:
            "../../scripts/simulate_patients.py"

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
            settings=PHANTOM,
            code=code_of("scripts/assemble_cohort.py"),
        script:
            "../../scripts/assemble_cohort.py"

elif config["cohort"]["source"] == "download":

    rule fetch_cohort:
        output:
            dataset=f"{TASK}/dataset.json",
        log:
            "logs/fetch_cohort.log",
        localrule: True
        conda:
            "../../envs/data.yaml"
        params:
            code=code_of("scripts/fetch_cohort.py"),
        script:
            "../../scripts/fetch_cohort.py"


BROUGHT = brought_files(config["cohort"], Path(TASK))


rule index_cohort:
    input:
        dataset=f"{TASK}/dataset.json",
        receipts=(
            collect(f"{COHORT}/receipts/shard-{{shard}}.json", shard=SHARDS)
            if config["cohort"]["source"] == "simulated"
            else []
        ),
        brought=BROUGHT,
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
        train_patients=config["cohort"]["train_patients"],
        test_patients=config["cohort"]["test_patients"],
        slices=config["slices"]["count"],
        patient_key=config["cohort"]["patient_key"],
        # A file that takes another's place may be older than the index, so its time alone does not tell.
        sizes=[os.path.getsize(file) for file in BROUGHT],
        code=code_of("scripts/index_cohort.py"),
    script:
        "../../scripts/index_cohort.py"
