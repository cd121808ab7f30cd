"""Making a Hugging Face folder of weights that are published in another form."""

from retro.catalogue.bases.making import make_base, require_extra

__all__ = ["make_base", "require_extra"]
