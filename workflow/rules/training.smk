# Who holds whom, how much noise the targets need, and the runs themselves.


rule partition:
    input:
        table=INDEX,
    output:
        partition=PARTITION,
    log:
        "logs/partition.log",
    localrule: True
    conda:
        "../../envs/data.yaml"
    params:
        settings=asdict(CONFIG.partition),
        sizes=CONFIG.hospital_sizes,
        stage="zetadp.training.partition:write_partition",
        code=code_of("scripts/stage.py", "zetadp.training.partition"),
    script:
        "../../scripts/stage.py"


# One file for each plan and target: another target in the grid changes nothing for the runs that are finished.
rule calibrate:
    output:
        noise=f"{RESULTS}/noise/{{calibration}}.json",
    log:
        "logs/calibrate/{calibration}.log",
    wildcard_constraints:
        calibration=r"eps-[\d.e+-]+-[0-9a-f]{8}",
    priority: 3  # a second or less each, and the audit, which is long, needs all of them
    conda:
        "../../envs/train.yaml"
    resources:
        mem_mb=4000,
        runtime="30m",
    params:
        plan=lambda wildcards: CALIBRATIONS[wildcards.calibration],
        stage="zetadp.training.promise:write_noise",
        code=code_of("scripts/stage.py", "zetadp.training.promise"),
    script:
        "../../scripts/stage.py"


# Evaluation, pages, table, disk and device, tried with the starting weights before anything is spent. A rehearsal that
# runs again, because a page has changed, must not train again: its file has no age.
REHEARSED = f"{RESULTS}/rehearsed.txt"
AFTER_REHEARSAL = [] if CONFIG.privacy.seeded else [ancient(REHEARSED)]


rule rehearse:
    input:
        CHECKED,
        partition=rules.partition.output.partition,
        table=INDEX,
        noise=lambda _: unique(noise_for(run) for run in RUNS),
        prepared=lambda _: unique(images_for(run) + backbone_for(run) for run in RUNS),
    output:
        done=REHEARSED,
    log:
        "logs/rehearse.log",
    conda:
        "../../envs/audit.yaml"
    resources:
        gpu=gpus(),
        mem_mb=8000,
        runtime="1h",
    params:
        runs=lambda _: [
            {
                "plan": plan_json(run),
                "images": images_for(run),
                "backbone": backbone_for(run),
            }
            for run in RUNS
        ],
        ledger_folder=LEDGERS,
        device=CONFIG.device,
        cohort=described_cohort(),
        code=code_of("scripts/rehearse.py", TASK_CODE, *LAW_CODE),
    script:
        "../../scripts/rehearse.py"


rule train_model:
    input:
        AFTER_REHEARSAL,
        images=images_for,
        partition=rules.partition.output.partition,
        table=INDEX,
        noise=noise_for,
        backbone=backbone_for,
    output:
        # Unnamed: the script finds these files in the run's folder.
        preserve(RUN.model),
        preserve(RUN.history),
        preserve(RUN.ledger),
        preserve(RUN.plan),
    log:
        f"logs/train_model/{LOG_WILDCARDS}.log",
    priority: 1  # the longest jobs first
    # Runs of one group that a cluster kills are all made again, finished ones too. In a simulation that costs time; with
    # noise from the operating system it would release again, so such runs are never packed together.
    group:
        "training" if CONFIG.privacy.seeded else None
    conda:
        "../../envs/train.yaml"
    resources:
        gpu=gpus(),
        mem_mb=8000,
        runtime="12h",
        limits=LIMITS,
    params:
        plan=plan_json,
        performance=performance,
        device=CONFIG.device,
        paths=paths_of,
        code=lambda run: code_of("scripts/train_model.py", TASK_CODE, *law_code(run)),
    script:
        "../../scripts/train_model.py"
