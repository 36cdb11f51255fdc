# Spoken commands: clips from a folder, their spectrograms, and public features of them.


SPEECH = CONFIG.task.chosen
PUBLIC_COHORT = "Speech Commands"
SOURCE_OF_CLIPS = CONFIG.cohort.folder
if Path(SOURCE_OF_CLIPS).resolve() == Path(COHORT).resolve():
    raise WorkflowError(
        f"cohort.folder: expected another folder than {COHORT}, where the workflow writes what it makes of the clips. "
        "Move the clips, or change cohort.name."
    )
CLIPS = f"{COHORT}/clips.h5"
# The encoder is the same whatever is protected.
BACKBONE = "resources/public-words/encoder.safetensors"
INPUTS = {
    "complex": [f"{COHORT}/spectra.h5"],
    "image": [f"{COHORT}/magnitudes.h5"],
    "features": [f"{COHORT}/features.h5"],
}
OF_TASK = [f"{RESULTS}/tables/speakers.csv"]


rule index_clips:
    input:
        source=SOURCE_OF_CLIPS,
    output:
        clips=CLIPS,
        table=INDEX,
    log:
        "logs/index_clips.log",
    conda:
        "../../../envs/train.yaml"
    resources:
        mem_mb=8000,
        runtime="30m",
    params:
        brought=brought("*/*.wav"),
        unit=SPEECH.unit,
        clips_of_a_speaker=SPEECH.clips_of_a_speaker,
        sizes=CONFIG.cohort.patients,
        stage="papers.complex_dp.speech_commands.clips:index_clips",
        code=code_of("scripts/stage.py", "papers.complex_dp.speech_commands.clips"),
    script:
        "../../../scripts/stage.py"


rule transform_clips:
    input:
        clips=CLIPS,
    output:
        spectra=INPUTS["complex"][0],
        magnitudes=INPUTS["image"][0],
    log:
        "logs/transform_clips.log",
    conda:
        "../../../envs/train.yaml"
    resources:
        mem_mb=8000,
        runtime="30m",
    params:
        stage="papers.complex_dp.speech_commands.encoder:transform_clips",
        code=code_of("scripts/stage.py", "papers.complex_dp.speech_commands.encoder"),
    script:
        "../../../scripts/stage.py"


rule fit_word_encoder:
    output:
        encoder=BACKBONE,
    log:
        "logs/fit_word_encoder.log",
    conda:
        "../../../envs/train.yaml"
    # Convolutions this small gain nothing from more.
    threads: 1
    resources:
        mem_mb=4000,
        runtime="2h",
    params:
        stage="papers.complex_dp.speech_commands.encoder:WordEncoder.make",
        code=code_of("scripts/stage.py", "papers.complex_dp.speech_commands.encoder"),
    script:
        "../../../scripts/stage.py"


rule encode_clips:
    input:
        records=CLIPS,
        encoder=BACKBONE,
    output:
        features=INPUTS["features"][0],
    log:
        "logs/encode_clips.log",
    conda:
        "../../../envs/train.yaml"
    threads: 2
    resources:
        mem_mb=8000,
        runtime="2h",
    params:
        stage="papers.complex_dp.speech_commands.encoder:WordEncoder.encode",
        code=code_of("scripts/stage.py", "papers.complex_dp.speech_commands.encoder"),
    script:
        "../../../scripts/stage.py"


# What a training costs a speaker: of clips by group privacy, at the declared largest number of a speaker.
rule account_speakers:
    input:
        ledgers=collect(EVERY_RUN.ledger, run=RUNS),
    output:
        table=f"{RESULTS}/tables/speakers.csv",
    log:
        "logs/account_speakers.log",
    conda:
        "../../../envs/train.yaml"
    resources:
        mem_mb=4000,
        runtime="30m",
    params:
        runs=[[*run.to_json().values()] for run in RUNS],
        delta=CONFIG.privacy.delta,
        clips=SPEECH.clips_of_a_speaker if SPEECH.unit == "clip" else 1,
        stage="papers.complex_dp.speech_commands.speakers:account_speakers",
        code=code_of("scripts/stage.py", "papers.complex_dp.speech_commands.speakers"),
    script:
        "../../../scripts/stage.py"
