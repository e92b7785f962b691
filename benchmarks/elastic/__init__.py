"""Groups that come and go under a storm of kills, and the same by restarts of the whole job."""
