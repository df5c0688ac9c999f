"""The stacks of one environment. They compose the constructs of ``steelyard_constructs`` and do nothing else."""
