"""Options of a training of axolotl that are the same in all tests."""

OPTIONS = {
    "num_epochs": 1,
    "learning_rate": 1e-3,
    "optimizer": "adamw_torch",
    "lr_scheduler": "constant",
    "attn_implementation": "sdpa",
    "bf16": False,
    "tf32": False,
}
