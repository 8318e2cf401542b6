from pydantic.dataclasses import dataclass

from modules.config.setting import STRICT, Int, Str, setting


@dataclass(config=STRICT)
class EmbeddingConfig:
    """A new word and the vectors trained for it (textual inversion)."""

    placeholder: Str = setting(
        "",
        label="Placeholder",
        help="The new word, as it stands in the captions and later in prompts: lower-case, without spaces and unlike "
        "any other word, such as my-cat-1.",
        group="method",
    )
    vectors: Int = setting(
        1,
        label="Vectors",
        help="How many vectors the word gets; each takes the place of one word in a prompt. 1 to 4 for a subject, up "
        "to 8 for a style; more need more images.",
        group="method",
        ge=1,
        le=64,
    )
    initial_text: Str = setting(
        "*",
        label="Initial text",
        help="Words that come close to what the new word shall mean, such as cat. Its vectors start as theirs.",
        group="method",
    )
    file_name: Str = setting(
        "",
        label="File name",
        help="Name of the embedding's file, which is the word to write in A1111 and ComfyUI. Empty: the placeholder.",
        group="method",
    )
    preserve_norm: bool = setting(
        True,
        label="Preserve the norm",
        help="Keep the vectors as long as the model's own words are on average, so that the new word does not drown "
        "the rest of a prompt.",
        group="method",
        importance="advanced",
    )

    @property
    def title(self) -> str:
        """The name of its file, before characters that are not allowed in file names are replaced."""
        return self.file_name.strip() or self.placeholder.strip("<>")
