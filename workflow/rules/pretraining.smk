# What networks learn from before any private patient: public, simulated patients, who cost no privacy.

from zetadp.brain.settings import SHIPPED, Pretraining

PRETRAINING = BRAIN.pretraining or Pretraining()
# Seed, number and size are in the name: experiments with the same public patients share them, others do not collide.
PUBLIC = (
    f"resources/public-{PRETRAINING.simulation.seed}"
    f"-{PRETRAINING.simulation.patients}"
    f"-{BRAIN.slices}x{BRAIN.size}"
)
# Public patients of another kind, with brains of random shapes: their seed is never that of the others.
SHAPES = {
    "seed": PRETRAINING.simulation.seed + 500,
    "patients": PRETRAINING.simulation.shapes,
}
PUBLIC_SHAPES = (
    f"resources/public-shapes-{SHAPES['seed']}-{SHAPES['patients']}"
    f"-{BRAIN.slices}x{BRAIN.size}"
)
SIMULATION = {
    **asdict(PRETRAINING.simulation),
    "slices": {"count": BRAIN.slices, "size": BRAIN.size},
}
PUBLIC_SHARDS = [f"{number:02d}" for number in range(PRETRAINING.simulation.shards)]


# The backbone with the features of each domain of heads: the package's, or one that is trained here.
BACKBONES = {
    domain: (
        f"{SOURCE}/zetadp/{file}"
        if BRAIN.pretraining is None
        else f"{PUBLIC}/{Path(file).name}"
    )
    for domain, file in SHIPPED.items()
}
# Networks with start: public that are not heads start from this backbone.
BACKBONE = BACKBONES["features"]


rule simulate_public:
    output:
        images=f"{PUBLIC}/images/shard-{{shard}}.h5",
    log:
        "logs/simulate_public/{shard}.log",
    cache: True
    conda:
        "../../envs/data.yaml"
    resources:
        mem_mb=2000,
        runtime="1h",
    params:
        # The key of the cache holds params, but no wildcards.
        shard="{shard}",
        shards=len(PUBLIC_SHARDS),
        settings={
            "seed": PRETRAINING.simulation.seed,
            "patients": PRETRAINING.simulation.patients,
        },
        anatomy="atlas",
        slice_count=BRAIN.slices,
        size=BRAIN.size,
        code=code_of("scripts/simulate_public.py"),
    script:
        "../../scripts/simulate_public.py"


use rule simulate_public as simulate_shapes with:
    output:
        images=f"{PUBLIC_SHAPES}/images/shard-{{shard}}.h5",
    log:
        "logs/simulate_shapes/{shard}.log",
    params:
        shard="{shard}",
        shards=len(PUBLIC_SHARDS),
        settings=SHAPES,
        anatomy="shapes",
        slice_count=BRAIN.slices,
        size=BRAIN.size,
        code=code_of("scripts/simulate_public.py"),


rule pretrain:
    input:
        atlas=collect(f"{PUBLIC}/images/shard-{{shard}}.h5", shard=PUBLIC_SHARDS),
        shapes=collect(
            f"{PUBLIC_SHAPES}/images/shard-{{shard}}.h5", shard=PUBLIC_SHARDS
        ),
    output:
        backbone=f"{PUBLIC}/backbone.safetensors",
    log:
        "logs/pretrain.log",
    benchmark:
        f"{PUBLIC}/pretrain.benchmark.tsv"
    conda:
        "../../envs/train.yaml"
    # Convolutions this small gain little from more.
    threads: 2
    resources:
        gpu=gpus(),
        mem_mb=8000,
        runtime="12h",
    params:
        network=asdict(PRETRAINING.network),
        settings=asdict(PRETRAINING.training),
        held_out=PRETRAINING.held_out,
        simulation=SIMULATION,
        device=CONFIG.device,
        code=code_of("scripts/pretrain.py"),
    script:
        "../../scripts/pretrain.py"


rule fit_study:
    input:
        backbone=BACKBONE,
        atlas=collect(f"{PUBLIC}/images/shard-{{shard}}.h5", shard=PUBLIC_SHARDS),
        shapes=collect(
            f"{PUBLIC_SHAPES}/images/shard-{{shard}}.h5", shard=PUBLIC_SHARDS
        ),
    output:
        study=f"{PUBLIC}/study.safetensors",
    log:
        "logs/fit_study.log",
    conda:
        "../../envs/train.yaml"
    resources:
        gpu=gpus(),
        mem_mb=8000,
        runtime="2h",
    params:
        components=list(PRETRAINING.training.components),
        held_out=PRETRAINING.held_out,
        simulation=SIMULATION,
        device=CONFIG.device,
        code=code_of("scripts/fit_study.py"),
    script:
        "../../scripts/fit_study.py"


rule extract_features:
    input:
        kspace=f"{COHORT}/kspace/shard-{{shard}}.h5",
        backbone=lambda wildcards: BACKBONES[wildcards.domain],
    output:
        features=f"{COHORT}/{{domain}}/shard-{{shard}}.h5",
    log:
        "logs/extract_features/{domain}-{shard}.log",
    wildcard_constraints:
        domain="|".join(BACKBONES),
    # Not cached: with device auto the machine decides where features are computed, and so what their last bits are.
    conda:
        "../../envs/train.yaml"
    resources:
        gpu=gpus(),
        mem_mb=4000,
        runtime="1h",
    params:
        device=CONFIG.device,
        code=code_of("scripts/extract_features.py"),
    script:
        "../../scripts/extract_features.py"
