"""What people look for among the settings though it is none here: tools, and what to do instead of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from modules.config.other_programs import all_programs
from modules.ui.models.search_words import Words, in_one_word, stem, words_of

MIN_BEGUN = 4  # letters from which the beginning of a name is enough
MAX_SHOWN = 3


@dataclass(frozen=True)
class Row:
    """A row of the search's list.

    path: of the setting that it leads to, "" if there is none. text: the explanation, "" for the row of a setting.
    tab: that it opens instead. action: the method of that tab that it then calls, "" for none.
    """

    path: str
    text: str = ""
    tab: str = ""
    action: str = ""


# Names, separated by commas -> the explanation, and the setting that comes nearest.
EXPLANATIONS = {
    "token, hugging face token, huggingface token, hf token, api token": Row(
        "", "Hugging Face token: run `hf auth login` once; Chorus stores no token."
    ),
    "wandb api key, wandb key, wandb login": Row(
        "wandb.enabled", "W&B API key: run `wandb login` once; Chorus stores no key."
    ),
    "offline, offline mode": Row("", "Offline mode: set the environment variable HF_HUB_OFFLINE to 1."),
    "hugging face cache, huggingface cache directory": Row(
        "", "Hugging Face cache: set the environment variable HF_HOME to the folder."
    ),
    "latent caching, cache latents, cache latents to disk, use latent files": Row(
        "cache_dir", "Latent caching: latents are always cached, in the cache folder."
    ),
    "cache text encoder outputs, cache text embeddings, unload te, text encoder optimizations": Row(
        "cache_dir", "Text encoder caching: the outputs of encoders that aren't trained are always cached."
    ),
    "clear cache, clear cache before training, skip cache check": Row(
        "cache_dir", "Clear cache: never needed; what changes is encoded again."
    ),
    "xformers, flash attention, sage attention, memory efficient attention, crossattention, attention processor": Row(
        "model.attention",
        "xFormers, FlashAttention: choose them by this setting; PyTorch's own attention has FlashAttention, too. "
        "SageAttention computes no gradients, so it can't train.",
    ),
    "lowvram, low vram, medvram, highvram, out of memory, oom": Row(
        "model.gradient_checkpointing", "Low VRAM: turn on gradient checkpointing, then block swapping or quantization."
    ),
    "dreambooth": Row(
        "concepts[].regularisation",
        "DreamBooth: give a concept one prompt for all images, and add regularization images as another concept.",
    ),
    "early stopping, patience": Row(
        "validation.every", "Early stopping: runs train to the end; compare saved models by their validation loss."
    ),
    "resume, continue, continue from last backup, resume training, resume from saved training state": Row(
        "", "Resume: choose a backup in the Backup tab, or start with --resume."
    ),
    "controlnet, control net": Row("", "ControlNet: not trained; models that take reference images are."),
    "learning rate finder, lr finder, find learning rate": Row(
        "optimizer.name", "Learning rate finder: Prodigy finds the learning rate itself."
    ),
}
# The same for tools and actions, each with the tab that has them.
ACTIONS = {
    "merge, merge lora, merge loras, combine, combine loras, resize, resize lora, extract, extract lora, convert, "
    "convert model, convert lora, model tools, lora tools": Row(
        "", "LoRA and model tools: merge, combine, resize, extract, convert", "tools", "open_model_tools"
    ),
    "doctor, diagnose, diagnostics, debug, self test": Row(
        "", "Doctor: whether this machine can train the settings", "tools", "open_doctor"
    ),
    "check data, check dataset, duplicates, find duplicates, damaged images, missing captions": Row(
        "", "Check data: missing captions, damaged, tiny and duplicate images", "tools", "check_data"
    ),
    "crash report, report, log, error log": Row("", "Log and crash report: on the Tools tab", "tools"),
    "tensorboard in the browser, open tensorboard": Row("", "Open TensorBoard: on the Tools tab", "tools"),
    "dark, dark mode, light, light mode, theme, colors, appearance, font size, ui scale, window size, zoom": Row(
        "", "Theme and size of the window: on the General tab", "general"
    ),
    "preload, preload libraries": Row("", "Preload libraries: on the General tab", "general"),
    "web page, phone, browser, remote, remote access, watch from elsewhere": Row(
        "", "Web page of the runs: on the General tab", "general"
    ),
    "demo, tutorial, example": Row("", "Demo: on the Home tab", "home"),
    "recent, recent runs, runs, history": Row("", "Recent runs: on the Home tab", "home"),
    "try it, generate images, test model, playground": Row(
        "", "Try it: images with the trained model, on the Monitor tab once a run has ended", "monitor"
    ),
    "language, translation": Row("", "Language: the window is in English only."),
}


def explanations(text: str) -> tuple[list[Row], list[Row]]:
    """The explanations of what is called exactly `text`, and of what `text` is the beginning or most words of."""
    words = words_of(text.partition("(")[0])
    if not words:
        return [], []
    exactly, others = [], []
    for names, row in (*EXPLANATIONS.items(), *ACTIONS.items()):
        called = [words_of(name) for name in names.split(",")]
        if in_one_word(words) in map(in_one_word, called):
            exactly.append(row)
        elif any(_is_meant(words, name) for name in called):
            others.append(row)
    foreign = _rows_of_other_programs().get(in_one_word(words))
    if foreign and not exactly:
        exactly.append(foreign)
    return exactly[:MAX_SHOWN], others[: max(0, MAX_SHOWN - len(exactly))]


@lru_cache
def _rows_of_other_programs() -> dict[str, Row]:
    """The name of a setting of another program, in one word -> what is said of it by the table, where Chorus lacks it.

    Remarks that begin with "of" only say which other setting it belongs to.
    """
    rows: dict[str, Row] = {}
    for program in all_programs():
        for name, setting in program.settings.items():
            remark = setting.instead or setting.unused
            if remark and not setting.here and not remark.startswith("of "):
                row = Row("", f"{name} ({program.label}): {remark[0].upper()}{remark[1:]}.")
                rows.setdefault(in_one_word(words_of(name)), row)
    return rows


def _is_meant(words: Words, name: Words) -> bool:
    one_word = in_one_word(words)
    if len(one_word) >= MIN_BEGUN and in_one_word(name).startswith(one_word):
        return True
    return set(map(stem, words)) <= set(map(stem, name)) and 2 * len(words) > len(name)
