"""The stacks of one environment. They compose the constructs of ``switchyard_constructs`` and do nothing else."""
