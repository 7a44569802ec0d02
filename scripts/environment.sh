# Sourced by the other scripts: makes `python` the active virtual environment's, or that of .venv, made if missing.
if [[ -z "${VIRTUAL_ENV:-}" ]]; then
  [[ -x .venv/bin/python ]] || "${PYTHON:-$(command -v python3.11 || command -v python3)}" -m venv .venv
  source .venv/bin/activate
fi
