# Whether finished models tell who was in their training. The patients are simulated for this alone, and the ledgers of
# the trainings are thrown away with them.


rule audit_membership:
    output:
        table=f"{RESULTS}/audit/membership.csv",
        picture=report(
            f"{RESULTS}/audit/membership.svg",
            caption="../report/membership.rst",
            category="Privacy",
            subcategory="audit",
            labels={
                "arm": "simulated",
                "epsilon": "membership inference",
                "seed": "all",
            },
        ),
    log:
        "logs/audit_membership.log",
    conda:
        "../../envs/audit.yaml"
    resources:
        mem_mb=4000,
        runtime="4h",
    params:
        settings=asdict(CONFIG.audit.membership),
        delta=CONFIG.privacy.delta,
        code=code_of("scripts/audit_membership.py"),
    script:
        "../../scripts/audit_membership.py"
