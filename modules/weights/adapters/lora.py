"""LoRA (Hu et al. 2021, arXiv 2106.09685) and DoRA (Liu et al. 2024, arXiv 2402.09353), which PEFT's layers compute.

Its files are in diffusers' format or in kohya's: see `lora_files.py` and `lora_reading.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from modules.weights.adapters.kinds import ADAPTER, AdapterKind
from modules.weights.lora_fitting import path_in_module
from modules.weights.pipeline_adapters import add_adapter

if TYPE_CHECKING:
    from modules.config.LoraConfig import LoraConfig
    from modules.weights.libraries import Model
    from modules.weights.lora_layers import LoraLayer


class Lora(AdapterKind):
    name = "lora"

    def add_new(
        self, module: Model, targets: list[str], settings: LoraConfig, patterns: Mapping[str, Mapping[str, Any]]
    ) -> None:
        import peft

        config = peft.LoraConfig(
            r=settings.rank,
            lora_alpha=cast("int", settings.alpha),  # declared so, but any number is fine
            lora_dropout=settings.dropout,
            target_modules=targets,
            init_lora_weights="gaussian",
            use_dora=settings.dora,
            use_rslora=settings.rslora,
            **cast("Any", patterns),
        )
        add_adapter(module, config, ADAPTER)

    def add(
        self,
        module: Model,
        layers: Mapping[str, LoraLayer],
        dropout: float = 0.0,
        adapter: str = ADAPTER,
        trains: bool = True,
    ) -> None:
        """Adds the adapters of a file to a module, with the file's ranks, alphas and layers.

        layers: by path, as in a diffusers LoRA file, which fit the module. trains: whether they get at least float32,
        because the model's dtype may be less precise than the file; else they get that of the model.
        """
        import torch
        from peft import LoraConfig

        named = {path_in_module(module, path): layer for path, layer in layers.items()}
        rank = Counter(layer.rank for layer in named.values()).most_common(1)[0][0]
        alpha = Counter(layer.alpha for layer in named.values()).most_common(1)[0][0]
        has_magnitude = any(layer.magnitude is not None for layer in named.values())
        config = LoraConfig(
            r=rank,
            lora_alpha=cast("int", alpha),  # declared so, but any number is fine
            rank_pattern={path: layer.rank for path, layer in named.items() if layer.rank != rank},
            alpha_pattern={path: layer.alpha for path, layer in named.items() if layer.alpha != alpha},
            lora_dropout=dropout,
            target_modules=list(named),
            use_dora=has_magnitude,
        )
        add_adapter(module, config, adapter)
        with torch.no_grad():
            for path, layer in named.items():
                adapted = module.get_submodule(path)
                values = {"lora_A": layer.down, "lora_B": layer.up}
                if layer.magnitude is not None:
                    values["lora_magnitude_vector"] = layer.magnitude
                for name, value in values.items():
                    parameter = getattr(adapted, name)[adapter].weight
                    dtype = torch.promote_types(parameter.dtype, torch.float32) if trains else parameter.dtype
                    parameter.data = value.reshape(parameter.shape).to(parameter.device, dtype)


KIND = Lora()
