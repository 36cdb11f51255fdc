# Reconstruction: single-coil volumes, simulated or from a folder in the layout of fastMRI, to undersampled slices.


RECONSTRUCTION = CONFIG.task.chosen
PUBLIC_COHORT = "fastMRI"
SIMULATED = CONFIG.cohort.source == "simulated"
VOLUMES = f"{COHORT}/volumes" if SIMULATED else CONFIG.cohort.folder
BACKBONE = "resources/public-volumes/networks.safetensors"
INPUTS = {"kspace": [f"{COHORT}/slices.h5"]}
# Images have no classes.
FIGURES.remove(f"{RESULTS}/figures/confusion.svg")
PATIENTS = CONFIG.cohort.patients


if SIMULATED:

    rule simulate_volumes:
        output:
            volumes=directory(VOLUMES),
        log:
            "logs/simulate_volumes.log",
        conda:
            "../../../envs/data.yaml"
        resources:
            mem_mb=4000,
            runtime="2h",
        params:
            examinations={
                **RECONSTRUCTION.examinations,
                "size": RECONSTRUCTION.size,
            },
            seed=CONFIG.cohort.simulated.seed,
            sizes=PATIENTS,
            stage="papers.complex_dp.reconstruction.simulated:simulate_volumes",
            code=code_of(
                "scripts/stage.py", "papers.complex_dp.reconstruction.simulated"
            ),
        script:
            "../../../scripts/stage.py"


rule undersample:
    input:
        volumes=VOLUMES,
    output:
        slices=INPUTS["kspace"][0],
        table=INDEX,
    log:
        "logs/undersample.log",
    conda:
        "../../../envs/data.yaml"
    resources:
        mem_mb=8000,
        runtime="2h",
    params:
        brought=brought("*/*.h5"),
        mask=dict(RECONSTRUCTION.mask),
        size=RECONSTRUCTION.size,
        sizes=PATIENTS,
        stage="papers.complex_dp.reconstruction.volumes:undersample",
        code=code_of("scripts/stage.py", "papers.complex_dp.reconstruction.volumes"),
    script:
        "../../../scripts/stage.py"


rule fit_public_networks:
    output:
        networks=BACKBONE,
    log:
        "logs/fit_public_networks.log",
    conda:
        "../envs/reconstruction.yaml"
    # Convolutions this small gain nothing from more.
    threads: 1
    resources:
        mem_mb=4000,
        runtime="4h",
    params:
        settings=dict(RECONSTRUCTION.public),
        mask=dict(RECONSTRUCTION.mask),
        size=RECONSTRUCTION.size,
        stage="papers.complex_dp.reconstruction.pretraining:make",
        code=code_of("scripts/stage.py", "papers.complex_dp.reconstruction.pretraining"),
    script:
        "../../../scripts/stage.py"
