# The first block of runs alone, with three seeds at most, for a table and a figure long before all runs are made: the
# target `headline`. Stages are those of the whole experiment. The total is that of everything recorded so far, and the
# table says that more follows.

HEADLINE = f"{RESULTS}/headline"


use rule account_total as account_headline with:
    input:
        ledgers=collect(EVERY_RUN.ledger, run=FIRST_RUNS),
        table=INDEX,
    output:
        total=f"{HEADLINE}/privacy_total.json",
        text=f"{HEADLINE}/privacy_total.txt",
    log:
        "logs/account_headline.log",


use rule make_tables as tabulate_headline with:
    input:
        metrics=collect(EVERY_RUN.metrics, run=FIRST_RUNS),
        privacy=collect(EVERY_RUN.privacy, run=FIRST_RUNS),
        total=rules.account_headline.output.total,
    output:
        **{kind: f"{HEADLINE}/tables/table1.{kind}" for kind in ("csv", "md", "txt")},
        per_node=f"{HEADLINE}/tables/per_node.csv",
    log:
        "logs/tabulate_headline.log",


use rule make_figures as draw_headline with:
    input:
        metrics=collect(EVERY_RUN.metrics, run=FIRST_RUNS),
        privacy=collect(EVERY_RUN.privacy, run=FIRST_RUNS),
        histories=collect(EVERY_RUN.history, run=FIRST_RUNS),
    output:
        **{
            kind: f"{HEADLINE}/figures/{kind}.svg"
            for kind in ("accuracy", *OF_RUNS)
            if kind != "networks" or len({run.network for run in FIRST_RUNS}) > 1
        },
    log:
        "logs/draw_headline.log",
