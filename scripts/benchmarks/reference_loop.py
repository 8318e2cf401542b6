"""The yardstick: the loop that one would write by hand for this one model, in plain PyTorch and peft.

    python -m scripts.benchmarks.reference_loop --folder DIR --run-folder DIR --method lora --steps 5 --turns 20

Under torchrun it is one of several ranks, with the U-Net in DistributedDataParallel, or its blocks in FSDP2. It has
everything in memory, no settings, no backup and no report of a step; imports stand where they are needed, so that a
start from its cache does not pay for the encoders.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.benchmarks.material import model_folder, pictures_folder
from scripts.benchmarks.worker import (
    BATCH_SIZE,
    BF16,
    COMPILED,
    LEARNING_RATE,
    LORA_RANK,
    MAX_GRAD_NORM,
    SHARDED,
    Turns,
    WorkerArguments,
    num_ranks,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


def train(arguments: WorkerArguments) -> None:
    import torch

    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    rank, world_size = join_ranks(device)
    turns = Turns(arguments.steps, arguments.total_steps, device.type, world_size)
    torch.backends.cuda.matmul.allow_tf32 = True  # as Chorus has it by default: the loops are to do the same
    torch.backends.cuda.enable_cudnn_sdp(False)  # likewise
    torch.manual_seed(0)
    with rank_0_first(rank, world_size):
        latents, embeddings = cached(arguments, device)
    unet = trainable_unet(arguments, device)
    params = [param for param in unet.parameters() if param.requires_grad]
    if SHARDED in arguments.switches:
        shard(unet)
        params = [param for param in unet.parameters() if param.requires_grad]
    elif world_size > 1:
        unet = torch.nn.parallel.DistributedDataParallel(unet, gradient_as_bucket_view=True)
    shuffle = torch.Generator().manual_seed(0)  # of its own: each rank takes its share of the same order
    torch.manual_seed(rank)
    optimizer = torch.optim.AdamW(params, lr=LEARNING_RATE, fused=True)
    betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, device=device) ** 2
    alphas_cumprod = torch.cumprod(1 - betas, 0)
    order: list[int] = []
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=BF16 in arguments.switches)
    turns.wait()
    for number in range(1, arguments.total_steps + 1):
        if len(order) < BATCH_SIZE:
            order = torch.randperm(len(latents), generator=shuffle)[rank::world_size].tolist()
        chosen, order = order[:BATCH_SIZE], order[BATCH_SIZE:]
        clean, text = latents[chosen].to(device), embeddings[chosen].to(device)
        noise, timestep = torch.randn_like(clean), torch.randint(1000, (len(clean),), device=device)
        alpha = alphas_cumprod[timestep][:, None, None, None]
        noised = (alpha.sqrt() * clean + (1 - alpha).sqrt() * noise).to(memory_format=torch.channels_last)
        with autocast:
            prediction = unet(noised, timestep, text, return_dict=False)[0]
        torch.nn.functional.mse_loss(prediction.float(), noise).backward()
        torch.nn.utils.clip_grad_norm_(params, MAX_GRAD_NORM, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device.type == "cuda" and number % arguments.steps == 0:
            torch.cuda.synchronize()
        turns.after_step(number)
    if world_size > 1:
        del unet  # before the group: freeing the group of gloo, torch's wrapper can wait for threads that wait for it
        torch.distributed.destroy_process_group()


def join_ranks(device: torch.device) -> tuple[int, int]:
    """(rank, world size) among those that torchrun has started; (0, 1) without it."""
    if num_ranks() == 1:
        return 0, 1
    import torch.distributed as dist

    if device.type == "cuda":
        import torch

        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return dist.get_rank(), dist.get_world_size()


@contextlib.contextmanager
def rank_0_first(rank: int, world_size: int) -> Iterator[None]:
    """The body runs on rank 0, which may write the cache, then on the others."""
    import torch.distributed as dist

    if rank > 0:
        dist.barrier()
    yield
    if rank == 0 and world_size > 1:
        dist.barrier()


def trainable_unet(arguments: WorkerArguments, device: torch.device) -> nn.Module:
    import torch
    from diffusers import UNet2DConditionModel

    unet = UNet2DConditionModel.from_pretrained(model_folder(arguments.folder), subfolder="unet")
    unet.to(device, memory_format=torch.channels_last)
    if BF16 in arguments.switches and arguments.method == "lora":
        unet.to(torch.bfloat16)
    unet.requires_grad_(arguments.method == "full")
    if arguments.method == "lora":
        from peft import LoraConfig

        targets = ["to_q", "to_k", "to_v", "to_out.0"]
        unet.add_adapter(
            LoraConfig(r=LORA_RANK, lora_alpha=LORA_RANK, init_lora_weights="gaussian", target_modules=targets)
        )
        for param in unet.parameters():
            if param.requires_grad:
                param.data = param.data.float()
    if COMPILED in arguments.switches:
        unet.compile_repeated_blocks()
    return unet.train()


def shard(unet: Any) -> None:
    """Each rank holds its rows of every weight; a block is gathered for its passes."""
    from torch.distributed.fsdp import fully_shard

    for param in unet.parameters():
        param.data = param.data.contiguous()  # of channels-last weights, rows are not
    for block in (*unet.down_blocks, unet.mid_block, *unet.up_blocks, unet):
        fully_shard(block).set_force_sum_reduction_for_comms(True)  # gloo has no mean


def cached(arguments: WorkerArguments, device: torch.device) -> tuple[Tensor, Tensor]:
    """(latents, embeddings) of all pictures and captions, from the file beside the material if there is one."""
    path = arguments.folder / "reference_cache.safetensors"
    if path.exists() and not arguments.cold:
        from safetensors.torch import load_file

        tensors = load_file(path)
        return tensors["latents"], tensors["embeddings"]
    latents, embeddings = encode(arguments.folder, device)
    if not arguments.cold:
        from safetensors.torch import save_file

        save_file({"latents": latents, "embeddings": embeddings}, path)
    return latents, embeddings


def encode(folder: Path, device: torch.device) -> tuple[Tensor, Tensor]:
    import numpy as np
    import torch
    from diffusers import AutoencoderKL
    from PIL import Image
    from transformers import CLIPTextModel, CLIPTokenizer

    vae = AutoencoderKL.from_pretrained(model_folder(folder), subfolder="vae").to(device).eval()
    text_encoder: nn.Module = CLIPTextModel.from_pretrained(model_folder(folder), subfolder="text_encoder")
    text_encoder.to(device).eval()
    tokenizer = CLIPTokenizer.from_pretrained(model_folder(folder), subfolder="tokenizer")
    paths = sorted(pictures_folder(folder).glob("*.png"))
    latents, embeddings = [], []
    with torch.no_grad():
        for start in range(0, len(paths), BATCH_SIZE):
            chunk = paths[start : start + BATCH_SIZE]
            pixels_BHWC = torch.from_numpy(np.stack([np.asarray(Image.open(path).convert("RGB")) for path in chunk]))
            pixels_BCHW = (pixels_BHWC.permute(0, 3, 1, 2).float() / 127.5 - 1).contiguous()
            posterior = vae.encode(pixels_BCHW.to(device)).latent_dist
            latents.append((posterior.sample() * vae.config.scaling_factor).cpu())
            captions = [path.with_suffix(".txt").read_text(encoding="utf-8") for path in chunk]
            tokens = tokenizer(captions, padding="max_length", truncation=True, return_tensors="pt").input_ids
            embeddings.append(text_encoder(tokens.to(device))[0].cpu())
    return torch.cat(latents).contiguous(), torch.cat(embeddings)


if __name__ == "__main__":
    train(WorkerArguments.parse())
