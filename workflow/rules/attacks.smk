# What messages of training give away: attacks on networks of this experiment, of patients who are simulated for this
# alone. Which are made, if any, audit.inversion and audit.candidates say.

INVERSION = CONFIG.audit.inversion
CANDIDATES = CONFIG.audit.candidates
INVERTED = sorted({kind.network for kind in INVERSION.kinds})
PLANS_OF_CANDIDATES = [
    CONFIG.plan(next(run for run in RUNS if run.network == name))
    for name in CANDIDATES.networks
]
ATTACKS = [
    f"{RESULTS}/audit/{name}.svg"
    for name, networks in (
        ("inversion", INVERTED),
        ("candidates", CANDIDATES.networks),
    )
    if networks
]


rule invert_gradients:
    output:
        csv=f"{RESULTS}/audit/inversion.csv",
        md=f"{RESULTS}/audit/inversion.md",
        picture=report(
            f"{RESULTS}/audit/inversion.svg",
            caption="../report/inversion.rst",
            category="Privacy",
            subcategory="audit",
            labels={"arm": "simulated", "epsilon": "images rebuilt", "seed": "all"},
        ),
    log:
        "logs/invert_gradients.log",
    priority: -1
    conda:
        "../../envs/audit.yaml"
    threads: 4
    resources:
        mem_mb=4000,
        runtime="12h",
    params:
        settings=asdict(INVERSION),
        networks={name: CONFIG.networks[name].settings.to_json() for name in INVERTED},
        clips={name: CONFIG.training_of(name).clip for name in INVERTED},
        size=BRAIN.size,
        delta=CONFIG.privacy.delta,
        code=code_of("scripts/invert_gradients.py"),
    script:
        "../../scripts/invert_gradients.py"


rule name_candidates:
    input:
        backbone=(
            [BACKBONE]
            if any(
                CONFIG.networks[name].needs_backbone for name in CANDIDATES.networks
            )
            else []
        ),
    output:
        csv=f"{RESULTS}/audit/candidates.csv",
        md=f"{RESULTS}/audit/candidates.md",
        picture=report(
            f"{RESULTS}/audit/candidates.svg",
            caption="../report/candidates.rst",
            category="Privacy",
            subcategory="audit",
            labels={
                "arm": "simulated",
                "epsilon": "candidates named",
                "seed": "all",
            },
        ),
    log:
        "logs/name_candidates.log",
    conda:
        "../../envs/audit.yaml"
    resources:
        mem_mb=4000,
        runtime="2h",
    params:
        settings=asdict(CANDIDATES),
        plans=[plan.to_json() for plan in PLANS_OF_CANDIDATES],
        size=BRAIN.size,
        delta=CONFIG.privacy.delta,
        code=code_of("scripts/name_candidates.py"),
    script:
        "../../scripts/name_candidates.py"
