"""A decision on labelled cases, wherever it is served: its answers, its figures, its report, its gates, its drift."""
