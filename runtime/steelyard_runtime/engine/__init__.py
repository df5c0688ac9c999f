"""The engine: one model, one thread, contexts for decisions and for chats. Only ``llama`` imports llama_cpp."""
