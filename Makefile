# CI's own steps, one by one; `.ci/run` does them all in a new environment.
.PHONY: ci test slow lint format types
ci:
	.ci/run
test:
	.venv/bin/pytest -n 2
slow:
	.venv/bin/pytest -n 2 -m slow
lint:
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
format:
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .
types:
	.venv/bin/mypy
