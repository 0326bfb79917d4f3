"""A scanner for llm-guard: a prompt that a filter flags is invalid."""

from typing import Any

import adaptdel as ad


class CertifiedFilter:
    """For `llm_guard.scan_prompt([CertifiedFilter("guard")], prompt)`, by a model that protects a class."""

    def __init__(self, folder: str) -> None:
        self.model: Any = ad.load(folder)

    def scan(self, prompt: str) -> tuple[str, bool, float]:
        """The prompt, whether it may pass, and its risk: 1 if it is flagged."""
        [certificate] = self.model.certify([prompt])
        flagged = certificate.label == self.model.protected
        return prompt, not flagged, float(flagged)
