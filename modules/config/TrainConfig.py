"""All settings of a run; its sections are in the files beside this one."""

import re
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass

from modules.config.BackupConfig import BackupConfig
from modules.config.ConceptConfig import ConceptConfig
from modules.config.DataConfig import DataConfig
from modules.config.DenoiserConfig import DenoiserConfig
from modules.config.DiffusionConfig import DiffusionConfig
from modules.config.EmaConfig import EmaConfig
from modules.config.EmbeddingConfig import EmbeddingConfig
from modules.config.families import default_family, load_families
from modules.config.LoraConfig import LoraConfig
from modules.config.LossConfig import LossConfig
from modules.config.methods import METHODS, methods_that, with_settings
from modules.config.migrations import CURRENT_VERSION
from modules.config.MlflowConfig import MlflowConfig
from modules.config.ModelConfig import ModelConfig
from modules.config.OptimizerConfig import OptimizerConfig
from modules.config.OutputConfig import OutputConfig
from modules.config.PreferenceConfig import PreferenceConfig
from modules.config.SamplingConfig import SamplingConfig
from modules.config.ScheduleConfig import ScheduleConfig
from modules.config.setting import STRICT, Int, Str, section, setting
from modules.config.SliderConfig import SliderConfig
from modules.config.TextEncoderConfig import TEXT_TRAINS, TextEncoderConfig
from modules.config.VaeConfig import VaeConfig
from modules.config.ValidationConfig import ValidationConfig
from modules.config.WandbConfig import WandbConfig
from modules.config.WebhookConfig import WebhookConfig

MULTI_GPU: dict[str, list] = {"enable_multi_gpu": [True]}
DDP: dict[str, list] = {**MULTI_GPU, "distributed_strategy": ["ddp", "auto"]}
DIFFUSION = {"method": methods_that(lambda method: method.uses_denoiser)}
PARTS = {"method": methods_that(lambda method: method.chooses_parts)}


