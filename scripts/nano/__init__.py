"""Building blocks of `scripts/train_nano.py`: corpus, tokenizer, training model, distillation and export.

They live beside the script and not in the installed package: training is done once, by whoever wants
another small model, and must not add a module or a dependency to the engine.
"""
