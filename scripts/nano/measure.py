"""What the model can do: held-out bits per byte by source, accepted drafts, and a page of samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from . import chat
from .arithmetic import Weights
from .data import Documents
from .decode import Decoder, greedy, sampler
from .draft import DraftModel
from .model import TrainingModel

PROMPTS = (
    "Once upon a time", "One day, a little fox named Rusty", "There was once a", "The old clockmaker",
    '{"name": "Anna", "age":',
    '[{"product": "lamp", "quantity": 2}, {', "def read_file(path):\n", "In the beginning",
    chat.conversation([("Tell me a story about a rabbit.", "")]).removesuffix(chat.EOS),
    chat.conversation([("What is 7 plus 5?", "")]).removesuffix(chat.EOS),
    chat.conversation([("Hello!", "")], system="You are a helpful assistant.").removesuffix(chat.EOS),
    chat.conversation([("Count from 3 to 12.", "")]).removesuffix(chat.EOS),
    chat.conversation(
        [("Extract name, age, city as JSON: Maya Stone is 34 years old and lives in Oslo.", "")]
    ).removesuffix(chat.EOS),
    chat.conversation([("Define river.", "")]).removesuffix(chat.EOS),
)  # fmt: skip


@dataclass
class Report:
    """Numbers and text of one measurement."""

    bits_per_byte: dict[str, float] = field(default_factory=dict)
    accepted_per_step: dict[str, float] = field(default_factory=dict)
    samples: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        for name, value in self.bits_per_byte.items():
            yield f"bits per byte, {name}: {value:.4f}"
        for name, value in self.accepted_per_step.items():
            yield f"accepted drafts per step (of 5, greedy), {name}: {value:.3f}"
        for sample in self.samples:
            yield "-" * 80
            yield sample


@torch.no_grad()
def bits_per_byte(
    model: TrainingModel, weights: Weights, held_out: Documents, *, limit: int, rows: int
) -> dict[str, float]:
    """Bits per byte of held-out documents, each read from its own beginning; per source and over the mixture.

    Documents longer than the model's length are cut; a cut document's bytes are counted in proportion.
    """
    bits: dict[int, float] = {}
    size: dict[int, float] = {}
    length = model.length
    for index in range(len(held_out.sources)):
        mine = torch.nonzero(held_out.source == index).flatten()[:limit].tolist()
        for start in range(0, len(mine), rows):
            part = mine[start : start + rows]
            batch = torch.full((rows, length + 1), model.config.pad_token_id, device=model.device)
            counts = torch.zeros(rows, dtype=torch.long)
            for row, document in enumerate(part):
                ids = held_out.document(document)[: length + 1]
                batch[row, : len(ids)] = ids
                counts[row] = len(ids)
                size[index] = size.get(index, 0.0) + float(held_out.bytes[document]) * len(ids) / int(
                    held_out.lengths[document]
                )
            outputs = model.forward(weights, batch[:, :-1], train=False)
            logits = model.logits(weights, outputs.hidden).float()
            losses = functional.cross_entropy(logits, batch[:, 1:].flatten(), reduction="none").view(
                rows, length
            )
            inside = torch.arange(length) < (counts - 1)[:, None]
            bits[index] = bits.get(index, 0.0) + float((losses * inside.to(losses.device)).sum()) / math.log(
                2
            )
    result = {held_out.sources[i][0]: bits[i] / size[i] for i in bits}
    shares = {i: held_out.sources[i][1] for i in bits}
    result["weighted mean"] = sum(result[held_out.sources[i][0]] * s for i, s in shares.items()) / sum(
        shares.values()
    )
    return result


@torch.no_grad()
def accepted_drafts(
    model: TrainingModel, draft: DraftModel, weights: Weights, held_out: Documents,
    *, per_source: int, prompt: int, length: int,
) -> dict[str, float]:  # fmt: skip
    """Mean accepted drafts per verification step while the trunk continues held-out prompts greedily.

    Greedy text does not depend on the drafts, so it is written first; then every anchor's drafts are compared
    with it at once, and the steps a speculative loop would take are walked through. "mixture" weighs sources
    as the training batches do, by their share of the tokens; "all" counts as many documents of each.
    """
    chosen: list[tuple[int, int]] = []
    for index in range(len(held_out.sources)):
        mine = (held_out.source == index) & (held_out.lengths > prompt)
        chosen += [(index, int(d)) for d in torch.nonzero(mine).flatten()[:per_source]]
    prompts = torch.stack([held_out.document(d)[:prompt] for _, d in chosen])
    tokens = Decoder(model, weights).generate(prompts, length, greedy)
    lengths = accepted_lengths(model, draft, weights, tokens)
    counts: dict[str, list[int]] = {}
    for row, (index, _) in enumerate(chosen):
        steps, accepted = walk(
            tokens[row : row + 1], lengths[row : row + 1], prompt, model.config.eos_token_id, draft.block
        )
        for name in (held_out.sources[index][0], "all"):
            count = counts.setdefault(name, [0, 0])
            count[0] += steps
            count[1] += accepted
    means = {name: accepted / steps for name, (steps, accepted) in counts.items() if steps}
    shares = {name: share for name, share in held_out.sources if name in means}
    steps_per_token = sum(share / (1 + means[name]) for name, share in shares.items()) / sum(shares.values())
    return {**means, "mixture": 1 / steps_per_token - 1}


def accepted_lengths(model: TrainingModel, draft: DraftModel, weights: Weights, tokens: Tensor) -> Tensor:
    """How many drafts the text confirms after every anchor, `[batch, anchors]`; anchor i is position i."""
    outputs = model.forward(weights, tokens, train=False)
    if outputs.features is None:
        raise ValueError("the model has no draft block")
    keys = draft.main_keys(weights, outputs.features)
    count = tokens.shape[1] - draft.block - 1
    anchors = torch.arange(count, device=tokens.device).expand(tokens.shape[0], -1)
    newest = tokens[:, 1 : count + 1]
    hidden, _, _ = draft.hidden(weights, keys, newest, anchors)
    drafted, _ = draft.greedy(weights, hidden, newest)
    truth = tokens.unfold(1, draft.block, 1)[:, 2 : count + 2]
    return (drafted == truth).long().cumprod(-1).sum(-1)


def walk(tokens: Tensor, lengths: Tensor, prompt: int, eos: int, block: int) -> tuple[int, int]:
    """(steps, accepted drafts) of speculative loops over the text, each until its end token."""
    steps = accepted = 0
    for row, confirmed in zip(tokens.tolist(), lengths.tolist(), strict=True):
        end = next((i for i in range(prompt, len(row)) if row[i] == eos), len(row))
        anchor = prompt - 1  # the prompt is processed; its successor is the newest token
        while anchor < min(len(confirmed), end - block - 1):
            steps += 1
            accepted += confirmed[anchor]
            anchor += confirmed[anchor] + 1
    return steps, accepted


@torch.no_grad()
def samples(model: TrainingModel, weights: Weights, tokenizer: Tokenizer, *, length: int) -> list[str]:
    """Greedy continuations of fixed prompts, and one sampled one for stories."""
    texts = []
    for text in PROMPTS:
        ids = tokenizer.encode(chat.BOS + text, add_special_tokens=False).ids
        prompt = torch.tensor([ids], device=model.device)
        choices = [("greedy", greedy)] + (
            [("temperature 0.8", sampler(0.8, 0.95))] if text.startswith("Once") else []
        )
        for name, choice in choices:
            out = (
                Decoder(model, weights)
                .generate(prompt, min(model.length, len(ids) + length), choice)[0]
                .tolist()
            )
            answer = out[len(ids) :]
            eos = model.config.eos_token_id
            answer = answer[: answer.index(eos)] if eos in answer else answer
            texts.append(f"[{name}] {text}>>>{tokenizer.decode(answer, skip_special_tokens=False)}")
    return texts
