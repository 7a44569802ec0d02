"""Training the trunk: schedule, losses, balance of the experts, rounding at the end.

The schedule runs on a share of the budget that is used up, in steps or in minutes of wall clock, so the
same command fits machines of any speed: warm-up, plateau, linear decay. Early on all visible entries are
attended to while the indexer learns from that attention; then its selection is used. The last part trains
through the rounding of the stored formats.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stepahead.engine.model.checkpoint.storage import TensorSpec
from stepahead.engine.model.v41.config import ModelConfig

from .data import IGNORE, Documents
from .model import TrainingModel
from .optimizer import Optimizer
from .parameters import DRAFT_PREFIX, in_compute_type, initial_weights, stacked_specs
from .rounding import stored_value, straight_through
from .sinkhorn import without_kernels
from .state import load_state, save_state

_WARM_UP, _PLATEAU, _FLOOR = 0.02, 0.45, 0.03
_DENSE_UNTIL, _ROUND_FROM = 0.15, 0.82
_BALANCE_LOSS, _BIAS_STEP = 2e-3, 2e-3
_LARGEST_NORM = 1.0


@dataclass(frozen=True)
class Settings:
    """How much to train, how, and where."""

    rows: int = 32
    length: int = 1024
    minutes: float | None = None
    steps: int | None = None
    seed: int = 1
    compiled: bool = False
    log_every: int = 50
    save_every: float = 0.25  # of the budget

    def progress(self, step: int, seconds: float) -> float:
        by_step = step / self.steps if self.steps else 0.0
        by_time = seconds / (60 * self.minutes) if self.minutes else 0.0
        return min(1.0, max(by_step, by_time))


def rate(progress: float) -> float:
    """The learning rate's share of its full value."""
    if progress < _WARM_UP:
        return max(progress, 1e-3) / _WARM_UP
    if progress < _PLATEAU:
        return 1.0
    return max(_FLOOR, (1 - progress) / (1 - _PLATEAU))


def prepared(
    weights: Mapping[str, Tensor], specs: Mapping[str, TensorSpec], compute: torch.dtype, *, rounded: bool
) -> dict[str, Tensor]:
    """Weights as a forward wants them: rounded to stored values if asked, matrices in the compute type."""
    result = {}
    for name, weight in weights.items():
        value = straight_through(weight, specs[name].kind) if rounded else weight
        result[name] = value.to(compute) if in_compute_type(name, specs[name]) else value
    return result


def settled(weights: Mapping[str, Tensor], specs: Mapping[str, TensorSpec]) -> dict[str, Tensor]:
    """The weights exactly as a quantized checkpoint holds them, float32, without gradients."""
    return {name: stored_value(weight.detach(), specs[name].kind) for name, weight in weights.items()}


