"""kohya_ss: the settings of its window (.json), which become arguments of sd-scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from modules.config.other_programs import Program, load_program
from modules.importers.command_lines import read_commands, words_of
from modules.importers.foreign_values import is_empty, read_as, shown
from modules.importers.ImportResult import ImportResult, Line
from modules.importers.sd_scripts_data import OF_DATA, take_prompts
from modules.importers.sd_scripts_model import OF_MODEL
from modules.importers.sd_scripts_training import OF_TRAINING
from modules.importers.SdScriptsTranslation import SdScriptsTranslation
from modules.importers.Translation import Translation

FILES = "settings of kohya_ss (.json)"
LORA, WEIGHTS, EMBEDDING = range(3)  # what a page trains; the order of the scripts in the table
_MARKS = {
    "LoRA_type", "max_resolution", "lr_warmup", "noise_offset_type", "additional_parameters", "xformers",
    "num_cpu_threads_per_process", "caption_extension", "stop_text_encoder_training", "use_8bit_adam",
}  # fmt: skip
_MANY = 3  # of the marks; other programs have some of them
_NO = ("", "0", "0.0", "no", "none", "false")


def recognizes(path: Path, content: Any) -> bool:
    """Whether a file with this content is of kohya_ss."""
    return isinstance(content, Mapping) and path.suffix.lower() == ".json" and len(_MARKS & content.keys()) >= _MANY


def translate(path: Path, content: Mapping[str, Any]) -> ImportResult:
    """The settings of a file that `recognizes` knows. Raises UserError if a file that it names can't be read."""
    window = Window(content)
    notes = Translation(_table(), {name: value for name, value in content.items() if name in _table().settings})
    left = notes.run({"arguments": lambda t, setting: None}).left
    t = SdScriptsTranslation(window.arguments, window.script, path.parent, window.defaults, window.labels)
    t.result.program = _table().label
    t.take_line("family", t.family.name, window.model_text)
    t.take_line("method", t.method.name, f"page for {('a LoRA', 'all weights', 'embeddings')[window.page]}")
    t.take_line("lr_scaling", "none", "learning_rate")
    result = t.run(OF_MODEL | OF_TRAINING | OF_DATA)
    _take_stop(t, window)
    _take_images(t, window)
    prompts = content.get("sample_prompts")
    if isinstance(prompts, str) and prompts.strip():
        take_prompts(t, prompts)
    result.left += [*left, *window.left]
    return result


