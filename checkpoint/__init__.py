"""What lies in a model's folder or .gguf file: configuration, tokenizer, tensors. Nothing here imports torch.

The tokenizer is imported from `checkpoint.tokenizer`, by those who need it.
"""

from checkpoint.config import ModelConfig, RopeScaling
from checkpoint.default_model import default_model_path, fetch_default_model
from checkpoint.errors import CheckpointError, first_line
from checkpoint.foreign_config import ForeignConfig, check_foreign
from checkpoint.gguf_file import GGUFFile, GGUFTensor
from checkpoint.locate import check_tokenizer, describe, load_config, locate, served_name
from checkpoint.safetensors_index import StoredTensor, read_index

__all__ = [
    "CheckpointError",
    "ForeignConfig",
    "GGUFFile",
    "GGUFTensor",
    "ModelConfig",
    "RopeScaling",
    "StoredTensor",
    "check_foreign",
    "check_tokenizer",
    "default_model_path",
    "describe",
    "fetch_default_model",
    "first_line",
    "load_config",
    "locate",
    "read_index",
    "served_name",
]
