# PhaseMNIST: digits from their official files to complex examples, and public features of them.

FILES = config["cohort"]["folder"] or f"{COHORT}/files"
DIGITS = [
    f"{FILES}/{name}-ubyte.gz"
    for name in (
        "train-images-idx3",
        "train-labels-idx1",
        "t10k-images-idx3",
        "t10k-labels-idx1",
    )
]
OF_PHASE_MNIST = {
    "composite": "drawn",
    "seed": 0,
    "encoder": {},
    **config["task"]["settings"],
}
EXAMPLES = f"{COHORT}/examples.h5"
BACKBONE = f"{COHORT}/encoder.safetensors"
INPUTS = {
    "complex" if OF_PHASE_MNIST["composite"] != "none" else "image": [EXAMPLES],
    "features": [f"{COHORT}/features.h5"],
}
# The attacks on the training code are about no task; those of the default experiment serve this one as well.
OF_TASK = []


if config["cohort"]["source"] == "download":

    rule fetch_digits:
        output:
            files=DIGITS,
        log:
            "logs/fetch_digits.log",
        localrule: True
        conda:
            "../../../envs/data.yaml"
        params:
            code=code_of("scripts/fetch_digits.py"),
        script:
            "../../../scripts/fetch_digits.py"


rule pair_digits:
    input:
        files=DIGITS,
    output:
        examples=EXAMPLES,
        table=INDEX,
    log:
        "logs/pair_digits.log",
    conda:
        "../../../envs/train.yaml"
    resources:
        mem_mb=4000,
        runtime="30m",
    params:
        composite=OF_PHASE_MNIST["composite"],
        seed=OF_PHASE_MNIST["seed"],
        sizes={part: config["cohort"][f"{part}_patients"] for part in ("train", "test")},
        code=code_of("scripts/pair_digits.py"),
    script:
        "../../../scripts/pair_digits.py"


rule fit_encoder:
    output:
        encoder=BACKBONE,
    log:
        "logs/fit_encoder.log",
    conda:
        "../../../envs/train.yaml"
    # Convolutions this small gain nothing from more than one thread.
    resources:
        mem_mb=4000,
        runtime="2h",
    params:
        settings=OF_PHASE_MNIST["encoder"],
        code=code_of("scripts/fit_encoder.py"),
    script:
        "../../../scripts/fit_encoder.py"


rule encode_digits:
    input:
        examples=EXAMPLES,
        encoder=BACKBONE,
    output:
        features=INPUTS["features"][0],
    log:
        "logs/encode_digits.log",
    conda:
        "../../../envs/train.yaml"
    threads: 2
    resources:
        mem_mb=4000,
        runtime="2h",
    params:
        composite=OF_PHASE_MNIST["composite"],
        code=code_of("scripts/encode_digits.py"),
    script:
        "../../../scripts/encode_digits.py"
