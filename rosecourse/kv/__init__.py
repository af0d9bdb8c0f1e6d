"""The paged KV cache: blocks, the prefix cache, staging buffers for tables, and books that no interrupt can split."""
