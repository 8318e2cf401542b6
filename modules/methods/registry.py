"""The methods there are, by name."""

from modules.methods.embedding import Embedding
from modules.methods.full import Full
from modules.methods.lora import Lora
from modules.methods.Method import Method
from modules.methods.vae import Vae

METHODS: dict[str, Method] = {"lora": Lora(), "full": Full(), "embedding": Embedding(), "vae": Vae()}
