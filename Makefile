# Two commands set everything up: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
# Strangers without a local CPU wheel of torch: make demo PIP_INDEX="--extra-index-url https://download.pytorch.org/whl/cpu"
PIP_INDEX ?=
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet $(PIP_INDEX) -c constraints.txt
DEMO_OUT ?= out/demo

.PHONY: demo test lint types layers golden unit reports goldens clean

demo: $(VENV)/.installed
	$(VENV)/bin/rollout-audit analyze sample_data/grpo_run --out $(DEMO_OUT)
	@echo
	@echo "Pictures: $(DEMO_OUT)/plots/   Report: $(DEMO_OUT)/report.json"

test: lint types layers golden unit

lint: $(VENV)/.tested
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/.tested
	$(VENV)/bin/mypy

layers: $(VENV)/.tested
	$(VENV)/bin/lint-imports

# Its own gate, as a user calls it: the figures of every sample are those that were approved.
golden: $(VENV)/.installed
	@set -e; for file in sample_data/golden/*.json; do \
		name=$$(basename $$file .json); \
		echo "rollout-audit check sample_data/$$name --golden $$file"; \
		$(VENV)/bin/rollout-audit check sample_data/$$name --golden $$file; \
	done

# Approves them anew, with the presets and tolerances of each file.
goldens: $(VENV)/.installed
	set -e; for file in sample_data/golden/*.json; do \
		$(VENV)/bin/rollout-audit check sample_data/$$(basename $$file .json) --golden $$file --update --quiet; \
	done

unit: $(VENV)/.tested
	$(VENV)/bin/pytest -n auto

# The committed report of the demo, made by the tool itself; dated so that it changes only when its content does.
reports: $(VENV)/.installed
	SOURCE_DATE_EPOCH=1764374400 $(VENV)/bin/rollout-audit analyze sample_data/grpo_run --out reports/grpo_run --format plain > /tmp/grpo_run.txt
	mv /tmp/grpo_run.txt reports/grpo_run.txt

clean:
	rm -rf $(VENV) out

$(VENV)/.made: constraints.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.installed: $(VENV)/.made
	$(PIP) --editable .
	touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(PIP) --editable ".[test]"
	touch $@
