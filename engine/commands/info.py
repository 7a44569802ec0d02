"""What a model is: its layers' roles, its parameters, and what a token costs in every cache.

Reads the configuration only, so it answers at once for a checkpoint of any size, or a lone `config.json`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from ..model.v41.config import ModelConfig
    from ..model.v41.roles import LayerRole

HELP = "show the layers, parameters and cache sizes of a model"
BUILT_IN_MODEL = Path(__file__).parents[1] / "nano"
_PIPED_WIDTH = 110


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        nargs="?",
        type=Path,
        default=BUILT_IN_MODEL,
        help="checkpoint folder or config.json (the small model that ships with Stepahead)",
    )


def run(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from ..model.v41.config import load_config

    config = load_config(arguments.path)
    width = None if sys.stdout.isatty() else _PIPED_WIDTH
    console = Console(file=sys.stdout, width=width, highlight=False)
    _print_dimensions(console, config)
    _print_roles(console, config)
    _print_parameters(console, config)
    _print_caches(console, config)
    return 0


def _print_table(console: Console, title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE if console.is_terminal else None, title_justify="left")
    for i, column in enumerate(header):
        table.add_column(column, justify="left" if i == 0 or column == "duties" else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print()


def _print_dimensions(console: Console, config: ModelConfig) -> None:
    heads = f"{config.num_attention_heads}, {config.head_dim}, {config.qk_rope_head_dim}"
    experts = f"{config.num_experts_per_tok} of {config.n_routed_experts}, {config.n_shared_experts} shared"
    rows = [
        ("vocabulary", f"{config.vocab_size:,}"),
        ("longest context", f"{config.max_position_embeddings:,} tokens"),
        ("hidden size, residual copies", f"{config.hidden_size}, {config.hc_mult}"),
        ("trunk layers, draft layers", f"{config.num_hidden_layers}, {config.num_nextn_predict_layers}"),
        ("heads, head size, rotary part", heads),
        ("sliding window", f"{config.sliding_window} tokens"),
        ("compressed entries per query", f"{config.index_topk}"),
        ("experts per token", experts),
        ("drafts per step", f"{config.dspark_block_size}"),
        ("vision", "yes" if config.vision else "no"),
    ]
    _print_table(console, "Model", ("", ""), rows)


def _print_roles(console: Console, config: ModelConfig) -> None:
    from ..model.v41.roles import layer_roles

    rows = [_role_row(role) for role in layer_roles(config)]
    header = ("layer", "ratio", "selection", "keys of", "index keys of", "top-k of", "duties")
    _print_table(console, "Layers", header, rows)


def _role_row(role: LayerRole) -> tuple[str, ...]:
    sources = (role.kv_source, role.index_k_source, role.index_source)
    duties = {
        "draft": role.is_draft,
        "engram": role.has_engram,
        "candidate source": role.is_candidate_source,
        "restricted to candidates": role.uses_candidates,
        "consumer": role.is_consumer and not role.is_draft,
        "feeds drafts": role.feeds_draft,
    }
    return (
        str(role.layer_id),
        str(role.ratio),
        role.selection.value,
        *("-" if source is None else str(source) for source in sources),
        ", ".join(name for name, holds in duties.items() if holds),
    )


def _print_parameters(console: Console, config: ModelConfig) -> None:
    from ..model.checkpoint.parameter_counts import parameter_counts

    counts = parameter_counts(config)
    total = sum(counts.values())
    rows = [(part, f"{count:,}", f"{count / total:.1%}") for part, count in counts.items()]
    rows.append(("total", f"{total:,}", ""))
    _print_table(console, "Parameters", ("part", "parameters", "share"), rows)


def _print_caches(console: Console, config: ModelConfig) -> None:
    from ..model.v41 import cache_sizes

    per_token = float(cache_sizes.block_bytes_per_token(config))
    windows = cache_sizes.window_bytes_per_sequence(config)
    compressors = cache_sizes.compressor_bytes_per_sequence(config)
    rows = [
        ("compressed key-value entry", f"{cache_sizes.main_entry_bytes(config):,} B"),
        ("indexer key entry", f"{cache_sizes.index_entry_bytes(config):,} B"),
        ("window entry, per layer", f"{cache_sizes.window_entry_bytes(config):,} B"),
        ("unfinished group slot, per compressor", f"{cache_sizes.compressor_slot_bytes(config):,} B"),
        ("blocks, per token, all layers", f"{per_token:,g} B"),
        ("windows, per sequence, all layers", f"{windows:,} B"),
        ("unfinished groups, per sequence", f"{compressors:,} B"),
    ]
    _print_table(console, "Caches", ("cache", "size"), rows)
