# Two commands, each on a bare checkout:
#   make results   install, simulate the default cohort, run every stage; prints the first runs, then all
#   make test      install, then every check, and every test that needs Python alone and is quick
# What takes longer or needs more than Python:
#   make test-slow           real federations, killed stages, the other tasks through the workflow: the rest that Python can
#   make test-cluster        the workflow through a real Slurm, which it starts and stops (Debian: slurm-wlm and munge)
#   make test-environments   every file of envs/ alone runs its stages; the Containerfile
#   make docs                the documentation site, in site/index.html; warnings are errors
#   make full                the extended table: every method, both arms, seven epsilons, ten seeds (hours on two cores)
#   make paper               the paper's grid with a small network (27 runs of 15 to 40 minutes of one core; it goes on where it stopped)
#   make shares              how much of the way to the best network without noise private training goes
#   make phase-mnist         PhaseMNIST and MNIST at true epsilons, five seeds
#   make ecg ECG=FOLDER      left bundle branch block in recordings of PTB-XL, which you have (docs/ecg.md)
#   make speech-commands SPEECH=FOLDER   spoken commands at true epsilons per clip and per speaker, from clips that you have
#                            (docs/speech_commands.md)
#   make activations         which activation works best at equal true epsilon; needs the clips (docs/activations.md)
#   make reconstruction      accelerated MRI at true epsilons per patient, simulated (docs/reconstruction.md); with
#                            REAL=FOLDER also on real heads
#   make benchmark           what a private step costs, beside a non-private one
#   make accountants         what the accountants say and take
#   make release-accounting  what the paper on mixed features prints about privacy, and what is true
#   make release-mnist       released rows of MNIST beside rivals and the paper's table (docs/release_experiments.md)
#   make release-regimes     released rows beside private descent: classes, people and holders varied
#   make release-patients    the same on k-space features, with 121 and with 1936 patients
#   make release-attacks     membership inference and inversion of released rows, with pictures
#   make capacity-order      whether Bayes' capacity tells which of three mechanisms leaks more of an image
#   make capacity            directions and Gaussian noise at equal true epsilon and at equal Bayes' capacity
#   make directions-utility  accuracy with directions, with Gaussian noise and without noise, on MNIST and Fashion-MNIST
#
# Variables:
#   PYTHON=python3.12        the Python to build the environment with (3.11 or newer)
#   CORES=8                  cores for the workflow (default: all)
#   CONFIG=workflow/scenarios/paper.yaml   another experiment for `make results`
#   ECG=FOLDER               recordings for `make ecg`
#   SPEECH=FOLDER            clips of spoken words, one folder a word (default: resources/speech-commands-clips)
#   TORCH_INDEX=URL          take PyTorch from this wheel index. On Linux pip's default PyTorch is a CUDA build of
#                            several gigabytes; on a machine without a GPU name the index of CPU wheels that
#                            PyTorch's installation page gives.

PYTHON ?= python3
CORES ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu)
CONFIG ?=
ECG ?=
REAL ?=
SPEECH ?=
TORCH_INDEX ?=
VENV ?= .venv

BIN := $(VENV)/bin
TORCH := $(shell grep '^torch==' requirements.lock)
# Without --no-compile half of the time goes into modules that nothing imports.
PIP := $(BIN)/pip install --quiet --no-compile --constraint requirements.lock
# Snakemake finds the interpreter of its jobs on the path. What they import is compiled once and kept, also where the
# caller's shell asks for no bytecode: compiling PyTorch's modules takes longer than most jobs.
RUN := PYTHONDONTWRITEBYTECODE= PATH="$(CURDIR)/$(BIN):$$PATH"

.PHONY: results full paper shares phase-mnist ecg speech-commands activations reconstruction test test-slow test-cluster test-environments lint unit benchmark accountants release-accounting release-mnist release-regimes release-patients release-attacks capacity capacity-order directions-utility docs install clean

# Tables say by which command they were made.
results: export ZETADP_COMMAND := make results$(if $(CONFIG), CONFIG=$(CONFIG))
full: export ZETADP_COMMAND := make full
paper: export ZETADP_COMMAND := make paper
shares: export ZETADP_COMMAND := make shares
phase-mnist: export ZETADP_COMMAND := make phase-mnist
ecg: export ZETADP_COMMAND := make ecg
speech-commands: export ZETADP_COMMAND := make speech-commands
activations: export ZETADP_COMMAND := make activations
reconstruction: export ZETADP_COMMAND := make reconstruction
benchmark: export ZETADP_COMMAND := make benchmark
accountants: export ZETADP_COMMAND := make accountants
release-accounting: export ZETADP_COMMAND := make release-accounting
release-mnist: export ZETADP_COMMAND := make release-mnist
release-regimes: export ZETADP_COMMAND := make release-regimes
release-patients: export ZETADP_COMMAND := make release-patients
release-attacks: export ZETADP_COMMAND := make release-attacks
capacity-order: export ZETADP_COMMAND := make capacity-order
capacity: export ZETADP_COMMAND := make capacity
directions-utility: export ZETADP_COMMAND := make directions-utility

