# From volumes to whitened k-space, in shards: enough of them to keep the cores busy, none of them short.
#
# Rules with `cache: True` can take their output from the cache of another experiment. Snakemake's key of the cache is a
# hash of the params and of the rules and files that the inputs come from; it knows no wildcards and no names of outputs.
# Everything that such an output depends on is therefore an input or a param.


rule slice_volumes:
    # The index names every volume with its hash, and a volume with another hash is refused: the index stands for them.
    input:
        dataset=f"{TASK}/dataset.json",
        table=INDEX,
    output:
        slices=f"{COHORT}/slices/shard-{{shard}}.h5",
    log:
        "logs/slice_volumes/{shard}.log",
    cache: True
    conda:
        "../../envs/data.yaml"
    resources:
        mem_mb=2000,
        runtime="1h",
    params:
        shard="{shard}",
        shards=len(SHARDS),
        slice_count=BRAIN.slices,
        spacing=BRAIN.spacing,
        size=BRAIN.size,
        code=code_of("scripts/slice_volumes.py"),
    script:
        "../../scripts/slice_volumes.py"


rule make_kspace:
    input:
        slices=rules.slice_volumes.output.slices,
    output:
        kspace=f"{COHORT}/kspace/shard-{{shard}}.h5",
    log:
        "logs/make_kspace/{shard}.log",
    cache: True
    group:
        "kspace"
    conda:
        "../../envs/data.yaml"
    resources:
        mem_mb=2000,
        runtime="30m",
    params:
        stage="zetadp.mri.kspace:write_kspace",
        code=code_of("scripts/stage.py", "zetadp.mri.kspace"),
    script:
        "../../scripts/stage.py"


rule whiten:
    input:
        kspace=rules.make_kspace.output.kspace,
    output:
        whitened=f"{COHORT}/whitened/shard-{{shard}}.h5",
    log:
        "logs/whiten/{shard}.log",
    cache: True
    group:
        "kspace"
    conda:
        "../../envs/data.yaml"
    resources:
        mem_mb=2000,
        runtime="30m",
    params:
        stage="zetadp.mri.kspace:write_whitened",
        code=code_of("scripts/stage.py", "zetadp.mri.kspace"),
    script:
        "../../scripts/stage.py"


rule find_duplicates:
    input:
        slices=collect(f"{COHORT}/slices/shard-{{shard}}.h5", shard=SHARDS),
        partition=PARTITION,
    output:
        # Stored with the cohort, because it names training patients.
        duplicates=f"{COHORT}/duplicates/{CONFIG.name}.csv",
    log:
        "logs/find_duplicates.log",
    conda:
        "../../envs/data.yaml"
    resources:
        mem_mb=4000,
        runtime="30m",
    params:
        code=code_of("scripts/find_duplicates.py"),
    script:
        "../../scripts/find_duplicates.py"
