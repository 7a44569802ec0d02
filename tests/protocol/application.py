"""The HTTP application, or a skip with its reason: it is an extra."""

from __future__ import annotations

import pytest

_REASON = "the HTTP application needs stepahead[http]"

create_app = pytest.importorskip("stepahead.recipe.http", reason=_REASON).create_app
serve = pytest.importorskip("stepahead.recipe.serve", reason=_REASON).serve