class Window:
    """The values of the window as arguments of sd-scripts.

    page: what is trained. script: that of sd-scripts. arguments: for it. defaults: of the window, where the file lacks
    a setting. labels: of an argument, the setting of the window that it comes from. left: what is not taken.
    """

    def __init__(self, content: Mapping[str, Any]):
        self.given = {str(name): value for name, value in content.items() if value is not None}
        facts = _table().facts
        is_embedding = "token_string" in self.given or "num_vectors_per_token" in self.given
        self.page = EMBEDDING if is_embedding else LORA if "LoRA_type" in self.given else WEIGHTS
        self.model = next((name for name in facts["scripts"] if name and _is_on(self.given.get(name))), "")
        self.script: str = facts["scripts"][self.model][self.page]
        self.labels: dict[str, str] = {}
        self.left: list[Line] = []
        self.arguments = dict(self._renamed())
        own = facts["defaults"]["all"] | (facts["defaults"]["lora"] if self.page == LORA else {})
        self.defaults = {name: value for name, value in own.items() if name not in self.arguments}
        self._set_length()
        self._set_warmup()
        self._set_noise()
        self._set_network()
        self._set_parts()
        self._set_machine()
        self._drop_unset()
        self._add_more()

    @property
    def model_text(self) -> str:
        """The box that tells the model, for a line."""
        return shown(self.model, True) if self.model else "no box for a model"

    def number(self, name: str, default: float = 0.0) -> float:
        """The number of a setting; 0 if it is none."""
        if name not in self.given:
            return default
        try:
            return read_as("float", self.given[name])
        except ValueError:
            return 0.0

    def say(self, argument: str, value: Any, name: str) -> None:
        """Set an argument. name: the setting of the window that it comes from."""
        self.arguments[argument] = value
        self.labels[argument] = shown(name, self.given.get(name, value))

    def _renamed(self) -> Iterator[tuple[str, Any]]:
        """The settings that are arguments, under their names there, without those of models that aren't chosen."""
        facts, handled = _table().facts, _table().settings
        names = facts["names"] | facts["names_of_models"].get(self.model, {})
        others = {name for model, found in facts["only_for"].items() if model != self.model for name in found}
        own = set(names.values())
        unused = []
        for name, value in self.given.items():
            if name in names:
                self.labels[names[name]] = shown(name, value)
                yield names[name], value
            elif name in others and name not in own:
                if not is_empty(value):
                    unused.append(name)
            elif name not in handled and name not in own:
                yield name, value
        if unused:
            self.left.append(Line(", ".join(unused), why="they are passed on only for a model that isn't chosen"))

    def _set_length(self) -> None:
        if self.number("max_train_epochs") > 0 or self.number("max_train_steps") > 0:
            return
        self.arguments.pop("max_train_steps", None)
        if is_empty(self.given.get("dataset_config")):
            epochs = int(max(1.0, min(self.number("epoch", 1.0), 1e6)))
            self.say("max_train_epochs", epochs, "epoch")
        elif "epoch" in self.given:
            why = "with a dataset file it has no effect there: sd-scripts' default, 1600 steps, holds"
            self.left.append(Line(shown("epoch", self.given["epoch"]), why=why))

    def _set_warmup(self) -> None:
        percent = self.number("lr_warmup", self.defaults.get("lr_warmup", 0))
        if self.number("lr_warmup_steps") <= 0:
            self.arguments.pop("lr_warmup_steps", None)
            if "lr_warmup" in self.given:
                self.say("lr_warmup_steps", percent / 100, "lr_warmup")
            else:
                self.defaults["lr_warmup_steps"] = percent / 100

    def _set_noise(self) -> None:
        if self.page == EMBEDDING:
            return
        is_pyramid = self.given.get("noise_offset_type", "Original") == "Multires"
        dropped = ("noise_offset", "adaptive_noise_scale", "noise_offset_random_strength")
        for name in dropped if is_pyramid else ("multires_noise_iterations", "multires_noise_discount"):
            self.arguments.pop(name, None)

    def _set_network(self) -> None:
        if self.page != LORA:
            return
        kind = str(self.given["LoRA_type"])
        facts = _table().facts["networks"].get(kind)
        if facts is None:
            self.left.append(Line(shown("LoRA_type", kind), why="Chorus does not know it: a LoRA is trained"))
            facts = _table().facts["networks"]["Standard"]
        self.say("network_module", facts["module"], "LoRA_type")
        words = (
            [f"algo={facts['algo']}", f"preset={self.given.get('LyCORIS_preset', 'full')}"] if "algo" in facts else []
        )
        ratios = ("loraplus_lr_ratio", "loraplus_unet_lr_ratio", "loraplus_text_encoder_lr_ratio")
        for name in (*facts["arguments"], *ratios):
            value = self.given.get(name)
            if value is not None and str(value).strip().lower() not in _NO:
                words.append(f"{name}={value}")
        self.arguments["network_args"] = words

    def _set_parts(self) -> None:
        if self.page != LORA:
            if self.page == WEIGHTS and self.model and "train_text_encoder" not in self.given:
                rates = max(self.number("learning_rate_te1"), self.number("learning_rate_te2"))
                self.arguments["train_text_encoder"] = rates > 0
            return
        text = self.number("text_encoder_lr", self.defaults.get("text_encoder_lr", 0.0))
        unet = self.number("unet_lr", self.defaults.get("unet_lr", 0.0))
        other = self.number("t5xxl_lr")
        self.arguments.pop("text_encoder_lr", None)
        self.defaults.pop("text_encoder_lr", None)
        if text > 0:
            self.say("text_encoder_lr", [text, other] if other > 0 else [text], "text_encoder_lr")
        elif unet != 0:
            self.say("network_train_unet_only", True, "text_encoder_lr")
        if text != 0 and unet == 0:
            self.say("network_train_text_encoder_only", True, "unet_lr")

    def _set_machine(self) -> None:
        if str(self.given.get("dynamo_backend", "no")).lower() not in _NO:
            self.say("torch_compile", True, "dynamo_backend")
        if _is_on(self.given.get("multi_gpu")) or max(self.number("num_processes"), self.number("num_machines")) > 1:
            names = [name for name in ("multi_gpu", "num_processes", "num_machines") if name in self.given]
            text = ", ".join(shown(name, self.given[name]) for name in names)
            self.left.append(Line(text, why="Chorus starts its processes itself: see enable_multi_gpu"))
        attention = str(self.given.get("xformers", "")).lower()
        if attention in ("true", "xformers", "sdpa"):
            self.say("sdpa" if attention == "sdpa" else "xformers", True, "xformers")
        if _is_on(self.given.get("use_wandb")):
            self.say("log_with", "wandb", "use_wandb")
        template = str(self.given.get("template", ""))
        if template in ("object template", "style template"):
            self.say(f"use_{template.replace(' ', '_')}", True, "template")

    def _drop_unset(self) -> None:
        self.arguments.pop("epoch", None)
        for name in _table().facts["unset_by_zero"]:
            value = self.arguments.get(name)
            if isinstance(value, (int, float, str)) and str(value).strip() in ("", "0", "0.0"):
                del self.arguments[name]
        for name in ("lr_warmup", "epoch"):
            self.defaults.pop(name, None)

    def _add_more(self) -> None:
        text = self.given.get("additional_parameters")
        if isinstance(text, str) and text.strip():
            line = f"{self.script} {' '.join(text.split())}"
            for command in read_commands(line, (self.script,), keeps_backslashes=True):
                self.arguments |= command.arguments
                for word in command.rest[:20]:
                    self.left.append(Line(shown("additional_parameters", word), why="it belongs to no argument"))
        for name, setting in load_program("sd_scripts").settings.items():
            if setting.kind == "list" and isinstance(self.arguments.get(name), str):
                self.arguments[name] = words_of(self.arguments[name])


