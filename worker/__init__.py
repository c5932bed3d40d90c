"""A Runpod Serverless worker around vLLM: environment in, a model's tokens out."""
