"""resources/lora_layers.json, by which LoRA files are read without a model."""

from modules.machine.published_layers import FILE
from scripts.lora_layers_reference import tables_text
from tests.support.small_inputs import real_inputs


def test_the_file_has_the_layers_of_the_published_models():
    with real_inputs():
        assert FILE.read_text(encoding="utf-8") == tables_text(), "run scripts/lora_layers_reference.py --write"
