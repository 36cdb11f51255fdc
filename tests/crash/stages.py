"""Every stage of the workflow at the smallest size that does all that it does: 5 + 4 patients, one run of six rounds.

The arguments are those that the rules give, with paths relative to a working directory. Stages stand in the order of
the workflow, so that each finds what it needs once those before it have run there.
"""

from __future__ import annotations

import runpy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from zetadp.core.plan import NodeConstants, Plan, RunName
from zetadp.core.settings import OptimiserSettings, Performance, TrainingSettings
from zetadp.nn.models import NetworkSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

SCRIPTS = Path(__file__).parents[2] / "scripts"
COHORT = "resources/tiny"
TASK = f"{COHORT}/Task01_BrainTumour"
RESULTS = "results/tiny"
NAME = {"network": "complex", "arm": "federated", "epsilon": "8", "seed": "0"}
RUN = f"{RESULTS}/runs/complex/federated/eps-8/seed-0"
NETWORK = {"widths": [2, 4], "convolutions": 1, "head": "pooled", "groups": 2}
PHANTOM = {"train_patients": 5, "test_patients": 4, "seed": 7, "grid": [12, 12, 4], "scanners": 2}
ROUNDS = 6
SIZES = [3, 2]
PLAN = Plan(
    RunName("complex", "federated", "8", 0),
    NetworkSettings(**NETWORK),
    TrainingSettings(ROUNDS, 4, OptimiserSettings(0.01)),
    tuple(NodeConstants(f"node-0{n + 1}", size, 1.0) for n, size in enumerate(SIZES)),
    cohort="tiny",
    task={"name": "brain_sequences", "slices": 2, "size": 8},
).to_json()
PERFORMANCE = asdict(Performance(evaluate_every=2, checkpoint_seconds=0.0))
LABEL = "a tiny cohort"
DELTA = 1e-3
RECEIPT = f"{COHORT}/receipts/shard-00.json"
DATASET = f"{TASK}/dataset.json"
INDEX = f"{COHORT}/index.csv"
PUBLIC = "resources/public"
BACKBONE = f"{PUBLIC}/backbone.safetensors"
LAYERS = f"{PUBLIC}/layers.safetensors"
PRETRAINING = f"{PUBLIC}/checkpoint.safetensors"
SLICES, KSPACE, WHITENED = (f"{COHORT}/{kind}/shard-00.h5" for kind in ("slices", "kspace", "whitened"))
PARTITION = f"{COHORT}/partitions/tiny.csv"
DUPLICATES = f"{COHORT}/duplicates/tiny.csv"
MODEL, HISTORY, SEALED = f"{RUN}/model.safetensors", f"{RUN}/history.csv", f"{RUN}/ledger.jsonl"
AGREED = f"{RUN}/plan.json"
METRICS, PRIVACY = f"{RUN}/metrics.json", f"{RUN}/privacy.json"
TOTAL = f"{RESULTS}/privacy_total.json"
NOISE = f"{RESULTS}/noise/eps-8.json"
LEDGER = "ledgers/tiny/run.jsonl"
CHECKPOINT = f"{RESULTS}/checkpoints/run.safetensors"


@dataclass(frozen=True)
class Stage:
    """One job, as its rule declares it.

    Attributes
    ----------
    script
        Name of the script.
    inputs, outputs, params
        What the rule declares, by name; files relative to the working directory.
    threads
        Threads, where the script asks for them.
    companions
        Patterns of undeclared files that later stages read: all are there before any declared output is.
    """

    script: str
    outputs: dict[str, Any]
    inputs: dict[str, Any] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    threads: int | None = None
    companions: tuple[str, ...] = ()

    @property
    def made(self) -> list[str]:
        """Names of all files that it declares to make."""
        return [name for files in self.outputs.values() for name in ([files] if isinstance(files, str) else files)]

    @property
    def call(self) -> dict[str, Any]:
        """Arguments of `call` for this stage."""
        threads = {} if self.threads is None else {"threads": self.threads}
        return {"script": self.script, "paths": self.inputs | self.outputs, "params": self.params | threads}

    @property
    def job(self) -> dict[str, Any]:
        """Arguments of `call_as_job` for this stage."""
        declared = {
            "input": self.inputs,
            "output": self.outputs,
            "params": self.params,
            "wildcards": {},
            "resources": {},
        }
        rest = {"threads": self.threads or 1, "log": [f"logs/{self.script}.log"], "rule": self.script}
        return {"script": self.script, "job": declared | rest}


