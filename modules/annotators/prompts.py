"""What instruction-following models are told, for each style of captions."""

from __future__ import annotations

from modules.annotators.Captioner import CaptionOptions

# Written for training: captions name what varies and what is visible, without phrases such as "The image shows", which
# would become a part of every prompt.
LONG = (
    "Write a detailed caption for this image in one paragraph. Describe the main subject with its appearance, "
    "clothing, pose and expression, then the surroundings, the composition, the lighting and colors, and the medium or "
    "style. "
    'State only what is visible, as facts. Begin with the subject, not with a phrase such as "The image shows". '
    "Answer with the caption only."
)
SHORT = (
    "Write a caption for this image in one sentence of at most 25 words. Name the main subject, what it does, and "
    "where. "
    'Begin with the subject, not with a phrase such as "The image shows". Answer with the caption only.'
)
TAGS = (
    "List 15 to 40 tags for this image in lower case, separated by commas, the most important first: subject, "
    "appearance, clothing, pose, expression, objects, background, composition, lighting, style. One to three words "
    "each, no tag twice. Answer with the tags only."
)
SUBJECT = (
    'The main subject of this image is called "{name}". Write a caption in two or three sentences that calls the '
    'subject nothing but "{name}". Describe what may differ from image to image: pose, expression, clothing, '
    "surroundings, lighting and framing. Leave out what always belongs to {name}, such as face, hair, build or design. "
    "Answer with the caption only."
)
FRAMES = (
    "The images are frames of one video clip, in order. Treat them as a single clip: where the text below says image, "
    "it means the clip, and describe the motion of subject and camera, too. "
)
TEMPLATES = {"long": LONG, "short": SHORT, "tags": TAGS, "subject": SUBJECT}


def instruction(options: CaptionOptions, style: str, num_frames: int = 1) -> str:
    """What to tell a model. style: where the options name none. num_frames: of a clip; 1 for an image."""
    text = options.prompt or TEMPLATES[options.style or style].replace("{name}", options.name)
    return FRAMES + text if num_frames > 1 else text
