"""AdaptDel+: how much is kept at each length."""
