# The federated runs as a real federation of processes on this machine, over TLS. The same files come out of it as of the
# simulation, so everything after training is the same; the arm with one holder has nothing to federate.


FEDERATED_ARMS = [arm for arm in CONFIG.arms if CONFIG.threat(arm) != "central"]

if CONFIG.engine == "flower" and FEDERATED_ARMS:

    ruleorder: train_federated > train_model

    rule train_federated:
        input:
            AFTER_REHEARSAL,
            dataset=f"{TASK}/dataset.json",
            table=INDEX,
            partition=rules.partition.output.partition,
            noise=noise_for,
            backbone=backbone_for,
        output:
            preserve(RUN.model),
            preserve(RUN.history),
            preserve(RUN.ledger),
            preserve(RUN.plan),
        log:
            f"logs/train_federated/{LOG_WILDCARDS}.log",
        wildcard_constraints:
            arm="|".join(FEDERATED_ARMS),
        conda:
            "../../envs/federation.yaml"
        threads: CONFIG.partition.nodes
        resources:
            gpu=gpus(),
            mem_mb=4000 + 500 * CONFIG.partition.nodes,
            runtime="12h",
            limits=LIMITS,
        params:
            plan=plan_json,
            performance=performance,
            federation=asdict(CONFIG.federation),
            device=CONFIG.device,
            paths=paths_of,
            code=lambda run: code_of(
                "scripts/train_federated.py", TASK_CODE, *law_code(run)
            ),
        script:
            "../../scripts/train_federated.py"