STAGES = {
    stage.script: stage
    for stage in (
        Stage(
            "simulate_patients",
            outputs={"receipt": RECEIPT},
            params={"shard": "00", "shards": 1, "folder": TASK, "settings": PHANTOM},
            companions=(f"{TASK}/images*/*", f"{TASK}/labels*/*"),
        ),
        Stage(
            "assemble_cohort",
            inputs={"receipts": [RECEIPT]},
            outputs={"dataset": DATASET},
            params={"settings": PHANTOM},
            companions=(f"{TASK}/participants.tsv",),
        ),
        Stage(
            "index_cohort",
            inputs={"dataset": DATASET, "receipts": [RECEIPT]},
            outputs={"table": INDEX},
            params={
                "train_patients": PHANTOM["train_patients"],
                "test_patients": PHANTOM["test_patients"],
                "slices": 2,
                "patient_key": None,
            },
            threads=2,
        ),
        Stage(
            "slice_volumes",
            inputs={"dataset": DATASET, "table": INDEX},
            outputs={"slices": SLICES},
            params={"shard": "00", "shards": 1, "slice_count": 2, "size": 8},
        ),
        Stage("make_kspace", inputs={"slices": SLICES}, outputs={"kspace": KSPACE}),
        Stage("whiten", inputs={"kspace": KSPACE}, outputs={"whitened": WHITENED}),
        Stage(
            "partition",
            inputs={"table": INDEX},
            outputs={"partition": PARTITION},
            params={"settings": {"nodes": 2, "validation_patients": 1, "seed": 0}, "sizes": SIZES},
        ),
        Stage(
            "find_duplicates",
            inputs={"slices": [SLICES], "partition": PARTITION},
            outputs={"duplicates": DUPLICATES},
        ),
        Stage(
            "calibrate",
            outputs={"noise": NOISE},
            params={"calibration": "eps-8", "plan": PLAN},
        ),
        Stage(
            "train_model",
            inputs={"images": [WHITENED], "partition": PARTITION, "table": INDEX, "noise": [NOISE], "backbone": []},
            outputs={"model": MODEL, "history": HISTORY, "ledger": SEALED, "agreed": AGREED},
            params={
                "plan": PLAN,
                "performance": PERFORMANCE,
                "finish_seconds": 0,
                "cap": "none",
                "series": "none",
                "device": "cpu",
                "ledger_file": LEDGER,
                "checkpoint": CHECKPOINT,
            },
        ),
        Stage(
            "simulate_public",
            outputs={"images": f"{PUBLIC}/images/shard-00.h5"},
            params={
                "shard": "00",
                "shards": 1,
                "settings": {"seed": 3, "patients": 3, "grid": [12, 12, 4]},
                "anatomy": "atlas",
                "slice_count": 2,
                "size": 8,
            },
        ),
        Stage(
            "pretrain",
            inputs={"images": [f"{PUBLIC}/images/shard-00.h5"]},
            outputs={"backbone": BACKBONE},
            params={
                "network": {**NETWORK, "transform": "fourier"},
                "settings": {"steps": 4, "batch": 4, "checkpoint_seconds": 0.0, "components": [2, 4]},
                "augmentation": {},
                "held_out": 1,
                "simulation": {"seed": 3},
                "device": "cpu",
                "checkpoint": PRETRAINING,
            },
        ),
        Stage(
            "fit_layers",
            inputs={
                "backbone": BACKBONE,
                "atlas": [f"{PUBLIC}/images/shard-00.h5"],
                "shapes": [f"{PUBLIC}/images/shard-00.h5"],
            },
            outputs={"layers": LAYERS},
            params={"components": [2, 4], "held_out": 1, "centred": False, "simulation": {"seed": 3}, "device": "cpu"},
        ),
        Stage(
            "extract_features",
            inputs={"whitened": WHITENED, "backbone": BACKBONE},
            outputs={"features": f"{COHORT}/features/shard-00.h5"},
            params={"device": "cpu"},
        ),
        Stage(
            "evaluate",
            inputs={
                "model": MODEL,
                "ledger": SEALED,
                "agreed": AGREED,
                "images": [WHITENED],
                "partition": PARTITION,
                "backbone": [],
            },
            outputs={
                "predictions": f"{RUN}/predictions.csv",
                "metrics": METRICS,
                "privacy": PRIVACY,
                "text": f"{RUN}/privacy.txt",
                "card": f"{RUN}/MODEL_CARD.md",
                "sealed": f"{RUN}/seal.json",
            },
            params={
                **NAME,
                "device": "cpu",
                "cohort_label": LABEL,
            },
        ),
        Stage(
            "account_total",
            inputs={"ledgers": [SEALED], "table": INDEX},
            outputs={"total": TOTAL, "text": f"{RESULTS}/privacy_total.txt"},
            params={"ledger_folder": str(Path(LEDGER).parent), "others": ""},
        ),
        Stage(
            "write_risk",
            inputs={"ledgers": [SEALED], "statements": [PRIVACY], "audit": []},
            outputs={
                "pages": [f"{RUN}/risk.html"],
                "pictures": [f"{RUN}/risk.svg"],
            },
            params={"networks": ["complex"]},
        ),
        Stage(
            "make_tables",
            inputs={"metrics": [METRICS], "privacy": [PRIVACY], "total": TOTAL},
            outputs={kind: f"{RESULTS}/tables/table1.{kind}" for kind in ("csv", "md", "txt", "html")}
            | {kind: f"{RESULTS}/tables/{kind}.csv" for kind in ("per_class", "per_patient", "per_node")},
            params={"cohort": LABEL, "cohort_label": LABEL, "planned": 1},
        ),
        Stage(
            "make_figures",
            inputs={"metrics": [METRICS], "privacy": [PRIVACY], "histories": [HISTORY]},
            outputs={
                kind: f"{RESULTS}/figures/{kind}.svg" for kind in ("accuracy", "confusion", "per_class", "curves")
            },
            params={"cohort_label": LABEL},
        ),
        Stage(
            "draw_patient",
            inputs={"slices": [SLICES], "kspace": [KSPACE], "whitened": [WHITENED], "partition": PARTITION},
            outputs={"patient": f"{RESULTS}/figures/patient.svg"},
            params={"cohort_label": LABEL},
        ),
        Stage(
            "write_report",
            inputs={
                "table": f"{RESULTS}/tables/table1.csv",
                "total": TOTAL,
                "text": f"{RESULTS}/privacy_total.txt",
                "pictures": [f"{RESULTS}/figures/accuracy.svg"],
            },
            outputs={"page": f"{RESULTS}/report.html"},
            params={"name": "killed"},
        ),
    )
}


def call(script: str, paths: Mapping[str, Any], params: Mapping[str, Any]) -> None:
    """Call a script's ``main``; every text in ``paths``, alone or in a list, becomes a path."""
    main = runpy.run_path(str(SCRIPTS / f"{script}.py"))["main"]
    main(
        **{name: Path(file) if isinstance(file, str) else [Path(one) for one in file] for name, file in paths.items()},
        **params,
    )


def call_as_job(script: str, job: Mapping[str, Any]) -> None:
    """Run a script's file as Snakemake does, with what its rule declares."""
    runpy.run_path(
        str(SCRIPTS / f"{script}.py"), init_globals={"snakemake": SimpleNamespace(**job)}, run_name="__main__"
    )
