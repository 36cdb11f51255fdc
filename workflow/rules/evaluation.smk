# What a run is worth on held-out patients, and what it costs in privacy.


# One job for the accuracy, the statement and the card of a run: each takes less time than starting up for it.
rule evaluate:
    input:
        model=RUN.model,
        ledger=RUN.ledger,
        agreed=RUN.plan,
        images=images_for,
        partition=rules.partition.output.partition,
        table=INDEX,
        backbone=backbone_for,
    output:
        predictions=RUN.predictions,
        metrics=RUN.metrics,
        privacy=RUN.privacy,
        text=report(
            RUN.text,
            caption="../report/privacy.rst",
            category="Privacy",
            subcategory="{network}",
            labels={"arm": "{arm}", "epsilon": "{epsilon}", "seed": "{seed}"},
        ),
        card=RUN.card,
        sealed=RUN.seal,
    log:
        f"logs/evaluate/{LOG_WILDCARDS}.log",
    group:
        "evaluate"
    conda:
        "../../envs/train.yaml"
    resources:
        gpu=gpus(),
        mem_mb=4000,
        runtime="30m",
    params:
        ledger_file=f"{LEDGERS}/{CONFIG.name}-{LOG_WILDCARDS}.jsonl",
        device=CONFIG.device,
        cohort=described_cohort(),
        code=lambda run: code_of(
            "scripts/evaluate.py", TASK_CODE, *recorded_law_code(run_of(run))
        ),
    script:
        "../../scripts/evaluate.py"


rule account_total:
    input:
        ledgers=collect(EVERY_RUN.ledger, run=RUNS),
        table=INDEX,
    output:
        total=f"{RESULTS}/privacy_total.json",
        text=report(
            f"{RESULTS}/privacy_total.txt",
            caption="../report/privacy.rst",
            category="Privacy",
            labels={"arm": "all", "epsilon": "all runs on the cohort", "seed": "all"},
        ),
    log:
        "logs/account_total.log",
    conda:
        "../../envs/train.yaml"
    resources:
        mem_mb=4000,
        runtime="1h",
    params:
        ledger_folder=LEDGERS,
        others=ledgers_of_others(),
        code=code_of("scripts/account_total.py", *ALL_LAWS_CODE),
    script:
        "../../scripts/account_total.py"


# What each run may give away of a person, on one page.
rule write_risk:
    input:
        ledgers=collect(EVERY_RUN.ledger, run=RUNS),
        statements=collect(EVERY_RUN.privacy, run=RUNS),
        # Where the experiment attacks its code, the pages say what was found.
        audit=[
            f"{RESULTS}/audit/{name}.{kind}"
            for name in ("audit", "inversion", "candidates")
            for kind in ("csv", "svg")
            if f"{RESULTS}/audit/{name}.svg" in OF_TASK
        ],
    output:
        pages=collect(EVERY_RUN.risk, run=RUNS),
        pictures=collect(EVERY_RUN.picture, run=RUNS),
    log:
        "logs/write_risk.log",
    conda:
        "../../envs/audit.yaml"
    resources:
        mem_mb=4000,
        runtime="1h",
    params:
        networks=[run.network for run in RUNS],
        code=code_of("scripts/write_risk.py", *recorded_law_code(*RUNS)),
    script:
        "../../scripts/write_risk.py"


# What a run released to be learnt from, as a file that opens without this project.
rule write_release:
    input:
        model=RUN.model,
        agreed=RUN.plan,
        privacy=rules.evaluate.output.privacy,
    output:
        release=RUN.release,
    log:
        f"logs/write_release/{LOG_WILDCARDS}.log",
    conda:
        "../../envs/train.yaml"
    resources:
        mem_mb=8000,
        runtime="30m",
    params:
        code=code_of("scripts/write_release.py", TASK_CODE),
    script:
        "../../scripts/write_release.py"