# The first block of runs comes first, with a table and a figure of its own, then everything else. An experiment that is
# named may need any of the packages.
results: $(VENV)/$(if $(CONFIG),installed,workflow)
	$(RUN) snakemake headline --cores $(CORES) --quiet rules $(if $(CONFIG),--configfile $(CONFIG))
	@$(RUN) zetadp report --headline $(if $(CONFIG),--configfile $(CONFIG))
	$(RUN) snakemake --cores $(CORES) --quiet rules $(if $(CONFIG),--configfile $(CONFIG))
	@$(RUN) zetadp report $(if $(CONFIG),--configfile $(CONFIG))

full: install
	$(RUN) snakemake --cores $(CORES) --quiet rules --configfile workflow/scenarios/phantom_full.yaml
	$(RUN) python benchmarks/phantom_full.py
	$(RUN) python benchmarks/ablation.py

test: install lint unit

paper: install
	$(RUN) snakemake --cores $(CORES) --quiet rules --rerun-incomplete --configfile workflow/scenarios/paper_small.yaml
	$(RUN) python benchmarks/paper.py

shares: install
	$(RUN) snakemake --cores $(CORES) --quiet rules
	for cohort in drawn vendor healthy heavy; do \
		$(RUN) snakemake --cores $(CORES) --quiet rules --configfile workflow/scenarios/held_apart_$$cohort.yaml || exit 1; \
	done
	$(RUN) python benchmarks/shares.py

phase-mnist: install
	for scenario in phase_mnist phase_mnist_once mnist; do \
		$(RUN) snakemake --cores $(CORES) --quiet rules --configfile workflow/scenarios/$$scenario.yaml || exit 1; \
	done
	$(RUN) python benchmarks/phase_mnist.py

ecg: install
	$(RUN) python benchmarks/ecg.py --data $(ECG)

# Scenarios name the folder of the clips; another one is laid over them.
CLIPS = $(if $(SPEECH),--config 'cohort={folder: "$(SPEECH)"}')

speech-commands: install
	for scenario in speech_commands speech_commands_speakers; do \
		$(RUN) snakemake --cores $(CORES) --quiet rules --configfile workflow/scenarios/$$scenario.yaml $(CLIPS) || exit 1; \
	done
	$(RUN) python benchmarks/speech_commands.py

activations: install
	$(RUN) python benchmarks/activations.py

reconstruction: install
	$(RUN) snakemake --cores $(CORES) --quiet rules --configfile workflow/scenarios/reconstruction.yaml
	$(RUN) python benchmarks/reconstruction.py
	$(if $(REAL),$(RUN) python benchmarks/reconstruction.py --real "$(REAL)")

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile workflow
	$(RUN) snakemake --lint

# Each process takes whole folders until others have nothing left to do: what the tests of a folder share is made once.
PYTEST := pytest -n $(CORES) --dist worksteal --ignore tests/cluster --ignore tests/environments --durations 30

unit: install
	$(RUN) $(PYTEST) -m "not slow"

test-slow: install
	$(RUN) $(PYTEST) -m slow

# One Slurm, one machine: its tests share them, one after the other.
test-cluster: install
	$(RUN) pytest tests/cluster --durations 5

test-environments: install
	$(RUN) TORCH_INDEX="$(TORCH_INDEX)" pytest -n $(CORES) --dist worksteal tests/environments --durations 5

benchmark: install
	$(RUN) python benchmarks/step.py

accountants: install
	$(RUN) python benchmarks/accountants.py

release-accounting: install
	$(RUN) python benchmarks/release_accounting.py

release-mnist: install
	$(RUN) python benchmarks/release_mnist.py

release-regimes: install
	$(RUN) python benchmarks/release_regimes.py

release-patients: install
	for scenario in release_few release_many; do \
		$(RUN) snakemake tables --cores $(CORES) --quiet rules --configfile workflow/scenarios/$$scenario.yaml || exit 1; \
	done
	$(RUN) python benchmarks/release_patients.py

release-attacks: install
	$(RUN) python benchmarks/release_attacks.py

capacity-order: install
	$(RUN) python benchmarks/capacity_order.py

capacity: install
	$(RUN) python benchmarks/directions.py

directions-utility: install
	$(RUN) python benchmarks/directions_utility.py

docs: install
	$(RUN) sphinx-build --quiet --fail-on-warning --keep-going docs site
	@echo site/index.html

install: $(VENV)/installed

$(VENV)/installed: $(VENV)/workflow
	$(PIP) --requirement requirements.lock
	@touch $@

# What the workflow needs is little more than half of all packages; `make results` waits for no other.
$(VENV)/workflow: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "zetadp needs Python 3.11 or newer; $(PYTHON) is older. Name one: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "$(PYTHON) cannot make a virtual environment. On Debian and Ubuntu install the package python3-venv."; exit 1; }
	$(PIP) setuptools
ifneq ($(TORCH_INDEX),)
	$(PIP) --no-deps --index-url $(TORCH_INDEX) $(TORCH)
endif
	$(PIP) --no-build-isolation --editable '.[workflow]'
	@touch $@

# Ledgers stay: they say what was released about the patients, whether or not the results are kept.
clean:
	rm -rf $(VENV) results resources logs .snakemake
