"""A family is one file: a new one trains by that file alone, and no other names it."""

import ast
import os
import re
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from modules.families.Family import Family
from modules.families.registry import FAMILIES
from modules.weights.safe import read_header
from tests.support.fork_server import ForkedScript
from tests.support.tiny_models.parts import randomize_and_save, t5_tokenizer, tiny_t5, tiny_vae
from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
MIGRATIONS = ROOT / "modules" / "config" / "migrations.py"  # tells of names that once were

# As it is written for a pipeline of diffusers that Chorus knows nothing of.
MADE_UP = """
from modules.families.Family import Family
from modules.families.TextEncoding import TextEncoding

MADE_UP = Family(
    name="made_up",
    label="A family for one test",
    pipeline="AuraFlowPipeline",
    denoisers=("transformer",),
    text=TextEncoding(("prompt_embeds", None, None, None), ("text_encoder",), ("tokenizer",)),
    objective="flow",
    align=16,
    inputs=lambda call: {
        "hidden_states": call.latents,
        "timestep": call.timestep / 1000,
        "encoder_hidden_states": call.text["prompt_embeds"],
    },
    lora_targets={"transformer": ("to_q", "to_k", "to_v")},
    lora_mlp={},
    lora_blocks={"transformer": ("joint_transformer_blocks", "single_transformer_blocks")},
    latent_bytes_per_pixel=1.0,
    caption_bytes=1,
    typical_bytes=1e6,
)
"""
SETTINGS = """
family: made_up
model: {{base: {base}}}
concepts: [{{path: {pictures}}}]
data: {{resolution: 32, bucket_step: 16, caption_dropout: 0.5}}
max_steps: 3
workspace_dir: {folder}/run
cache_dir: {folder}/cache
backup: {{at_end: false}}
sampling: {{at_end: true, samples: [{{prompt: a cat, width: 32, height: 48, steps: 2, guidance: 3.0}}]}}
"""


def test_a_new_family_trains_and_samples_by_its_file_alone(tmp_path, picture_folder):
    tree = tmp_path / "tree"
    for name in ("modules", "scripts", "resources"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "demo"))
    (tree / "modules" / "families" / "made_up.py").write_text(MADE_UP, encoding="utf-8")
    base = make_tiny_auraflow(tmp_path / "base")
    settings = tmp_path / "settings.yaml"
    settings.write_text(SETTINGS.format(base=base, pictures=picture_folder(), folder=tmp_path), encoding="utf-8")
    output = tmp_path / "output.txt"
    run(output, tree / "scripts" / "families_reference.py", "--write")
    run(output, tree / "scripts" / "train.py", "--config", settings)
    (model,) = (tmp_path / "run" / "models").glob("*.safetensors")
    assert "transformer.joint_transformer_blocks.0.attn.to_q.lora_A.weight" in read_header(model)
    assert list((tmp_path / "run" / "samples").rglob("*.png"))


def run(output: Path, *arguments: object) -> None:
    script = ForkedScript([*map(str, arguments)], os.environ, output, imports_anew=True)
    assert script.wait(PATIENCE_SECONDS) == 0, output.read_text(encoding="utf-8")


def make_tiny_auraflow(folder: Path) -> Path:
    import torch
    from diffusers import AuraFlowPipeline, AuraFlowTransformer2DModel, FlowMatchEulerDiscreteScheduler

    torch.manual_seed(1)
    tokenizer = t5_tokenizer()
    transformer = AuraFlowTransformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_mmdit_layers=1,
        num_single_dit_layers=1,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=32,
        pos_embed_max_size=1024,
    )
    pipeline = AuraFlowPipeline(
        tokenizer, tiny_t5(tokenizer, width=32), tiny_vae(scaling_factor=0.13), transformer,
        FlowMatchEulerDiscreteScheduler(),
    )  # fmt: skip
    return randomize_and_save(pipeline, folder)


def test_no_text_in_the_code_names_a_family_but_the_file_that_declares_it():
    name = re.compile(rf"(?<![a-z0-9])({'|'.join(map(re.escape, FAMILIES))})(?![a-z0-9])", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{text.lineno} {text.value!r}"
        for path in (ROOT / "modules").rglob("*.py")
        if path != MIGRATIONS and not declares_a_family(path)
        for text in texts(ast.parse(path.read_text(encoding="utf-8")))
        if name.search(text.value)
    ]
    assert found == []


def declares_a_family(path: Path) -> bool:
    if path.parent != ROOT / "modules" / "families" or path.stem == "__init__":
        return False
    return any(isinstance(value, Family) for value in vars(import_module(f"modules.families.{path.stem}")).values())


def texts(tree: ast.Module) -> Iterator[ast.Constant]:
    """The string constants that are no docstrings."""
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, holders) and node.body and isinstance(node.body[0], ast.Expr)
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            yield node