@dataclass(config=STRICT)
class TrainConfig:
    """The settings of one run. An invalid value raises pydantic.ValidationError, also on assignment."""

    config_version: Int = setting(
        CURRENT_VERSION,
        label="File version",
        help="Version of the settings' names and meanings. Written by Chorus; don't change it.",
        group="general",
        ge=CURRENT_VERSION,
        le=CURRENT_VERSION,
        importance="advanced",
    )
    family: Literal[tuple(load_families())] = setting(  # type: ignore[valid-type] # the names are those of the table
        default_family(),
        label="Model family",
        help="Model architecture. The base model must belong to it.",
        group="model",
        in_crash_report=True,
        choice_labels={name: info.label for name, info in load_families().items()},
    )
    method: Literal[tuple(METHODS)] = setting(  # type: ignore[valid-type] # the names are those of the table
        next(iter(METHODS)),
        label="Training method",
        help=f"What is trained. {' '.join(f'{method.label}: {method.trains}.' for method in METHODS.values())}",
        group="method",
        in_crash_report=True,
        choice_labels={method.name: method.label for method in METHODS.values()},
    )
    workspace_dir: Str = setting(
        "workspace/run",
        label="Output folder",
        also_called="logging_dir",
        help="Everything that the run writes goes here: models, samples, backups and logs.",
        group="general",
        format="folder",
        scope="machine",
        kept_as="output folder",
    )
    cache_dir: Str = setting(
        "workspace/cache",
        label="Cache folder",
        also_called="cache_latents_to_disk, cache_text_encoder_outputs",
        help="Prepared images and captions are stored here. Several runs can share it.",
        group="general",
        format="folder",
        scope="machine",
        kept_as="cache folder",
    )
    seed: Int = setting(
        42,
        label="Seed",
        help="Random seed. The same seed and settings reproduce the same run.",
        group="training",
        ge=0,
        le=2**31 - 1,
        importance="advanced",
    )
    epochs: Int = setting(
        10,
        label="Epochs",
        also_called="num_train_epochs",
        help="Number of passes over all images, repeats included. The same on any number of GPUs.",
        group="training",
        ge=1,
    )
    max_steps: Int | None = setting(
        None,
        label="Max steps",
        help="End the run after this many optimizer steps, even if epochs are left. Empty: only the epochs count.",
        group="training",
        unit="steps",
        empty_means="no limit",
        ge=1,
        importance="advanced",
    )
    batch_size: Int = setting(
        4,
        label="Batch size",
        also_called="per_device_train_batch_size",
        help="Number of images trained at the same time: on each GPU, or per step across all GPUs, depending on the "
        "batch size mode. 1 to 8 per GPU is usual.",
        group="training",
        in_crash_report=True,
        unit="images",
        ge=1,
    )
    batch_size_mode: Literal["per_device", "global"] = setting(
        "per_device",
        label="Batch size mode",
        help="Per device: each GPU uses the batch size, so more GPUs make larger steps. Global: the batch is divided "
        "among GPUs and accumulation steps, so the result doesn't depend on the number of GPUs.",
        group="training",
        in_crash_report=True,
        choice_labels={"per_device": "Per device", "global": "Global"},
    )
    gradient_accumulation_steps: Int = setting(
        1,
        label="Gradient accumulation",
        also_called="accumulation",
        help="Number of batches per optimizer step, for a larger effective batch in the same memory. 1: no "
        "accumulation.",
        group="training",
        in_crash_report=True,
        unit="batches",
        ge=1,
    )
    enable_multi_gpu: bool = setting(
        False,
        label="Enable Multi-GPU Training",
        also_called="num_processes, DDP, distributed",
        help="Train on several GPUs at once.",
        group="multi_gpu",
        in_crash_report=True,
    )
    distributed_backend: Literal["nccl", "gloo", "auto"] = setting(
        "nccl",
        label="Backend",
        help="Library that exchanges gradients: NCCL for NVIDIA GPUs on Linux, Gloo for Windows and CPUs. Auto picks "
        "one. If NCCL can't be used, Gloo is used, with a warning.",
        group="multi_gpu",
        in_crash_report=True,
        choice_labels={"nccl": "NCCL", "gloo": "Gloo", "auto": "Auto"},
        visible_when=MULTI_GPU,
    )
    world_size: Int | None = setting(
        None,
        label="GPUs per machine",
        also_called="num_processes, nproc_per_node",
        help="Number of GPUs to use on each machine. Empty: all, or all selected ones; without a GPU, two processes "
        "on the CPU.",
        group="multi_gpu",
        empty_means="auto",
        scope="machine",
        in_crash_report=True,
        ge=1,
        visible_when=MULTI_GPU,
    )
    distributed_strategy: Literal["ddp", "fsdp", "hsdp", "auto"] = setting(
        "ddp",
        label="Distributed strategy",
        also_called="fsdp2, zero, deepspeed, sharding",
        help="DDP: every GPU holds the whole model. FSDP: the weights, gradients and optimizer state of the denoiser "
        "are divided among the GPUs, for models that don't fit on one; slower, because each pass gathers the weights. "
        "HSDP: the model is divided only within a group of GPUs, such as those of one machine. Auto: DDP if the model "
        "fits on each GPU.",
        group="multi_gpu",
        in_crash_report=True,
        choice_labels={
            "ddp": "DDP (replicated)",
            "fsdp": "FSDP (sharded)",
            "hsdp": "HSDP (sharded in groups)",
            "auto": "Auto (by memory)",
        },
        visible_when=MULTI_GPU,
    )
    ddp_shard_optimizer: bool = setting(
        False,
        label="Shard optimizer state (ZeRO-1)",
        also_called="zero1, ZeroRedundancyOptimizer, distributed optimizer",
        help="Each GPU holds the optimizer state of a part of the weights, updates that part and sends it to the "
        "others. Saves memory in full fine-tunes with the same results, for 50% more communication in each step.",
        group="multi_gpu",
        in_crash_report=True,
        visible_when=DDP,
    )
    sharding_group_size: Int | None = setting(
        None,
        label="Sharding group size",
        also_called="hybrid_shard, data_parallel_shard_degree, mics_shard_size",
        help="Number of GPUs that share one copy of the model. Empty: those of one machine.",
        group="multi_gpu",
        empty_means="one machine",
        in_crash_report=True,
        ge=1,
        visible_when={**MULTI_GPU, "distributed_strategy": ["hsdp"]},
    )
    use_torchrun: bool = setting(
        True,
        label="Use torchrun",
        help="Use torchrun for starts from the terminal and in the generated commands. Off: Chorus starts the "
        "processes itself, as it always does on Windows and for runs of one machine that start in the window.",
        group="multi_gpu",
        importance="advanced",
        visible_when=MULTI_GPU,
    )
    distributed_data_loading: bool = setting(
        True,
        label="Distributed data loading",
        help="Each GPU loads its share of the images. Off: the first GPU of each machine loads all of them while the "
        "others wait.",
        group="multi_gpu",
        importance="advanced",
        visible_when=MULTI_GPU,
    )
    initial_port: Str = setting(
        "12355",
        label="Port",
        also_called="main_process_port, master_port",
        help="Network port on which the processes connect. On one machine, the next free port is used if this one is "
        "taken.",
        group="multi_gpu",
        scope="machine",
        importance="advanced",
        visible_when=MULTI_GPU,
    )
    node_rank: Int = setting(
        0,
        label="Node rank",
        also_called="machine_rank",
        help="Number of this machine, starting at 0. Machine 0 is the one whose address the others are given.",
        group="multi_gpu",
        scope="machine",
        ge=0,
        importance="advanced",
        visible_when=MULTI_GPU,
    )
    num_nodes: Int = setting(
        1,
        label="Nodes (machines)",
        also_called="num_machines, nnodes",
        help="Number of machines that train together.",
        group="multi_gpu",
        in_crash_report=True,
        ge=1,
        importance="advanced",
        visible_when=MULTI_GPU,
    )
    master_addr: Str = setting(
        "localhost",
        label="Master address",
        also_called="main_process_ip, rdzv_endpoint",
        help="Host name or IP address of machine 0, as the other machines see it. localhost on one machine.",
        group="multi_gpu",
        scope="machine",
        importance="advanced",
        visible_when=MULTI_GPU,
    )
    device_indexes: list[Annotated[Int, Field(ge=0)]] = setting(
        label="GPUs",
        also_called="gpu_ids, CUDA_VISIBLE_DEVICES",
        help="Numbers of the GPUs to use, starting at 0. Empty: all. With multi-GPU off, only the first one is used.",
        group="multi_gpu",
        empty_means="all",
        scope="machine",
        default_factory=list,
    )
    lr_scaling: Literal["none", "sqrt", "linear"] = setting(
        "sqrt",
        label="Learning rate scaling",
        also_called="scale_lr",
        help="How to scale the learning rate with the number of GPUs if each uses its own batch: not at all, by the "
        "square root, or linearly. Never applied to Prodigy.",
        group="multi_gpu",
        choice_labels={"none": "None", "sqrt": "Square root", "linear": "Linear"},
        visible_when={**MULTI_GPU, "batch_size_mode": ["per_device"]},
    )
    gradient_reduce_precision: Literal["fp32", "bf16", "fp16"] = setting(
        "fp32",
        label="Gradient all-reduce dtype",
        help="Data type in which GPUs exchange gradients. fp32 is exact; bf16 halves the traffic on slow links.",
        group="multi_gpu",
        importance="advanced",
        visible_when=MULTI_GPU,
    )
    ddp_bucket_size_mb: Int = setting(
        25,
        label="Gradient bucket size",
        help="Gradients are exchanged in buckets of this size while the backward pass is running. 25 suits most runs; "
        "larger buckets mean fewer exchanges that start later.",
        group="multi_gpu",
        unit="MB",
        ge=1,
        le=100_000,
        importance="advanced",
        visible_when=DDP,
    )
    ddp_gradient_as_bucket_view: bool = setting(
        True,
        label="Gradients as bucket views",
        also_called="gradient_as_bucket_view",
        help="Make gradients views of the communication buckets, which saves one copy of them in memory.",
        group="multi_gpu",
        importance="advanced",
        visible_when=DDP,
    )
    ddp_static_graph: bool = setting(
        False,
        label="Static graph",
        also_called="static_graph",
        help="Assume that the same parameters get gradients in every step, which skips some bookkeeping. Costs one "
        "extra pass at the start.",
        group="multi_gpu",
        importance="advanced",
        visible_when=DDP,
    )
    check_ranks_every: Int = setting(
        500,
        label="Compare ranks every",
        help="Compare the trained weights of all GPUs every N steps and end the run if they differ. 0: never.",
        group="multi_gpu",
        unit="steps",
        ge=0,
        importance="advanced",
        visible_when=DDP,
    )
    max_restarts: Int = setting(
        0,
        label="Max restarts",
        also_called="max_restarts",
        help="How many times a run on one machine restarts from its last backup after a crash. Errors in the settings "
        "end it immediately.",
        group="multi_gpu",
        ge=0,
        importance="advanced",
        visible_when=MULTI_GPU,
    )
    model: ModelConfig = section(ModelConfig, label="Model")
    denoiser: DenoiserConfig = section(
        lambda: DenoiserConfig(train=True), label="U-Net or transformer", visible_when=PARTS
    )
    text_encoder: TextEncoderConfig = section(
        lambda: TextEncoderConfig(train=False), label="Text encoder", visible_when=TEXT_TRAINS
    )
    lora: LoraConfig = section(LoraConfig, label="LoRA", visible_when=with_settings("lora"))
    embeddings: list[EmbeddingConfig] = setting(
        label="Embeddings",
        help="The new words to train. Each is saved in a file of its own.",
        group="method",
        part_name="embedding",
        kept_as="embeddings",
        kept_while=("method",),
        default_factory=list,
        visible_when=with_settings("embeddings"),
    )
    slider: SliderConfig = section(SliderConfig, label="Slider", visible_when=with_settings("slider"))
    preference: PreferenceConfig = section(
        PreferenceConfig, label="Preference", visible_when=with_settings("preference")
    )
    vae: VaeConfig = section(VaeConfig, label="Autoencoder", visible_when=with_settings("vae"))
    data: DataConfig = section(DataConfig, label="Data")
    concepts: list[ConceptConfig] = setting(
        label="Concepts",
        help="The folders of images to train on.",
        group="data",
        part_name="concept",
        kept_as="concepts",
        default_factory=list,
    )
    diffusion: DiffusionConfig = section(DiffusionConfig, label="Noise", visible_when=DIFFUSION)
    loss: LossConfig = section(LossConfig, label="Loss", visible_when=DIFFUSION)
    optimizer: OptimizerConfig = section(OptimizerConfig, label="Optimizer")
    schedule: ScheduleConfig = section(ScheduleConfig, label="Schedule")
    ema: EmaConfig = section(EmaConfig, label="EMA")
    validation: ValidationConfig = section(ValidationConfig, label="Validation")
    sampling: SamplingConfig = section(SamplingConfig, label="Sampling")
    backup: BackupConfig = section(BackupConfig, label="Backup")
    output: OutputConfig = section(OutputConfig, label="Output")
    tensorboard: bool = setting(
        True,
        label="TensorBoard",
        also_called="logging",
        help="Also write loss, learning rate and speed to TensorBoard.",
        group="general",
        importance="advanced",
    )
    csv: bool = setting(
        False,
        label="CSV file",
        also_called="csv logger, metrics.csv",
        help="Also write losses, learning rates and speed to the table metrics.csv in the run folder, one row per "
        "step.",
        group="general",
        importance="advanced",
    )
    wandb: WandbConfig = section(WandbConfig, label="Weights & Biases")
    mlflow: MlflowConfig = section(MlflowConfig, label="MLflow")
    webhook: WebhookConfig = section(WebhookConfig, label="Webhook")
    keep_awake: bool = setting(
        True,
        label="Keep the machine awake",
        help="Keep this machine from going to sleep while the run trains. Its screen may still turn off.",
        group="general",
        importance="advanced",
    )

    @property
    def has_loggers(self) -> bool:
        """Whether the figures of steps are written anywhere besides the run's events."""
        return self.tensorboard or self.csv or self.wandb.enabled or self.mlflow.enabled

    @field_validator("denoiser", "text_encoder", mode="before")
    @classmethod
    def _complete_part(cls, value: Any, info: ValidationInfo) -> Any:
        # A file may set only the learning rate of a part; whether the part trains then keeps its default.
        return {"train": info.field_name == "denoiser", **value} if isinstance(value, dict) else value

    @field_validator("initial_port", mode="before")
    @classmethod
    def _read_port(cls, value: Any) -> Any:
        port = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if not (isinstance(port, str) and re.fullmatch("[0-9]{1,5}", port) and 1 <= int(port) <= 65535):
            raise ValueError("a port number from 1 to 65535")
        return port
