"""Pipelines of models that diffusers has as blocks only (its "modular" pipelines), each as a class like its others."""
