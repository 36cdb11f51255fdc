# ECG: recordings, simulated or from files, to spectra of one lead and public features of the usual beat.

PUBLIC_COHORT = "ECG"
BEATS = f"{COHORT}/beats.h5"
BACKBONE = "resources/public-ecg/encoder.safetensors"
INPUTS = {
    domain: [f"{COHORT}/{domain}.h5"] for domain in ("spectrum", "signal", "features")
}


rule collect_ecgs:
    output:
        spectrum_file=INPUTS["spectrum"][0],
        signal_file=INPUTS["signal"][0],
        beats_file=BEATS,
        table=INDEX,
    log:
        "logs/collect_ecgs.log",
    conda:
        "../envs/ecg.yaml"
    resources:
        mem_mb=4000,
        runtime="2h",
    params:
        brought=brought("*.csv", "**/*.npz", "**/*.mat", "**/*.hea", "**/*.dat"),
        folder=CONFIG.cohort.folder,
        seed=CONFIG.cohort.simulated.seed,
        sizes=CONFIG.cohort.patients,
        stage="papers.complex_dp.ecg.collection:write_collection",
        code=code_of("scripts/stage.py", "papers.complex_dp.ecg.collection"),
    script:
        "../../../scripts/stage.py"


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
        stage="papers.complex_dp.ecg.encoder:BeatEncoder.make",
        code=code_of("scripts/stage.py", "papers.complex_dp.ecg.encoder"),
    script:
        "../../../scripts/stage.py"


rule encode_ecgs:
    input:
        records=BEATS,
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
        stage="papers.complex_dp.ecg.encoder:BeatEncoder.encode",
        code=code_of("scripts/stage.py", "papers.complex_dp.ecg.encoder"),
    script:
        "../../../scripts/stage.py"
