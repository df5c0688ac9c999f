"""Amazon SageMaker AI: models, endpoint configurations, endpoints as real processes, and their invocation."""
