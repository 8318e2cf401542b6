"""What a rank on a GPU takes of the system memory for a time: while the model is loaded, backed up, or saved."""

from __future__ import annotations

from dataclasses import dataclass

from modules.config.families import load_families
from modules.machine.memory.RunMemory import VOCABULARY, RunMemory

_SAVED_BYTES = 10 * 10**9  # in a file, see max_shard_size of diffusers' save_pretrained


@dataclass(frozen=True)
class PassingMemory:
    """One question each, in bytes, beside what stays there. Files that are mapped into memory don't count."""

    run: RunMemory

    @property
    def loading(self) -> float:
        """While the base model is loaded, see docs/memory.md: "While loading"."""
        run, lora = self.run, self.run.config.lora
        vocabularies = [min(VOCABULARY, count / 2) for count in run.model.text_encoders]
        at_once = max([run.model.matrix, *vocabularies]) * run.weight_bytes  # a layer
        if run.config.model.channels_last and "unet" in load_families()[run.config.family].denoisers:
            convolutions = run.model.denoiser - run.model.quantizable_denoiser
            at_once = max(at_once, convolutions * run.weight_bytes)
        if run.sharing_ranks > 1 and run.method.trains_adapters and (lora.dora or lora.start_from):
            at_once = max(at_once, run.whole_denoiser)
        if not run.config.model.is_one_file:
            return at_once
        # once used, they stay there; what trains is on the GPU
        texts = 0 if run.trained_text_encoders else run.text_encoders
        return at_once + texts + (run.model.vae * run.weight_bytes if run.method.uses_denoiser else 0)

    @property
    def backed_up(self) -> float:
        """The copy that a backup is written from: of all that it saves, or, after the last step, of a file at
        a time."""
        parts = (self.run.held_trained * self.run.trained_weight_bytes, self._state, self.run.average)
        return sum(parts) if self._backs_up else max(parts) if self.run.config.backup.at_end else 0.0

    @property
    def backed_up_elsewhere(self) -> float:
        """The same on other ranks than the first, which save what they have a part of."""
        if self.run.sharing_ranks > 1:
            return self.backed_up
        saves = self.run.sharing_state > 1 and (self._backs_up or self.run.config.backup.at_end)
        return self._state if saves else 0.0

    @property
    def saving(self) -> float:
        """While the model is saved, a file at a time; gathered as a whole where ranks share it."""
        size = self.run.num_trained * self.run.trained_weight_bytes
        return size if self.run.sharing_ranks > 1 else min(size, _SAVED_BYTES)

    @property
    def _state(self) -> float:
        """Of the optimizer, the part that a rank has."""
        return self.run.held_trained * self.run.state_bytes / self.run.sharing_state

    @property
    def _backs_up(self) -> bool:
        """At intervals."""
        return self.run.config.backup.unit != "never" and self.run.config.backup.every > 0
