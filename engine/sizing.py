"""From knobs, a model's facts and free memory to every size an engine is built with.

Sizes depend on each other (a table must be wide enough for the longest sequence plus what is in flight, the
pool for at least one sequence), so they are derived in one place, once, and checked there. Rejected: each
part working out its own sizes from the config, which is how a table comes to be one column short.
"""

from __future__ import annotations

from .config import EngineConfig, RequestLimits
from .errors import ConfigError
from .model.runner import ModelFacts, RunnerShape
from .scheduling.limits import SchedulingLimits


def runner_shape(config: EngineConfig, facts: ModelFacts, free_bytes: int) -> RunnerShape:
    """The sizes of a runner; `free_bytes` is the device's memory left beside the weights.

    Raises `ConfigError` for a knob that this model or this much memory cannot honour.
    """
    drafts = _draft_tokens(config, facts)
    _verify(config, drafts)
    reach = drafts + 1
    lookahead = 2 * reach
    if config.max_step_rows < config.max_sequences * reach:
        least = config.max_sequences * reach
        raise ConfigError("max_step_rows", config.max_step_rows, f">= max_sequences * (drafts + 1) = {least}")
    context = _context(config, facts, lookahead)
    columns = -(-(context + lookahead) // facts.block_tokens)
    snapshots = _snapshot_slots(config)
    states = 1 + config.max_sequences + snapshots
    free_bytes -= states * facts.state_bytes + draft_distribution_bytes(config, facts)
    return RunnerShape(
        sequence_slots=config.max_sequences,
        snapshot_slots=snapshots,
        blocks=_blocks(config, facts, columns, lookahead, free_bytes),
        table_columns=columns,
        max_rows=config.max_step_rows,
        max_positions=context + lookahead,
        draft_tokens=drafts,
        max_stop_ids=config.max_stop_ids,
        max_logprobs=config.max_logprobs,
        max_listed_ids=config.max_listed_ids,
        rejection=config.acceptance == "rejection",
        graph_sequences=_graph_sequences(config),
        graphs_dealt=config.verify == "adaptive" and drafts > 0,
    )


def draft_distribution_bytes(config: EngineConfig, facts: ModelFacts) -> int:
    """Of the float32 probabilities that every slot's drafts were drawn from; 664 MB at 256 sequences with 5
    drafts of the real vocabulary."""
    if config.acceptance == "coupled":
        return 0
    return (1 + config.max_sequences) * _draft_tokens(config, facts) * facts.vocab_size * 4


def scheduling_limits(config: EngineConfig, facts: ModelFacts, shape: RunnerShape) -> SchedulingLimits:
    """What the planner must respect."""
    return SchedulingLimits(
        sequence_slots=shape.sequence_slots,
        block_tokens=facts.block_tokens,
        table_columns=shape.table_columns,
        max_positions=shape.max_positions,
        max_context=_context_of(shape),
        max_rows=shape.max_rows,
        prefill_chunk=config.prefill_chunk,
        draft_tokens=shape.draft_tokens,
        backtracking=facts.backtracking,
        hit_margin=facts.hit_margin,
        max_bypass=config.max_bypass,
        overlap=config.overlap,
        prefix_cache=config.prefix_cache,
        verify=_verify(config, shape.draft_tokens),
        replay_last=shape.rejection and shape.draft_tokens > 0,
    )


def request_limits(config: EngineConfig, facts: ModelFacts, shape: RunnerShape) -> RequestLimits:
    """What one request may ask for."""
    return RequestLimits(
        vocab_size=facts.vocab_size,
        context=_context_of(shape),
        block_tokens=facts.block_tokens,
        usable_blocks=shape.blocks - 1,
        lookahead=2 * (shape.draft_tokens + 1),
        eos_token_ids=facts.eos_token_ids,
        max_logprobs=config.max_logprobs,
        max_stop_ids=config.max_stop_ids,
        max_listed_ids=config.max_listed_ids,
        draft_tokens=shape.draft_tokens,
        model_draft_tokens=facts.draft_tokens,
    )


def _context_of(shape: RunnerShape) -> int:
    return shape.max_positions - 2 * (shape.draft_tokens + 1)


def _draft_tokens(config: EngineConfig, facts: ModelFacts) -> int:
    if config.draft_tokens is None:
        return facts.draft_tokens
    if config.draft_tokens > facts.draft_tokens:
        allowed = f"None, or 0 to the model's {facts.draft_tokens}"
        raise ConfigError("draft_tokens", config.draft_tokens, allowed)
    return config.draft_tokens


def _verify(config: EngineConfig, drafts: int) -> int | None:
    """Drafts of a sequence that every step verifies; None: chosen step by step."""
    if config.verify == "adaptive":
        return None
    if config.verify == "all":
        return drafts
    if drafts and config.verify > drafts:
        raise ConfigError("verify", config.verify, f"'adaptive', 'all', or 1 to {drafts} drafts")
    return min(config.verify, drafts)


def _context(config: EngineConfig, facts: ModelFacts, lookahead: int) -> int:
    """Positions in flight may lie past the context, and must still be positions the model has."""
    most = facts.max_positions - lookahead
    if config.max_context is None:
        return most
    if config.max_context > most:
        raise ConfigError("max_context", config.max_context, f"at most {most} with this model")
    return config.max_context


def _snapshot_slots(config: EngineConfig) -> int:
    if not config.prefix_cache:
        return 0
    return config.max_sequences if config.snapshot_slots is None else config.snapshot_slots


def _graph_sequences(config: EngineConfig) -> int:
    asked = config.graph_sequences
    return config.max_sequences if asked is None else min(asked, config.max_sequences)


def _blocks(config: EngineConfig, facts: ModelFacts, columns: int, lookahead: int, free_bytes: int) -> int:
    """Given, or what fits; never more than all slots could own, never too few for a sequence of one token."""
    least = 1 + -(-(2 + lookahead) // facts.block_tokens)
    if config.kv_blocks is not None:
        if config.kv_blocks < least:
            raise ConfigError("kv_blocks", config.kv_blocks, f">= {least}, for one sequence of two tokens")
        return config.kv_blocks
    fitting = int(free_bytes * config.memory_fraction) // max(facts.block_bytes, 1)
    useful = 1 + config.max_sequences * columns
    if fitting < least:
        raise ConfigError("memory_fraction", config.memory_fraction, "more: no cache block fits the memory")
    return min(fitting, useful)
