"""The disk space that a run is said to need, against files that runs have written."""

from dataclasses import replace

from modules.config.files import config_from_values
from modules.config.OutputConfig import OutputConfig
from modules.config.presets import load_preset
from modules.machine.disk_estimate import backup_disk_bytes, model_disk_bytes, run_disk_bytes, size_share

DEMO_BYTES = 5_740_000  # of its base model


def preset(name: str, **changes):
    return replace(config_from_values(load_preset(name)), **changes)


def test_a_lora_of_the_published_model_has_its_size():
    """Rank 16 on the attention layers of SD 1.5: 3,188,736 numbers, in float32."""
    output = OutputConfig(format="diffusers", dtype="float32")
    assert model_disk_bytes(preset("sd15-lora-8gb", output=output), None) == 4 * 3_188_736
    half = model_disk_bytes(preset("sd15-lora-8gb", output=replace(output, dtype="float16")), None)
    assert half == 2 * 3_188_736


def test_a_smaller_base_model_has_smaller_models_backups_and_captions():
    """The demo's run has written a model of 3.5 MB in each format and backups of 5.3 MB; too much is estimated rather
    than too little, as the precision of the base model's files is not known."""
    demo = preset("demo")
    assert 1 <= model_disk_bytes(demo, DEMO_BYTES) / 2 / 3.5e6 < 2.5
    assert 1 <= backup_disk_bytes(demo, DEMO_BYTES) / 5.3e6 < 2.5
    assert size_share(demo, DEMO_BYTES, of_widths=True) < 0.06
    assert size_share(demo, None) == 1


def test_runs_differ_by_method_rank_and_what_they_keep():
    demo = preset("demo")
    needs = [
        run_disk_bytes(config, DEMO_BYTES)
        for config in (
            demo,
            replace(demo, lora=replace(demo.lora, rank=32, conv_rank=32)),
            replace(demo, backup=replace(demo.backup, keep=9)),
            replace(demo, output=replace(demo.output, every=1.0, unit="epochs", keep=20)),
            replace(demo, method="full"),
        )
    ]
    assert len(set(needs)) == 5
    assert all(need > needs[0] for need in needs[1:])


def test_a_family_of_unknown_size_is_estimated_by_its_files(monkeypatch):
    monkeypatch.setattr("modules.machine.disk_estimate.load_architectures", dict)
    config = preset("sd15-lora-8gb")
    assert 1.2e7 < model_disk_bytes(config, None) < 1e8
    assert model_disk_bytes(config, 10**8) < model_disk_bytes(config, None)
