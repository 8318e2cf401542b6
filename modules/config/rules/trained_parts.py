"""Rules of the parts and the embeddings that are trained."""

from collections.abc import Iterator

from modules.config.families import load_families
from modules.config.methods import facts_of, trainable_encoders
from modules.config.problems import Problem, switch_off
from modules.config.TrainConfig import TrainConfig


def part_problems(config: TrainConfig) -> Iterator[Problem]:
    parts = {name: getattr(config, name) for name in part_names(config)}
    if parts and not any(part.train for part in parts.values()):
        message = "denoiser.train and text_encoder.train are both off: nothing would be trained; switch one on."
        yield Problem("denoiser.train", message)
    family, facts = load_families()[config.family], facts_of(config)
    if parts and config.text_encoder.train and not facts.refuses_text and not trainable_encoders(facts, family):
        path = "text_encoder.train"
        message = f"{path} has no effect: {facts.label} can't train a text encoder of {family.label}; turn it off."
        yield Problem(path, message, blocking=False, remedy=switch_off(path))
    for name, part in parts.items():
        if not part.train or part.stop_unit == "never":
            continue
        ends = {f"{name}.stop_after": part.stop_after}
        if part is config.text_encoder:
            ends |= {f"{name}.stops_after.{number}": end for number, end in enumerate(part.stops_after)}
        for path, end in ends.items():
            if end == 0:
                yield Problem(path, f"{path} is 0 {part.stop_unit}: set it above 0, or switch {name}.train off.")
            elif part.stop_unit == "steps" and not end.is_integer():
                yield Problem(path, f"{path} is {end:g} steps: steps are whole; use a whole number.")


def embedding_problems(config: TrainConfig) -> Iterator[Problem]:
    if not facts_of(config).trains_words:
        return
    if not config.embeddings:
        yield Problem("embeddings", "embeddings is empty: add one with a placeholder such as my-cat-1.")
    words = [embedding.placeholder for embedding in config.embeddings]
    for number, embedding in enumerate(config.embeddings):
        path, word = f"embeddings.{number}.placeholder", embedding.placeholder
        others = [other for other in words[:number] if other and (other in word or word in other)]
        if not word:
            yield Problem(path, f"{path} is empty: write the new word, such as my-cat-1.")
        elif any(character.isspace() for character in word) or word != word.lower():
            yield Problem(path, f"{path} {word!r}: it must be one word in lower case; use one such as my-cat-1.")
        elif others:
            yield Problem(path, f"{path} {word!r} and {others[0]!r}: none may contain another; choose unlike words.")
        if not embedding.initial_text.strip():
            path = f"embeddings.{number}.initial_text"
            yield Problem(path, f"{path} is empty: write a word that comes close, or * for none.")
    names = [embedding.title.lower() for embedding in config.embeddings]
    for number, name in enumerate(names):
        if name in names[:number]:
            path = f"embeddings.{number}.file_name"
            yield Problem(path, f"{path}: two embeddings would be written to {name!r}; give each a name of its own.")


def part_names(config: TrainConfig) -> list[str]:
    """The names of the parts whose settings the method uses."""
    return ["denoiser", "text_encoder"] if facts_of(config).chooses_parts else []
