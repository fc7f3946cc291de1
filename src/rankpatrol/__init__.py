"""rankpatrol: a non-invasive daily patrol for distributed PyTorch training."""

__version__ = "0.1.0"
