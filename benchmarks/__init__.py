"""Speed, memory and accuracy, measured and printed as tables; freed memory is kept, for both sides of every comparison."""

from torchckn.memory import keep_freed_memory

keep_freed_memory()
