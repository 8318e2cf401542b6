"""Finds squares in images of several sizes: a batch is a list of images and a list of targets, as in torchvision.

An image has one to three boxes. The loss is the mean over the boxes of a batch, whose number `step` returns with it:
then each box counts the same, however the ranks divide the images.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
from torch import nn
from torch.utils.data import DataLoader

from modules.trainer import TrainingEngine, launch_distributed_training


def make_image(number):
    image, count = 0.3 * torch.randn(1, 24 + 8 * (number % 3), 32 - 4 * (number % 2)), 1 + number % 3
    corners, sizes, labels = torch.randint(16, (count, 2)), torch.randint(4, 9, (count, 1)), torch.randint(2, (count,))
    boxes = torch.cat([corners, corners + sizes], dim=1)
    for (left, top, right, bottom), label in zip(boxes.tolist(), labels, strict=True):
        image[:, top:bottom, left:right] += 2 * label - 1  # black or white
    return image, {"boxes": boxes, "labels": labels}


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Conv2d(1, 16, 9, 4, padding=4), nn.ReLU()), nn.Linear(16, 4)

    def forward(self, images, targets):
        features = []
        for image, target in zip(images, targets, strict=True):
            x, y = (target["boxes"].view(-1, 2, 2).sum(1) // 8).T  # the cells of the boxes' centers
            features.append(self.body(image[None])[0, :, y, x].T)
        kinds, sizes = self.head(torch.cat(features)).split(2, dim=1)
        boxes, labels = (torch.cat([target[key] for target in targets]) for key in ("boxes", "labels"))
        return nn.functional.cross_entropy(kinds, labels) + nn.functional.l1_loss(sizes, boxes[:, 2:] - boxes[:, :2])


def collate(samples):
    return tuple(zip(*samples, strict=True))


def step(model, batch):
    return model(*batch), sum(len(target["labels"]) for target in batch[1])


def train(rank, world_size):
    torch.manual_seed(0)
    engine = TrainingEngine(Detector(), distributed=world_size > 1, output_dir="workspace/gallery/detection")
    loader = DataLoader(list(map(make_image, range(70))), batch_size=8 // world_size, shuffle=True, collate_fn=collate)
    optimizer = torch.optim.SGD(engine.model.parameters(), lr=0.02, momentum=0.9)
    engine.train(loader, optimizer=optimizer, step_fn=step, num_epochs=4, save_every_steps=4, resume=True)


if __name__ == "__main__":
    launch_distributed_training(train, world_size=int(sys.argv[1]) if sys.argv[1:] else 1)
