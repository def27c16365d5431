"""The LightningModules: loss, optimizer, schedule, metrics."""
