# make demo   compare spaced with online KD on real images that come with the install; two and a half minutes on two cores
# make evaluation   the same arms with every instrument: calibration, robustness, flatness
# make test   everything that guards the project: make lint and make pytest
# make docs-site   the documentation as a site in site/, warnings are errors
# make docs-test   every command and every piece of Python in the documentation is run; a quarter of an hour on two cores
# make release-check   build wheel and sdist into dist/, and try the wheel in two empty environments, slim and whole
# make faults   runs of every kind, killed at every operation on a file and resumed; up to an hour on two cores
# make soak   a thousand random kills
# make fuzz   ten thousand cases of damaged words and files; half an hour on two cores
# All make their own virtual environment in .venv.

PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo evaluation test lint pytest faults soak fuzz benchmark docs docs-site docs-test release-check clean

demo: .venv/installed
	$(BIN)/spacedkd compare --out runs/demo --against "no KD" --seeds 6 \
		--data digits --train-limit 200 --network resnet18_small --width 8 \
		--epochs 100 --batch-size 32 --lr 0.03 --rate cosine --precision 32-true \
		--set evaluate_every=4ep --set save_every=20ep \
		--arm "no KD: --method none" \
		--arm "online KD: --method kd" \
		--arm "spaced KD: --method kd --interval 1.5ep" \
		--arm "offline KD: --method kd --interval offline"

evaluation: demo
	$(BIN)/spacedkd evaluate runs/demo --all --grid runs/demo/corruptions.png
	$(BIN)/spacedkd report runs/demo --against "no KD"

test: lint pytest

lint: .venv/installed-for-tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

pytest: .venv/installed-for-tests
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --numprocesses $$(( $$(getconf _NPROCESSORS_ONLN) + 1 )) --dist loadgroup

faults: .venv/installed-for-tests
	EVERY_KILL_POINT=1 $(BIN)/pytest --numprocesses auto --dist worksteal tests/faults

soak: .venv/installed-for-tests
	$(BIN)/python -m tests.faults.soak --kills 1000 --out soak.json

fuzz: .venv/installed-for-tests
	SPACEDKD_FUZZ=10000 $(BIN)/pytest --numprocesses 0 tests/fuzz

benchmark: .venv/installed-for-tests
	$(BIN)/python -m benchmarks.training_speed
	$(BIN)/python -m benchmarks.evaluation_speed
	$(BIN)/python -m benchmarks.curvature_speed
	$(BIN)/python -m benchmarks.token_loss_memory

docs: .venv/installed
	$(BIN)/python -m spacedkd.methods.pages docs/methods
	$(BIN)/python -m spacedkd.config.recipes docs/recipes.md

docs-site: .venv/installed-for-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-test: .venv/installed-for-tests
	SPACEDKD_DOCS=1 $(BIN)/pytest --numprocesses auto tests/docs

release-check: .venv/installed-for-tests
	rm -rf build dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m scripts.release_check dist

.venv/installed: pyproject.toml constraints.txt
	@echo "Installing into .venv; this takes a few minutes the first time."
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "spacedkd needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(INSTALL) --editable '.[train]'
	@touch $@

.venv/installed-for-tests: .venv/installed
	$(INSTALL) --editable '.[dev]'
	@touch $@

.venv/installed-for-docs: .venv/installed
	$(INSTALL) --editable '.[train,docs]'
	@touch $@

clean:
	rm -rf .venv runs site build dist
