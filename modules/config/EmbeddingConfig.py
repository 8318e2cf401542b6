from pydantic.dataclasses import dataclass

from modules.config.setting import STRICT, Int, Str, setting


@dataclass(config=STRICT)
class EmbeddingConfig:
    """A new word and the vectors trained for it (textual inversion)."""

    placeholder: Str = setting(
        "",
        label="Placeholder",
        help="The new word as written in captions and prompts: lower-case, without spaces and unlike any existing "
        "word, such as my-cat-1.",
        group="method",
    )
    vectors: Int = setting(
        1,
        label="Vectors",
        help="Number of vectors for the word; each takes up one token of a prompt. 1 to 4 for a subject, up to 8 for "
        "a style; more vectors need more images.",
        group="method",
        ge=1,
        le=64,
    )
    initial_text: Str = setting(
        "*",
        label="Initial text",
        help="Text whose embedding initializes the new word, close to its meaning, such as cat.",
        group="method",
    )
    file_name: Str = setting(
        "",
        label="File name",
        help="Name of the embedding's file, which is also the word to write in A1111 and ComfyUI. Empty: the "
        "placeholder.",
        group="method",
    )
    preserve_norm: bool = setting(
        True,
        label="Preserve the norm",
        help="Keep the vectors at the average norm of the model's own words, so the new word does not dominate the "
        "prompt.",
        group="method",
        importance="advanced",
    )

    @property
    def title(self) -> str:
        """The name of its file, before characters that are not allowed in file names are replaced."""
        return self.file_name.strip() or self.placeholder.strip("<>")
