"""Pure codecs, one per wire contract: request bodies to internal requests, internal answers to response bodies."""
