# What readers see: tables and figures, made from finished runs alone.


rule make_tables:
    input:
        metrics=collect(EVERY_RUN.metrics, run=RUNS),
        privacy=collect(EVERY_RUN.privacy, run=RUNS),
        total=rules.account_total.output.total,
    output:
        csv=f"{RESULTS}/tables/table1.csv",
        md=f"{RESULTS}/tables/table1.md",
        txt=f"{RESULTS}/tables/table1.txt",
        per_node=f"{RESULTS}/tables/per_node.csv",
    log:
        "logs/make_tables.log",
    localrule: True
    conda:
        "../../envs/tables.yaml"
    params:
        declared=cohort_shown(asdict(CONFIG.cohort), simulated=CONFIG.simulated),
        cohort=described_cohort(),
        planned=len(RUNS),
        code=code_of("scripts/make_tables.py"),
    script:
        "../../scripts/make_tables.py"


# The other figures that this experiment has, by their names.
OF_RUNS = {
    **figure_output("networks", "other networks"),
    **figure_output("confusion", "confusion of the sequences"),
    **figure_output("curves", "training curves", category="Training"),
}


rule make_figures:
    input:
        metrics=collect(EVERY_RUN.metrics, run=RUNS),
        privacy=collect(EVERY_RUN.privacy, run=RUNS),
        histories=collect(EVERY_RUN.history, run=RUNS),
    output:
        **OF_RUNS,
        accuracy=figure_output("accuracy", "accuracy against epsilon, figure")[
            "accuracy"
        ],
    log:
        "logs/make_figures.log",
    conda:
        "../../envs/tables.yaml"
    resources:
        mem_mb=4000,
        runtime="30m",
    params:
        cohort=described_cohort(),
        code=code_of("scripts/make_figures.py"),
    script:
        "../../scripts/make_figures.py"


# The result on one page, which opens without this project and without a network.
rule write_report:
    input:
        table=rules.make_tables.output.csv,
        total=rules.account_total.output.total,
        text=rules.account_total.output.text,
        pictures=FIGURES,
    output:
        page=report(
            f"{RESULTS}/report.html",
            caption="../report/report.rst",
            category="Results",
            labels={"result": "everything on one page"},
        ),
    log:
        "logs/write_report.log",
    localrule: True
    conda:
        "../../envs/tables.yaml"
    params:
        name=CONFIG.name,
        simulated=CONFIG.simulated,
        stage="zetadp.report.resultpage:write_report",
        code=code_of("scripts/stage.py", "zetadp.report.resultpage"),
    script:
        "../../scripts/stage.py"
