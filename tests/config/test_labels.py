"""Names of settings in messages, as the window shows them."""

import pytest

from modules.config.labels import label_of, with_labels
from modules.data.errors import CaptionError


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("data.bucket_step", "Bucket resolution steps"),
        ("optimizer.learning_rate", "Optimizer: Learning rate"),
        ("concepts.1.resolution", "Concept 2: Resolution"),
        ("validation.unit", "Validate while training"),
        ("output.unit", "Save while training"),
        ("data.resolutions.0", "Multi-resolution, entry 1"),
        ("concepts.0.resolutions.1", "Concept 1: Multi-resolution, entry 2"),
        ("", ""),
        ("no.setting", "no.setting"),
    ],
)
def test_a_setting_has_the_label_of_its_field(path, label):
    assert label_of(path) == label


@pytest.mark.parametrize(
    ("message", "path", "said"),
    [
        ("distributed_backend nccl: use gloo.", "distributed_backend", "Backend nccl: use gloo."),
        ("batch_size 3 with gradient_accumulation_steps 2.", "", "Batch size 3 with Gradient accumulation 2."),
        ("method 'vae' needs another method.", "method", "Training method 'vae' needs another method."),
        ("diffusion.min_timestep 9: below max_timestep (8).", "diffusion.min_timestep",
         "Min timestep 9: below Max timestep (8)."),
        # what the user wrote stays
        ("concepts.0.path /a/batch_size/world_size: gone.", "concepts.0.path",
         "Concept 1: Folder /a/batch_size/world_size: gone."),
        ("workspace_dir 'the batch_size of x' is full.", "", "Output folder 'the batch_size of x' is full."),
        ("model.base 'x' has no model_index.json.", "", "Base model 'x' has no model_index.json."),
        ("It can't be read: use cache_dir.", "", "It can't be read: use Cache folder."),
        (str(CaptionError("/a/b.txt", "encoding", "is not UTF-8")), "",
         "caption file /a/b.txt is not UTF-8: save it as UTF-8 (Save as UTF-8 in the dataset window does that)."),
    ],
)  # fmt: skip
def test_a_message_of_the_window_has_labels_for_names(message, path, said):
    assert with_labels(message, path) == said
