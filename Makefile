# Two commands, each on a bare checkout; `make help` lists all:
#   make results   install, simulate the default cohort, run every stage; prints the first runs, then all
#   make test      install, then every check, and every test that needs Python alone and is quick
#
# Variables:
#   PYTHON=python3.12        the Python to build the environment with (3.11 or newer)
#   CORES=8                  cores for the workflow (default: all)
#   CONFIG=workflow/scenarios/arms.yaml   another experiment for `make results`
#   SIZE=smoke               how much of a paper `make paper-NAME` repeats: smoke (minutes), short (hours), whole (days)
#   DATA="ecg=FOLDER"        data of your own for `make paper-complex_dp` (ecg, speech, mnist)
#   TORCH_INDEX=URL          take PyTorch from this wheel index. On Linux pip's default PyTorch is a CUDA build of
#                            several gigabytes; on a machine without a GPU name the index of CPU wheels that
#                            PyTorch's installation page gives.

PYTHON ?= python3
CORES ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu)
CONFIG ?=
SIZE ?= short
DATA ?=
TORCH_INDEX ?=
VENV ?= .venv

BIN := $(VENV)/bin
TORCH := $(shell grep '^torch==' requirements.lock)
# Without --no-compile half of the time goes into modules that nothing imports.
PIP := $(BIN)/pip install --quiet --no-compile --constraint requirements.lock
# Snakemake finds the interpreter of its jobs on the path. What they import is compiled once and kept, also where the
# caller's shell asks for no bytecode: compiling PyTorch's modules takes longer than most jobs.
RUN := PYTHONDONTWRITEBYTECODE= PATH="$(CURDIR)/$(BIN):$$PATH"

PAPERS := complex_mri complex_dp neuromixgdp directions

.PHONY: help results $(PAPERS:%=paper-%) test test-slow test-cluster test-environments lint unit benchmark reference docs install clean

help:  ## this list
	@sed -n 's/^\([a-z][a-zA-Z_-]*\)\(:.*\)\{0,1\}## /  make \1@/p' $(firstword $(MAKEFILE_LIST)) | awk -F@ '{ printf "%-26s %s\n", $$1, $$2 }'

# Tables say by which command they were made.
results: export ZETADP_COMMAND := make results$(if $(CONFIG), CONFIG=$(CONFIG))
benchmark: export ZETADP_COMMAND := make benchmark
$(PAPERS:%=paper-%): export ZETADP_COMMAND = make $@$(if $(filter-out short,$(SIZE)), SIZE=$(SIZE))

# The first block of runs comes first, with a table and a figure of its own, then everything else. The result stands at the
# end, also where a second call makes nothing. An experiment that is named may need any of the packages.
results: $(VENV)/$(if $(CONFIG),installed,workflow)  ## install, simulate the default cohort, run every stage (CONFIG=FILE: another experiment)
	$(RUN) snakemake headline --cores $(CORES) $(if $(CONFIG),--configfile $(CONFIG))
	$(RUN) snakemake --cores $(CORES) $(if $(CONFIG),--configfile $(CONFIG))
	@$(RUN) zetadp report $(if $(CONFIG),--configfile $(CONFIG))

test: install lint unit  ## every check, and every test that needs Python alone and is quick

# A paper's scenarios one by one, then its tables, into results/papers. A second run does nothing.
paper-NAME:  ## repeat a paper: complex_mri, complex_dp, neuromixgdp or directions (SIZE=smoke|short|whole; papers/README.md)
	@echo "Name one: $(PAPERS:%=paper-%)" && false

$(PAPERS:%=paper-%): paper-%: install
	$(RUN) python -m papers $* --size $(SIZE) --cores $(CORES) --data $(DATA)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(RUN) lint-imports --no-logo
	$(BIN)/snakefmt --check Snakefile workflow papers
	$(RUN) snakemake --lint

# Each process takes whole folders until others have nothing left to do: what the tests of a folder share is made once.
PYTEST := pytest -n $(CORES) --dist worksteal --ignore tests/cluster --ignore tests/environments --durations 30

unit: install
	$(RUN) $(PYTEST) -m "not slow"

test-slow: install  ## real federations, killed stages, the other tasks through the workflow: the rest that Python can
	$(RUN) $(PYTEST) -m slow

# One Slurm, one machine: its tests share them, one after the other.
test-cluster: install  ## the workflow through a real Slurm, which it starts and stops (Debian: slurm-wlm and munge)
	$(RUN) pytest tests/cluster --durations 5

test-environments: install  ## every file of envs/ alone runs its stages; the Containerfile
	$(RUN) TORCH_INDEX="$(TORCH_INDEX)" pytest -n $(CORES) --dist worksteal tests/environments --durations 5

benchmark: install  ## measure what a private step costs, compared with a non-private one
	$(RUN) python -m benchmarks.step

reference: $(VENV)/workflow  ## write the tables of docs/configuration.md and docs/commands.md
	$(BIN)/python docs/reference.py

docs: install  ## the documentation site, in site/index.html; warnings are errors
	$(RUN) sphinx-build --quiet --fail-on-warning --keep-going docs site
	@echo site/index.html

install: $(VENV)/installed  ## the environment in .venv, with everything that tests need

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
	@# The papers' tasks and laws of noise are found by their metadata in zetadp_papers.dist-info of this folder.
	@echo '$(CURDIR)' > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zetadp_papers.pth"
	@touch $@

# Ledgers stay: they say what was released about the patients, whether or not the results are kept.
clean:  ## delete the environment and all results; ledgers stay
	rm -rf $(VENV) results resources logs .snakemake
