"""CloudWatch alarms that look at the right dimensions, at missing data, and at expressions over several metrics."""
