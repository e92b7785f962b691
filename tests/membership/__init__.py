"""Groups that join, die and return during training. Each group is a separate job."""
