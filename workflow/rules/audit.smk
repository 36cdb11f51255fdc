# Whether attacks on the training code can show more than is claimed. It is about the code, not about the cohort, of
# which it touches nothing; a change in the code attacks it again.


rule audit:
    input:
        noise=collect(f"{RESULTS}/noise/{{calibration}}.json", calibration=CALIBRATIONS),
    output:
        csv=f"{RESULTS}/audit/audit.csv",
        md=f"{RESULTS}/audit/audit.md",
        picture=report(
            f"{RESULTS}/audit/audit.svg",
            caption="../report/audit.rst",
            category="Privacy",
            subcategory="audit",
            labels={
                "arm": "head",
                "epsilon": "claimed against measured",
                "seed": "all",
            },
        ),
    log:
        "logs/audit.log",
    # Before all trainings: on few cores it would otherwise run alone at the end, for a minute or more.
    priority: 2
    conda:
        "../../envs/audit.yaml"
    # One, which is free on any machine while others train; --set-threads audit=4 makes it four times as quick.
    threads: 1
    resources:
        mem_mb=4000,
        runtime="2h",
    params:
        plans=[
            replace(plan.for_calibration(), run=plan.run, unit=plan.unit).to_json()
            for plan in (
                CONFIG.plan(RunName(*run, 0))
                for run in sorted({(run.network, run.arm, run.target) for run in RUNS})
            )
        ],
        delta=CONFIG.privacy.delta,
        noise_source=CONFIG.privacy.noise.value,
        settings=asdict(CONFIG.audit.training),
        experiment=CONFIG.name,
        refuted=f"{RESULTS}/audit/refuted.md",
        code=code_of("scripts/audit.py"),
    script:
        "../../scripts/audit.py"
