# ECG: recordings, simulated or from files, to spectra of one lead and public features of the usual beat.

from zetadp.config.configured import task_content
from zetadp.core.task import task_of

ECG = task_of(task_content(config))
PUBLIC_COHORT = "ECG"
BEATS = f"{COHORT}/beats.h5"
BACKBONE = "resources/public-ecg/encoder.safetensors"
INPUTS = {
    domain: [f"{COHORT}/{domain}.h5"] for domain in ("spectrum", "signal", "features")
}
# The attacks on the training code are about no task; those of the default experiment serve this one as well.
OF_TASK = []


def ecg_files():
    """Return the table of a folder of recordings in a list, so that another table reads the folder again."""
    folder = config["cohort"]["folder"]
    tables = ("REFERENCE.csv", "ptbxl_database.csv", "labels.csv")
    return (
        [
            file
            for file in (Path(folder or "", name) for name in tables)
            if file.is_file()
        ]
        if folder
        else []
    )


rule collect_ecgs:
    input:
        files=ecg_files(),
    output:
        spectrum=INPUTS["spectrum"][0],
        signal=INPUTS["signal"][0],
        beats=BEATS,
        table=INDEX,
    log:
        "logs/collect_ecgs.log",
    conda:
        "../../../envs/ecg.yaml"
    resources:
        mem_mb=4000,
        runtime="2h",
    params:
        brought=brought("*.csv", "**/*.npz", "**/*.mat", "**/*.hea", "**/*.dat"),
        choice={
            name: getattr(ECG, name)
            for name in ("fold", "form", "left_out", "population", "spectrum")
        },
        folder=config["cohort"]["folder"],
        seed=config["cohort"]["simulated"]["seed"],
        sizes={part: config["cohort"][f"{part}_patients"] for part in ("train", "test")},
        code=code_of("scripts/collect_ecgs.py"),
    script:
        "../../../scripts/collect_ecgs.py"


rule fit_ecg_encoder:
    output:
        encoder=BACKBONE,
    log:
        "logs/fit_ecg_encoder.log",
    conda:
        "../../../envs/train.yaml"
    # Convolutions this small gain nothing from more.
    threads: 1
    resources:
        mem_mb=4000,
        runtime="1h",
    params:
        settings=dict(ECG.encoder),
        code=code_of("scripts/fit_ecg_encoder.py"),
    script:
        "../../../scripts/fit_ecg_encoder.py"


rule encode_ecgs:
    input:
        beats=BEATS,
        encoder=BACKBONE,
    output:
        features=INPUTS["features"][0],
    log:
        "logs/encode_ecgs.log",
    conda:
        "../../../envs/train.yaml"
    resources:
        mem_mb=4000,
        runtime="30m",
    params:
        code=code_of("scripts/encode_ecgs.py"),
    script:
        "../../../scripts/encode_ecgs.py"
