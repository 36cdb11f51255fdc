# Entry of the workflow: from a task's data to the table of its metric against epsilon.
#
#   snakemake --cores 8                                              the experiment of config.yaml
#   snakemake --cores 8 --configfile workflow/scenarios/smoke.yaml   another one
#   snakemake --cores 8 kspace                                       or cohort, train, headline, tables, figures

from snakemake.utils import min_version

min_version("9.9")


# The folder of this file, also where another workflow uses this one as a module.
HOME = workflow.current_basedir.get_path_or_uri(secret_free=True)


configfile: f"{HOME}/config.yaml"


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"


wildcard_constraints:
    shard=r"\d+",
    seed=r"\d+",
    network="|".join(CONFIG.networks),
    arm="|".join(CONFIG.arms),
    epsilon="|".join(sorted({str(run.target) for run in RUNS})),


include: rules_of_task()


onstart:
    logger.info(CONFIG.cost_shown)
    start_warm_python()


# A dry run has no start.
if workflow.output_settings.dryrun and CONFIG.cost_shown:
    logger.info(CONFIG.cost_shown)


# At the end, below everything else; `make results` shows it itself, also where nothing was to be done.
onsuccess:
    shown_by_make = os.environ[COMMAND].startswith("make results")
    if not shown_by_make and "all" in {job.rule.name for job in workflow.dag.jobs}:
        table = Path(f"{RESULTS}/tables/table1.txt")
        logger.info(f"{table}:\n\n{table.read_text(encoding='utf-8')}")


# The target rule stands in this file: Snakemake takes no included one.
rule all:
    default_target: True
    input:
        TABLES,
        FIGURES,
        f"{RESULTS}/report.html",
        OF_TASK,
        collect(EVERY_RUN.card, run=RUNS),
        collect(EVERY_RUN.risk, run=RUNS),
        collect(EVERY_RUN.release, run=RELEASES),


include: "workflow/rules/training.smk"
include: "workflow/rules/federation.smk"
include: "workflow/rules/evaluation.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/headline.smk"
include: "workflow/rules/audit.smk"
include: "workflow/rules/membership.smk"


rule cohort:
    input:
        INDEX,


rule train:
    input:
        collect(EVERY_RUN.model, run=RUNS),


rule headline:
    input:
        rules.tabulate_headline.output.txt,
        rules.draw_headline.output.accuracy,


rule tables:
    input:
        TABLES,


rule figures:
    input:
        FIGURES,