def compute_type(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


class Trainer:
    """The trunk's weights, their optimizer, and one step."""

    def __init__(
        self, config: ModelConfig, data: Documents, device: torch.device, settings: Settings
    ) -> None:
        self.config, self.data, self.device, self.settings = config, data, device, settings
        self.specs = stacked_specs(config)
        self.weights = initial_weights(config, settings.seed, device)
        trunk = {n: w for n, w in self.weights.items() if not n.startswith(DRAFT_PREFIX)}
        self.trunk = trunk
        self.model = TrainingModel(
            config, data.token_map, device, length=settings.length, compiled=settings.compiled
        )
        self.optimizer = Optimizer(trunk, self.specs)
        self.step_number = 0
        self.seconds = 0.0
        self.fell_back = False

    def resume(self, folder: Path) -> None:
        record = load_state(folder, self.weights)
        self.step_number, self.seconds = record["step"], record["seconds"]

    def save(self, folder: Path, *, final: bool = False) -> None:
        weights = settled(self.weights, self.specs) if final else self.weights
        save_state(folder, weights, {"step": self.step_number, "seconds": self.seconds, "final": final})

    def step(self, progress: float) -> dict[str, Tensor]:
        config = self.config
        tokens, targets = self.data.batch(self.settings.rows, self.settings.length, config.pad_token_id)
        weights = prepared(self.trunk, self.specs, compute_type(self.device), rounded=progress >= _ROUND_FROM)
        outputs = self.model.forward(weights, tokens, dense=progress < _DENSE_UNTIL)
        logits = self.model.logits(weights, outputs.hidden)
        loss = functional.cross_entropy(logits.float(), targets.flatten(), ignore_index=IGNORE)
        assert outputs.balance_loss is not None
        total = loss + _BALANCE_LOSS * outputs.balance_loss
        if outputs.index_loss is not None:
            total = total + outputs.index_loss
        total.backward()
        norm = torch.nn.utils.get_total_norm(self.optimizer.gradients())
        torch._foreach_mul_(self.optimizer.gradients(), (_LARGEST_NORM / (norm + 1e-6)).clamp(max=1.0))
        self.optimizer.step(rate(progress))
        self.balance(outputs.loads)
        self.step_number += 1
        shares = torch.stack(list(outputs.loads.values()))
        index = outputs.index_loss.detach() if outputs.index_loss is not None else torch.zeros(())
        return {
            "loss": loss.detach(),
            "index": index,
            "norm": norm,
            "busiest": shares.max(),
            "idlest": shares.min(),
        }

    def _step_or_fall_back(self, progress: float) -> dict[str, Tensor]:
        """A compiler that fails on this machine must not cost the run: say so and go on without it."""
        try:
            return self.step(progress)
        except Exception:
            if not self.settings.compiled or self.fell_back:
                raise
            traceback.print_exc()
            print("compilation failed; continuing without it", flush=True)
            self.fell_back = True
            self.model = self.model.plain()
            without_kernels()
            for weight in self.weights.values():
                weight.grad = None
            return self.step(progress)

    @torch.no_grad()
    def balance(self, loads: dict[str, Tensor]) -> None:
        """Raise the selection bias of experts that got too little, lower that of the others."""
        for prefix, load in loads.items():
            bias = self.weights[f"{prefix}.ffn.gate.bias"]
            bias += _BIAS_STEP * torch.sign(1 / load.numel() - load)
            bias -= bias.mean()

    def run(self, out: Path) -> None:
        """Train until the budget is used, saving into `out/trunk` on the way and rounded at the end."""
        saved = self.settings.progress(self.step_number, self.seconds)
        started, log = time.monotonic() - self.seconds, _Log(self)
        while (progress := self.settings.progress(self.step_number, time.monotonic() - started)) < 1.0:
            values = self._step_or_fall_back(progress)
            self.seconds = time.monotonic() - started
            log.line(values, progress)
            if progress - saved > self.settings.save_every:
                self.save(out / "trunk")
                saved = progress
        with torch.no_grad():
            for prefix in [n for n in self.weights if n.endswith("gate.bias_vl")]:
                self.weights[prefix].copy_(self.weights[prefix.removesuffix("_vl")])
        self.save(out / "trunk", final=True)


class _Log:
    def __init__(self, trainer: Trainer) -> None:
        self._trainer, self._since, self._steps = trainer, time.monotonic(), trainer.step_number

    def line(self, values: dict[str, Tensor], progress: float) -> None:
        trainer, settings = self._trainer, self._trainer.settings
        if trainer.step_number % settings.log_every and trainer.step_number > 3:
            return
        shown: dict[str, Any] = {k: f"{float(v):.4f}" for k, v in values.items()}
        if not math.isfinite(float(values["loss"])):
            raise FloatingPointError(f"the loss is {float(values['loss'])} at step {trainer.step_number}")
        now = time.monotonic()
        speed = (trainer.step_number - self._steps) * settings.rows * settings.length / (now - self._since)
        self._since, self._steps = now, trainer.step_number
        text = " ".join(f"{k} {v}" for k, v in shown.items())
        print(f"step {trainer.step_number} progress {progress:.3f} {text} tokens/s {speed:.0f}", flush=True)
