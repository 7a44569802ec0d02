"""The scripted device with the hashed model on it, and the record of who was enqueued when."""

from __future__ import annotations

import asyncio
import hashlib

from stepahead import EngineConfig
from stepahead.devices.simulated import HANG, Hang, SimulatedDevice
from stepahead.engine.backend import Backend
from stepahead.engine.model.hashed import HashedRunner
from stepahead.engine.model.runner import StepPlan
from stepahead.engine.scheduling.cost_curve import CostCurve
from stepahead.engine.sizing import runner_shape
from tests.unit.text_tokenizer import small_tokenizer

from .script import Script


class ScriptedFault(Exception):
    """What the scripted device raises."""


class ScriptedBackend:
    """Opens a backend for an engine and remembers what its device was asked."""

    def __init__(self, script: Script) -> None:
        self._script, self._device = script, script.device
        self.fault_happened = False
        self._rows = 0  # of the forward being enqueued
        self._enqueued: dict[str, tuple[float, float]] = {}  # label -> when it was enqueued, when it ends
        self._decoding: list[frozenset[int]] = []  # by step: keys that decode
        self._present: list[frozenset[int]] = []  # by step: all keys

    async def open(self, config: EngineConfig) -> Backend:
        """The `opener` of an engine."""
        model = self._script.model.hashed()
        device = SimulatedDevice(
            asyncio.get_running_loop(), latency=self._latency, fault=self._fault, observe=self._observe
        )
        shape = runner_shape(config, model.facts, device.memory().free)
        most = shape.sequence_slots * (shape.draft_tokens + 1)
        costs = CostCurve(rows=(1, most + 1), seconds=(self._step(1), self._step(most + 1)))
        return Backend(_Recorded(model, shape, device, self), device, small_tokenizer(), costs)

    def late_steps(self) -> list[str]:
        """Steps the device had to wait for although they could be planned a whole step earlier.

        A sequence that decodes in step n+1 and was in step n was known when S(n) was let go: F(n+1) must be
        enqueued before S(n) ends, whatever S(n) decides.
        """
        if not self._script.knobs.overlap or any(event.kind == "pause" for event in self._script.events):
            return []
        late = []
        for step, (decoding, before) in enumerate(
            zip(self._decoding[1:], self._present[:-1], strict=True), start=1
        ):
            sampled, ended = self._enqueued.get(f"sample:{step - 1}", (0.0, 0.0))
            enqueued, _ = self._enqueued[f"forward:{step}"]
            if decoding & before and sampled < ended <= enqueued:
                late.append(
                    f"step {step} was enqueued at {enqueued:g}, step {step - 1} had ended at {ended:g}"
                )
        return late

    def _step(self, rows: int) -> float:
        return max(self._device.forward + self._device.sample + rows * self._device.row, 1e-9)

    def forward_launched(self, plan: StepPlan) -> None:
        keys = plan.layout.sequence_keys
        self._decoding.append(frozenset(keys[: plan.layout.decode_count].tolist()))
        self._present.append(frozenset(keys.tolist()))

    def _latency(self, label: str) -> float:
        base = self._device.sample
        if label.startswith("forward"):
            base = self._device.forward + self._device.row * self._rows
        if not self._device.jitter:
            return base
        digest = hashlib.blake2b(f"{self._device.seed}:{label}".encode(), digest_size=4).digest()
        return base * (1.0 + self._device.jitter * int.from_bytes(digest) / 2**32)

    def _fault(self, label: str) -> BaseException | Hang | None:
        if label != self._device.fault_at:
            return None
        self.fault_happened = True
        return HANG if self._device.fault == "hang" else ScriptedFault(label)

    def _observe(self, label: str, start: float, end: float) -> None:
        self._enqueued[label] = (asyncio.get_running_loop().time(), end)


class _Recorded(HashedRunner):
    """Tells the backend of every forward it launches."""

    def __init__(self, model: object, shape: object, device: object, record: ScriptedBackend) -> None:
        super().__init__(model, shape, device)  # type: ignore[arg-type]
        self._record = record

    def launch_forward(self, plan: StepPlan) -> None:
        self._record._rows = plan.layout.rows
        super().launch_forward(plan)
        self._record.forward_launched(plan)
