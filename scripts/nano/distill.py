"""Distilling the draft block against the finished trunk.

The trunk is frozen in its stored (quantized) values. Rows come from the corpus and, because drafts are
accepted on the trunk's own text, from its own continuations, greedy and sampled. At random anchors the
block is run exactly as in use; every place learns the trunk's next-token distribution at that place, with
the true previous token in the Markov term, which in the trunk's own text is the token it would have chosen.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from .decode import Decoder, Sampler, greedy, sampler
from .draft import DraftModel
from .optimizer import Optimizer
from .parameters import DRAFT_PREFIX
from .state import save_state
from .train import Settings, Trainer, compute_type, prepared, rate, settled

_ROUND_FROM = 0.6
_BALANCE_LOSS, _CONFIDENCE_LOSS, _CHOICE_LOSS = 2e-3, 0.05, 0.5
_PLACE_DECAY = 0.85  # a later place only matters when all before it were accepted
_OWN_TEXT_SHARE = 0.6


class Distiller:
    """Trains `mtp.*` of a trainer whose trunk is finished."""

    def __init__(self, trainer: Trainer, settings: Settings, anchors: int) -> None:
        self.trainer, self.settings, self.anchors = trainer, settings, anchors
        self.draft = DraftModel(trainer.model)
        compute = compute_type(trainer.device)
        trunk = {
            n: w for n, w in settled(trainer.weights, trainer.specs).items() if not n.startswith(DRAFT_PREFIX)
        }
        self.frozen = prepared(trunk, trainer.specs, compute, rounded=False)
        self.trained = {n: w for n, w in trainer.weights.items() if n.startswith(DRAFT_PREFIX)}
        self.optimizer = Optimizer(self.trained, trainer.specs)
        self.own = torch.zeros(0, settings.length, dtype=torch.long, device=trainer.device)

    def write_own_text(self, batch: int, rounds: int) -> None:
        """Continuations of training documents by the trunk: several prompt lengths, greedy and sampled."""
        trainer = self.trainer
        decoder = Decoder(trainer.model, self.frozen)
        plans: list[tuple[int, Sampler]] = [
            (24, greedy),
            (24, sampler(0.7, 0.9)),
            (8, greedy),
            (96, greedy),
            (48, sampler(1.0)),
        ]
        parts = [self.own]
        for index in range(rounds):
            prompt, choice = plans[index % len(plans)]
            tokens, _ = trainer.data.batch(batch, prompt, trainer.config.pad_token_id)
            parts.append(decoder.generate(tokens, self.settings.length, choice))
        self.own = torch.cat(parts)

    def _rows(self) -> Tensor:
        rows, length = self.settings.rows, self.settings.length
        own = int(rows * _OWN_TEXT_SHARE) if len(self.own) else 0
        tokens, _ = self.trainer.data.batch(rows - own, length, self.trainer.config.pad_token_id)
        if not own:
            return tokens
        picked = torch.randint(len(self.own), (own,), device=tokens.device)
        return torch.cat((tokens, self.own[picked]))

    def step(self, progress: float) -> dict[str, Tensor]:
        draft, block, rounded = self.draft, self.draft.block, progress >= _ROUND_FROM
        tokens = self._rows()
        with torch.no_grad():
            outputs = self.trainer.model.forward(self.frozen, tokens, train=False)
            hidden = outputs.hidden.view(*tokens.shape, -1)
        features = outputs.features
        assert features is not None
        anchors = torch.randint(
            1, tokens.shape[1] - block - 1, (tokens.shape[0], self.anchors), device=tokens.device
        )
        row = torch.arange(tokens.shape[0], device=tokens.device).view(-1, 1, 1)
        places = anchors.unsqueeze(-1) + 1 + torch.arange(block, device=tokens.device)
        previous = tokens[row, places]
        with torch.no_grad():
            teacher = self.trainer.model.logits(self.frozen, hidden[row, places]).float().log_softmax(-1)
        compute = compute_type(self.trainer.device)
        weights = {**self.frozen, **prepared(self.trained, self.trainer.specs, compute, rounded=rounded)}
        keys = draft.main_keys(weights, features)
        states, penalties, loads = draft.hidden(weights, keys, previous[..., 0], anchors)
        correction, embedded = draft.markov(weights, previous)
        student = (draft.base_logits(weights, states) + correction).float().log_softmax(-1)
        choice = teacher.argmax(-1)
        divergence = (teacher.exp() * (teacher - student)).sum(-1)
        wrong = -student.gather(-1, choice.unsqueeze(-1)).squeeze(-1)
        decay = _PLACE_DECAY ** torch.arange(block, device=tokens.device)
        accepted = student.argmax(-1) == choice
        confidence = draft.confidence(weights, states.detach(), embedded.detach())
        doubt = functional.binary_cross_entropy_with_logits(confidence, accepted.float())
        loss = ((divergence + _CHOICE_LOSS * wrong) * decay).mean() / decay.mean()
        total = loss + _BALANCE_LOSS * torch.stack(penalties).mean() + _CONFIDENCE_LOSS * doubt
        total.backward()
        norm = torch.nn.utils.get_total_norm(self.optimizer.gradients())
        torch._foreach_mul_(self.optimizer.gradients(), (1.0 / (norm + 1e-6)).clamp(max=1.0))
        self.optimizer.step(rate(progress))
        self.trainer.balance(loads)
        run = accepted.float().cumprod(-1).sum(-1).mean()
        return {
            "loss": divergence.detach().mean(),
            "accepted": run,
            "first": accepted[..., 0].float().mean(),
            "doubt": doubt.detach(),
        }

    def run(self, out: Path) -> None:
        """Distil until the budget is used and save everything, rounded, into `out/full`."""
        started, steps, since = time.monotonic(), 0, time.monotonic()
        while (progress := self.settings.progress(steps, time.monotonic() - started)) < 1.0:
            values = self.step(progress)
            steps += 1
            if steps % self.settings.log_every == 0 or steps < 4:
                text = " ".join(f"{k} {float(v):.4f}" for k, v in values.items())
                seconds = time.monotonic() - since
                print(
                    f"draft step {steps} progress {progress:.3f} {text} seconds {seconds:.1f}",
                    flush=True,
                )
        with torch.no_grad():
            for name in [n for n in self.trained if n.endswith("gate.bias_vl")]:
                self.trained[name].copy_(self.trained[name.removesuffix("_vl")])
        final = settled(self.trainer.weights, self.trainer.specs)
        save_state(
            out / "full",
            final,
            {"step": self.trainer.step_number, "seconds": self.trainer.seconds, "final": True},
        )
