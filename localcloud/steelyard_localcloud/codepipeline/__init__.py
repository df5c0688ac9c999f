"""CodePipeline: executions of a declared pipeline, stage by stage; its builds really run."""
