"""The base of pipelines that are made of diffusers' blocks, where diffusers has no pipeline of its own for a model.

The folder of such a model has a modular_model_index.json, which names for each part a place on the Hub, too. Here all
parts are read from the folder itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from diffusers.guiders import ClassifierFreeGuidance
from diffusers.modular_pipelines.modular_pipeline import SequentialPipelineBlocks
from diffusers.pipelines.pipeline_utils import DiffusionPipeline
from huggingface_hub import hf_hub_download, snapshot_download

from modules.config.model_index import MODULAR_INDEX, read_model_index


class BlocksPipeline(DiffusionPipeline):
    """A pipeline with `encode_prompt` and a `__call__` that takes a guidance scale, as diffusers' others have them.

    blocks_name, modular_name: diffusers' classes of all blocks and of their pipeline, which the index names.
    """

    config_name = MODULAR_INDEX
    blocks_name: ClassVar[str]
    modular_name: ClassVar[str]
    transformer: Any
    vae: Any
    scheduler: Any
    image_processor: Any

    @classmethod
    def load_config(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Of a folder only."""
        return {**read_model_index(Path(pretrained_model_name_or_path)), "_class_name": cls.__name__}

    @classmethod
    def download(cls, pretrained_model_name: Any, *args: Any, **kwargs: Any) -> str:
        """Downloads the folder of a model to the Hub's cache and returns it. Takes the `revision`, too."""
        revision = kwargs.get("revision")
        index = hf_hub_download(pretrained_model_name, MODULAR_INDEX, revision=revision)
        parts = [f"{part}/*" for part in read_model_index(Path(index).parent)]
        return snapshot_download(pretrained_model_name, revision=revision, allow_patterns=[MODULAR_INDEX, *parts])

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        super().save_pretrained(save_directory, *args, **kwargs)
        folder = Path(save_directory)
        index: dict[str, Any] = {"_blocks_class_name": self.blocks_name, "_class_name": self.modular_name}
        for name, value in self.config.items():
            if isinstance(value, tuple | list) and (folder / name).is_dir():
                # diffusers reads a part that lies in the folder from there
                source = {"pretrained_model_name_or_path": "", "subfolder": name, "type_hint": [*value]}
                index[name] = [*value, {**source, "revision": None, "variant": None}]
            elif name.startswith("_diffusers"):
                index[name] = value
        text = json.dumps(index, indent=2, sort_keys=True) + "\n"
        (folder / MODULAR_INDEX).write_text(text, encoding="utf-8")

    def run_blocks(self, blocks: SequentialPipelineBlocks, guidance_scale: float, **inputs: Any) -> Any:
        """The images that the blocks make with this pipeline's parts. guidance_scale: 1 for none."""
        pipeline = blocks.init_pipeline()
        guider = ClassifierFreeGuidance(guidance_scale=guidance_scale, enabled=guidance_scale != 1.0)
        pipeline.update_components(
            transformer=self.transformer,
            vae=self.vae,
            scheduler=self.scheduler,
            guider=guider,
            image_processor=self.image_processor,
        )
        pipeline.set_progress_bar_config(**getattr(self, "_progress_bar_config", {}))
        return pipeline(**inputs, output="images")
