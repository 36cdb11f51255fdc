# The task of the default experiment: from volumes to whitened k-space and the public backbone's features.
#
# A task's file makes INDEX, the table of who is in the cohort, and names what it makes for the networks of each domain.

BRAIN = CONFIG.task.chosen


include: "../cohort.smk"
include: "../kspace.smk"
include: "../pretraining.smk"
include: "../attacks.smk"


# How tables call a cohort that is downloaded.
PUBLIC_COHORT = "Decathlon brain task"
INPUTS = {
    domain: [f"{COHORT}/{kind}/shard-{shard}.h5" for shard in SHARDS]
    for domain, kind in (
        ("kspace", "whitened"),
        ("image", "slices"),
        ("features", "features"),
        ("study", "study"),
    )
}
CHECKED = rules.find_duplicates.output
# In addition to the tables and figures of every task.
OF_TASK = [
    rules.find_duplicates.output.duplicates,
    f"{RESULTS}/audit/audit.svg",
    *ATTACKS,
]
if CONFIG.privacy.seeded:
    # Where noise protects real patients, no picture of one is drawn unless it is asked for by name.
    FIGURES.append(f"{RESULTS}/figures/patient.svg")


rule kspace:
    input:
        INPUTS["kspace"],
        rules.find_duplicates.output,


rule draw_patient:
    input:
        slices=collect(f"{COHORT}/slices/shard-{{shard}}.h5", shard=SHARDS),
        kspace=collect(f"{COHORT}/kspace/shard-{{shard}}.h5", shard=SHARDS),
        whitened=collect(f"{COHORT}/whitened/shard-{{shard}}.h5", shard=SHARDS),
        partition=PARTITION,
    output:
        patient=report(
            f"{RESULTS}/figures/patient.svg",
            caption="../../report/patient.rst",
            category="Data",
            labels={
                "result": "one held-out patient"
                + (", simulated" if CONFIG.simulated else "")
            },
        ),
    log:
        "logs/draw_patient.log",
    conda:
        "../../../envs/tables.yaml"
    resources:
        mem_mb=4000,
        runtime="30m",
    params:
        cohort=described_cohort(),
        code=code_of("scripts/draw_patient.py"),
    script:
        "../../../scripts/draw_patient.py"
