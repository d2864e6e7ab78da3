#!/usr/bin/env bash
# Run the tests with the oldest version of every dependency that pyproject.toml allows. Needs uv; its options may be given,
# such as --index-url.
set -euo pipefail
cd "$(dirname "$0")/.."
export UV_PROJECT_ENVIRONMENT=.venv-oldest VIRTUAL_ENV=.venv-oldest
uv venv --clear --python 3.11 .venv-oldest
uv pip install --resolution lowest-direct "$@" -e ".[test]"
uv pip list
# Old packages warn of what newer ones have changed since; here only failures count.
.venv-oldest/bin/python -m pytest -n auto -W default
