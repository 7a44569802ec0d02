"""The whole recipe in a minute on a CPU: a tiny model, our own templates, a few steps of every stage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from stepahead.engine.model.v41.engram_tables import engram_tables

from .prepare import prepare
from .sources import OWN_SOURCES

_MODEL = Path(__file__).resolve().parents[2] / "engine/nano"
_SMALL = {
    "vocab_size": 512, "hidden_size": 64, "num_attention_heads": 2, "head_dim": 32, "q_lora_rank": 32,
    "o_groups": 1, "o_lora_rank": 32, "sliding_window": 32, "index_topk": 16, "candidate_topk_blocks": 8,
    "n_routed_experts": 4,
    "moe_intermediate_size": 32, "engram_vocab_size": 500, "dspark_n_routed_experts": 4, "index_n_heads": 2,
}  # fmt: skip


def small_model(folder: Path) -> None:
    """A configuration with every feature of the shipped one and a hundredth of its weights."""
    document = json.loads((_MODEL / "config.json").read_text())
    text = document["text_config"]
    text.update(_SMALL, engram_compressed_vocab_size=0)
    tables = engram_tables(SimpleNamespace(**text))  # type: ignore[arg-type]
    text["engram_num_embeddings"] = [table.rows for table in tables]
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(document))


def smoke(folder: Path, run: Callable[[list[str]], None]) -> None:
    """Prepare, train, distil, measure and export in `folder`."""
    model, out = folder / "model", folder / "out"
    small_model(model)
    prepare(OWN_SOURCES, folder, model, out, scale=0.02)
    common = ["--tokens", str(out), "--out", str(out), "--model", str(model), "--log-every", "10"]
    shape = ["--rows", "4", "--length", "128"]
    run(["--train", "--steps", "30", *shape, *common])
    own = ["--anchors", "8", "--own-rounds", "1", "--own-batch", "4"]
    run(["--distill", "--steps", "10", *own, *shape, *common])
    run(["--measure", "--held-out", "4", "--samples", "8", *shape, *common])
    run(["--export", *common])
