from typing import Literal

from pydantic.dataclasses import dataclass

from modules.config.setting import STRICT, setting

SERVICES = {"off": "Off", "discord": "Discord", "slack": "Slack", "ntfy": "ntfy", "json": "Own address (JSON)"}
ON = {".service": ["discord", "slack", "ntfy", "json"]}
KEPT_AS = "Webhook"


@dataclass(config=STRICT)
class WebhookConfig:
    """Messages to a chat or a phone."""

    service: Literal["off", "discord", "slack", "ntfy", "json"] = setting(
        "off",
        label="Webhook",
        also_called="notification, discord webhook, slack webhook, ntfy, alert, push message",
        help="Where to send a message when the run has finished, failed or was stopped. Its address is a secret and no "
        "setting: save it once on this machine, or set the variable CHORUS_WEBHOOK_URL.",
        group="general",
        choice_labels=SERVICES,
        kept_as=KEPT_AS,
    )
    on_start: bool = setting(
        True,
        label="Message at the start",
        also_called="notify on start",
        help="Also send a message when the run starts or resumes.",
        group="general",
        kept_as=KEPT_AS,
        visible_when=ON,
    )
    every_steps: int = setting(
        0,
        label="Message every",
        also_called="progress message, notify every",
        help="Also send step and loss every `N` optimizer steps. 0: never.",
        group="general",
        unit="steps",
        ge=0,
        kept_as=KEPT_AS,
        visible_when=ON,
    )
