# PhaseMNIST: digits from their official files to complex examples, and public features of them.

from papers.complex_dp.phase_mnist.task import FILES as NAMES

PHASE_MNIST = CONFIG.task.chosen
PUBLIC_COHORT = "MNIST"
# Files and encoder are the same however examples are made of them.
FILES = CONFIG.cohort.folder or "resources/mnist-files"
DIGITS = [f"{FILES}/{name}" for name in NAMES.values()]
EXAMPLES = f"{COHORT}/examples.h5"
BACKBONE = "resources/public-digits/encoder.safetensors"
INPUTS = {
    "complex" if PHASE_MNIST.composite != "none" else "image": [EXAMPLES],
    "features": [f"{COHORT}/features.h5"],
}


if CONFIG.cohort.source == "download":

    rule fetch_digits:
        output:
            files=DIGITS,
        log:
            "logs/fetch_digits.log",
        retries: 3
        localrule: True
        conda:
            "../../../envs/train.yaml"
        params:
            stage="papers.complex_dp.phase_mnist.task:fetch_mnist",
            code=code_of("scripts/stage.py", "papers.complex_dp.phase_mnist.task"),
        script:
            "../../../scripts/stage.py"


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
        composite=PHASE_MNIST.composite,
        sizes=CONFIG.cohort.patients,
        stage="papers.complex_dp.phase_mnist.task:pair_digits",
        code=code_of("scripts/stage.py", "papers.complex_dp.phase_mnist.task"),
    script:
        "../../../scripts/stage.py"


rule fit_encoder:
    output:
        encoder=BACKBONE,
    log:
        "logs/fit_encoder.log",
    conda:
        "../../../envs/train.yaml"
    # Convolutions this small gain nothing from more.
    threads: 1
    resources:
        mem_mb=4000,
        runtime="2h",
    params:
        stage="papers.complex_dp.phase_mnist.encoder:DigitEncoder.make",
        code=code_of("scripts/stage.py", "papers.complex_dp.phase_mnist.encoder"),
    script:
        "../../../scripts/stage.py"


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
        composite=PHASE_MNIST.composite,
        stage="papers.complex_dp.phase_mnist.encoder:DigitEncoder.encode_pairs",
        code=code_of("scripts/stage.py", "papers.complex_dp.phase_mnist.encoder"),
    script:
        "../../../scripts/stage.py"