def _take_stop(t: SdScriptsTranslation, window: Window) -> None:
    """When the text encoder stops, a percentage of the run; a LoRA's never does."""
    percent = window.number("stop_text_encoder_training") or window.number("stop_text_encoder_training_pct")
    t.result.values.pop("text_encoder.stop_after", None)
    if percent > 0 and t.method.trains_weights:
        epochs, steps = t["max_train_epochs"], t["max_train_steps"]
        after = (epochs or steps) * percent / 100
        text = f"stop_text_encoder_training {percent:g} %"
        t.take_line("text_encoder.stop_unit", "epochs" if epochs else "steps", text)
        t.take_line("text_encoder.stop_after", after, text)
    elif percent > 0:
        t.result.left.append(Line(f"stop_text_encoder_training {percent:g}", why="it has no effect on a LoRA there"))


def _take_images(t: SdScriptsTranslation, window: Window) -> None:
    """The folder of the page that fine-tunes, which is itself the folder of the images."""
    folder = window.given.get("image_folder")
    if not isinstance(folder, str) or is_empty(folder):
        return
    t.take_line("concepts.0.path", folder, shown("image_folder", folder))
    t.take_line("concepts.0.include_subfolders", False, "image_folder", is_given=False)
    repeats = max(1.0, window.number("dataset_repeats", 40))
    t.take_line("concepts.0.repeats", repeats, f"dataset_repeats {repeats:g}")
    extension = str(window.given.get("caption_extension") or ".caption")
    t.take_line("concepts.0.captions", "txt", "caption_extension", is_given=False)
    t.take_line("concepts.0.caption_extension", extension, shown("caption_extension", extension))


def _is_on(value: Any) -> bool:
    return isinstance(value, (bool, int, str)) and str(value).strip().lower() not in _NO


@lru_cache
def _table() -> Program:
    return load_program("kohya_ss")
