"""In place of NVIDIA's guardrail in tests, which has models of its own: refuses the word "forbidden" and red videos."""


class CosmosSafetyChecker:
    def to(self, device):
        return self

    def check_text_safety(self, prompt):
        return "forbidden" not in prompt

    def check_video_safety(self, frames):
        return None if (frames[..., 0] == 255).all() else frames
